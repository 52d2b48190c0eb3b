"""Chains in processes of their own, for models that Python itself has to run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_fnbg.chains.keeping import DrawKeeper
from pyro_fnbg.chains.report import ChainReport
from pyro_fnbg.chains.running import run_chains, start_chains
from pyro_fnbg.chains.setup import Run
from pyro_fnbg.config import Config
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.core.pickling import check_picklable, sendable_error
from pyro_fnbg.drivers.collect import Collector
from pyro_fnbg.drivers.draws import Draws
from pyro_fnbg.drivers.interrupts import SAME_PRESS
from pyro_fnbg.kernel import FNBG
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.stores.archive import Archive
from pyro_fnbg.stores.runs import StoredRun

__all__ = ["START_METHODS", "ChainDone", "Task", "run_in_processes"]

START_METHODS = tuple(multiprocessing.get_all_start_methods())

# Seconds between two looks at how far the workers are
PATIENCE = 0.1
# Seconds in which a worker that is told to end sends home what it has
GRACE = 10.0


class Task(NamedTuple):
    """Hold what the chains of a run have in common.

    Attributes:
        kernel: The kernel that hooks are given.
        config: The arguments of ``FNBG``.
        warmup_steps: Sweeps of warmup.
        num_draws: Draws of each chain.
        save_params: Sites whose draws are kept; None for all.
        hook_fn: The user's hook.
        bound: The model and what it is called with.
        store: Where draws go that are not sent back; None if all are.
    """

    kernel: FNBG
    config: Config
    warmup_steps: int
    num_draws: int
    save_params: Sequence[str] | None
    hook_fn: Callable[..., Any] | None
    bound: BoundModel
    store: Path | None


class ChainDone(NamedTuple):
    """Return one chain from a worker.

    Attributes:
        chain: Its number.
        values: Its constrained draws by site.
        num_draws: How many there are.
        report: What is told of it; None for a chain without draws.
        error: What stopped it, if anything did.
    """

    chain: int
    values: Mapping[str, NDArray[Any]]
    num_draws: int
    report: ChainReport | None
    error: BaseException | None


class _Shared(NamedTuple):
    """Hold memory that all processes see; each place has one writer, so nothing locks.

    Attributes:
        progress: By chain, sweeps so far and then the blocks' acceptance rates.
        stop: Set once the workers are to return what they have.
    """

    progress: Any
    stop: Any


# What a worker was given when it started
_task: Task
_shared: _Shared
# Number of the process that started it
_parent: int


def run_in_processes(
    task: Task,
    keys: Sequence[ChainKey],
    initial_params: Sequence[Mapping[str, Tensor] | None],
    num_blocks: int,
    mp_context: str | None,
    stops: Callable[[], bool],
    show: Callable[[int, int, Sequence[float]], None],
) -> Generator[ChainDone]:
    """Run each chain in a worker, as many at a time as there are cores, unless it ``stops``.

    On Ctrl-C the workers stop and return their draws so far before it goes on to the caller;
    another one, a second later or more, does not wait for them.

    Raises:
        RuntimeError: If a worker dies without a word.
    """
    context: Any = multiprocessing.get_context(mp_context or START_METHODS[0])
    if context.get_start_method() != "fork":
        check_picklable({"hook_fn": task.hook_fn} | task.bound.arguments_of_run())
    row = 1 + num_blocks
    shared = _Shared(context.RawArray("d", len(keys) * row), context.RawValue("b", 0))
    defaults = torch.get_default_dtype(), torch.get_default_device()
    workers = min(len(keys), os.cpu_count() or 1)
    pool = ProcessPoolExecutor(workers, context, _begin, (task, shared, *defaults))
    try:
        pending: set[Future[ChainDone]] = {
            pool.submit(_run_chain, chain, key, params, f" [{chain}]" if len(keys) > 1 else "")
            for chain, (key, params) in enumerate(zip(keys, initial_params, strict=True))
        }
        interrupt: KeyboardInterrupt | None = None
        deadline = 0.0
        while pending:
            shared.stop.value |= stops()
            try:
                done, pending = wait(pending, PATIENCE, FIRST_COMPLETED)
                table = np.frombuffer(shared.progress).reshape(len(keys), row)
                for chain in np.flatnonzero(table[:, 0]):
                    show(int(chain), int(table[chain, 0]), table[chain, 1:].tolist())
                # What was returned goes first: it is not lost with a worker that died meanwhile
                for future in sorted(done, key=lambda one: one.exception() is not None):
                    chain_done = future.result()
                    if chain_done.error is not None:
                        shared.stop.value = 1
                    yield chain_done
            except KeyboardInterrupt as error:
                is_second = interrupt is not None and time.monotonic() > deadline
                if is_second or stops():
                    raise
                interrupt, shared.stop.value = error, 1
                deadline = time.monotonic() + SAME_PRESS
        if interrupt is not None:
            raise interrupt
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a worker process died without a word, as one does that is killed or runs out of "
            "memory, or that is spawned from a script whose run stands under no if __name__ == "
            "'__main__': the draws of chains that had ended are kept, those of others are lost"
        ) from error
    finally:
        shared.stop.value = 1
        pool.shutdown(cancel_futures=True)


def _begin(task: Task, shared: _Shared, dtype: torch.dtype, device: torch.device) -> None:
    """Set a worker up."""
    global _task, _shared, _parent
    _task, _shared, _parent = task, shared, os.getppid()
    # Ctrl-C reaches every process of the terminal; the parent tells the workers what to do
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_soon)
    # Torch's threads do not survive a fork: a worker that used two would wait for ever
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)


def _is_stopped() -> bool:
    """Whether the parent wants no more sweeps, or is not there any more."""
    return bool(_shared.stop.value) or _is_orphan()


def _is_orphan() -> bool:
    return os.getppid() != _parent


def _claimed(store: Path | None, chain: int) -> AbstractContextManager[None]:
    """Have a chain of a store: a worker may outlive the parent, which has the store, a while."""
    return nullcontext() if store is None else Archive(store).locked(f".run-{chain}.lock")


@contextmanager
def _closing(draws: DrawKeeper, collector: Collector) -> Generator[None]:
    """Keep the draws whatever ends the chain."""
    try:
        yield
    finally:
        draws.close(collector.chains)


def _end_soon(*_: object) -> None:
    """Return the draws so far after SIGTERM, which schedulers send to all processes of a job.

    Where nobody is there to take them, the process ends all the same.
    """
    _shared.stop.value = 1
    timer = threading.Timer(GRACE, os._exit, [1])
    timer.daemon = True
    timer.start()


def _run_chain(
    chain: int, key: ChainKey, initial_params: Mapping[str, Tensor] | None, suffix: str
) -> ChainDone:
    """Run one chain in a worker."""
    task = _task
    # For the user's hook alone: the chain's own noise is in its key
    pyro.set_rng_seed((key.seed + chain) % 2**32)
    error: BaseException | None = None
    with pyro.validation_enabled(False):
        try:
            problem, chains = start_chains(
                task.config, task.warmup_steps, task.bound, [initial_params], [key]
            )
        except BaseException as raised:
            return ChainDone(
                chain, {}, 0, None, sendable_error(raised, f"the worker of chain {chain}")
            )
        draws: DrawKeeper
        if task.store is None:
            draws = Draws(problem.sites, task.save_params, 1, task.num_draws)
        else:
            stored = StoredRun.open(task.store)
            chains = [stored.chain(problem, chain, chains[0])]
            draws = stored.draws(problem, {chain: chains[0]}, task.num_draws)
        collector = Collector(task.kernel, problem, chains, draws, task.hook_fn, [suffix])
        task.kernel.show(Run(problem, chains[0]), collector.statistics[0])
        num_sweeps = task.warmup_steps + task.num_draws * task.config.thin
        try:
            with (
                _claimed(task.store, chain),
                _closing(draws, collector),
                closing(run_chains(problem, chains, num_sweeps, _is_stopped)) as pieces,
            ):
                for piece in pieces:
                    collector.take(piece)
                    now = piece.after
                    numbers = [now.sweeps, *problem.phase(now).rates.tolist()]
                    row = len(numbers)
                    _shared.progress[chain * row : (chain + 1) * row] = numbers
        except BaseException as raised:
            # Whatever it is, the draws so far are returned with it
            error = sendable_error(raised, f"the worker of chain {chain}")
        count = problem.num_draws(collector.chains[0])
        report = collector.report(0) if count else None
    if _is_orphan():  # nobody takes what it returns, nor tells it to end
        os._exit(1)
    in_memory = draws.of_chain(0) if isinstance(draws, Draws) else {}
    values = {name: value.cpu().numpy() for name, value in in_memory.items()}
    return ChainDone(chain, values, count, report, error)
