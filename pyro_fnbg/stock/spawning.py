"""What a worker that starts anew must find: checked before it starts, since it would die unseen.

A forked worker has all that its parent had. A spawned one, or one of a fork server, is a new Python
that imports the main module and unpickles what it is to run. Where it cannot, it dies before it
can say a word, and Pyro's ``MCMC`` waits for it for ever.
"""

from __future__ import annotations

import ast
import io
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from multiprocessing import context as multiprocessing_context
from multiprocessing import reduction
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor

__all__ = ["arguments", "check_main_guard", "check_spawned", "check_travels", "is_being_spawned"]

ADVICE = (
    "use mp_context='fork' on the CPU, run the chains in this process, or move it into a module"
)


def is_being_spawned() -> bool:
    """Whether this process is pickling something for a worker that it spawns."""
    return multiprocessing_context.get_spawning_popen() is not None


def check_spawned(parts: Mapping[str, object]) -> None:
    """Check, while a kernel is pickled for a worker, that the worker will come to its chain.

    Pyro's ``MCMC`` shows a kernel neither the hook nor the model's arguments: they are read off
    the process that is being pickled, further up on the stack.

    Args:
        parts: The kernel's own arguments, by name.

    Raises:
        RuntimeError: See ``check_main_guard`` and ``check_travels``.
    """
    check_main_guard()
    check_travels(parts)
    for frame in _stack():
        if frame.f_code is reduction.dump.__code__:
            process = frame.f_locals["obj"]
            worker: Any = getattr(getattr(process, "_target", None), "__self__", None)
            if hasattr(worker, "hook"):
                hook = {"hook_fn": worker.hook}
                check_travels(hook | arguments(process._args, process._kwargs))


def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, object]:
    """Name the model's arguments for ``check_travels``."""
    named: dict[str, object] = {f"argument {place} of run": arg for place, arg in enumerate(args)}
    return named | {f"argument {name!r} of run": arg for name, arg in kwargs.items()}


def check_travels(values: Mapping[str, object]) -> None:
    """Check that a worker that starts anew can be sent some values.

    Raises:
        RuntimeError: If one cannot be pickled, or refers to a class or function that lives in a
            ``__main__`` without a file (a notebook, an interactive session), or behind the guard of
            one with a file; names it.
    """
    main = _read_main()
    for name, value in values.items():
        found = _Finder(io.BytesIO(), main)
        try:
            found.dump(value)
        except Exception as error:
            # A lambda of a session cannot be pickled either, but that it is one says more
            if not found.lost:
                raise RuntimeError(
                    f"{name} must be something that a spawned worker can be sent, "
                    f"got {type(value).__name__}, which cannot be pickled ({error}): {ADVICE}"
                ) from error
        if found.lost:
            raise RuntimeError(
                f"{name} needs {found.lost[0]!r}, which is defined {main.where}, "
                f"where a spawned worker cannot find it: {ADVICE}"
            )


class _Main(NamedTuple):
    """Say which names of the main module a worker that imports it would not find.

    Attributes:
        guarded: Functions and classes that its file defines behind the guard alone; None if it has
            no file, so that nothing of it is found.
        where: Where the lost ones are defined.
    """

    guarded: set[str] | None
    where: str


def _read_main() -> _Main:
    main = sys.modules["__main__"]
    # Python calls the file of a piped script "<stdin>"
    path = getattr(main, "__file__", None) or ""
    if getattr(main, "__spec__", None) is None and not os.path.isfile(path):
        return _Main(None, "in an interactive session")
    return _Main(_guarded_names(path), "under if __name__ == '__main__':")


class _Finder(pickle.Pickler):
    """Pickle something to see what of it a new process could not find; tensors are left out."""

    def __init__(self, file: io.BytesIO, main: _Main) -> None:
        super().__init__(file)
        self.lost: list[str] = []
        self._main = main

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return int, ()
        if getattr(value, "__module__", None) == "__main__":
            name = getattr(value, "__name__", type(value).__name__)
            if self._main.guarded is None or name in self._main.guarded:
                self.lost.append(name)
        return NotImplemented


def _guarded_names(file: str) -> set[str]:
    """Find functions and classes of a script that it defines behind its guard only."""
    tree = _parsed(file)
    behind, before = set[str](), set[str]()
    for statement in tree.body if tree else []:
        is_guard = isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
        (behind if is_guard else before).update(
            node.name
            for node in ast.walk(statement)
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        )
    return behind - before


def _parsed(file: str) -> ast.Module | None:
    try:
        with open(file, "rb") as source:
            return ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return None


def check_main_guard() -> None:
    """Check that importing the main module anew does not come to this very run again.

    Raises:
        RuntimeError: If the run was started by a statement of a script that stands under no ``if``.
    """
    main = vars(sys.modules["__main__"])
    for frame in _stack():
        if frame.f_globals is not main or frame.f_code.co_name != "<module>":
            continue
        file, line = frame.f_code.co_filename, frame.f_lineno
        tree = _parsed(file)
        if tree is None:
            return  # no script: a notebook, say, of which a worker imports nothing
        is_guarded = any(
            isinstance(node, (ast.If, ast.Match)) and node.lineno <= line <= (node.end_lineno or 0)
            for node in ast.walk(tree)
        )
        if not is_guarded:
            raise RuntimeError(
                f"a spawned worker imports {file} and would come to line {line}, which starts this "
                "run, again: put that line under if __name__ == '__main__':, or use "
                "mp_context='fork' on the CPU"
            )
        return


def _stack() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
