"""Checks of what is to be drawn, before a figure is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyro_fnbg.core.checks import as_reals, is_list, shown
from pyro_fnbg.prediction.labels import SUM_TOLERANCE

__all__ = [
    "as_array",
    "as_labels",
    "as_level",
    "as_probabilities",
    "as_samples",
    "check_increasing",
    "check_shares",
    "check_text",
    "check_together",
    "checked_titles",
    "common_names",
]

# Matplotlib overflows where it computes with larger numbers
LARGEST = 1e300


def as_array(name: str, values: ArrayLike, shape: Sequence[str | int]) -> NDArray[np.float64]:
    """Convert an array, nested lists or a tensor, and check its shape.

    Args:
        name: The argument.
        values: Its value.
        shape: Sizes by dimension; a word stands for any size from 1.

    Example:
        >>> as_array("values", [[1, 2.5]], ("chains", "draws"))
        array([[1. , 2.5]])
    """
    array = as_reals(values)
    if array is None:
        raise ValueError(f"{name} must be an array of numbers, got {shown(values)}")
    fits = array.ndim == len(shape) and all(
        size == expected or (isinstance(expected, str) and size > 0)
        for size, expected in zip(array.shape, shape, strict=False)
    )
    if not fits:
        expected = f"({', '.join(map(str, shape))})"
        raise ValueError(f"{name} must have shape {expected}, got {array.shape}")
    huge = array[np.isfinite(array) & (np.abs(array) > LARGEST)]
    if len(huge) > 0:
        raise ValueError(f"{name} must lie between -{LARGEST:g} and {LARGEST:g}, got {huge[0]:g}")
    return array


def as_level(name: str, value: object) -> float:
    """Convert one number that can be drawn.

    Example:
        >>> as_level("all_rows", np.float32(0.5))
        0.5
    """
    number = as_reals(value)
    if number is None or number.ndim > 0 or not abs(number) <= LARGEST:
        raise ValueError(
            f"{name} must be a number between -{LARGEST:g} and {LARGEST:g}, got {shown(value)}"
        )
    return float(number)


def as_probabilities(probabilities: ArrayLike, num_rows: int | str = "rows") -> NDArray[np.float64]:
    """Convert the probabilities of classes, and check that those of each row sum to 1.

    Example:
        >>> as_probabilities([[0.25, 0.75]])
        array([[0.25, 0.75]])
    """
    array = as_array("probabilities", probabilities, (num_rows, "classes"))
    check_shares("probabilities", array)
    sums = array.sum(-1)
    wrong = sums[~(np.abs(sums - 1) <= SUM_TOLERANCE)]  # NaN, too
    if len(wrong) > 0:
        raise ValueError(f"probabilities must sum to 1 in each row, got a sum of {wrong[0]:g}")
    if array.shape[1] < 2:
        raise ValueError(f"probabilities must be of two classes or more, got {array.shape[1]}")
    return array


def as_labels(labels: ArrayLike, num_rows: int, num_classes: int) -> NDArray[np.int64]:
    """Convert the classes of rows, which count from 0, and check them.

    Example:
        >>> as_labels([0.0, 2.0], num_rows=2, num_classes=3)
        array([0, 2])
    """
    array = as_array("labels", labels, (num_rows,))
    if not np.isin(array, range(num_classes)).all():
        found = shown(np.unique(array).tolist())
        raise ValueError(f"labels must be whole numbers from 0 to {num_classes - 1}, got {found}")
    return array.astype(np.int64)


def as_samples(name: str, values: object) -> dict[object, NDArray[np.float64]]:
    """Convert values, finite or NaN, by the name of their group; groups may differ in size.

    Example:
        >>> as_samples("values", {"small": [1], "large": [2, 3]})
        {'small': array([1.]), 'large': array([2., 3.])}
    """
    if not isinstance(values, Mapping) or not values:
        raise ValueError(f"{name} must be a mapping from groups to values, got {shown(values)}")
    samples = {}
    for group, of_group in values.items():
        samples[group] = as_array(f"{name}[{group!r}]", of_group, ("values",))
        infinite = samples[group][np.isinf(samples[group])]
        if len(infinite) > 0:
            raise ValueError(
                f"{name}[{group!r}] must hold finite numbers, or NaN where there is none; got "
                f"{infinite[0]}"
            )
    return samples


def check_text(name: str, value: object) -> None:
    """Check what is to be written beside an axis."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {shown(value)}")


def check_shares(name: str, values: ArrayLike) -> None:
    """Check numbers between 0 and 1, or NaN where there is none."""
    shares = np.asarray(values, dtype=np.float64)
    outside = shares[(shares < 0) | (shares > 1)]
    if len(outside) > 0:
        raise ValueError(f"{name} must lie between 0 and 1, got {outside[0]:g}")


def check_increasing(name: str, values: NDArray[np.float64]) -> None:
    """Check places along one axis."""
    if len(values) < 2 or not (np.diff(values) > 0).all():
        raise ValueError(
            f"{name} must be two or more numbers, each larger than the last, got "
            f"{shown(values.tolist())}"
        )


def check_together(**arguments: ArrayLike | None) -> None:
    """Check that either all of some arguments are given, or none."""
    missing = [name for name, value in arguments.items() if value is None]
    if 0 < len(missing) < len(arguments):
        raise ValueError(
            f"{' and '.join(arguments)} must be given together, got None as {missing[0]}"
        )


def checked_titles(
    titles: Sequence[str] | None, count: int, word: str = "chain", name: str = "titles"
) -> Sequence[str]:
    """Return one title each, numbered from 0 if there are none, as chains are in ArviZ."""
    if titles is None:
        return [f"{word} {number}" for number in range(count)]
    if not is_list(titles) or len(titles) != count:
        raise ValueError(f"{name} must hold {count} texts, got {shown(titles)}")
    return titles


def common_names(rates: Sequence[Mapping[str, float]], what: str) -> list[str]:
    """Return the names, of nodes say, that the rates of all chains have, and check the rates."""
    is_usable = is_list(rates) and all(isinstance(one, Mapping) and one for one in rates)
    if not is_usable or not rates:
        raise ValueError(
            f"rates must hold one mapping from {what} to rates per chain, got {shown(rates)}"
        )
    for by_name in rates:
        if differing := sorted(by_name.keys() ^ rates[0].keys()):
            raise ValueError(
                f"rates must have the same {what} in all chains; {shown(differing)} differ"
            )
        check_shares("rates", as_array("rates", list(by_name.values()), (what,)))
    return list(rates[0])
