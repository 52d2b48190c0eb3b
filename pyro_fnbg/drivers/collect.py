"""What is kept of the chains as they run: draws, statistics, and what hooks are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pyro_fnbg.chains.keeping import DrawKeeper
from pyro_fnbg.chains.report import ChainReport, report
from pyro_fnbg.chains.running import Piece
from pyro_fnbg.chains.setup import Run
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.drivers.cluster import Stretch
from pyro_fnbg.engines.base import Problem, advance
from pyro_fnbg.kernel import FNBG

if TYPE_CHECKING:
    Hook = Callable[[FNBG, dict[str, Tensor], str, int], Any]

__all__ = ["Collector"]


class Collector:
    """Collect the pieces of some chains of a run.

    Args:
        kernel: The kernel that hooks are given.
        problem: What the chains share.
        chains: The chains at their start.
        draws: Where draws go.
        hook_fn: Called after every step of the warmup and every draw, if given.
        suffixes: What follows the stage's name in a hook, chain by chain.
    """

    def __init__(
        self,
        kernel: FNBG,
        problem: Problem,
        chains: Sequence[ChainState],
        draws: DrawKeeper,
        hook_fn: Hook | None,
        suffixes: Sequence[str],
    ) -> None:
        self.problem, self.chains = problem, list(chains)
        self.draws = draws
        self.statistics = draws.statistics(problem.partition)
        self._kernel, self._hook_fn, self._suffixes = kernel, hook_fn, suffixes

    def take(self, made: Piece | Stretch) -> None:
        """Take some sweeps, and show them to the hook draw by draw; then draws may be put away.

        Raises:
            BaseException: What stopped a stretch, once the draws before it are taken.
        """
        if isinstance(made, Stretch):
            self._take_stretch(made)
        elif self._hook_fn is None:
            self._add(made)
        else:
            self._show(made, self._hook_fn)
        self.draws.pause(self.chains)

    def _take_stretch(self, stretch: Stretch) -> None:
        for piece in stretch.pieces:
            self.take(piece)
        if not stretch.pieces:
            self.statistics[stretch.number].extend(stretch.statistics)
            self.draws.add(stretch.number, stretch.positions)
            self.chains[stretch.number] = stretch.after
        if stretch.error is not None:
            raise stretch.error

    def _show(self, piece: Piece, hook: Hook) -> None:
        problem, chain = self.problem, piece.before
        a_draw = problem.sweeps_a_draw(chain)
        for first in range(0, len(piece.record.accepted), a_draw):
            before, record = chain, piece.record.of_sweeps(first, first + a_draw)
            chain = advance(problem, before, record)
            self._add(Piece(piece.number, before, chain, record))
            self._kernel.show(Run(problem, chain), self.statistics[piece.number])
            in_warmup = problem.is_warming_up(before)
            stage = "Warmup" if in_warmup else "Sample"
            number = before.sweeps if in_warmup else problem.num_draws(before)
            params = problem.sites.layout.unflatten(chain.position.clone())
            hook(self._kernel, params, stage + self._suffixes[piece.number], number)

    def _add(self, piece: Piece) -> None:
        problem, record = self.problem, piece.record
        if not problem.is_warming_up(piece.before):
            self.statistics[piece.number].add(record, problem.thin)
            self.draws.add(piece.number, record.positions[problem.thin - 1 :: problem.thin])
        self.chains[piece.number] = piece.after

    def report(self, number: int) -> ChainReport:
        """Describe a chain's draws so far."""
        return report(self.problem, self.chains[number], self.statistics[number])
