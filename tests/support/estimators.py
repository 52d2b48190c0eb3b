"""Small estimators for their tests, and data spread evenly, without chance."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

SHORT = {"hidden": (3,), "num_samples": 20, "warmup_steps": 20, "random_state": 0}


def spread(num_rows: int, step: float) -> NDArray[np.float64]:
    """Return numbers like those of a standard normal distribution, from multiples of a step."""
    return ndtri((0.5 + step * np.arange(1, num_rows + 1)) % 1)


def rows(num_rows: int = 40) -> NDArray[np.float64]:
    """Return rows of two inputs."""
    return np.column_stack([spread(num_rows, 0.7548776662466927), spread(num_rows, 0.5698402909)])


def sides(x: NDArray[np.float64]) -> NDArray[np.int64]:
    """Say on which side each row is: 0 or 1."""
    return (x[:, 0] > 0).astype(np.int64)


def thirds(x: NDArray[np.float64]) -> NDArray[np.int64]:
    """Say in which third each row is: 0, 1 or 2."""
    return np.digitize(x[:, 0], [-0.5, 0.5])


def slope(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers of mean 100 + 10 times the first input, and standard deviation 2."""
    return 100 + 10 * x[:, 0] + 2 * spread(len(x), 0.6180339887498949)
