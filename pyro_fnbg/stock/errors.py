"""Errors that come home from a worker process: they must survive being pickled."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pyro_fnbg.stock.seeds import worker_chain

__all__ = ["errors_come_home", "portable"]

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def portable(error: BaseException) -> BaseException:
    """Return an error that another process can read: this one, or its words in a RuntimeError.

    An exception whose class wants other arguments than its text cannot be put together again, and
    one that holds a lambda or an open file cannot be taken apart.

    Example:
        >>> portable(KeyError("y"))
        KeyError('y')
        >>> class SensorError(Exception):
        ...     def __init__(self, sensor, code):
        ...         super().__init__(f"sensor {sensor} says {code}")
        >>> str(portable(SensorError("left", 3))).endswith("SensorError: sensor left says 3")
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


def errors_come_home(
    function: Callable[Parameters, Returned],
) -> Callable[Parameters, Returned]:
    """Make what a function raises in a worker of Pyro's ``MCMC`` fit to be sent home.

    Pyro sends exceptions as they are, and waits for ever for one that cannot be pickled and for a
    worker that exits.
    """

    @functools.wraps(function)
    def guarded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if worker_chain() is None:
                raise
            raise portable(error) from None
        except SystemExit as error:
            if worker_chain() is None:
                raise
            raise RuntimeError(f"the model called for an exit: SystemExit({error})") from None

    return guarded
