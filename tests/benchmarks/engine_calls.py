"""Calls of one engine, each from where the last one ended, on given noise and batches."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.lengths import LENGTH
from benchmarks.recording import seconds_of
from benchmarks.works import Work, kernel_of, training_data
from pyro_fnbg.core.moves.base import MoveState
from pyro_fnbg.core.moves.joint import stacked
from pyro_fnbg.core.tasks import torch_threads
from pyro_fnbg.engines.base import Record, SweepInputs

__all__ = ["EngineCalls"]

# Numbers of noise in one call, at most: 32 MB
MAX_NUMBERS = 2**22
MAX_SWEEPS = 2**12


class Start(NamedTuple):
    """Hold where sweeps start, with a dimension for chains: of one chain."""

    positions: Tensor
    adaptation: tuple[MoveState, ...]

    def for_chains(self, count: int) -> Start:
        """Return the same for several chains."""
        adaptation = tuple(
            type(state)(*(values.expand(count, *values.shape[1:]) for values in state))
            for state in self.adaptation
        )
        return Start(self.positions.expand(count, -1), adaptation)


class EngineCalls:
    """Call an engine for as many sweeps as take long enough to be timed.

    Engines that do the same work start from the same position and the same learnt scales.

    Args:
        work: What is sampled.
        engine: Name of the engine.
        chains: Chains in one call.
        seconds: How long a call should at least take.
    """

    def __init__(
        self,
        work: Work,
        engine: str,
        chains: int = 1,
        seconds: float = LENGTH.call_seconds,
    ) -> None:
        kernel = kernel_of(work, engine)
        kernel.setup(0, *training_data(work))
        problem = kernel.problem
        self.engine = problem.engine
        self._positions, self._adaptation = start_of(work).for_chains(chains)
        self._shape = problem.plan.num_rows, work.batch_size, problem.partition.num_blocks
        self._generator = torch.Generator().manual_seed(0)
        self._record: Record
        self.sweeps = 1
        most = min(MAX_SWEEPS, MAX_NUMBERS // self._positions.numel())
        # The first call readies memory, so it does not count
        self(*self.prepare()[0])
        while self.sweeps < most and seconds_of(self, *self.prepare()[0]) < seconds:
            self.sweeps *= 2

    @torch_threads(1)
    def prepare(self) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Draw batches and noise of the next call.

        The rows of a batch are drawn with replacement: as costly to work on as those of a proper
        batch, and cheaper to draw.
        """
        (chains, num_params), (num_rows, batch_size, num_blocks) = (
            self._positions.shape,
            self._shape,
        )
        shape, source = (chains, self.sweeps), self._generator
        rows = torch.randint(num_rows, (*shape, batch_size), generator=source)
        z = torch.randn(*shape, num_params, dtype=torch.float64, generator=source)
        log_u = torch.rand(*shape, num_blocks, dtype=torch.float64, generator=source).log()
        return (rows, z, log_u), {}

    def __call__(self, rows: Tensor, z: Tensor, log_u: Tensor) -> None:
        """Run the sweeps."""
        inputs = SweepInputs(self._positions, rows, z, log_u, self._adaptation)
        self._record = self.engine.run(inputs)
        self._positions = self._record.positions[:, -1]

    def values(self) -> dict[str, float]:
        """Report the acceptance rate of the last call, and the rows that blocks moved, if known."""
        found = {"acceptance": float(self._record.accepted.double().mean())}
        moved = getattr(self.engine, "moved_rows", None)
        if moved is not None:
            found["moved"] = float(moved.double().mean()) / self._shape[1]
        return found


@lru_cache(maxsize=4)
def start_of(work: Work) -> Start:
    """Run a chain for a while, so that engines are timed where it has come to."""
    x, y = training_data(work)
    kernel = kernel_of(work)
    kernel.setup(LENGTH.warmup, x, y)
    params = kernel.initial_params
    for _ in range(LENGTH.warmup):
        params = kernel.sample(params)
    chain = kernel.state
    return Start(chain.position[None], stacked([chain.adaptation]))
