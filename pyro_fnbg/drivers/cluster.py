"""Chains on the workers of a Dask cluster, a stretch of sweeps a task.

A chain's state and the problem are all that its next sweeps need, so a stretch whose worker died is
made again by another, with the same draws. Only what is kept of the sweeps comes home.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor

from pyro_fnbg.chains.running import Piece, run_chain
from pyro_fnbg.chains.setup import start_run
from pyro_fnbg.chains.statistics import DrawStatistics
from pyro_fnbg.config import Config
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.core.pickling import sendable_error
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.core.tasks import Workers, as_they_end, check_client, on_cluster
from pyro_fnbg.engines.base import Problem
from pyro_fnbg.model.bound import BoundModel

__all__ = ["SharedRun", "Stretch", "check_driver_client", "run_on_cluster", "run_stretches"]

# A stretch ends after so many seconds: next to them the way to a worker and back, some hundredths,
# is short; and no more are lost with a worker
ENOUGH_SECONDS = 1.0
# It ends earlier where it holds so many numbers: parameters of draws, or for a hook of all sweeps
MAX_NUMBERS = 2**22


def check_driver_client(client: object, chain_method: str) -> None:
    """Check what a driver is given as a client of a Dask cluster, if anything.

    Raises:
        TypeError: If it is none.
        ValueError: If its workers are no processes, or there is a method for chains at home, too.
    """
    if client is None:
        return
    check_client(client)
    if chain_method != "vectorized":
        raise ValueError(
            f"chain_method must be left out where a client is given: the chains run on its "
            f"workers; got {chain_method!r}"
        )


@dataclass(frozen=True)
class SharedRun:
    """Hold what the chains of a run have in common, as it is sent to the workers.

    Each worker inspects the model for itself: what a problem has besides is not made to be sent.

    Attributes:
        config: The arguments of ``FNBG``.
        warmup_steps: Sweeps of warmup.
        num_sweeps: Sweeps of each chain, warmup included.
        bound: The model and what it is called with.
        initial_params: The first chain's initial values, if any were given.
        key: The first chain's random streams.
        has_hook: Whether a hook at home wants every sweep.
        dtype: Torch's default type at home.
        device: Torch's default device at home.
        params: Pyro's parameters at home.
    """

    config: Config
    warmup_steps: int
    num_sweeps: int
    bound: BoundModel
    initial_params: Mapping[str, Tensor] | None
    key: ChainKey
    has_hook: bool
    dtype: torch.dtype
    device: torch.device
    params: Any

    @cached_property
    def problem(self) -> Problem:
        """What the chains share, found once on each worker."""
        return start_run(
            self.config, self.warmup_steps, self.bound, self.initial_params, self.key
        ).problem

    @contextmanager
    def as_at_home(self) -> Generator[None]:
        """Have torch and Pyro as they are where the run was started."""
        dtype, device = torch.get_default_dtype(), torch.get_default_device()
        torch.set_default_dtype(self.dtype)
        try:
            with (
                # Torch is slower with a default device that was set, even if it is the same
                nullcontext() if device == self.device else self.device,
                pyro.get_param_store().scope(self.params),
                pyro.validation_enabled(False),
            ):
                yield
        finally:
            torch.set_default_dtype(dtype)


class Stretch(NamedTuple):
    """Bring home some sweeps of one chain.

    Attributes:
        number: The chain's number.
        after: Its state after them.
        positions: Unconstrained draws among them, shape ``(D, num_params)``.
        statistics: Of these draws.
        pieces: All of the sweeps, if a hook wants them.
        error: What stopped them early, if anything did.
    """

    number: int
    after: ChainState
    positions: Tensor
    statistics: DrawStatistics
    pieces: Sequence[Piece]
    error: BaseException | None


class _Place(NamedTuple):
    """Say where a chain is."""

    number: int
    chain: ChainState


def run_on_cluster(
    client: Any, run: SharedRun, chains: Sequence[ChainState], stops: Callable[[], bool]
) -> Generator[Stretch]:
    """Run all chains on the workers of a cluster; see ``run_stretches``.

    Raises:
        RuntimeError: If an argument cannot be pickled, or workers die again and again.
    """
    named = vars(run.config) | run.bound.arguments_of_run()
    with on_cluster(client, run, named) as workers:
        yield from run_stretches(workers, run.num_sweeps, chains, stops)


def run_stretches(
    workers: Workers,
    num_sweeps: int,
    chains: Sequence[ChainState],
    stops: Callable[[], bool] = lambda: False,
) -> Generator[Stretch]:
    """Run all chains, stretch by stretch; each goes on from where its last stretch ended.

    Args:
        workers: They share a ``SharedRun``.
        num_sweeps: Sweeps of each chain, warmup and those made included.
        chains: The chains at their start.
        stops: Whether to end early, once the stretches that are being made are done.
    """

    def following(stretch: Stretch) -> _Place | None:
        is_over = stretch.error is not None or stretch.after.sweeps == num_sweeps
        return None if is_over or stops() else _Place(stretch.number, stretch.after)

    places = [
        _Place(number, chain)
        for number, chain in enumerate(chains)
        if chain.sweeps < num_sweeps and not stops()
    ]
    yield from as_they_end(workers, _run_stretch, places, following)


def _run_stretch(run: SharedRun, place: _Place) -> Stretch:
    """Run some sweeps of a chain on a worker."""
    with run.as_at_home():
        problem, (number, after) = run.problem, place
        positions = [after.position.new_empty(0, problem.partition.num_params)]
        statistics = DrawStatistics(problem.partition)
        kept: list[Piece] = []
        num_held, stop = 0, time.monotonic() + ENOUGH_SECONDS
        error: BaseException | None = None
        try:
            for piece in run_chain(problem, number, after, run.num_sweeps):
                _, before, after, record = piece
                if run.has_hook:
                    kept.append(piece)
                    num_held += record.positions.numel()
                elif not problem.is_warming_up(before):
                    statistics.add(record, problem.thin)
                    positions.append(record.positions[problem.thin - 1 :: problem.thin])
                    num_held += positions[-1].numel()
                if num_held >= MAX_NUMBERS or time.monotonic() >= stop:
                    break
        except BaseException as raised:
            # Whatever it is, the draws before it are sent with it
            error = sendable_error(raised, f"the worker of chain {number}")
        return Stretch(number, after, torch.cat(positions), statistics, kept, error)
