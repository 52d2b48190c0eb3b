"""How many sweeps a call of an engine makes; it changes nothing but the time that they take."""

from __future__ import annotations

from pyro_fnbg.core.state import ChainState
from pyro_fnbg.engines.base import Problem

__all__ = ["Pace"]


class Pace:
    """Double the sweeps of a call until it takes long enough that Python is not in the way.

    Args:
        enough_seconds: Calls that take less than this are made longer, others shorter.
        max_draws: Draws of a chain in a call, at most.
        max_numbers: Parameters of all sweeps and chains in a call, at most, if that is a draw.
    """

    def __init__(self, enough_seconds: float, max_draws: int, max_numbers: int) -> None:
        self._enough_seconds = enough_seconds
        self._max_draws, self._max_numbers = max_draws, max_numbers
        self._sweeps = 1

    def next_sweeps(self, problem: Problem, chain: ChainState, num_chains: int = 1) -> int:
        """Return how many sweeps to make next: whole draws, all of the warmup or all after it."""
        a_draw = problem.sweeps_a_draw(chain)
        most = self._max_numbers // (num_chains * problem.partition.num_params)
        draws = max(1, min(self._sweeps // a_draw, self._max_draws, most // a_draw))
        self._sweeps = draws * a_draw
        if problem.is_warming_up(chain):
            return min(self._sweeps, problem.warmup_steps - chain.sweeps)
        return self._sweeps

    def learn(self, seconds: float) -> None:
        """Take note of how long the last call took."""
        is_short = seconds < self._enough_seconds
        self._sweeps = 2 * self._sweeps if is_short else max(1, self._sweeps // 2)
