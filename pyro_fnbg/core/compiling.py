"""What is compiled: its machine code is kept on disk where there is a place, and users are told."""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher

__all__ = ["kept_on_disk", "warn_if_not_kept", "while_compiling"]

# Seconds after which that is said; what is on disk is read in less
PATIENCE = 2.0

Function = TypeVar("Function", bound=Callable[..., Any])
_FunctionCache: Any = FunctionCache  # Numba has no types


class _Cache(_FunctionCache):  # type: ignore[misc]
    """Numba's cache of a function, where a file that cannot be read or written is no error."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except OSError:
            return None
        except Exception:
            # Numba reads an index before it looks whether it is of this source: it may be of
            # another version of the package, whose classes are gone
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _warn_once(f"{self.cache_path} does not take what was compiled ({error})")


def kept_on_disk(function: Function) -> Function:
    """Let later processes find what Numba compiles a function to, if any folder can be written.

    Numba's own ``cache=True`` is an error at import where none can, and on a full disk.

    Args:
        function: What ``numba.njit`` returns.

    Example:
        >>> import numba
        >>> double = kept_on_disk(numba.njit(lambda x: 2 * x))
        >>> double(4)
        8
    """
    if isinstance(function, Dispatcher):  # Numba, switched off, returns the function of Python
        dispatcher: Any = function
        with suppress(RuntimeError):  # no folder found
            dispatcher._cache = _Cache(dispatcher.py_func)
    return function


def warn_if_not_kept(function: Callable[..., Any]) -> None:
    """Warn, once a process, that a function is compiled by each process anew."""
    if isinstance(function, Dispatcher) and function.stats.cache_path is None:
        _warn_once("neither the package's folder nor the user's cache can be written to")


@contextmanager
def while_compiling(what: str) -> Iterator[None]:
    """Say on the standard error stream what is being compiled, where that takes long."""
    words = f"pyro_fnbg: compiling {what}"
    timer = threading.Timer(PATIENCE, print, [words], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@functools.cache
def _warn_once(why: str) -> None:
    warnings.warn(
        f"pyro_fnbg has to compile anew in every process, for about 20 s, because {why}: set the "
        "environment variable NUMBA_CACHE_DIR to a folder that can be written to",
        UserWarning,
        stacklevel=2,
    )
