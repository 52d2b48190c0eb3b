"""Draws made before they are asked for, so that Python is less in the way of a compiled engine."""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pyro_fnbg.chains.setup import RunState, after, next_sweeps
from pyro_fnbg.chains.statistics import DrawStatistics
from pyro_fnbg.engines.base import SweepResults
from pyro_fnbg.stock.errors import errors_come_home

__all__ = ["Ahead", "look_ahead"]

# Draws are doubled until they take so many seconds, within these bounds on draws and on numbers
ENOUGH_SECONDS, MAX_DRAWS, MAX_NUMBERS = 0.01, 256, 2**18
# Draws whose tensors are made together
READY_DRAWS = 16


@dataclass
class Ahead:
    """Hold some draws of one chain, to be handed out one by one.

    Attributes:
        values: Unconstrained values by site, with a dimension for draws in front.
        memory: By site, the bytes of its values in all draws, a copy of them that nobody else can
            write to, and how many of them belong to one draw.
        sweeps_a_draw: Number of sweeps that led to each.
        results: What the engine said of all these sweeps.
        shown: Acceptance rates in the phase so far, after each draw, as text.
        seconds: Time that they took.
        used: Number of draws handed out.
        settled: Number of draws that the chain's state includes.
        last: The draw handed out last.
        ready: The next draws, the first of them at the end.
    """

    values: Mapping[str, Tensor]
    memory: Sequence[tuple[memoryview, memoryview, int]]
    sweeps_a_draw: int
    results: SweepResults
    shown: Sequence[str]
    seconds: float
    used: int = 0
    settled: int = 0
    last: dict[str, Tensor] = field(default_factory=dict)
    ready: list[dict[str, Tensor]] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of draws."""
        return len(self.shown)

    @property
    def is_used_up(self) -> bool:
        """Whether all draws were handed out."""
        return self.used == len(self)

    def led_to(self, params: Mapping[str, Tensor]) -> bool:
        """Whether these are the tensors that were handed out last, not written to since.

        Their bytes are compared: who wrote to a tensor may have left no other trace.
        """
        if not isinstance(params, Mapping):
            return False
        last, values, returned = self.used - 1, params.values(), self.last.values()
        return (
            len(values) == len(returned)
            and all(map(operator.is_, values, returned))
            and all(
                now[last * size : (last + 1) * size] == before[last * size : (last + 1) * size]
                for now, before, size in self.memory
            )
        )

    def next_draw(self) -> dict[str, Tensor]:
        """Hand out a draw."""
        if not self.ready:
            # A few at a time: thousands of tensors at once would set Python's garbage collector off
            stop = self.used + READY_DRAWS
            values = [value[self.used : stop].unbind(0) for value in self.values.values()]
            draws = [
                dict(zip(self.values, draw, strict=True)) for draw in zip(*values, strict=True)
            ]
            self.ready = draws[::-1]
        self.used += 1
        self.last = self.ready.pop()
        return self.last

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


@errors_come_home
def look_ahead(run: RunState, statistics: DrawStatistics, last: Ahead | None) -> Ahead:
    """Make the next draws of a chain, as many as are worth a call of the engine.

    Args:
        run: The chain's state.
        statistics: Its statistics.
        last: The draws that these follow; None at the start, and where something came between.
    """
    sweeps_a_draw = run.sweeps_a_draw
    count = _num_draws(run, last)
    started = time.perf_counter()
    (results,) = next_sweeps([run], count * sweeps_a_draw)
    seconds = time.perf_counter() - started
    positions = results.positions[sweeps_a_draw - 1 :: sweeps_a_draw]
    # Each site gets memory of its own, so that keeping a small one does not keep the others alive
    values = {
        name: value.clone(memory_format=torch.contiguous_format)
        for name, value in run.sites.layout.unflatten(positions).items()
    }
    memory = [_memory(value) for value in values.values()] if run.engine.is_compiled else []
    tally = run.tally
    accepted = (tally.accepted + results.accepted.cpu().cumsum(0))[
        sweeps_a_draw - 1 :: sweeps_a_draw
    ]
    sweeps = tally.sweeps + sweeps_a_draw * torch.arange(1, count + 1)
    shown = statistics.shown(accepted / sweeps.double()[:, None])
    return Ahead(values, memory, sweeps_a_draw, results, shown, seconds)


def _memory(values: Tensor) -> tuple[memoryview, memoryview, int]:
    """Return the bytes of a site's draws, a copy of them, and the number of one draw's."""
    now = values.numpy().data.cast("B")
    return now, memoryview(bytes(now)), len(now) // len(values)


def _num_draws(run: RunState, last: Ahead | None) -> int:
    """Choose how many draws to make; it changes nothing but the time that they take."""
    if last is None or not run.engine.is_compiled:
        return 1
    count = len(last)
    count = 2 * count if last.seconds < ENOUGH_SECONDS else max(1, count // 2)
    count = min(count, MAX_DRAWS, max(1, MAX_NUMBERS // (run.sweeps_a_draw * len(run.position))))
    return min(count, run.warmup_steps - run.sweeps) if run.in_warmup else count
