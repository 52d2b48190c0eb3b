"""What a store holds at a moment: groups as ``to_arviz`` has them, read as they are looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pyro_fnbg.chains.keeping import kept_chains
from pyro_fnbg.chains.report import ChainReport
from pyro_fnbg.results.estimates import has_arviz_1
from pyro_fnbg.results.export import SAMPLE_DIMS, chain_statistics
from pyro_fnbg.stores.archive import Archive
from pyro_fnbg.stores.checkpoint import DamagedStore, Saved
from pyro_fnbg.stores.hierarchy import OBSERVED_DATA, POSTERIOR, PREDICTIONS, SAMPLE_STATS
from pyro_fnbg.stores.reports import reports_of
from pyro_fnbg.stores.tails import TailedDraws, draws_by_chain

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Contents"]


@dataclass(frozen=True, eq=False)
class Contents:
    """Hold what a store was found to hold; what a run writes later is not in it.

    Attributes:
        archive: The arrays on disk.
        saved: The chains that have begun as their last checkpoints have them, by number.
        by_chain: The draws of each chain, those included that only a checkpoint has.
        chains: Numbers of the chains that readers are shown.
        num_draws: Number of draws of each of them.
        attributes: What is said of the draws.
    """

    archive: Archive
    saved: Mapping[int, Saved]
    by_chain: Sequence[TailedDraws]
    chains: Sequence[int]
    num_draws: int
    attributes: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read how far the chains are, and what is said of them.

        Raises:
            FileNotFoundError: If there is no store.
            DamagedStore: If it was changed, or is of another format.
        """
        try:
            archive = Archive(path, is_read_only=True)
            saved, attributes = archive.saved(), archive.attributes
        except (KeyError, TypeError) as error:
            raise DamagedStore(f"{path} cannot be read ({error!r}): it was changed") from error
        counts = [int(count) for count in attributes["complete_draws"]]
        by_chain = draws_by_chain(archive, counts, saved)
        chains, num_draws = kept_chains([one.num_draws for one in by_chain])
        chains = chains or list(range(archive.num_chains))
        return cls(archive, saved, by_chain, chains, num_draws, attributes)

    @property
    def counts(self) -> list[int]:
        """Number of draws of each chain."""
        return [one.num_draws for one in self.by_chain]

    @cached_property
    def posterior(self) -> xr.Dataset:
        """The draws."""
        return self._of_draws(POSTERIOR).assign_attrs(self.attributes)

    @cached_property
    def sample_stats(self) -> xr.Dataset:
        """The statistics of every draw."""
        return self._of_draws(SAMPLE_STATS)

    @cached_property
    def predictions(self) -> xr.Dataset:
        """What draws predict, if it was stored; see ``store_predictions``."""
        import xarray as xr

        if not (self.archive.path / PREDICTIONS).exists():
            return xr.Dataset()
        found = self._own_group(PREDICTIONS)
        (values,) = found.values()
        chains = [int(chain) for chain in values.attrs.pop("chains")]
        is_current = chains == list(self.chains) and values.sizes["draw"] == self.num_draws
        labels = self._labels(found.variables) | {"chain": chains}
        return found.assign_coords(labels).assign_attrs(is_current=int(is_current))

    @property
    def reports(self) -> list[ChainReport]:
        """What is told of each chain; empty before the first draw."""
        if self.num_draws == 0:
            return []
        statistics = [
            {str(name): values[place].variable for name, values in self.sample_stats.items()}
            for place in range(len(self.chains))
        ]
        return reports_of(self.archive, [self.saved[one] for one in self.chains], statistics)

    def groups(self) -> dict[str, xr.Dataset]:
        """Return all groups; one may be empty, as for ``assemble``."""
        import xarray as xr

        reports = self.reports
        return {
            POSTERIOR: self.posterior,
            SAMPLE_STATS: self.sample_stats,
            "chain_stats": chain_statistics(reports, {}).assign_coords(chain=list(self.chains))
            if reports
            else xr.Dataset(),
            PREDICTIONS: self.predictions,
            OBSERVED_DATA: self.observed_data,
        }

    def _of_draws(self, group: str) -> xr.Dataset:
        """Make a group of which nothing is read before it is looked at."""
        import xarray as xr

        from pyro_fnbg.stores.lazily import StoredArray

        chains = [self.by_chain[number] for number in self.chains]
        variables = {
            _shown(one.name): xr.Variable(
                (*SAMPLE_DIMS, *one.dims), StoredArray(chains, key, self.num_draws).lazily()
            )
            for key, one in self.archive.variables.items()
            if one.group == group
        }
        return xr.Dataset(variables, self._labels(variables))

    @cached_property
    def observed_data(self) -> xr.Dataset:
        """The values of the observed sites, all rows of them."""
        import xarray as xr

        data = self._own_group(OBSERVED_DATA)
        variables = {_shown(one.attrs["site"]): one.variable for one in data.values()}
        for one in variables.values():
            one.attrs = {}
        return xr.Dataset(variables, self._labels(variables))

    def _own_group(self, group: str) -> xr.Dataset:
        """Open what is no part of the draws, as it is on disk."""
        import xarray as xr

        how: Any = {"engine": "zarr", "consolidated": False, "decode_cf": False}
        path = self.archive.path
        try:
            return xr.open_dataset(path, group=group, **how)
        except Exception as error:
            raise DamagedStore(
                f"{path}/{group} cannot be read ({error}): it was changed"
            ) from error

    def _labels(self, variables: Mapping[Any, Any]) -> dict[str, Any]:
        """Label chains and layers, and number all other places."""
        layers = list(dict.fromkeys(self.archive.constants["report"]["layers"]))
        known = {"chain": list(self.chains), "layer": layers}
        sizes = {str(dim): size for one in variables.values() for dim, size in one.sizes.items()}
        return {dim: known.get(dim, np.arange(size)) for dim, size in sizes.items()}


def _shown(name: str) -> str:
    """Return the name of a site as the installed ArviZ can have it."""
    # A DataTree allows no slash in a name
    return name.replace("/", "%2F") if has_arviz_1() else name
