"""What must be pickled on the way to a worker process or back, checked before it is lost there.

A forked worker has all that its parent had. A spawned one, or one of a fork server, is a new Python
that imports the main module and unpickles what it is to run; where it cannot, it dies before it can
say a word. A worker of a cluster was there before and imports no main module, so it is sent what
that defines with the rest.
"""

from __future__ import annotations

import ast
import io
import os
import pickle
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

__all__ = ["check_picklable", "picklable_error", "pickled_by_value", "sendable_error"]

ADVICE = (
    "use mp_context='fork' on the CPU, run the chains in this process, or move it into a module"
)


def check_picklable(values: Mapping[str, object]) -> None:
    """Check that a worker that starts anew can be sent some values.

    Raises:
        RuntimeError: If one cannot be pickled, or refers to a class or function that lives in a
            ``__main__`` without a file (a notebook, an interactive session), or behind the guard of
            one with a file; names it.
    """
    main = _read_main()
    for name, value in values.items():
        pickler = _Pickler(io.BytesIO(), main)
        try:
            pickler.dump(value)
        except Exception as error:
            # A lambda of a session cannot be pickled either, but that it is one says more
            if not pickler.missing:
                raise RuntimeError(
                    f"{name} must be something that a spawned worker can be sent, "
                    f"got {type(value).__name__}, which cannot be pickled ({error}): {ADVICE}"
                ) from error
        if pickler.missing:
            raise RuntimeError(
                f"{name} needs {pickler.missing[0]!r}, which is defined {main.where}, "
                f"where a spawned worker cannot find it: {ADVICE}"
            )


def pickled_by_value(value: object, named: Mapping[str, object]) -> bytes:
    """Pickle something with the functions and classes that it needs of the main module.

    Args:
        value: What is pickled.
        named: Its parts, by the names that users have for them.

    Raises:
        RuntimeError: If it cannot be pickled; names the part that cannot.
    """
    import cloudpickle  # type: ignore[import-untyped]

    try:
        pickled: bytes = cloudpickle.dumps(value)
    except Exception as whole:
        for name, part in named.items():
            try:
                cloudpickle.dumps(part)
            except Exception as error:
                raise RuntimeError(
                    f"{name} must be something that a worker of the cluster can be sent, got "
                    f"{type(part).__name__}, which cannot be pickled ({error})"
                ) from error
        raise RuntimeError(f"what the workers share cannot be pickled ({whole})") from whole
    return pickled


def sendable_error(error: BaseException, where: str) -> BaseException:
    """Return an error that is being handled as another process can read it, with its traceback.

    Args:
        error: The error.
        where: Where it was raised, in words.
    """
    error.add_note(f"In {where}:\n{traceback.format_exc()}")
    # The traceback itself is sent nowhere, and would keep what its frames hold in memory
    return picklable_error(error).with_traceback(None)


def picklable_error(error: BaseException) -> BaseException:
    """Return an error that another process can read: this one, or its words in a RuntimeError.

    An exception whose class wants other arguments than its text cannot be put together again, and
    one that holds a lambda or an open file cannot be taken apart.

    Example:
        >>> picklable_error(KeyError("y"))
        KeyError('y')
        >>> class SensorError(Exception):
        ...     def __init__(self, sensor, code):
        ...         super().__init__(f"sensor {sensor} says {code}")
        >>> str(picklable_error(SensorError("left", 3))).endswith("SensorError: sensor left says 3")
        True
    """
    try:
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    except Exception:  # whatever its class does to stop it
        pass
    kind = type(error)
    words = RuntimeError(f"{kind.__module__}.{kind.__qualname__}: {error}")
    for note in getattr(error, "__notes__", ()):
        words.add_note(str(note))
    return words


class _Main(NamedTuple):
    """Say which names of the main module a worker that imports it would not find.

    Attributes:
        guarded: Functions and classes that its file defines behind the guard alone; None if it has
            no file, so that nothing of it is found.
        where: Where the missing ones are defined.
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


class _Pickler(pickle.Pickler):
    """Pickle something to see what of it a new process could not find; tensors are left out."""

    def __init__(self, file: io.BytesIO, main: _Main) -> None:
        super().__init__(file)
        self.missing: list[str] = []
        self._main = main

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return int, ()
        if getattr(value, "__module__", None) == "__main__":
            name = getattr(value, "__name__", type(value).__name__)
            if self._main.guarded is None or name in self._main.guarded:
                self.missing.append(name)
        return NotImplemented


def _guarded_names(file: str) -> set[str]:
    """Find functions and classes of a script that it defines behind its guard only."""
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return set()
    behind, before = set[str](), set[str]()
    for statement in tree.body:
        is_guard = isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
        (behind if is_guard else before).update(
            node.name
            for node in ast.walk(statement)
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        )
    return behind - before
