"""The groups and arrays of a store, by zarr.

Readers go by the consolidated metadata in the root's own file, which ``show`` replaces last and as
a whole. So they meet arrays of equal lengths, and no draw that is not on disk.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.core.checks import shown
from pyro_fnbg.stores.checkpoint import DamagedStore

if TYPE_CHECKING:
    import zarr

__all__ = [
    "CHUNK_BYTES",
    "OBSERVED_DATA",
    "POSTERIOR",
    "PREDICTIONS",
    "SAMPLE_STATS",
    "Variable",
    "as_long_as",
    "as_store",
    "check_free",
    "check_variables",
    "chunk_length",
    "consolidate",
    "constants_of",
    "make",
    "open_root",
    "show",
]

FORMAT = 2
POSTERIOR, SAMPLE_STATS, OBSERVED_DATA = "posterior", "sample_stats", "observed_data"
PREDICTIONS, CONSTANTS = "predictions", "run"
# Letters that paths have another use for, and names that are those of files of a store's own
SPECIAL, RESERVED = "%/\\", ("", ".", "..", "zarr.json")
MAX_BYTES = 200  # of the name of a file
# A chunk holds about so many bytes, sites and statistics together; those of all chains, which are
# in memory, so many at most
CHUNK_BYTES, BUFFER_BYTES = 4_000_000, 256_000_000
# Numbers of draws in a chunk of their own; a chunk is written before the first of them is shown
NUMBERS = 2**17


class Variable(NamedTuple):
    """Describe a number, or some, of every draw.

    Attributes:
        group: "posterior" or "sample_stats"; or "observed_data", where there is one draw.
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
        """Path of its array: its name, but for letters that have another use in paths."""
        own = "".join(f"%{ord(c):02X}" if c in SPECIAL else c for c in self.name)
        if own in RESERVED or own.endswith((".part", ".partial")):
            own += "%"
        return f"{self.group}/{own}"

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
    # A script may go to another folder
    return Path(path).expanduser().absolute()


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


def check_variables(variables: Sequence[Variable]) -> None:
    """Check that sites have names that arrays can have.

    Raises:
        ValueError: If one has not; names it.
    """
    for variable in variables:
        if variable.group != OBSERVED_DATA and variable.name in ("chain", "draw"):
            raise ValueError(
                f"site {variable.name!r} has the name of a dimension of the store: give it another"
            )
        if len(variable.key.encode()) > MAX_BYTES:
            raise ValueError(
                f"site {shown(variable.name)} must have a name of {MAX_BYTES} bytes at most to be "
                "stored: give it another"
            )


def chunk_length(variables: Sequence[Variable], num_chains: int) -> int:
    """Return how many draws a chunk holds."""
    of_draw = sum(variable.num_bytes for variable in variables)
    return max(1, min(CHUNK_BYTES, BUFFER_BYTES // num_chains) // of_draw)


def make(
    path: Path,
    num_chains: int,
    variables: Sequence[Variable],
    constants: Mapping[str, Any],
    attributes: Mapping[str, Any],
    observed: Mapping[str, NDArray[Any]],
) -> None:
    """Make the groups and arrays of a store without draws.

    Args:
        path: Its folder.
        num_chains: Number of chains.
        variables: What is stored of each draw.
        constants: What is said of the run and stays the same.
        attributes: What is said of the draws.
        observed: The data, by observed site.

    Raises:
        ValueError: If an observed site has a name that cannot be stored.
    """
    import zarr
    from zarr.codecs import ZstdCodec

    chunk_draws = chunk_length(variables, num_chains)
    described = {one.key: list(one) for one in variables}
    told = {"chunk_draws": chunk_draws, "variables": described, **constants}
    # As text, which every format of files can hold
    root = zarr.create_group(path, attributes={"format": FORMAT, CONSTANTS: json.dumps(told)})
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
    _write_data(root, observed)
    show(root, [0] * num_chains, attributes)


def _write_data(root: Any, observed: Mapping[str, NDArray[Any]]) -> None:
    """Write the data, as arrays whose dimensions have the names that ArviZ gives them."""
    root.create_group(OBSERVED_DATA)
    for name, values in observed.items():
        dims = tuple(f"{name}_dim_{place}" for place in range(values.ndim))
        variable = Variable(OBSERVED_DATA, name, values.shape, str(values.dtype), dims)
        check_variables([variable])
        rows = max(1, CHUNK_BYTES // max(1, values[:1].nbytes)) if values.ndim else 1
        array = root.create_array(
            variable.key,
            shape=values.shape,
            chunks=tuple(max(1, size) for size in (rows, *values.shape[1:])[: values.ndim]),
            dtype=values.dtype,
            dimension_names=list(dims),
            attributes={"site": name},
        )
        array[...] = values


def open_root(path: Path, is_read_only: bool = False) -> Any:
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


def constants_of(root: Any) -> dict[str, Any]:
    """Return what is said of the run and stays the same."""
    told: dict[str, Any] = json.loads(root.attrs[CONSTANTS])
    return told


def show(root: Any, counts: Sequence[int], attributes: Mapping[str, Any]) -> None:
    """Say how long arrays are, and what readers are told besides, in one step at the end."""
    length = max(counts)
    for group in (POSTERIOR, SAMPLE_STATS):
        numbers = root[f"{group}/draw"]
        for first in range(-(-numbers.shape[0] // NUMBERS) * NUMBERS, length, NUMBERS):
            stop = first + NUMBERS
            as_long_as(numbers, 0, stop)[first:stop] = np.arange(first, stop)
        if numbers.shape[0] < length:
            numbers.resize((length,))
    for key in constants_of(root)["variables"]:
        array = root[key]
        if array.shape[1] < length:
            array.resize((array.shape[0], length, *array.shape[2:]))
    is_complete = int(min(counts) >= attributes["num_samples"])
    found = {"complete": is_complete, "is_complete": is_complete}
    root[POSTERIOR].attrs.update({**attributes, **found, "complete_draws": list(counts)})
    consolidate(root)


def consolidate(root: Any) -> None:
    """Write what readers go by, as a whole."""
    import zarr

    with warnings.catch_warnings():
        # Of files that are no arrays, and of metadata that zarr 3 does not have in its own book yet
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(root.store)


def as_long_as(array: zarr.Array[Any], axis: int, length: int) -> zarr.Array[Any]:
    """View an array as if it were longer: chunks are written before anybody is told of them."""
    import zarr
    from zarr.storage import StorePath

    metadata = array.metadata.to_dict()
    shape = list(array.shape)
    shape[axis] = max(shape[axis], length)
    return zarr.Array.from_dict(StorePath(array.store, array.path), {**metadata, "shape": shape})
