"""Data sets of the paper's experiments."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_fnbg.core.checks import check_count, is_count, shown

# Corners in the order of the paper's files; the label of (a, b) is a xor b.
_CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))
# With u uniform on [0, 1), u - 0.55 and u + 0.55 leave a gap of 0.1 around 0.5.
_OFFSET = 0.55
# First line of the paper's files, by name.
_HEADERS = {"x.csv": "x1,x2", "y.csv": "y"}


class NoisyXOR(NamedTuple):
    """Hold the training and test rows of noisy XOR.

    Attributes:
        x_train: Training inputs, float32 of shape (num_train, 2).
        y_train: Training labels 0 and 1, int64 of shape (num_train,).
        x_test: Test inputs, float32 of shape (num_test, 2).
        y_test: Test labels 0 and 1, int64 of shape (num_test,).

    Example:
        >>> data = noisy_xor(num_train=8, num_test=4)
        >>> data.x_train.shape, data.y_test.tolist()
        (torch.Size([8, 2]), [0, 1, 1, 0])
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def noisy_xor(num_train: int = 5000, num_test: int = 1200, seed: int = 0) -> NoisyXOR:
    """Simulate the noisy XOR data of the paper's experiments.

    Each corner (a, b) of the unit square gets a quarter of the rows. A coordinate is u - 0.55 for
    0 and u + 0.55 for 1, u uniform on [0, 1), and the label is a xor b: same distribution as the
    paper's files, other random numbers. Rows come corner by corner in the order (0, 0), (0, 1),
    (1, 0), (1, 1), as in those files, so shuffle before taking a slice. The test rows do not
    depend on `num_train`, and no global random state is read or changed.

    Args:
        num_train: Number of training rows, a positive multiple of 4.
        num_test: Number of test rows, a positive multiple of 4.
        seed: Seed of the generator, zero or more.

    Returns:
        The two sets, as a named tuple of tensors on the CPU.

    Raises:
        ValueError: A number of rows or the seed is not allowed.

    Examples:
        >>> data = noisy_xor(num_train=8, num_test=4)
        >>> data.x_train.shape, data.y_train.tolist()
        (torch.Size([8, 2]), [0, 0, 1, 1, 1, 1, 0, 0])
    """
    for name, rows in (("num_train", num_train), ("num_test", num_test)):
        if not is_count(rows, 1) or rows % len(_CORNERS) != 0:
            raise ValueError(f"{name} must be a positive multiple of 4, got {shown(rows)}")
    check_count("seed", seed, 0)
    train_generator, test_generator = np.random.default_rng(seed).spawn(2)
    return NoisyXOR(*_simulate(num_train, train_generator), *_simulate(num_test, test_generator))


def read_noisy_xor(folder: str | PathLike[str]) -> NoisyXOR:
    r"""Read noisy XOR data from the paper's own files, or from others of their form.

    The folder holds `training/x.csv`, `training/y.csv`, `test/x.csv` and `test/y.csv`: one line per
    row after the first line, which is `x1,x2` in `x.csv` and `y` in `y.csv`. Rows stay in their
    order, which in the paper's files is corner by corner, so shuffle before taking a slice.

    Args:
        folder: Folder that holds the folders `training` and `test`.

    Returns:
        The two sets, as a named tuple of tensors on the CPU.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file does not hold what it should.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     for part in ("training", "test"):
        ...         (Path(folder) / part).mkdir()
        ...         _ = (Path(folder) / part / "x.csv").write_text("x1,x2\n-0.5,0.25\n1.0,0.0\n")
        ...         _ = (Path(folder) / part / "y.csv").write_text("y\n0\n1\n")
        ...     data = read_noisy_xor(folder)
        >>> data.x_test.tolist(), data.y_test.tolist()
        ([[-0.5, 0.25], [1.0, 0.0]], [0, 1])
    """
    folder = Path(folder).expanduser()
    parts = (folder / "training", folder / "test")
    files = [part / name for part in parts for name in _HEADERS]
    missing = [str(file.relative_to(folder)) for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(
            f"noisy XOR was not found: {folder} lacks {', '.join(missing)}; expected are "
            "training/x.csv, training/y.csv, test/x.csv and test/y.csv"
        )
    return NoisyXOR(*_read_part(parts[0]), *_read_part(parts[1]))


def _simulate(num_rows: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    corners = np.repeat(np.array(_CORNERS), num_rows // len(_CORNERS), axis=0)
    x = generator.random(corners.shape) + np.where(corners == 1, _OFFSET, -_OFFSET)
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(corners[:, 0] ^ corners[:, 1])


def _read_part(part: Path) -> tuple[Tensor, Tensor]:
    x, y = (_read_numbers(part / name, header) for name, header in _HEADERS.items())
    labels = y[:, 0]
    if len(x) != len(labels):
        raise ValueError(f"{part} holds {len(x)} rows in x.csv, but {len(labels)} in y.csv")
    wrong = labels[(labels != 0) & (labels != 1)]
    if len(wrong) > 0:
        raise ValueError(f"{part / 'y.csv'} must hold labels 0 and 1, got {wrong[0]:g}")
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(labels.astype(np.int64))


def _read_numbers(file: Path, header: str) -> NDArray[np.float64]:
    columns = header.count(",") + 1
    try:
        first, *lines = file.read_text("utf-8").strip().split("\n")
        # Without its first line, a file of numbers would lose its first row unnoticed.
        if first.strip() != header or not lines:
            raise ValueError(f"the first of {len(lines) + 1} lines is {first[:40]!r}")
        numbers = np.loadtxt(lines, delimiter=",", ndmin=2, comments=None)
        if numbers.shape[1] != columns or not np.isfinite(numbers).all():
            raise ValueError(f"there are {numbers.shape[1]} columns, or not all are finite")
    except ValueError as error:
        raise ValueError(
            f"{file} must hold the line {header!r}, then lines of {columns} finite number(s): "
            f"{error}"
        ) from error
    return numbers
