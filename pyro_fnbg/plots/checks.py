"""Checks of what is to be drawn, before a figure is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pyro_fnbg.core.checks import is_list, shown

__all__ = ["as_array", "check_increasing", "check_shares", "checked_titles", "common_nodes"]


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
    if isinstance(values, Tensor):
        values = values.detach().cpu()
    array = np.asarray(values, dtype=np.float64)
    fits = array.ndim == len(shape) and all(
        size == expected or (isinstance(expected, str) and size > 0)
        for size, expected in zip(array.shape, shape, strict=False)
    )
    if not fits:
        expected = f"({', '.join(map(str, shape))})"
        raise ValueError(f"{name} must have shape {expected}, got {array.shape}")
    return array


def check_shares(name: str, values: ArrayLike) -> None:
    """Check numbers between 0 and 1, or NaN where there is none."""
    shares = np.asarray(values, dtype=np.float64)
    outside = shares[(shares < 0) | (shares > 1)]
    if len(outside) > 0:
        raise ValueError(f"{name} must lie between 0 and 1, got {outside[0]:g}")


def check_increasing(name: str, values: NDArray[np.float64]) -> None:
    """Check the places of a grid along one axis."""
    if len(values) < 2 or not (np.diff(values) > 0).all():
        raise ValueError(
            f"{name} must be two or more numbers, each larger than the last, got {values.tolist()}"
        )


def checked_titles(titles: Sequence[str] | None, count: int, word: str = "chain") -> Sequence[str]:
    """Return one title each, numbered ones if there are none."""
    if titles is None:
        return [f"{word} {number}" for number in range(1, count + 1)]
    if not is_list(titles) or len(titles) != count:
        raise ValueError(f"titles must hold {count} texts, got {shown(titles)}")
    return titles


def common_nodes(rates: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the nodes of all chains, and check their rates."""
    if not is_list(rates) or not rates or not all(map(len, rates)):
        raise ValueError(
            f"rates must hold one mapping from nodes to rates per chain, got {shown(rates)}"
        )
    for by_node in rates:
        if differing := sorted(by_node.keys() ^ rates[0].keys()):
            raise ValueError(
                f"rates must have the same nodes in all chains; {shown(differing)} differ"
            )
        check_shares("rates", list(by_node.values()))
    return list(rates[0])
