"""What the pictures of ``plots`` share: a style, and checks of what is to be drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["COLOURS", "MARKERS", "STYLE", "checked_titles", "common_nodes", "to_array"]

# The palette of Okabe and Ito without its yellow, which is too pale for lines on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "grid.color": "0.85",
    "legend.frameon": False,
}


def to_array(
    name: str, values: ArrayLike, shape: str, length: int | None = None
) -> NDArray[np.float64]:
    """Convert to floats and check the number of dimensions, as in the text, and the length."""
    array = np.asarray(values, dtype=np.float64)
    num_dims = len([word for word in shape.strip("()").split(",") if word.strip()])
    if array.ndim != num_dims or array.size == 0:
        raise ValueError(f"{name} must have shape {shape}, none of them 0; got {array.shape}")
    if length is not None and len(array) != length:
        raise ValueError(f"{name} must have {length} entries, got {len(array)}")
    return array


def checked_titles(titles: Sequence[str] | None, count: int, word: str = "chain") -> Sequence[str]:
    """Return one title each, numbered ones if there are none."""
    if titles is None:
        return [f"{word} {number}" for number in range(1, count + 1)]
    if isinstance(titles, str) or len(titles) != count:
        raise ValueError(f"titles must hold {count} texts, got {titles!r}")
    return titles


def common_nodes(rates: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the nodes of all chains, and check their rates."""
    if isinstance(rates, Mapping) or len(rates) == 0 or not rates[0]:
        raise ValueError("rates must hold one mapping from nodes to rates per chain, got none")
    nodes = list(rates[0])
    for chain, by_node in enumerate(rates, start=1):
        if differing := sorted(set(by_node) ^ set(nodes)):
            raise ValueError(f"rates must have the same nodes in all chains; {differing} differ")
        wrong = {node: r for node, r in by_node.items() if not (0 <= r <= 1 or math.isnan(r))}
        if wrong:
            raise ValueError(f"rates must lie between 0 and 1; chain {chain} has {wrong}")
    return nodes
