"""Find the text of every error, warning and note that the package's source can raise."""

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
    module = _Module(ast.parse(source))
    scopes: list[ast.AST] = [module.tree, *module.functions.values()]
    for node in sorted(ast.walk(module.tree), key=lambda node: getattr(node, "lineno", 0)):
        call = _raising_call(node)
        if call is None:
            continue
        inside = [scope for scope in scopes if node in ast.walk(scope)]
        scope = min(inside, key=lambda scope: sum(1 for _ in ast.walk(scope)))
        kind = ast.unparse(call.func)
        if kind == "warnings.warn":
            kind = ast.unparse(call.args[1])
        elif kind.endswith(".add_note"):
            kind = "note"
        text = "".join(module.pieces(call.args[0], scope)) if call.args else ""
        text = " ".join(text.split())
        while GAP * 2 in text:
            text = text.replace(GAP * 2, GAP)
        if text != GAP:  # a note that is handed on
            yield Message(kind, text, f"{name}:{call.lineno}")


def _raising_call(node: ast.AST) -> ast.Call | None:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        # A function, not a class, hands on an error that came from elsewhere
        return node.exc if ast.unparse(node.exc.func)[0].isupper() else None
    if isinstance(node, ast.Call):
        function = ast.unparse(node.func)
        is_message = function == "warnings.warn" or function.endswith(".add_note")
        return node if is_message else None
    return None


class _Module:
    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        self.functions = {function.name: function for function in functions}

    def pieces(self, node: ast.expr, scope: ast.AST) -> Iterator[str]:
        """Yield the fixed parts of a text and a gap for each value in it.

        A constant of the module stands for its text, another name for the text that the function
        last gave it above, and a call of one of the module's functions for the text that it
        returns; everything else is a value.
        """
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=values):
                for value in values:
                    yield from self.pieces(value, scope)
            case ast.FormattedValue(value=ast.Name() | ast.Call() as value, conversion=-1):
                yield from self.pieces(value, scope)
            case ast.Name(id=name):
                given = self._given(name, self.tree if name.isupper() else scope, node.lineno)
                yield from self.pieces(given, scope) if given else GAP
            case ast.Call(func=ast.Name(id=name)) if name in self.functions:
                function = self.functions[name]
                returned = [line.value for line in ast.walk(function) if type(line) is ast.Return]
                is_one_text = len(returned) == 1 and isinstance(returned[0], ast.JoinedStr)
                yield from self.pieces(returned[0], function) if is_one_text else GAP
            case _:
                yield GAP

    def _given(self, name: str, scope: ast.AST, before: int) -> ast.expr | None:
        """Return the text that a name was last given above a line."""
        lines = [
            line
            for line in ast.walk(scope)
            if isinstance(line, ast.Assign)
            and any(isinstance(to, ast.Name) and to.id == name for to in line.targets)
            and line.lineno < before
        ]
        last = max(lines, key=lambda line: line.lineno, default=None)
        is_text = last is not None and isinstance(last.value, ast.JoinedStr | ast.Constant)
        return last.value if is_text else None
