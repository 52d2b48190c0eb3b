"""Files of estimators: arrays and words in a zip archive, from which no code is ever run."""

from __future__ import annotations

import json
import os
import secrets
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.core.checks import is_count, shown

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

    A link stays, and the file that it leads to is written. The permissions of an older file stay.

    Args:
        path: Where.
        words: What JSON can hold.
        arrays: Of numbers or text, by name.

    Raises:
        TypeError: If the path is none.
        ValueError: If it is empty, or leads to a folder, a device or a pipe.
        OSError: If the file cannot be written.
    """
    target = _checked_path(path)
    passing = target.with_name(f".pyro_fnbg.{secrets.token_hex(8)}.tmp")
    content = {"format": FORMAT, **words, "arrays": list(arrays)}
    try:
        with open(passing, "xb") as file:
            if target.exists():
                os.chmod(passing, stat.S_IMODE(target.stat().st_mode))
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr(WORDS, json.dumps(content))
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(passing, target)
    except BaseException:
        passing.unlink(missing_ok=True)
        raise


def read_archive(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read what ``write_archive`` wrote, within a few times the memory that the file takes.

    Returns:
        The words, and the arrays by name.

    Raises:
        TypeError: If the path is none.
        OSError: If the file cannot be read.
        ValueError: If it is no file, another one, of a newer format, truncated or damaged; names
            it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_archive(f"{folder}/a", {"b": 1}, {"c": np.zeros(2)})
        ...     read_archive(f"{folder}/a")
        ({'format': 1, 'b': 1}, {'c': array([0., 0.])})
    """
    with open(_checked_path(path), "rb") as file:
        start = file.read(NAME_OFFSET + len(WORDS))
        if start[:2] != b"PK" or start[NAME_OFFSET:] != WORDS.encode():
            raise ValueError(f"{path} is no file that an estimator of pyro_fnbg saved")
        try:
            with zipfile.ZipFile(file) as archive:
                _check_sizes(archive, os.fstat(file.fileno()).st_size)
                words = json.loads(archive.read(WORDS))
                if not is_count(found := words["format"], 1):
                    raise ValueError(f"format {shown(found)}")
                arrays = _arrays(archive, words.pop("arrays")) if found <= FORMAT else {}
        except Exception as error:  # whatever zipfile, json and NumPy make of damaged bytes
            raise ValueError(f"{path} is truncated or damaged: {error}") from error
    if found > FORMAT:
        raise ValueError(
            f"{path} has format {found}, written by a newer pyro_fnbg: this one reads formats up "
            f"to {FORMAT}"
        )
    return words, arrays


def _check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """Refuse entries that would take more memory than the file: packed, or over one another."""
    entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("it has compressed entries")
    if sum(max(entry.file_size, entry.compress_size) for entry in entries) > size:
        raise ValueError("its entries are larger than the file")


def _arrays(archive: zipfile.ZipFile, names: list[str]) -> dict[str, NDArray[Any]]:
    if archive.namelist() != [WORDS, *(f"{name}.npy" for name in names)]:
        raise ValueError("its entries are not those that it names")
    arrays = {}
    for name in names:
        with archive.open(f"{name}.npy") as entry:
            np.lib.format.read_magic(entry)
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(entry)
            # Of the bytes that are there: NumPy's own reader makes room for what a header claims
            values = np.frombuffer(bytearray(entry.read()), dtype)
        arrays[name] = values.reshape(shape, order="F" if is_fortran else "C")
    return arrays


def _checked_path(path: object) -> Path:
    """Return the file that a path leads to, over links; it need not be there yet."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be the name of a file, got {shown(path)}")
    target = Path(os.path.realpath(path))
    # To replace a device would break it, and to read a pipe would wait for ever
    is_other = target.is_symlink() or (target.exists() and not target.is_file())
    if not os.fspath(path) or is_other:
        raise ValueError(f"path must be the name of a file, got {shown(path)}")
    return target


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
