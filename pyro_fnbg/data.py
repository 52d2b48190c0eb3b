"""Data sets of the paper's experiments."""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Corners in the order of the paper's files; the label of (a, b) is a xor b.
_CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))
# With u uniform on [0, 1), u - 0.55 and u + 0.55 leave a gap of 0.1 around 0.5.
_OFFSET = 0.55


class NoisyXOR(NamedTuple):
    """Hold the training and test rows of noisy XOR.

    Attributes:
        x_train: Training inputs, float32 of shape (num_train, 2).
        y_train: Training labels 0 and 1, int64 of shape (num_train,).
        x_test: Test inputs, float32 of shape (num_test, 2).
        y_test: Test labels 0 and 1, int64 of shape (num_test,).
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
        if not _is_count(rows) or rows == 0 or rows % len(_CORNERS) != 0:
            raise ValueError(f"{name} must be a positive multiple of 4, got {rows!r}")
    if not _is_count(seed):
        raise ValueError(f"seed must be an integer of zero or more, got {seed!r}")
    train_generator, test_generator = np.random.default_rng(seed).spawn(2)
    return NoisyXOR(*_simulate(num_train, train_generator), *_simulate(num_test, test_generator))


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _simulate(num_rows: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    corners = np.repeat(np.array(_CORNERS), num_rows // len(_CORNERS), axis=0)
    x = generator.random(corners.shape) + np.where(corners == 1, _OFFSET, -_OFFSET)
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(corners[:, 0] ^ corners[:, 1])
