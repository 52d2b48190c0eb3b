"""What is in a store, and who may write to it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.stores.checkpoint import DamagedStore, Saved, read_checkpoint, write_checkpoint
from pyro_fnbg.stores.hierarchy import (
    POSTERIOR,
    Variable,
    as_long_as,
    check_free,
    consolidate,
    constants_of,
    make,
    open_root,
    show,
)

if TYPE_CHECKING:
    import zarr

__all__ = ["Archive"]

# More draws than any run has
ENDLESS = 2**40
# The checkpoint of all chains together
OF_ALL = "checkpoint.npz"


class Archive:
    """Write the draws of some chains of a store; several processes may, each its own chains.

    Attributes:
        path: The store's folder.
        run: The name of the run.
        variables: What is stored of each draw, by key.
        constants: What stays the same: see ``create``.
        num_chains: Number of chains.
        chunk_draws: Draws in a chunk.
    """

    def __init__(self, path: Path, is_read_only: bool = False) -> None:
        root = open_root(path, is_read_only)
        self.path, self._root = path, root
        self._arrays: dict[str, zarr.Array[Any]] = {}
        self.constants = constants_of(root)
        self.run = str(self.constants["run"])
        self.num_chains = int(self.constants["num_chains"])
        self.chunk_draws = int(self.constants["chunk_draws"])
        self.variables = {
            key: Variable(group, name, tuple(shape), dtype, tuple(dims))
            for key, (group, name, shape, dtype, dims) in self.constants["variables"].items()
        }

    @classmethod
    def create(
        cls,
        path: Path,
        run: str,
        num_chains: int,
        variables: Sequence[Variable],
        writers: Sequence[Mapping[int, Saved]],
        constants: Mapping[str, Any],
        attributes: Mapping[str, Any],
        observed: Mapping[str, NDArray[Any]],
    ) -> Archive:
        """Make a store without draws.

        Args:
            path: Its folder.
            run: A name of the run's own.
            num_chains: Number of its chains.
            variables: What is stored of each draw.
            writers: The chains at their start, by the writers that they will have, or some of them.
            constants: What stays the same: ``identity``, what makes the draws, in words.
            attributes: What is said of the draws.
            observed: The data, by observed site.

        Raises:
            FileExistsError: If there is something at the path.
            ValueError: If an observed site has a name that cannot be stored.
        """
        check_free(path)
        # Made beside its place, so that a store that is there is a whole one
        part = path.with_name(f"{path.name}.{uuid4().hex}.part")
        own = {"run": run, "num_chains": num_chains, **constants}
        try:
            make(part, num_chains, variables, own, attributes, observed)
            for chains in writers:
                _save(part, run, num_chains, chains)
            part.rename(path)
        except BaseException as error:
            shutil.rmtree(part, ignore_errors=True)
            if path.exists():
                raise FileExistsError(f"store {str(path)!r} was made by somebody else") from error
            raise
        return cls(path)

    @property
    def attributes(self) -> dict[str, Any]:
        """What is said of the draws, and how many are shown."""
        return dict(open_root(self.path, True)[POSTERIOR].attrs)

    @property
    def complete_draws(self) -> list[int]:
        """Number of draws of each chain that readers are shown."""
        return [int(count) for count in self.attributes["complete_draws"]]

    @contextmanager
    def claimed(self, chain: int | None = None) -> Generator[None]:
        """Have the store for a run, or for one chain of Pyro's driver, whose processes are apart.

        Such a chain that broke off leaves its claim until its process ends; so this process may
        take it over.

        Raises:
            RuntimeError: If another run has it.
        """
        own, others = (
            (".run.lock", ".run-*.lock") if chain is None else (f".run-{chain}.lock", ".run.lock")
        )
        with self.locked(own):
            for other in sorted(self.path.glob(others)):
                if self._holder(other.name) != str(os.getpid()):
                    with self.locked(other.name):
                        pass
            if chain is not None:
                (self.path / own).with_suffix(".pid").write_text(str(os.getpid()))
            else:
                for pattern in ("*.partial", "*.part"):
                    for path in self.path.rglob(pattern):
                        if path.is_file():  # of a run that was killed while it wrote
                            path.unlink(missing_ok=True)
            yield

    def _holder(self, lock: str) -> str:
        """Return the number of the process that claimed a chain last."""
        path = (self.path / lock).with_suffix(".pid")
        return path.read_text() if path.exists() else ""

    @contextmanager
    def locked(self, name: str) -> Generator[None]:
        """Hold one of the store's locks.

        Raises:
            RuntimeError: If somebody else holds it.
        """
        from filelock import FileLock, Timeout

        lock = FileLock(self.path / name)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise RuntimeError(
                f"store must be of no other run that goes on, got {str(self.path)!r}, to which one "
                "writes right now, or broke off in a process that is still there"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def has_begun(self, chain: int) -> bool:
        """Whether there is a checkpoint of a chain, by itself or with all others."""
        return _checkpoint(self.path, chain).exists() or (self.path / OF_ALL).exists()

    def save(self, chains: Mapping[int, Saved]) -> None:
        """Keep where the chains of one writer are."""
        _save(self.path, self.run, self.num_chains, chains)

    def saved(self) -> dict[int, Saved]:
        """Read the states of those chains that have begun, by number.

        Raises:
            DamagedStore: If one is missing, or the files that hold them are not of this run.
        """
        chains: dict[int, Saved] = {}
        for _, found in self._checkpoints():
            # Writers may have shared the chains out otherwise before: who got furthest knows best
            chains |= {
                number: one
                for number, one in found.items()
                if number not in chains or one.state.sweeps > chains[number].state.sweeps
            }
        counts = self.complete_draws
        missing = [number for number, count in enumerate(counts) if count and number not in chains]
        if missing or not chains:
            raise DamagedStore(
                f"the store has no checkpoint of the chains {missing or 'that it had'}"
            )
        return dict(sorted(chains.items()))

    def amend(self, change: Callable[[Saved], Saved | None]) -> None:
        """Change what is saved of some chains, in whichever file it is.

        Files of others, which may be under way, are left alone.

        Args:
            change: Returns what takes the place of what is saved; None where it stays.
        """
        for path, found in list(self._checkpoints()):
            changed = {number: change(one) for number, one in found.items()}
            new = {number: one for number, one in changed.items() if one is not None}
            if new:
                write_checkpoint(path, self.run, found | new)

    def _checkpoints(self) -> Iterator[tuple[Path, dict[int, Saved]]]:
        for path in sorted(self.path.glob("checkpoint*.npz")):
            run, found = read_checkpoint(path)
            if run != self.run:
                raise DamagedStore(f"{path.name} must be of the run {self.run}, got one of {run}")
            yield path, found

    def write(self, chain: int, first: int, values: Mapping[str, NDArray[Any]]) -> None:
        """Write draws of a chain by key, up to a chunk's, from the first one of a chunk on."""
        from zarr.core.sync import sync

        arrays = {key: self._array(key).async_array for key in values}

        async def write_all() -> None:
            # Together, which takes half of the time that one variable after the other takes
            await asyncio.gather(
                *(
                    arrays[key].setitem((chain, slice(first, first + len(drawn))), drawn)
                    for key, drawn in values.items()
                )
            )

        sync(write_all())

    def commit(self, complete: Mapping[int, int], attributes: Mapping[str, Any]) -> None:
        """Show readers more draws, once they are on disk.

        Args:
            complete: Number of draws by chain; what is shown already stays.
            attributes: What is said of the draws.
        """
        from filelock import FileLock

        with FileLock(self.path / ".commit.lock"):
            root = open_root(self.path)
            shown = root[POSTERIOR].attrs
            counts = [int(count) for count in shown["complete_draws"]]
            for chain, count in complete.items():
                counts[chain] = max(counts[chain], count)
            num_samples = max(attributes["num_samples"], shown["num_samples"])
            show(root, counts, {**attributes, "num_samples": num_samples})

    def put(self, part: Path, group: str) -> None:
        """Give the store a group of its own that was made elsewhere, in place of an older one."""
        from filelock import FileLock

        place, old = self.path / group, part.with_suffix(".old")
        with FileLock(self.path / ".commit.lock"):
            if place.exists():
                place.rename(old)
            part.rename(place)
            consolidate(open_root(self.path))
        shutil.rmtree(old, ignore_errors=True)

    def read(self, key: str, chain: int, first: int, stop: int) -> NDArray[Any]:
        """Read some draws of a chain, whether readers are shown them or not.

        Raises:
            DamagedStore: If a chunk is missing or was changed; names it.
        """
        array = self._array(key)
        if 0 in array.shape[2:]:
            return np.empty((stop - first, *array.shape[2:]), array.dtype)
        try:
            for number in range(first // self.chunk_draws, -(-stop // self.chunk_draws)):
                place = (chain, number, *(0 for _ in array.shape[2:]))
                chunk = self.path / key / array.metadata.encode_chunk_key(place)
                if not chunk.exists():  # zarr takes its numbers for NaN
                    raise DamagedStore(f"{chunk.relative_to(self.path)} is missing from the store")
            return np.asarray(array[chain, first:stop])
        except (OSError, RuntimeError) as error:
            raise DamagedStore(
                f"a chunk of {key} cannot be read, of the draws {first} to {stop - 1} of chain "
                f"{chain} ({error}): it was cut short or changed"
            ) from error

    def _array(self, key: str) -> zarr.Array[Any]:
        """Return the array of a variable, without an end."""
        if key not in self._arrays:
            import zarr

            # A chunk of nothing but NaN would be left out, as if it had been lost
            with zarr.config.set({"array.write_empty_chunks": True}):
                self._arrays[key] = as_long_as(self._root[key], 1, ENDLESS)
        return self._arrays[key]


def _save(path: Path, run: str, num_chains: int, chains: Mapping[int, Saved]) -> None:
    # Who has all chains must not write over what has one of them, nor the other way round
    is_all = len(chains) == num_chains
    write_checkpoint(path / OF_ALL if is_all else _checkpoint(path, min(chains)), run, chains)


def _checkpoint(path: Path, chain: int) -> Path:
    return path / f"checkpoint-{chain}.npz"
