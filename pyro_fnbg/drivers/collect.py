"""What is kept of the chains as they run: draws, statistics, and what hooks are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pyro_fnbg.chains.report import report
from pyro_fnbg.chains.running import Piece
from pyro_fnbg.chains.setup import RunState, after
from pyro_fnbg.chains.statistics import DrawStatistics
from pyro_fnbg.drivers.draws import Draws
from pyro_fnbg.kernel import FNBG

if TYPE_CHECKING:
    Hook = Callable[[FNBG, dict[str, Tensor], str, int], Any]

__all__ = ["Collector"]


class Collector:
    """Collect the pieces of some chains of a run.

    Args:
        kernel: The kernel that hooks are given.
        runs: The chains at their start.
        draws: Where draws go.
        hook_fn: Called after every step of the warmup and every draw, if given.
        suffixes: What follows the stage's name in a hook, chain by chain.
    """

    def __init__(
        self,
        kernel: FNBG,
        runs: Sequence[RunState],
        draws: Draws,
        hook_fn: Hook | None,
        suffixes: Sequence[str],
    ) -> None:
        self.runs = list(runs)
        self.draws = draws
        self.statistics = [DrawStatistics(run.partition) for run in runs]
        self._kernel, self._hook_fn, self._suffixes = kernel, hook_fn, suffixes

    def take(self, piece: Piece) -> None:
        """Take a piece, and show it to the hook draw by draw."""
        run, results = piece.before, piece.results
        if self._hook_fn is None:
            self._add(piece)
            return
        sweeps_a_draw = run.sweeps_a_draw
        for first in range(0, len(results.accepted), sweeps_a_draw):
            before = self.runs[piece.chain]
            one = Piece(piece.chain, before, results.of_sweeps(first, first + sweeps_a_draw))
            self._add(one)
            run = self.runs[piece.chain]
            self._kernel.hold(run, self.statistics[piece.chain])
            stage = "Warmup" if before.in_warmup else "Sample"
            number = before.sweeps if before.in_warmup else before.draws.sweeps // run.thin
            params = run.sites.layout.unflatten(run.position.clone())
            self._hook_fn(self._kernel, params, stage + self._suffixes[piece.chain], number)

    def _add(self, piece: Piece) -> None:
        run, results = piece.before, piece.results
        if not run.in_warmup:
            self.statistics[piece.chain].add(results, run.thin)
            self.draws.add(piece.chain, results.positions[run.thin - 1 :: run.thin])
        self.runs[piece.chain] = after(run, results)

    def report(self, chain: int) -> dict[str, Any]:
        """Describe a chain's draws so far; see ``FNBG.diagnostics``."""
        return report(self.runs[chain], self.statistics[chain])
