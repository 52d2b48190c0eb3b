"""The draws of a run on their way to disk."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.chains.running import equally_far
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.engines.base import Problem
from pyro_fnbg.stores.archive import Archive
from pyro_fnbg.stores.checkpoint import Saved
from pyro_fnbg.stores.identity import log_density
from pyro_fnbg.stores.tails import TailedDraws

__all__ = ["StoreWriter", "StoredNumbers"]

# Seconds between two commits, at most
SECONDS = 10.0

Arrays = Mapping[str, NDArray[Any]]


class StoreWriter:
    """Take the draws of some chains, and commit them every few seconds with the chains' states.

    Whole chunks go to disk when they are full; draws that fill none yet go with the checkpoint, and
    at the end into a last, shorter chunk. So a chunk that readers were shown is never written
    again, but for that last one of a run that goes on: it gives way to one that begins with the
    same draws.

    Args:
        archive: The arrays.
        problem: What the chains share.
        chains: Where this writer's chains are, by number.
        tails: Their draws that fill no chunk yet, by chain and key.
        are_together: Whether chains that are equally far go through the engine together.
    """

    def __init__(
        self,
        archive: Archive,
        problem: Problem,
        chains: Mapping[int, ChainState],
        tails: Mapping[int, Arrays],
        are_together: bool,
    ) -> None:
        self._archive, self._problem = archive, problem
        # Those that go together; others need not keep step
        self._groups = equally_far(chains) if are_together else []
        self._shown = archive.complete_draws
        self._chunks = {
            number: _Chunk(archive, problem.num_draws(chain), tails.get(number, {}))
            for number, chain in chains.items()
        }
        self._due = time.monotonic() + SECONDS

    def take(self, number: int, values: Arrays) -> None:
        """Take some draws of a chain, by the keys of their variables."""
        chunk = self._chunks[number]
        count, done = len(next(iter(values.values()))), 0
        while done < count:
            done += chunk.fill(values, done)
            if chunk.is_full:
                self._write(number)
                chunk.begin_next()

    def numbers(self, number: int, keys: Mapping[str, str], num_draws: int) -> StoredNumbers:
        """Return the first draws of a chain, of some variables by name of their keys."""
        chunk = self._chunks[number]
        tails = {key: chunk.tail[key].copy() for key in keys.values()}
        drawn = chunk.first + chunk.filled
        return StoredNumbers(self._archive.path, number, keys, min(num_draws, drawn), drawn, tails)

    def is_due(self, chains: Mapping[int, ChainState]) -> bool:
        """Whether it is time to commit, and chains are where they can be gone on with."""
        return time.monotonic() >= self._due and self._are_even(chains)

    def _are_even(self, chains: Mapping[int, ChainState]) -> bool:
        """Whether chains that go through the engine together are equally far.

        Their bits depend on which others go with them, so they stay together.
        """
        return all(len({chains[one].sweeps for one in group}) == 1 for group in self._groups)

    def commit(self, chains: Mapping[int, ChainState], attributes: Mapping[str, Any]) -> None:
        """Show readers all whole chunks, and keep where the chains are.

        Args:
            chains: Where they are.
            attributes: What is said of the draws.
        """
        whole = {number: chunk.first for number, chunk in self._chunks.items()}
        self._commit(whole, chains, attributes)

    def close(self, chains: Mapping[int, ChainState], attributes: Mapping[str, Any]) -> None:
        """Show readers all draws, and keep where the chains are; see ``commit``.

        Where something broke off between draws and their chain's state, the last commit stays; and
        where it did between chains that go together, the last checkpoint. The run goes on from
        there, with the same draws.
        """
        made = {number: self._problem.num_draws(chain) for number, chain in chains.items()}
        if self.counts != made:
            return
        for number, chunk in self._chunks.items():
            if chunk.filled:
                self._write(number)
        self._commit(self.counts, chains, attributes)

    @property
    def counts(self) -> dict[int, int]:
        """Number of draws by chain."""
        return {number: chunk.first + chunk.filled for number, chunk in self._chunks.items()}

    def _write(self, number: int) -> None:
        chunk = self._chunks[number]
        # Those that readers were shown before come again where a run was killed within a commit
        if chunk.first + chunk.filled > self._shown[number]:
            self._archive.write(number, chunk.first, chunk.tail)

    def _commit(
        self,
        counts: Mapping[int, int],
        chains: Mapping[int, ChainState],
        attributes: Mapping[str, Any],
    ) -> None:
        self._archive.commit(counts, attributes)
        self._due = time.monotonic() + SECONDS
        if not self._are_even(chains):
            return
        self._archive.save({number: self._saved(number, one) for number, one in chains.items()})

    def _saved(self, number: int, state: ChainState) -> Saved:
        learnt = self._problem.moves.report(state.adaptation)
        return Saved(
            state=state,
            log_density=log_density(self._problem, state),
            tail=self._chunks[number].tail,
            learnt={name: values.cpu().numpy() for name, values in learnt.items()},
            noise={},
        )


class StoredNumbers(Mapping[str, NDArray[Any]]):
    """Read variables of a chain's first draws when they are asked for.

    Args:
        path: The store.
        chain: The chain's number.
        keys: Keys of the variables, by name.
        num_draws: Number of draws.
        num_drawn: Number of all draws so far.
        tails: The last of them, which may not be on disk, by key.
    """

    def __init__(
        self,
        path: Path,
        chain: int,
        keys: Mapping[str, str],
        num_draws: int,
        num_drawn: int,
        tails: Arrays,
    ) -> None:
        self._path, self._chain, self._keys = path, chain, keys
        self._num_draws, self._num_drawn, self._tails = num_draws, num_drawn, tails

    def __getitem__(self, name: str) -> NDArray[Any]:
        archive = Archive(self._path, is_read_only=True)
        draws = TailedDraws(archive, self._chain, self._num_drawn, self._tails)
        return draws.read(self._keys[name], np.arange(self._num_draws))

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class _Chunk:
    """Hold the draws of a chain that are not on disk yet.

    Attributes:
        first: Number of the first of them.
        filled: How many there are.
    """

    def __init__(self, archive: Archive, num_draws: int, tail: Arrays) -> None:
        self._length = archive.chunk_draws
        self._values = {
            key: np.empty((self._length, *variable.shape), variable.dtype)
            for key, variable in archive.variables.items()
        }
        self.first = num_draws // self._length * self._length
        self.filled = 0
        if num_draws > self.first:
            self.fill(tail, 0)

    @property
    def is_full(self) -> bool:
        """Whether it is as long as a chunk on disk."""
        return self.filled == self._length

    @property
    def tail(self) -> dict[str, NDArray[Any]]:
        """The draws by key."""
        return {key: values[: self.filled] for key, values in self._values.items()}

    def fill(self, values: Arrays, start: int) -> int:
        """Take draws from a start on, as many as there is room for; return their number."""
        for key, own in self._values.items():
            some = values[key][start : start + self._length - self.filled]
            own[self.filled : self.filled + len(some)] = some
        self.filled += len(some)
        return len(some)

    def begin_next(self) -> None:
        """Begin the chunk that follows."""
        self.first, self.filled = self.first + self._length, 0
