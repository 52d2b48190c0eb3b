"""Files of estimators: arrays and words in a zip archive, from which no code is ever run."""

from __future__ import annotations

import json
import os
import secrets
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.core.checks import shown

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["pack", "read_archive", "unpack", "write_archive"]

# Raised by one when older versions of the package could not read the files any more
FORMAT = 1
# The first entry of every archive, by which a file is known to be one of ours
WORDS = "pyro_fnbg.json"
NAME_OFFSET = 30  # of the first entry's name in a zip archive


def write_archive(
    path: str | os.PathLike[str], words: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write a file in one step: until it is whole, an older one of that name stays.

    Args:
        path: Where.
        words: What JSON can hold.
        arrays: Of numbers or text, by name.

    Raises:
        TypeError: If the path is none.
        OSError: If the file cannot be written.
    """
    path = _checked_path(path)
    passing = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(passing, "xb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr(WORDS, json.dumps({"format": FORMAT, **words}))
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(passing, path)
    except BaseException:
        passing.unlink(missing_ok=True)
        raise


def read_archive(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read what ``write_archive`` wrote.

    Returns:
        The words, and the arrays by name.

    Raises:
        TypeError: If the path is none.
        OSError: If the file cannot be read.
        ValueError: If it is another file, of a newer format, truncated or damaged; names it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_archive(f"{folder}/a", {"b": 1}, {"c": np.zeros(2)})
        ...     read_archive(f"{folder}/a")
        ({'format': 1, 'b': 1}, {'c': array([0., 0.])})
    """
    path = _checked_path(path)
    with open(path, "rb") as file:
        start = file.read(NAME_OFFSET + len(WORDS))
        if start[:2] != b"PK" or start[NAME_OFFSET:] != WORDS.encode():
            raise ValueError(f"{path} is no file that an estimator of pyro_fnbg saved")
        try:
            with zipfile.ZipFile(file) as archive:
                words = json.loads(archive.read(WORDS))
                found = int(words["format"])
                arrays = _arrays(archive) if found <= FORMAT else {}
        except Exception as error:  # whatever zipfile, json and NumPy make of damaged bytes
            raise ValueError(f"{path} is truncated or damaged: {error}") from error
    if found > FORMAT:
        raise ValueError(
            f"{path} has format {found}, written by a newer pyro_fnbg: this one reads formats up "
            f"to {FORMAT}"
        )
    return words, arrays


def _arrays(archive: zipfile.ZipFile) -> dict[str, NDArray[Any]]:
    arrays = {}
    for name in archive.namelist():
        if name != WORDS:
            with archive.open(name) as entry:
                found = np.lib.format.read_array(entry, allow_pickle=False)
            arrays[name.removesuffix(".npy")] = found
    return arrays


def _checked_path(path: object) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be the name of a file, got {shown(path)}")
    return Path(path)


def pack(groups: Mapping[str, xr.Dataset]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Take groups of ArviZ apart, into words and arrays."""
    words = {
        group: {
            "attributes": dataset.attrs,
            "dims": {str(name): list(value.dims) for name, value in dataset.variables.items()},
        }
        for group, dataset in groups.items()
    }
    arrays = {
        f"{group}/{name}": value.values
        for group, dataset in groups.items()
        for name, value in dataset.variables.items()
    }
    return words, arrays


def unpack(words: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, xr.Dataset]:
    """Put groups of ArviZ together again."""
    import xarray as xr

    return {
        group: xr.Dataset(
            {name: (dims, arrays[f"{group}/{name}"]) for name, dims in entry["dims"].items()},
            attrs=entry["attributes"],
        )
        for group, entry in words.items()
    }
