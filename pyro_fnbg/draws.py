"""The draws of several chains, in memory that is set aside before the first of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions.transforms import ExpTransform, IndependentTransform

from pyro_fnbg.sites import ModelSites

__all__ = ["Draws", "kept_chains"]


class Draws:
    """Hold the constrained draws of C chains.

    The memory is that of the draws, and the system hands it out as they come.

    Args:
        sites: The model's latent sites.
        names: Sites whose draws are kept; None for all.
        num_chains: Number of chains.
        num_draws: Number of draws of each.
    """

    def __init__(
        self, sites: ModelSites, names: Sequence[str] | None, num_chains: int, num_draws: int
    ) -> None:
        self._sites = sites
        self._values: dict[str, Tensor] = {}
        for site in sites.layout.sites:
            if names is None or site.name in names:
                unconstrained = torch.zeros(site.shape, dtype=site.dtype, device=site.device)
                shape = sites.constrain[site.name](unconstrained).shape
                self._values[site.name] = torch.empty(
                    (num_chains, num_draws, *shape), dtype=site.dtype, device=site.device
                )
        self._steady = sites.real_sites | {
            name for name, bijection in sites.constrain.items() if _is_exp(bijection)
        }
        self.counts = [0] * num_chains

    def add(self, chain: int, positions: Tensor) -> None:
        """Append unconstrained draws, shape ``(K, num_params)``, to those of a chain."""
        first, stop = self.counts[chain], self.counts[chain] + len(positions)
        for name, value in self._sites.layout.unflatten(positions).items():
            if name not in self._values:
                continue
            constrain, kept = self._sites.constrain[name], self._values[name][chain, first:stop]
            if name in self._steady:
                kept.copy_(constrain(value))
                continue
            # One by one: torch may round otherwise where other numbers are computed beside these
            for own, unconstrained in zip(kept.unbind(0), value.unbind(0), strict=True):
                own.copy_(constrain(unconstrained))
        # Last: a run that is stopped in between has no draws that were not written
        self.counts[chain] = stop

    def put(self, chain: int, values: Mapping[str, NDArray[Any]], count: int) -> None:
        """Take over the constrained draws of a whole chain."""
        for name, value in values.items():
            self._values[name][chain, :count] = torch.from_numpy(value)
        self.counts[chain] = count

    def of_chain(self, chain: int) -> dict[str, Tensor]:
        """Return one chain's draws so far, ``(draws, *site shape)``."""
        return {name: v[chain, : self.counts[chain]] for name, v in self._values.items()}

    def samples(self, chains: Sequence[int], num_draws: int) -> dict[str, Tensor]:
        """Return the first draws of some chains, ``(chains, num_draws, *site shape)``.

        All draws of all chains are returned where they are. A part moves, site by site, to memory
        of its own, so that what is kept of a stopped run is not all that was set aside; nothing
        else can be asked then.
        """
        found = {}
        for name in list(self._values):
            value = self._values[name]
            if value.shape[:2] != (len(chains), num_draws):
                value = value[list(chains), :num_draws]
                del self._values[name]
            found[name] = value
        return found


def _is_exp(bijection: Any) -> bool:
    """Whether a map is the exponential, number by number."""
    while isinstance(bijection, IndependentTransform):
        bijection = bijection.base_transform
    return isinstance(bijection, ExpTransform)


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
