"""Draws of a store that are read when they are looked at, for xarray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

from pyro_fnbg.stores.tails import TailedDraws

__all__ = ["StoredArray"]


class StoredArray(BackendArray):
    """Show one variable of the first draws of some chains as an array.

    Args:
        chains: The chains.
        key: The variable's key.
        num_draws: Number of draws of each.
    """

    def __init__(self, chains: Sequence[TailedDraws], key: str, num_draws: int) -> None:
        self._chains, self._key = chains, key
        variable = chains[0].archive.variables[key]
        self.shape = (len(chains), num_draws, *variable.shape)
        self.dtype = np.dtype(variable.dtype)

    def lazily(self) -> Any:
        """Return what xarray reads when it is looked at."""
        return indexing.LazilyIndexedArray(self)

    def __getitem__(self, key: Any) -> Any:
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.OUTER, self._read
        )

    def _read(self, key: tuple[Any, ...]) -> NDArray[Any]:
        """Read what is asked for of each dimension: a number, a slice or an array of numbers."""
        chains, draws = np.arange(self.shape[0])[key[0]], np.arange(self.shape[1])[key[1]]
        all_chains, all_draws = np.atleast_1d(chains), np.atleast_1d(draws)
        own = self._of_each(np.empty((1, *self.shape[2:]), self.dtype), key).shape[1:]
        found = np.empty((len(all_chains), len(all_draws), *own), self.dtype)
        # A chunk at a time, of which only what is asked for stays
        chunks = all_draws // self._chains[0].archive.chunk_draws
        for place, chain in enumerate(all_chains):
            for chunk in np.unique(chunks):
                some = chunks == chunk
                read = self._chains[chain].read(self._key, all_draws[some])
                found[place, some] = self._of_each(read, key)
        for dim in (1, 0):
            found = found.squeeze(dim) if (chains, draws)[dim].ndim == 0 else found
        return found

    def _of_each(self, draws: NDArray[Any], key: tuple[Any, ...]) -> NDArray[Any]:
        """Pick what is asked for of each draw, ``(draws, *site shape)``."""
        # From the last dimension on, since a number takes its dimension away
        for dim in range(len(key) - 1, 1, -1):
            draws = draws[(slice(None),) * (dim - 1) + (key[dim],)]
        return draws
