"""The draws of a store as predictions and diagnostics want them: read some at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_fnbg.prediction.samples import LazySamples
from pyro_fnbg.stores.contents import Contents
from pyro_fnbg.stores.hierarchy import POSTERIOR, as_store
from pyro_fnbg.stores.tails import TailedDraws

__all__ = ["StoredSamples", "StoredSite", "open_samples"]

# Chunks that stay in memory: threads read what follows what they read last
NUM_CHUNKS = 8
# Of a site's numbers, so many bytes are read in one pass over all draws
BYTES_A_PASS = 2**28


class StoredSamples(LazySamples):
    """Read draws by site, ``(chains x draws, *site shape)``, when they are asked for.

    Pickled as the path of the store, so where they go must be able to read it there.

    Args:
        path: The store.
        chains: Numbers of the chains.
        draws_of_each: Number of draws of each.
        group_by_chain: Whether sites have a dimension for chains, ``(chains, draws, ...)``.

    Attributes:
        path: The store.
        chains: Numbers of the chains.
        num_chains: Number of chains.
    """

    def __init__(
        self, path: Path, chains: Sequence[int], draws_of_each: int, group_by_chain: bool = False
    ) -> None:
        self.path, self.chains = path, chains
        self._made_of = path, chains, draws_of_each, group_by_chain
        contents = Contents.read(path)
        archive = contents.archive
        self._keys = {
            one.name: key for key, one in archive.variables.items() if one.group == POSTERIOR
        }
        self._variables, self._chunk_draws = archive.variables, archive.chunk_draws
        self._chains = [contents.by_chain[chain] for chain in chains]
        self._of_each, self._is_grouped = draws_of_each, group_by_chain
        self.num_chains = len(self._chains)
        self._chunk = lru_cache(NUM_CHUNKS)(self._read_chunk)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredSamples, self._made_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, name: str) -> Tensor:
        site = self.site(name)
        values = torch.from_numpy(site.columns(0, site.num_columns)).view(site.shape)
        return values if self._is_grouped else values.flatten(0, 1)

    @property
    def num_draws(self) -> int:
        """Number of draws of all chains."""
        return self.num_chains * self._of_each

    def read(self, draws: slice) -> dict[str, Tensor]:
        """Read some draws of all sites, those of all chains one after another."""
        first, stop, _ = draws.indices(self.num_draws)
        pieces = []
        while first < stop:
            chain, draw = divmod(first, self._of_each)
            number, start = divmod(draw, self._chunk_draws)
            chunk = self._chunk(chain, number)
            count = min(stop - first, len(next(iter(chunk.values()))) - start)
            pieces.append({name: values[start : start + count] for name, values in chunk.items()})
            first += count
        if len(pieces) == 1:
            return {name: torch.from_numpy(values) for name, values in pieces[0].items()}
        return {
            name: torch.from_numpy(np.concatenate([piece[name] for piece in pieces]))
            for name in self._keys
        }

    def by_chain(self, name: str) -> Any:
        """Return the draws of a site, ``(chains, draws, *site shape)``, as xarray reads them."""
        from pyro_fnbg.stores.lazily import StoredArray

        return StoredArray(self._chains, self._keys[name], self._of_each).lazily()

    def site(self, name: str) -> StoredSite:
        """Return the draws of a site, of which some numbers can be read.

        Raises:
            KeyError: If the store has none.
        """
        return StoredSite(self._chains, self._keys[name], self._of_each)

    def _read_chunk(self, chain: int, number: int) -> dict[str, NDArray[Any]]:
        first = number * self._chunk_draws
        draws = np.arange(first, min(first + self._chunk_draws, self._of_each))
        return {name: self._chains[chain].read(key, draws) for name, key in self._keys.items()}


class StoredSite:
    """Read some numbers of a site in all draws.

    Args:
        chains: The chains.
        key: Key of the site's variable.
        num_draws: Number of draws of each.

    Attributes:
        shape: ``(chains, draws, *site shape)``.
    """

    def __init__(self, chains: Sequence[TailedDraws], key: str, num_draws: int) -> None:
        self._chains, self._key = chains, key
        self.shape = torch.Size((len(chains), num_draws, *chains[0].archive.variables[key].shape))
        self._read = (0, 0, np.empty(0))

    @property
    def num_columns(self) -> int:
        """How many numbers a draw has."""
        return self.shape[2:].numel()

    def columns(self, first: int, stop: int) -> NDArray[Any]:
        """Return some numbers of all draws, ``(chains, draws, numbers)``."""
        begin, end, values = self._read
        if not (begin <= first and stop <= end):
            # More than is asked for, since who asks for some asks for those that follow
            variable = self._chains[0].archive.variables[self._key]
            of_column = self.shape[:2].numel() * np.dtype(variable.dtype).itemsize
            end = max(stop, min(self.num_columns, first + BYTES_A_PASS // max(1, of_column)))
            begin, values = first, self._columns(first, end, variable.dtype)
            self._read = begin, end, values
        return values[..., first - begin : stop - begin]

    def _columns(self, first: int, stop: int, dtype: str) -> NDArray[Any]:
        """Read them in one pass over all chunks."""
        num_draws, length = self.shape[1], self._chains[0].archive.chunk_draws
        found = np.empty((*self.shape[:2], stop - first), dtype)
        for place, chain in enumerate(self._chains):
            for start in range(0, num_draws, length):
                draws = np.arange(start, min(start + length, num_draws))
                values = chain.read(self._key, draws).reshape(len(draws), -1)
                found[place, start : start + len(draws)] = values[:, first:stop]
        return found


def open_samples(store: str | os.PathLike[str]) -> StoredSamples:
    """Open the draws of a store for predictions, which read them some at a time.

    Of a run that goes on, has ended or was killed; cut, as in ``open_store``, to draws that all
    chains have. ``predict``, ``marginal_predictive``, ``diagnose_predictions`` and what else takes
    samples by site takes them as they are; in memory are about 32 MB of them. As a mapping they
    give all draws of a site, read at once.

    Args:
        store: The path that ``MultiChainMCMC(..., store=)`` was given.

    Returns:
        Draws by site, ``(chains x draws, *site shape)``, those of all chains one after another;
        ``num_chains`` says of how many.

    Raises:
        FileNotFoundError: If there is no store.
        ValueError: If it was changed, is of another format, or has no draws yet.

    Example:
        >>> import tempfile
        >>> from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, predict
        >>> model = BayesianMLP([2, 3, 1], likelihood="bernoulli")
        >>> x = torch.randn(20, 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mcmc = MultiChainMCMC(
        ...         FNBG(model), 8, num_chains=2, store=f"{folder}/run.zarr", disable_progbar=True
        ...     )
        ...     mcmc.run(x, torch.arange(20) % 2)
        ...     samples = open_samples(f"{folder}/run.zarr")
        ...     predict(model, samples, x).probabilities.shape
        torch.Size([20, 2])
    """
    path = as_store(store)
    contents = Contents.read(path)
    if contents.num_draws == 0:
        raise ValueError(f"store must have draws, got {str(path)!r}, which has none yet")
    return StoredSamples(path, contents.chains, contents.num_draws)
