"""Draws of a store that are read when they are looked at, for xarray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

from pyro_fnbg.stores.archive import Archive

__all__ = ["StoredArray", "TailedDraws"]


class TailedDraws(NamedTuple):
    """Hold one variable of one chain's draws.

    Attributes:
        archive: The store's arrays, which have those of whole chunks.
        key: The variable's key.
        chain: The chain's number.
        num_draws: Number of the chain's draws.
        tail: The last of them, which a checkpoint has.
    """

    archive: Archive
    key: str
    chain: int
    num_draws: int
    tail: NDArray[Any]

    def read(self, draws: NDArray[np.intp]) -> NDArray[Any]:
        """Read some draws; from the array, all between the first and the last of them."""
        num_whole = self.num_draws - len(self.tail)
        is_whole = draws < num_whole
        found = np.empty((len(draws), *self.tail.shape[1:]), self.tail.dtype)
        if is_whole.any():
            whole = draws[is_whole]
            first, stop = whole.min(), whole.max() + 1
            read = self.archive.read(self.key, self.chain, int(first), int(stop))
            found[is_whole] = read[whole - first]
        found[~is_whole] = self.tail[draws[~is_whole] - num_whole]
        return found


class StoredArray(BackendArray):
    """Show one variable of the first draws of some chains as an array.

    Args:
        chains: The chains.
        num_draws: Number of draws of each.
    """

    def __init__(self, chains: Sequence[TailedDraws], num_draws: int) -> None:
        self._chains = chains
        self.shape = (len(chains), num_draws, *chains[0].tail.shape[1:])
        self.dtype = chains[0].tail.dtype

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
        found = np.empty((len(all_chains), len(all_draws), *self.shape[2:]), self.dtype)
        for place, chain in enumerate(all_chains):
            found[place] = self._chains[chain].read(all_draws)
        # From the last dimension on, since a number takes its dimension away
        for dim in range(len(key) - 1, 1, -1):
            found = found[(slice(None),) * dim + (key[dim],)]
        for dim in (1, 0):
            found = found.squeeze(dim) if (chains, draws)[dim].ndim == 0 else found
        return found
