"""Draws made before they are asked for, so that Python is less in the way of a compiled engine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fnbg.diagnostics import DrawStatistics
from pyro_fnbg.engines.base import SweepResults
from pyro_fnbg.run import RunState, after, next_sweeps

__all__ = ["Ahead", "look_ahead"]

# Draws are doubled until they take so many seconds, within these bounds on draws and on numbers
ENOUGH_SECONDS, MAX_DRAWS, MAX_NUMBERS = 0.01, 256, 2**18


@dataclass
class Ahead:
    """Hold some draws of one chain, to be handed out one by one.

    Attributes:
        draws: Unconstrained values of each site, draw by draw.
        kept: The same by site, with a dimension for draws, which nobody else can write to.
        sweeps_a_draw: Number of sweeps that led to each.
        results: What the engine said of all these sweeps.
        shown: Acceptance rates in the phase so far, after each draw, as text.
        seconds: Time that they took.
        used: Number of draws handed out.
        settled: Number of draws that the chain's state includes.
    """

    draws: Sequence[dict[str, Tensor]]
    kept: Mapping[str, Tensor]
    sweeps_a_draw: int
    results: SweepResults
    shown: Sequence[str]
    seconds: float
    used: int = 0
    settled: int = 0

    def continues(self, params: Mapping[str, Tensor]) -> bool:
        """Whether there is a draw left, and it follows from these values."""
        return self.used < len(self.draws) and self.led_to(params)

    def led_to(self, params: Mapping[str, Tensor]) -> bool:
        """Whether these are the values that were handed out last.

        The values themselves are compared: who wrote to the tensors may have left no other trace.
        """
        last = self.used - 1
        return all(torch.equal(params[name], kept[last]) for name, kept in self.kept.items())

    def next_draw(self) -> dict[str, Tensor]:
        """Hand out a draw."""
        self.used += 1
        return self.draws[self.used - 1]

    def settle(self, run: RunState, statistics: DrawStatistics) -> RunState:
        """Bring the chain's state and statistics to the draw handed out last."""
        if self.settled == self.used:
            return run
        first, stop = self.settled * self.sweeps_a_draw, self.used * self.sweeps_a_draw
        results = self.results.of_sweeps(first, stop)
        self.settled = self.used
        if not run.in_warmup:
            statistics.add(results, self.sweeps_a_draw)
        return after(run, results)


def look_ahead(run: RunState, statistics: DrawStatistics, last: Ahead | None) -> Ahead:
    """Make the next draws of a chain, as many as are worth a call of the engine.

    Args:
        run: The chain's state.
        statistics: Its statistics.
        last: The draws before these; None at the start.
    """
    sweeps_a_draw = 1 if run.in_warmup else run.thin
    count = _num_draws(run, last, sweeps_a_draw)
    started = time.perf_counter()
    (results,) = next_sweeps([run], count * sweeps_a_draw)
    seconds = time.perf_counter() - started
    positions = results.positions[sweeps_a_draw - 1 :: sweeps_a_draw]
    values = run.sites.layout.unflatten(positions)
    # Each site gets memory of its own, so that keeping a small one does not keep the others alive
    by_draw = zip(*(value.clone().unbind(0) for value in values.values()), strict=True)
    draws = [dict(zip(values, draw, strict=True)) for draw in by_draw]
    tally = run.warmup if run.in_warmup else run.draws
    accepted = (tally.accepted + results.accepted.cpu().cumsum(0))[
        sweeps_a_draw - 1 :: sweeps_a_draw
    ]
    sweeps = tally.sweeps + sweeps_a_draw * torch.arange(1, count + 1)
    shown = statistics.shown(accepted / sweeps.double()[:, None])
    return Ahead(draws, values, sweeps_a_draw, results, shown, seconds)


def _num_draws(run: RunState, last: Ahead | None, sweeps_a_draw: int) -> int:
    """Choose how many draws to make; it changes nothing but the time that they take."""
    if last is None or not run.engine.is_compiled:
        return 1
    if not last.led_to(run.sites.layout.unflatten(run.position)):
        return 1
    count = len(last.draws)
    count = 2 * count if last.seconds < ENOUGH_SECONDS else max(1, count // 2)
    count = min(count, MAX_DRAWS, max(1, MAX_NUMBERS // (sweeps_a_draw * len(run.position))))
    return min(count, run.warmup_steps - run.sweeps) if run.in_warmup else count
