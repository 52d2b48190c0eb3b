"""Draws made before they are asked for, so that Python is less in the way of a compiled engine."""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pyro_fnbg.chains.pace import Pace
from pyro_fnbg.chains.statistics import DrawStatistics
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.engines.base import Problem, Record, advance
from pyro_fnbg.stock.workers import raising_picklable_errors

__all__ = ["Ahead", "look_ahead", "new_pace"]

# Calls are made longer until they take so many seconds, within these bounds on draws and on numbers
ENOUGH_SECONDS, MAX_DRAWS, MAX_NUMBERS = 0.01, 256, 2**18
# Draws whose tensors are made together
READY_DRAWS = 16


@dataclass
class Ahead:
    """Hold some draws of one chain, to be handed out one by one.

    Attributes:
        problem: What the chains share.
        before: The chain's state before these draws.
        after: Its state after all of them.
        record: What happened in their sweeps.
        values: Unconstrained values by site, with a dimension for draws in front.
        shown: Acceptance rates in the phase so far, after each draw, as text.
        used: Number of draws handed out.
        last: The draw handed out last.
        ready: The next draws, the first of them at the end.
    """

    problem: Problem
    before: ChainState
    after: ChainState
    record: Record
    values: Mapping[str, Tensor]
    shown: Sequence[str]
    used: int = 0
    last: dict[str, Tensor] = field(default_factory=dict)
    ready: list[dict[str, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Note the version of every tensor, which rises when somebody writes to it."""
        self._versions = [value._version for value in self.values.values()]

    def __len__(self) -> int:
        """Return the number of draws."""
        return len(self.shown)

    @property
    def is_used_up(self) -> bool:
        """Whether all draws were handed out."""
        return self.used == len(self)

    @property
    def state(self) -> ChainState:
        """The chain's state after the draws handed out so far."""
        if self.is_used_up:
            return self.after
        if self.used == 0:
            return self.before
        return advance(self.problem, self.before, self.handed_out)

    @property
    def handed_out(self) -> Record:
        """What happened in the sweeps of the draws handed out so far."""
        return self.record.of_sweeps(0, self.used * self.problem.sweeps_a_draw(self.before))

    def led_to(self, params: Mapping[str, Tensor]) -> bool:
        """Whether these are the tensors that were handed out last, not written to since."""
        if not isinstance(params, Mapping) or params.keys() != self.last.keys():
            return False
        are_same = all(map(operator.is_, params.values(), self.last.values()))
        return are_same and self._versions == [value._version for value in self.values.values()]

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


def new_pace() -> Pace:
    """Return the pace of a chain that begins, or goes on from where somebody else put it."""
    return Pace(ENOUGH_SECONDS, MAX_DRAWS, MAX_NUMBERS)


@raising_picklable_errors
def look_ahead(
    problem: Problem, chain: ChainState, statistics: DrawStatistics, pace: Pace
) -> Ahead:
    """Make the next draws of a chain, as many as are worth a call of the engine.

    Args:
        problem: What the chains share.
        chain: The chain's state.
        statistics: Its statistics, which take all of these draws at once.
        pace: How many draws to make, where the engine is compiled.
    """
    a_draw = problem.sweeps_a_draw(chain)
    count = pace.next_sweeps(problem, chain) if problem.engine.is_compiled else a_draw
    started = time.perf_counter()
    (after,), records = problem.engine.sweeps(problem, [chain], count)
    pace.learn(time.perf_counter() - started)
    record = records.of_chain(0)
    if not problem.is_warming_up(chain):
        statistics.add(record, a_draw)
    # Each site gets memory of its own, so that keeping a small one does not keep the others alive.
    # What is made in inference mode counts no versions.
    with torch.inference_mode(False):
        values = {
            name: value.clone(memory_format=torch.contiguous_format)
            for name, value in problem.sites.layout.unflatten(
                record.positions[a_draw - 1 :: a_draw]
            ).items()
        }
    tally = problem.next_tally(chain)
    accepted = (tally.accepted + record.accepted.cpu().cumsum(0))[a_draw - 1 :: a_draw]
    sweeps = tally.sweeps + a_draw * torch.arange(1, count // a_draw + 1)
    shown = statistics.shown(accepted / sweeps.double()[:, None])
    return Ahead(problem, chain, after, record, values, shown)
