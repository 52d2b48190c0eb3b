"""A progress bar for several chains."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from tqdm.auto import tqdm

from pyro_fnbg.diagnostics import DrawStatistics

__all__ = ["Progress"]


class Progress:
    """Show the sweeps of all chains in one bar, and their mean acceptance rates by layer.

    A bar that cannot be drawn (any more), on a closed terminal or a full disk, is left out: it
    is no reason to lose a run.

    Args:
        num_chains: Number of chains.
        warmup_steps: Sweeps of warmup of each chain.
        num_sweeps: Sweeps of each chain, warmup included.
        statistics: What writes the rates of blocks as text.
        disable: Whether to show nothing.
    """

    def __init__(
        self,
        num_chains: int,
        warmup_steps: int,
        num_sweeps: int,
        statistics: DrawStatistics,
        disable: bool,
    ) -> None:
        self._sweeps = [0] * num_chains
        self._rates: dict[int, Sequence[float]] = {}
        self._warmup_steps, self._statistics = warmup_steps, statistics
        self._bar: tqdm[Any] | None = None
        with self._or_no_bar():
            self._bar = tqdm(total=num_chains * num_sweeps, unit="sweep", disable=disable)

    def show(self, chain: int, sweeps: int, rates: Sequence[float]) -> None:
        """Note how far a chain is, and its blocks' acceptance rates in its phase so far."""
        self._rates[chain] = rates
        new, self._sweeps[chain] = sweeps - self._sweeps[chain], sweeps
        with self._or_no_bar():
            # The bar says whether it was drawn anew; to write what stands beside it takes longer
            if self._bar is not None and self._bar.update(new):
                self._describe(self._bar)

    @contextmanager
    def _or_no_bar(self) -> Generator[None]:
        try:
            yield
        except Exception:  # of the stream, or of the notebook's widgets
            if self._bar is not None:
                self._bar.disable = True  # nor does it try to say good-bye
            self._bar = None

    def _describe(self, bar: tqdm[Any]) -> None:
        in_warmup = min(self._sweeps) < self._warmup_steps
        means = torch.tensor(list(self._rates.values()), dtype=torch.float64).nanmean(0)
        (shown,) = self._statistics.shown(means)
        bar.set_description("Warmup" if in_warmup else "Sample", refresh=False)
        bar.set_postfix_str(f"acc. rate by layer (%)={shown}", refresh=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._or_no_bar():
            if self._bar is not None:
                if self._rates:
                    self._describe(self._bar)
                self._bar.close()
