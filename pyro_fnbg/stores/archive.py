"""The arrays of a store, by zarr: whole chunks first, then what readers go by, in one step.

Readers go by the consolidated metadata in the root's own file, which a commit replaces last and as
a whole. So they meet arrays of equal lengths, and no draw that is not on disk.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.core.checks import shown
from pyro_fnbg.stores.checkpoint import DamagedStore, Saved, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    import zarr

__all__ = [
    "POSTERIOR",
    "SAMPLE_STATS",
    "Archive",
    "Variable",
    "as_store",
    "check_free",
    "chunk_length",
]

FORMAT = 1
POSTERIOR, SAMPLE_STATS = "posterior", "sample_stats"
# A chunk holds about so many bytes over all sites; all chains' chunks in memory, at most so many
CHUNK_BYTES, BUFFER_BYTES = 4_000_000, 256_000_000
# Numbers of draws in a chunk of their own; a chunk is written before the first of them is shown
NUMBERS = 2**17


class Variable(NamedTuple):
    """Describe a number, or some, of every draw.

    Attributes:
        group: "posterior" or "sample_stats".
        name: Its name in there.
        shape: Of one draw's.
        dtype: Of the numbers.
        dims: Names of the dimensions of one draw's.
    """

    group: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    dims: tuple[str, ...]

    @property
    def key(self) -> str:
        """Path of its array; a slash in the name of a site would begin a group."""
        return f"{self.group}/{self.name.replace('%', '%25').replace('/', '%2F')}"

    @property
    def num_bytes(self) -> int:
        """Bytes of one draw."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


def as_store(path: object) -> Path:
    """Return a path that a user gave.

    Raises:
        TypeError: If it is none.
    """
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise TypeError(f"store must be a path, got {shown(path)}")
    return Path(path).expanduser()


def check_free(path: Path) -> None:
    """Check that there is nothing at a path, and a folder to put something into.

    Raises:
        FileExistsError: If there is.
        FileNotFoundError: If the folder is missing.
    """
    if path.exists():
        raise FileExistsError(
            f"store must be a path where there is nothing yet, got {str(path)!r}: "
            "MultiChainMCMC.resume goes on with a store that is there"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"store must be a path in a folder that is there, got {str(path)!r}"
        )


def chunk_length(variables: Sequence[Variable], num_chains: int) -> int:
    """Return how many draws a chunk holds."""
    of_draw = sum(variable.num_bytes for variable in variables if variable.group == POSTERIOR)
    return max(1, min(CHUNK_BYTES, BUFFER_BYTES // num_chains) // max(1, of_draw))


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
        root = _open(path, is_read_only)
        self.path, self._root = path, root
        self.run = str(root.attrs["run"])
        self.num_chains = int(root.attrs["num_chains"])
        self.chunk_draws = int(root.attrs["chunk_draws"])
        self.constants = dict(root.attrs)
        self.variables = {
            key: Variable(group, name, tuple(shape), dtype, tuple(dims))
            for key, (group, name, shape, dtype, dims) in self.constants["variables"].items()
        }

    @classmethod
    def create(
        cls,
        path: Path,
        variables: Sequence[Variable],
        writers: Sequence[Mapping[int, Saved]],
        constants: Mapping[str, Any],
        attributes: Mapping[str, Any],
    ) -> Archive:
        """Make a store without draws.

        Args:
            path: Its folder.
            variables: What is stored of each draw.
            writers: The chains at their start, by the writers that they will have.
            constants: What stays the same: ``identity``, what makes the draws, in words.
            attributes: What is said of the draws.

        Raises:
            FileExistsError: If there is something at the path.
        """
        import zarr
        from zarr.codecs import ZstdCodec

        check_free(path)
        run, num_chains = uuid4().hex, sum(map(len, writers))
        chunk_draws = chunk_length(variables, num_chains)
        # Made beside its place, so that a store that is there is a whole one
        part = path.with_name(f"{path.name}.{run}.part")
        root = zarr.create_group(
            part,
            attributes={
                "format": FORMAT,
                "run": run,
                "num_chains": num_chains,
                "chunk_draws": chunk_draws,
                "variables": {one.key: list(one) for one in variables},
                **constants,
            },
        )
        for group in (POSTERIOR, SAMPLE_STATS):
            made = root.create_group(group)
            for dim, length, chunk in (("chain", num_chains, num_chains), ("draw", 0, NUMBERS)):
                numbers = made.create_array(
                    dim, shape=(length,), chunks=(chunk,), dtype=np.int64, dimension_names=[dim]
                )
                numbers[:] = np.arange(length)
        for variable in variables:
            root.create_array(
                variable.key,
                shape=(num_chains, 0, *variable.shape),
                chunks=(1, chunk_draws, *(max(1, length) for length in variable.shape)),
                dtype=variable.dtype,
                fill_value=np.nan,
                # A third of the bytes, in a hundredth of the time of the sweeps: blocks that were
                # refused repeat their numbers
                compressors=[ZstdCodec(level=1, checksum=True)],
                dimension_names=["chain", "draw", *variable.dims],
            )
        _show(root, [0] * num_chains, attributes)
        for chains in writers:
            _save(part, run, num_chains, chains)
        part.rename(path)
        return cls(path)

    @property
    def attributes(self) -> dict[str, Any]:
        """What is said of the draws, and how many are shown."""
        return dict(_open(self.path, True)[POSTERIOR].attrs)

    @property
    def complete_draws(self) -> list[int]:
        """Number of draws of each chain that readers are shown."""
        return [int(count) for count in self.attributes["complete_draws"]]

    @contextmanager
    def claimed(self) -> Generator[None]:
        """Have the store for one run.

        Raises:
            RuntimeError: If another run has it.
        """
        from filelock import FileLock, Timeout

        lock = FileLock(self.path / ".run.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise RuntimeError(
                f"store must be of no other run that goes on, got {str(self.path)!r}, to which one "
                "writes right now"
            ) from error
        try:
            for pattern in ("*.partial", "*.part"):
                for path in self.path.rglob(pattern):
                    path.unlink()  # of a run that was killed while it wrote
            yield
        finally:
            lock.release()

    def save(self, chains: Mapping[int, Saved]) -> None:
        """Keep where the chains of one writer are."""
        _save(self.path, self.run, self.num_chains, chains)

    def saved(self) -> dict[int, Saved]:
        """Read the states of all chains.

        Raises:
            DamagedStore: If one is missing, or the files that hold them are not of this run.
        """
        chains: dict[int, Saved] = {}
        for path in sorted(self.path.glob("checkpoint*.npz")):
            run, found = read_checkpoint(path)
            if run != self.run:
                raise DamagedStore(f"{path.name} must be of the run {self.run}, got one of {run}")
            # Writers may have shared the chains out otherwise before: who got furthest knows best
            chains |= {
                number: one
                for number, one in found.items()
                if number not in chains or one.state.sweeps > chains[number].state.sweeps
            }
        if missing := sorted(set(range(self.num_chains)) - chains.keys()):
            raise DamagedStore(f"the store has no checkpoint of the chains {missing}")
        return dict(sorted(chains.items()))

    def write(self, key: str, chain: int, first: int, values: NDArray[Any]) -> None:
        """Write draws of a chain, up to a chunk's, from the first one of a chunk on."""
        stop = first + len(values)
        _as_long_as(self._root[key], 1, stop)[chain, first:stop] = values

    def commit(self, complete: Mapping[int, int], attributes: Mapping[str, Any]) -> None:
        """Show readers more draws, once they are on disk.

        Args:
            complete: Number of draws by chain; what is shown already stays.
            attributes: What is said of the draws.
        """
        with self._locked():
            root = _open(self.path)
            counts = [int(count) for count in root[POSTERIOR].attrs["complete_draws"]]
            for chain, count in complete.items():
                counts[chain] = max(counts[chain], count)
            _show(root, counts, attributes)

    def read(self, key: str, chain: int, first: int, stop: int) -> NDArray[Any]:
        """Read some draws of a chain, whether readers are shown them or not.

        Raises:
            DamagedStore: If a chunk is missing or was changed; names it.
        """
        array = _as_long_as(self._root[key], 1, stop)
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

    @contextmanager
    def _locked(self) -> Generator[None]:
        from filelock import FileLock

        with FileLock(self.path / ".commit.lock"):
            yield


def _open(path: Path, is_read_only: bool = False) -> Any:
    """Open a store.

    Raises:
        FileNotFoundError: If there is none.
        DamagedStore: If it is no store, or one of another format.
    """
    import zarr

    if not (path / "zarr.json").exists():
        raise FileNotFoundError(
            f"store must be a folder that MultiChainMCMC(..., store=) made, got {str(path)!r}"
        )
    try:
        root = zarr.open_group(path, mode="r" if is_read_only else "r+", use_consolidated=False)
        version = root.attrs.get("format")
    except Exception as error:
        raise DamagedStore(f"{path}/zarr.json cannot be read ({error}): it was changed") from error
    if version != FORMAT:
        raise DamagedStore(
            f"store must have the format {FORMAT}, which this version reads, got "
            f"{shown(version)} in {str(path)!r}"
        )
    return root


def _show(root: Any, counts: Sequence[int], attributes: Mapping[str, Any]) -> None:
    """Say how long arrays are, and what readers are told besides, in one step at the end."""
    import zarr

    length = max(counts)
    for group in (POSTERIOR, SAMPLE_STATS):
        numbers = root[f"{group}/draw"]
        for first in range(-(-numbers.shape[0] // NUMBERS) * NUMBERS, length, NUMBERS):
            stop = first + NUMBERS
            _as_long_as(numbers, 0, stop)[first:stop] = np.arange(first, stop)
        if numbers.shape[0] < length:
            numbers.resize((length,))
    for key in root.attrs["variables"]:
        array = root[key]
        if array.shape[1] < length:
            array.resize((array.shape[0], length, *array.shape[2:]))
    root[POSTERIOR].attrs.update({**attributes, "complete_draws": list(counts)})
    with warnings.catch_warnings():
        # Of files that are no arrays, and of metadata that zarr 3 does not have in its own book yet
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(root.store)


def _as_long_as(array: zarr.Array[Any], axis: int, length: int) -> zarr.Array[Any]:
    """View an array as if it were longer: chunks are written before anybody is told of them."""
    import zarr
    from zarr.storage import StorePath

    metadata = array.metadata.to_dict()
    shape = list(array.shape)
    shape[axis] = max(shape[axis], length)
    return zarr.Array.from_dict(StorePath(array.store, array.path), {**metadata, "shape": shape})


def _save(path: Path, run: str, num_chains: int, chains: Mapping[int, Saved]) -> None:
    # Who has all chains must not write over what has one of them, nor the other way round
    name = "checkpoint" if len(chains) == num_chains else f"checkpoint-{min(chains)}"
    write_checkpoint(path / f"{name}.npz", run, chains)
