"""The draws of several chains, in memory that is set aside before the first of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from pyro.infer.mcmc.util import select_samples
from torch import Tensor

from pyro_fnbg.chains.keeping import DrawKeeper
from pyro_fnbg.chains.report import ChainReport
from pyro_fnbg.core.checks import check_count, check_flag
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.model.constrained import ConstrainedDraws
from pyro_fnbg.model.sites import ModelSites

__all__ = ["Draws", "pick_draws"]


class Draws(DrawKeeper):
    """Hold the constrained draws of C chains.

    The memory is that of the draws, and the system hands it out as they come.

    Args:
        sites: The model's latent sites.
        names: Sites whose draws are kept; None for all.
        num_chains: Number of chains.
        num_draws: Number of draws of each.

    Raises:
        MemoryError: If there is not enough memory for the draws.
    """

    def __init__(
        self, sites: ModelSites, names: Sequence[str] | None, num_chains: int, num_draws: int
    ) -> None:
        self._constrained = ConstrainedDraws(sites, names)
        self._values: dict[str, Tensor] = {}
        for site in sites.layout.sites:
            if site.name in self._constrained.shapes:
                size = (num_chains, num_draws, *self._constrained.shapes[site.name])
                try:
                    draws = torch.empty(size, dtype=site.dtype, device=site.device)
                except RuntimeError as error:
                    raise MemoryError(
                        f"num_samples must be so small that the draws fit into memory, got "
                        f"{num_draws}: site {site.name!r} would have draws of shape {size}"
                    ) from error
                self._values[site.name] = draws
        self._counts = [0] * num_chains

    @property
    def counts(self) -> list[int]:
        """Number of draws of each chain."""
        return self._counts

    def add(self, chain: int, positions: Tensor) -> None:
        """Append unconstrained draws, shape ``(K, num_params)``, to those of a chain."""
        first, stop = self._counts[chain], self._counts[chain] + len(positions)
        for name, value in self._constrained.of(positions).items():
            self._values[name][chain, first:stop] = value
        # Last: a run that is stopped in between has no draws that were not written
        self._counts[chain] = stop

    def put(self, chain: int, values: Mapping[str, NDArray[Any]], count: int) -> None:
        """Take over the constrained draws of a whole chain."""
        for name, value in values.items():
            self._values[name][chain, :count] = torch.from_numpy(value)
        self._counts[chain] = count

    def pause(self, chains: Sequence[ChainState]) -> None:
        """Nothing is to be done: draws in memory are there at once."""

    def close(self, chains: Sequence[ChainState]) -> None:
        """Nothing is to be done, nor where a run has ended."""

    def finish(self, reports: Sequence[ChainReport]) -> None:
        """Nothing is to be done: a run's driver keeps the reports."""

    def of_chain(self, chain: int) -> dict[str, Tensor]:
        """Return one chain's draws so far, ``(draws, *site shape)``."""
        return {name: v[chain, : self.counts[chain]] for name, v in self._values.items()}

    def hand_over(self, chains: Sequence[int], num_draws: int) -> dict[str, Tensor]:
        """Give away the first draws of some chains, ``(chains, num_draws, *site shape)``.

        All draws of all chains stay where they are. A part gets memory of its own, site by site, so
        that what is kept or saved of a stopped run is not all the memory that was set aside.
        """
        found = {}
        for name in list(self._values):
            value = self._values.pop(name)
            is_all = value.shape[:2] == (len(chains), num_draws)
            found[name] = value if is_all else value[list(chains), :num_draws]
        return found


def pick_draws(
    draws: Mapping[str, Tensor], num_samples: int | None, group_by_chain: bool
) -> dict[str, Tensor]:
    """Pick draws at random, with replacement, as Pyro's ``MCMC`` does; all without a number.

    Raises:
        MemoryError: If there is not enough memory for them.
        ValueError: If the number is no whole number from 1, or the flag none.
    """
    check_flag("group_by_chain", group_by_chain)
    if num_samples is not None:
        check_count("num_samples", num_samples, 1)
    joined = dict(draws)
    if not group_by_chain:
        # Pyro's own selection cannot join the chains of a site without coordinates
        joined = {name: value.flatten(0, 1).unsqueeze(0) for name, value in draws.items()}
    try:
        picked: dict[str, Tensor] = select_samples(joined, num_samples, True)
    except RuntimeError as error:
        raise MemoryError(
            f"num_samples must be so small that the draws fit into memory, got {num_samples}"
        ) from error
    return picked if group_by_chain else {name: value[0] for name, value in picked.items()}
