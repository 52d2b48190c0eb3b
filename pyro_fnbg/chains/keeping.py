"""What a run does with the draws of its chains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from pyro_fnbg.chains.report import ChainReport
from pyro_fnbg.chains.statistics import DrawStatistics
from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.state import ChainState

__all__ = ["DrawKeeper", "kept_chains"]


class DrawKeeper(ABC):
    """Keep the draws of C chains, in memory or elsewhere."""

    @property
    @abstractmethod
    def counts(self) -> list[int]:
        """Number of draws of each chain that are kept."""

    def statistics(self, partition: Partition) -> list[DrawStatistics]:
        """Return what takes the statistics of each chain's draws, before the draws themselves."""
        return [DrawStatistics(partition) for _ in self.counts]

    @abstractmethod
    def add(self, chain: int, positions: Tensor) -> None:
        """Append unconstrained draws, shape ``(K, num_params)``, to those of a chain."""

    @abstractmethod
    def put(self, chain: int, values: Mapping[str, NDArray[Any]], count: int) -> None:
        """Take over the constrained draws of a whole chain from the process that made them."""

    @abstractmethod
    def pause(self, chains: Sequence[ChainState]) -> None:
        """Use the time between two pieces of a run, when chains are at these states."""

    @abstractmethod
    def close(self, chains: Sequence[ChainState]) -> None:
        """Take note that no more draws come, and where the chains are."""

    @abstractmethod
    def finish(self, reports: Sequence[ChainReport]) -> None:
        """Take note of what is told of the chains at the end."""

    @abstractmethod
    def hand_over(self, chains: Sequence[int], num_draws: int) -> Mapping[str, Tensor]:
        """Give away the first draws of some chains, ``(chains, num_draws, *site shape)``."""


def kept_chains(counts: Sequence[int]) -> tuple[list[int], int]:
    """Choose chains, and as many draws as each of them has, so that most draws are kept.

    Example:
        >>> kept_chains([100, 99, 99])
        ([0, 1, 2], 99)
        >>> kept_chains([100, 20, 0])
        ([0], 100)
    """
    best: tuple[list[int], int] = ([], 0)
    for num_draws in sorted(set(counts), reverse=True):
        chains = [chain for chain, count in enumerate(counts) if count >= num_draws]
        if len(chains) * num_draws > len(best[0]) * best[1]:
            best = (chains, num_draws)
    return best
