"""What the pictures of ``plots`` share: a style, and checks of what is to be drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyro_fnbg.core.checks import as_finite, as_reals, check_names, is_list, shown

__all__ = [
    "COLOURS",
    "MARKERS",
    "STYLE",
    "checked_grid",
    "checked_levels",
    "checked_points",
    "checked_probabilities",
    "checked_target",
    "checked_titles",
    "checked_traces",
    "common_nodes",
]

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


# Matplotlib multiplies a few places, which must not overflow
LARGEST = 1e100


def _to_array(
    name: str, values: ArrayLike, shape: str, length: int | None = None
) -> NDArray[np.float64]:
    """Convert to floats and check the number of dimensions, as in the text, and the length."""
    array = as_reals(values)
    if array is None:
        raise TypeError(f"{name} must hold real numbers, of shape {shape}; got {shown(values)}")
    num_dims = len([word for word in shape.strip("()").split(",") if word.strip()])
    if array.ndim != num_dims or array.size == 0:
        raise ValueError(f"{name} must have shape {shape}, none of them 0; got {array.shape}")
    if length is not None and len(array) != length:
        raise ValueError(f"{name} must have {length} entries, got {len(array)}")
    return array


def checked_traces(values: ArrayLike, label: str) -> NDArray[np.float64]:
    """Return the course of one quantity, by chain and draw, that has a name."""
    traces = _to_array("values", values, "(chains, draws)")
    if np.isinf(traces).any():
        raise ValueError(f"values must be finite or NaN, got {traces[np.isinf(traces)][0]}")
    if not isinstance(label, str):
        raise TypeError(f"label must be a text, got {shown(label)}")
    return traces


def checked_probabilities(values: ArrayLike) -> NDArray[np.float64]:
    """Return probabilities on a grid, by set and draw."""
    draws = _to_array("probabilities", values, "(sets, draws, rows, columns)")
    fits = (draws >= 0) & (draws <= 1)
    if not fits.all():
        raise ValueError(f"probabilities must lie between 0 and 1, got {draws[~fits][0]}")
    return draws


def checked_grid(name: str, values: ArrayLike, shape: str, length: int) -> NDArray[np.float64]:
    """Return the places of a grid along one axis."""
    places = _to_array(name, values, shape, length)
    # Smooth shading needs two places, and numbers whose distances it can tell apart
    is_grid = length >= 2 and bool((np.abs(places) <= LARGEST).all())
    if not is_grid or not bool((np.diff(places) > 0).all()):
        raise ValueError(
            f"{name} must be two or more numbers up to {LARGEST:g}, each larger than the last, "
            f"got {shown(values)}"
        )
    return places


def checked_points(
    points: ArrayLike | None, labels: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the places and classes of data, if there are any."""
    if points is None and labels is None:
        return None
    if points is None or labels is None:
        missing = "points" if points is None else "labels"
        raise ValueError(f"points and labels must be given together, got None as {missing}")
    places = _to_array("points", points, "(points, 2)")
    if places.shape[1] != 2 or not bool((np.abs(places) <= LARGEST).all()):
        raise ValueError(
            f"points must have shape (points, 2), of numbers up to {LARGEST:g}; got "
            f"{places.shape}: {shown(points)}"
        )
    classes = _to_array("labels", labels, "(points,)", len(places))
    if not np.isin(classes, (0, 1)).all():
        raise ValueError(f"labels must be 0 or 1, got {shown(np.unique(classes).tolist())}")
    return places, classes


def checked_target(target: float | None) -> float | None:
    """Return the rate that tuning aimed at, if it is known."""
    number = as_finite(target)
    if target is not None and (number is None or not 0 <= number <= 1):
        raise ValueError(f"target must be between 0 and 1, got {shown(target)}")
    return number


def checked_titles(titles: Sequence[str] | None, count: int, word: str = "chain") -> Sequence[str]:
    """Return one title each, numbered ones if there are none."""
    if titles is None:
        return [f"{word} {number}" for number in range(1, count + 1)]
    if not is_list(titles) or len(titles) != count or not all(isinstance(t, str) for t in titles):
        raise ValueError(f"titles must hold {count} texts, got {shown(titles)}")
    return titles


def checked_levels(levels: Mapping[str, float] | None) -> dict[str, float]:
    """Return the levels of reference lines by their texts."""
    if levels is not None and not isinstance(levels, Mapping):
        raise TypeError(f"reference_lines must map texts to numbers, got {shown(levels)}")
    found = {text: as_finite(level) for text, level in (levels or {}).items()}
    if not all(isinstance(text, str) and level is not None for text, level in found.items()):
        raise ValueError(f"reference_lines must map texts to finite numbers, got {shown(levels)}")
    return {text: level for text, level in found.items() if level is not None}


def common_nodes(rates: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the nodes of all chains, and check their rates."""
    if (
        not is_list(rates)
        or len(rates) == 0
        or not all(isinstance(by_node, Mapping) and by_node for by_node in rates)
    ):
        raise ValueError(
            f"rates must hold one mapping from nodes to rates per chain, got {shown(rates)}"
        )
    nodes = list(rates[0])
    for chain, by_node in enumerate(rates, start=1):
        check_names("nodes in rates", list(by_node), "names of nodes")
        if differing := sorted(set(by_node) ^ set(nodes)):
            raise ValueError(
                f"rates must have the same nodes in all chains; {shown(differing)} differ"
            )
        wrong = {node: rate for node, rate in by_node.items() if not _is_rate(rate)}
        if wrong:
            raise ValueError(f"rates must lie between 0 and 1; chain {chain} has {shown(wrong)}")
    return nodes


def _is_rate(rate: object) -> bool:
    """Whether something is a share, or NaN where nothing was tried."""
    number = as_finite(rate)
    is_nan = isinstance(rate, Real) and rate != rate
    return is_nan or (number is not None and 0 <= number <= 1)
