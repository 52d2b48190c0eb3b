"""The data sets, how they are split, and in which units methods get them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

__all__ = ["CLASSES", "NUMBERS", "SETS", "Split", "split"]

Array = NDArray[Any]

NUMBERS = ("airfoil", "concrete", "energy", "yacht", "bikesharing", "protein")
CLASSES = ("ionosphere", "breast_cancer", "digits")
SETS = (*NUMBERS, *CLASSES)
BUNDLED: dict[str, Callable[..., tuple[Array, Array]]] = {
    "breast_cancer": load_breast_cancer,
    "digits": load_digits,
}
# Rows of bikesharing, counted from 1, in which a season begins; the first is of season 1
SEASON_STARTS = (1808, 4011, 6251, 8385, 10558, 12764, 15020, 17118)


@dataclass(frozen=True)
class Split:
    """Hold a set's rows, some of which are for the test.

    Inputs, and responses that are numbers, have mean 0 and standard deviation 1 over the rows to
    learn from. Classes are 0, 1, ...; ``num_classes`` is 0 for numbers.
    """

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    num_classes: int


def split(name: str, folder: Path | None, seed: int, max_rows: int | None = None) -> Split:
    """Read a set, hold out a fifth of its rows, and standardise by the others.

    Args:
        name: One of `SETS`.
        folder: Holds ``NAME.data`` of the sets that scikit-learn has not: numbers between spaces,
            the response last.
        seed: Of the split.
        max_rows: Use so many rows at most, the first ones.
    """
    x, y = _read(name, folder)
    x_train, x_test, y_train, y_test = train_test_split(
        x[:max_rows], y[:max_rows], test_size=0.2, random_state=seed
    )
    scaler = StandardScaler().fit(x_train)
    x_train, x_test = scaler.transform(x_train), scaler.transform(x_test)
    if name in CLASSES:
        classes, y_all = np.unique(np.concatenate([y_train, y_test]), return_inverse=True)
        y_train, y_test = np.split(y_all, [len(y_train)])
        return Split(x_train, y_train, x_test, y_test, len(classes))
    scaler = StandardScaler().fit(y_train[:, None])
    y_train, y_test = (scaler.transform(each[:, None])[:, 0] for each in (y_train, y_test))
    return Split(x_train, y_train, x_test, y_test, 0)


def _read(name: str, folder: Path | None) -> tuple[Array, Array]:
    if name in BUNDLED:
        return BUNDLED[name](return_X_y=True)
    if folder is None:
        raise ValueError(f"the set {name} is read from a folder: pass --data FOLDER")
    rows = np.loadtxt(folder / f"{name}.data")
    x, y = rows[:, :-1].copy(), rows[:, -1]
    if name == "bikesharing":
        # The file has the row's number in place of the season that the peer's copy has
        x[:, 0] = 1 + np.searchsorted(SEASON_STARTS, x[:, 0], side="right") % 4
    return x, y
