"""A progress bar for several chains."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

import torch

from pyro_fnbg.chains.statistics import DrawStatistics
from pyro_fnbg.core.bars import progress_bar

__all__ = ["Progress"]


class Progress:
    """Show the sweeps of all chains in one bar, and their mean acceptance rates by layer.

    Args:
        sweeps: Sweeps that each chain has made before: none, unless it goes on.
        warmup_steps: Sweeps of warmup of each chain.
        num_sweeps: Sweeps of each chain, warmup included.
        statistics: What writes the rates of blocks as text.
        disable: Whether to show nothing.
    """

    def __init__(
        self,
        sweeps: Sequence[int],
        warmup_steps: int,
        num_sweeps: int,
        statistics: DrawStatistics,
        disable: bool,
    ) -> None:
        self._sweeps = list(sweeps)
        self._rates: dict[int, Sequence[float]] = {}
        self._warmup_steps, self._statistics = warmup_steps, statistics
        self._bar = progress_bar(
            len(sweeps) * num_sweeps, not disable, unit="sweep", initial=sum(sweeps)
        )

    def show(self, chain: int, sweeps: int, rates: Sequence[float]) -> None:
        """Note how far a chain is, and its blocks' acceptance rates in its phase so far."""
        self._rates[chain] = rates
        new, self._sweeps[chain] = sweeps - self._sweeps[chain], sweeps
        # What stands beside the bar takes longer to write, so only where it is about to be drawn
        if not self._bar.disable and time.time() - self._bar.last_print_t >= self._bar.mininterval:
            self._describe()
        self._bar.update(new)

    def _describe(self) -> None:
        in_warmup = min(self._sweeps) < self._warmup_steps
        means = torch.tensor(list(self._rates.values()), dtype=torch.float64).nanmean(0)
        (shown,) = self._statistics.shown(means)
        self._bar.set_description("Warmup" if in_warmup else "Sample", refresh=False)
        self._bar.set_postfix_str(f"acc. rate by layer (%)={shown}", refresh=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._rates:
            self._describe()
        self._bar.close()
