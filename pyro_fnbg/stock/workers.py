"""The worker processes of Pyro's ``MCMC``: what they are sent, and what they send back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from multiprocessing import context as multiprocessing_context
from typing import ParamSpec, TypeVar

from pyro_fnbg.core.pickling import picklable_error
from pyro_fnbg.stock.seeds import worker_chain

__all__ = ["is_being_spawned", "raising_picklable_errors"]

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def is_being_spawned() -> bool:
    """Whether this process is pickling something for a worker that it spawns."""
    return multiprocessing_context.get_spawning_popen() is not None


def raising_picklable_errors(
    function: Callable[Parameters, Returned],
) -> Callable[Parameters, Returned]:
    """Make what a function raises in a worker fit to be pickled.

    Pyro pickles exceptions as they are, and waits for ever for one that cannot be pickled and for a
    worker that exits.
    """

    @functools.wraps(function)
    def guarded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except Exception as raised:
            if worker_chain() is None:
                raise
            error = picklable_error(raised)
        except SystemExit as raised:
            if worker_chain() is None:
                raise
            error = RuntimeError(f"the model called for an exit: SystemExit({raised})")
        # Not in a handler: where Dask was imported, an error is pickled with the one before it
        raise error

    return guarded
