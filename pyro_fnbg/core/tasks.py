"""Tasks that run elsewhere: on threads of this process, or on the workers of a Dask cluster.

A task is a function of what all tasks share and of an item of its own, and depends on nothing else.
So one whose worker died runs again on another, with the same result.
"""

from __future__ import annotations

import pickle
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch

from pyro_fnbg.core.checks import shown
from pyro_fnbg.core.pickling import pickled_by_value, sendable_error

__all__ = [
    "Workers",
    "as_they_end",
    "check_client",
    "in_place",
    "on_cluster",
    "on_threads",
    "ordered",
    "torch_threads",
]

Item = TypeVar("Item")
Result = TypeVar("Result")

# Tasks in one process run one after the other: Pyro's handlers and parameters, and torch's default
# types, are the same for all of its threads
_ALONE = threading.Lock()


class Workers(ABC):
    """Run functions elsewhere."""

    @abstractmethod
    def submit(self, function: Callable[[Any, Item], Result], item: Item) -> Future[Any]:
        """Have ``function(shared, item)`` run; it gets what the workers share."""

    @abstractmethod
    def result(self, future: Future[Any]) -> Any:
        """Wait for what a function returns, or raise what it raised.

        Raises:
            RuntimeError: If workers died of it one after the other, or the cluster is gone.
        """


def ordered(
    workers: Workers, function: Callable[[Any, Item], Result], items: Iterable[Item], ahead: int
) -> Generator[Result]:
    """Yield ``function(shared, item)`` for all items, in their order.

    Items are read as they are needed: so many tasks are submitted ahead of the one whose result is
    waited for, and no more.

    Example:
        >>> import operator
        >>> with on_threads(2, 10) as workers:
        ...     list(ordered(workers, operator.mul, [3, 1, 2], ahead=2))
        [30, 10, 20]
    """
    pending: deque[Future[Any]] = deque()
    for item in items:
        pending.append(workers.submit(function, item))
        if len(pending) > ahead:
            yield workers.result(pending.popleft())
    while pending:
        yield workers.result(pending.popleft())


def as_they_end(
    workers: Workers,
    function: Callable[[Any, Item], Result],
    items: Iterable[Item],
    following: Callable[[Result], Item | None],
) -> Generator[Result]:
    """Yield ``function(shared, item)`` for all items, and for those that follow, as they end.

    Args:
        workers: What runs them.
        function: The tasks' function.
        items: The first items.
        following: From a result to the item that follows, if any: it is submitted before the result
            is yielded.

    Example:
        >>> import operator
        >>> with on_threads(1, 2) as workers:
        ...     list(as_they_end(workers, operator.mul, [3], lambda n: n if n < 20 else None))
        [6, 12, 24]
    """
    pending = [workers.submit(function, item) for item in items]
    while pending:
        done, _ = wait(pending, return_when=FIRST_COMPLETED)
        # In the order of submission, or an item's followers could fall behind lap by lap
        for future in [one for one in pending if one in done]:
            pending.remove(future)
            result = workers.result(future)
            item = following(result)
            if item is not None:
                pending.append(workers.submit(function, item))
            yield result


@contextmanager
def torch_threads(count: int) -> Generator[int]:
    """Let torch use so many threads; the value is how many it used before.

    One, also as a decorator, for what is done between sweeps: after each operation that several
    have shared, torch's threads look out for more work for some milliseconds, on cores that the
    sweeps need.
    """
    kept = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield kept
    finally:
        torch.set_num_threads(kept)


@contextmanager
def on_threads(count: int, shared: Any, each: int = 1) -> Generator[Workers]:
    """Run functions on so many threads; at the end, tasks that have not started never do.

    Each uses one of torch's threads, unless told otherwise: those that wait for each other at the
    end of every operation lose most of their time where a core is busy with something else.
    """
    num_threads = torch.get_num_threads()
    with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(each,)) as pool:
        try:
            yield _Threads(pool, shared)
        finally:
            pool.shutdown(cancel_futures=True)
            # The number is a thread's own, but the last that was set is also that of new threads
            torch.set_num_threads(num_threads)


@contextmanager
def in_place(shared: Any) -> Generator[Workers]:
    """Run functions in this thread, each when it is submitted."""
    yield _Here(shared)


class _Threads(Workers):
    def __init__(self, pool: Executor, shared: Any) -> None:
        self._pool, self._shared = pool, shared

    def submit(self, function: Callable[[Any, Item], Result], item: Item) -> Future[Any]:
        return self._pool.submit(function, self._shared, item)

    def result(self, future: Future[Any]) -> Any:
        return future.result()


class _Here(Workers):
    def __init__(self, shared: Any) -> None:
        self._shared = shared

    def submit(self, function: Callable[[Any, Item], Result], item: Item) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(self._shared, item))
        return future

    def result(self, future: Future[Any]) -> Any:
        return future.result()


# --- A Dask cluster ------------------------------------------------------------------------------


def check_client(client: object) -> None:
    """Check that something is a Dask client whose workers are processes.

    Raises:
        TypeError: If it is no client.
        ValueError: If it is an asynchronous one or not connected, or its workers are threads of
            this process.
    """
    # Where nobody has imported the package there is no client of it either
    distributed: Any = sys.modules.get("distributed")
    if distributed is None or not isinstance(client, distributed.Client):
        raise TypeError(f"client must be a distributed.Client, got {shown(client)}")
    if client.asynchronous:
        raise ValueError("client must be a synchronous distributed.Client, got an asynchronous one")
    if client.status != "running":
        raise ValueError(
            f"client must be connected to a scheduler, got one that is {client.status}"
        )
    address = client.scheduler_info()["address"]
    if address.startswith("inproc:"):
        raise ValueError(
            "client must have workers that are processes, got one whose workers are threads of "
            f"this process ({address}): start the cluster without processes=False"
        )


@contextmanager
def on_cluster(client: Any, shared: Any, named: Mapping[str, object]) -> Generator[Workers]:
    """Run functions on the workers of a Dask cluster; at the end, what is left is cancelled.

    What they share is sent to each worker, and unpickled there, once for as long as the worker
    holds it: what a task keeps on it is there for the next task. Where a worker has had no task for
    a while, Dask's memory manager may take it back, and send it again later. The tasks of one
    process take turns, each with one torch thread.

    Args:
        client: The ``distributed.Client``.
        shared: What the tasks share.
        named: The parts of it that users know, by what they call them.

    Raises:
        RuntimeError: If it cannot be pickled; names the part.
    """
    import dask

    pickled = pickled_by_value(shared, named)
    executor = client.get_executor(pure=False)
    # Dask warns of large arguments, which it would send with each task; this is sent once
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": 2**62}):
        # A task itself: it runs again where all workers died that had its result
        holder = client.submit(_Shared, pickled, pure=False)
    try:
        yield _Cluster(executor, holder)
    finally:
        if client.status == "running":  # one that was closed has let go of its tasks
            executor.shutdown(wait=False)
            holder.release()


class _Shared:
    """Hold on a worker what all tasks share.

    Dask takes its size for a few bytes, and so sends it to any worker that is free.
    """

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    @cached_property
    def value(self) -> Any:
        return pickle.loads(self._pickled)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Shared, (self._pickled,)


class _Raised(NamedTuple):
    """Bring home what a task raised, also where Dask would take it for its own, as an exit."""

    error: BaseException


class _Cluster(Workers):
    def __init__(self, executor: Executor, holder: Any) -> None:
        self._executor, self._holder = executor, holder

    def submit(self, function: Callable[[Any, Item], Result], item: Item) -> Future[Any]:
        return self._executor.submit(_run, function, self._holder, item)

    def result(self, future: Future[Any]) -> Any:
        from distributed import KilledWorker

        try:
            result = future.result()
        except KilledWorker as error:
            raise RuntimeError(
                f"{error.allowed_failures + 1} workers died without a word at the same task, one "
                "after the other, as they do that are killed or run out of memory: look into the "
                f"workers' logs; the last of them was {error.last_worker.address}"
            ) from error
        except CancelledError as error:
            raise RuntimeError(
                "the cluster let go of a task: it was closed or restarted, or this client was"
            ) from error
        if isinstance(result, _Raised):
            raise result.error
        return result


def _run(function: Callable[[Any, Item], Result], holder: _Shared, item: Item) -> Result | _Raised:
    """Run a task on a worker of a cluster."""
    with _ALONE:
        # As Dask itself has it for the workers that it starts: there is a worker for every core
        torch.set_num_threads(1)
        try:
            return function(holder.value, item)
        except BaseException as error:
            return _Raised(sendable_error(error, "a worker of the cluster"))
