"""The draws of a store's chains: in arrays, and the last ones, which only a checkpoint may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.stores.archive import Archive
from pyro_fnbg.stores.checkpoint import Saved

__all__ = ["TailedDraws", "draws_by_chain"]


class TailedDraws(NamedTuple):
    """Hold a chain's draws.

    Attributes:
        archive: The store's arrays, which have those of whole chunks.
        chain: The chain's number.
        num_draws: Number of its draws.
        tails: The last of them, which a checkpoint has, by the keys of their variables.
    """

    archive: Archive
    chain: int
    num_draws: int
    tails: Mapping[str, NDArray[Any]]

    def read(self, key: str, draws: NDArray[np.intp]) -> NDArray[Any]:
        """Read some draws of a variable; from its array, all from the first to the last of them."""
        variable = self.archive.variables[key]
        tail = self.tails.get(key, np.empty((0, *variable.shape), variable.dtype))
        num_whole = self.num_draws - len(tail)
        is_whole = draws < num_whole
        found = np.empty((len(draws), *tail.shape[1:]), tail.dtype)
        if is_whole.any():
            whole = draws[is_whole]
            first, stop = whole.min(), whole.max() + 1
            read = self.archive.read(key, self.chain, int(first), int(stop))
            found[is_whole] = read[whole - first]
        found[~is_whole] = tail[draws[~is_whole] - num_whole]
        return found


def draws_by_chain(
    archive: Archive, counts: Sequence[int], saved: Mapping[int, Saved]
) -> list[TailedDraws]:
    """Find all draws of each chain, of a run that goes on, has ended or was killed.

    Args:
        archive: The store's arrays.
        counts: Number of draws of each chain that readers are shown.
        saved: The chains as checkpoints have them, read before or after the counts.
    """
    thin = int(archive.constants["identity"]["thin"])
    found = [TailedDraws(archive, chain, count, {}) for chain, count in enumerate(counts)]
    for chain, one in saved.items():
        num_draws = one.state.draw_tally.sweeps // thin
        if num_draws > counts[chain]:
            found[chain] = TailedDraws(archive, chain, num_draws, one.tail)
    return found
