"""Find the text of every error and warning that the package's source can raise."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GAP = "…"


class Message(NamedTuple):
    """One raise statement or warning: what kind, its text with gaps for values, and where."""

    kind: str
    text: str
    place: str


def messages_of(package: Path) -> list[Message]:
    """Return the messages of all modules, in the order of the source."""
    return [
        message
        for path in sorted(package.rglob("*.py"))
        for message in _messages_of_module(path.read_text("utf-8"), path.name)
    ]


def _messages_of_module(source: str, name: str) -> Iterator[Message]:
    tree = ast.parse(source)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    scopes: list[ast.AST] = [tree, *functions.values()]
    for node in sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0)):
        call = _raising_call(node)
        if call is None:
            continue
        inside = [scope for scope in scopes if node in ast.walk(scope)]
        scope = min(inside, key=lambda scope: sum(1 for _ in ast.walk(scope)))
        kind = ast.unparse(call.func)
        if kind == "warnings.warn":
            kind = ast.unparse(call.args[1])
        text = "".join(_pieces(call.args[0], scope, functions)) if call.args else ""
        while GAP * 2 in text:
            text = text.replace(GAP * 2, GAP)
        yield Message(kind, text, f"{name}:{call.lineno}")


def _raising_call(node: ast.AST) -> ast.Call | None:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return node.exc
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
        return node
    return None


def _pieces(node: ast.expr, scope: ast.AST, functions: dict[str, ast.FunctionDef]) -> Iterator[str]:
    """Yield the fixed parts of a text and a gap for each value in it.

    A name stands for the text that the function last gave it above, a call of one of the module's
    functions for the text that it returns; everything else is a value.
    """
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            for value in values:
                yield from _pieces(value, scope, functions)
        case ast.FormattedValue(
            value=ast.Name() | ast.Call() as value, conversion=-1, format_spec=None
        ):
            yield from _pieces(value, scope, functions)
        case ast.Name(id=name):
            given = [
                line
                for line in ast.walk(scope)
                if isinstance(line, ast.Assign)
                and any(isinstance(to, ast.Name) and to.id == name for to in line.targets)
                and line.lineno < node.lineno
            ]
            last = max(given, key=lambda line: line.lineno, default=None)
            is_text = last is not None and isinstance(last.value, ast.JoinedStr | ast.Constant)
            yield from _pieces(last.value, scope, functions) if last and is_text else GAP
        case ast.Call(func=ast.Name(id=name)) if name in functions:
            returned = [
                line.value
                for line in ast.walk(functions[name])
                if isinstance(line, ast.Return) and line.value is not None
            ]
            is_one_text = len(returned) == 1 and isinstance(returned[0], ast.JoinedStr)
            yield from _pieces(returned[0], functions[name], functions) if is_one_text else GAP
        case _:
            yield GAP
