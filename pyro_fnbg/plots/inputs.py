"""Predictions over the space of inputs: of one input with its intervals, and of two inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from numpy.typing import ArrayLike, NDArray

from pyro_fnbg.core.checks import as_probability, is_list, shown
from pyro_fnbg.plots.checks import (
    as_array,
    as_labels,
    check_increasing,
    check_shares,
    check_together,
    checked_titles,
)
from pyro_fnbg.plots.style import COLOURS, Panels, as_panel, as_panels, legend_beside, styled

__all__ = ["plot_decision_surface", "plot_regression_band"]

POINTS: Any = (
    {"s": 14, "color": "white", "edgecolor": "black"},
    {"s": 14, "color": "black", "marker": "x", "linewidth": 0.8},
)
# More sets than these stand in several lines
MAX_SETS_IN_LINE = 5


@styled()
def plot_regression_band(
    x: ArrayLike,
    mean: ArrayLike,
    intervals: Mapping[float, tuple[ArrayLike, ArrayLike]],
    x_data: ArrayLike | None = None,
    y_data: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the prediction of a number from one input: its mean, its intervals and the data.

    Args:
        x: Inputs, increasing, shape ``(points,)``. Where they go on beyond the data, the picture
            shows what the model says without any.
        mean: Mean of the response, shape ``(points,)``.
        intervals: By their probability between 0 and 1, lower and upper end at each input, both of
            shape ``(points,)``. Of the response, if data should lie in them so often.
        x_data: Inputs of the data, shape ``(rows,)``.
        y_data: Responses of the data, shape ``(rows,)``.
        ax: Axes to draw into; those of a new figure when left out.

    Returns:
        The axes.

    Raises:
        TypeError: If ``ax`` is no axes.
        ValueError: If a shape does not fit, ``x`` does not increase, an interval is upside down,
            narrower than one of less probability or has a probability outside 0 to 1, or
            ``x_data`` comes without ``y_data``.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> import numpy as np
        >>> x = np.linspace(-2.0, 2.0, 50)
        >>> intervals = {p: (x**2 - width, x**2 + width) for p, width in ((0.5, 0.7), (0.95, 2.0))}
        >>> ax = plot_regression_band(x, x**2, intervals, x_data=[0.0, 1.0], y_data=[0.3, 0.9])
        >>> [text.get_text() for text in ax.get_legend().texts]
        ['95 % interval', '50 % interval', 'mean', 'data']
        >>> plt.close(ax.figure)
    """
    inputs = as_array("x", x, ("points",))
    check_increasing("x", inputs)
    middle = as_array("mean", mean, (len(inputs),))
    bands = _checked_bands(intervals, len(inputs))
    check_together(x_data=x_data, y_data=y_data)
    data = []
    if x_data is not None and y_data is not None:
        data.append(as_array("x_data", x_data, ("rows",)))
        data.append(as_array("y_data", y_data, (len(data[0]),)))
    ax = as_panel(ax, (8, 4.5))
    # The widest lies at the back and is the palest
    shades = np.linspace(0.25, 0.55, len(bands))
    for shade, (probability, (lower, upper)) in zip(
        shades, sorted(bands.items(), reverse=True), strict=True
    ):
        # Opaque, so that the legend has the colours of the picture
        colour = 1 - shade * (1 - np.array(to_rgb(COLOURS[0])))
        name = f"{100 * probability:g} % interval"
        ax.fill_between(inputs, lower, upper, color=colour, linewidth=0, label=name)
    ax.plot(inputs, middle, color=COLOURS[0], linewidth=2, label="mean")
    if data:
        ax.plot(*data, color="black", marker=".", markersize=4, linestyle="", label="data")
    ax.margins(x=0)
    ax.set_xlabel("input")
    ax.set_ylabel("response")
    legend_beside(ax)
    return ax


@styled()
def plot_decision_surface(
    probabilities: ArrayLike,
    x_values: ArrayLike,
    y_values: ArrayLike,
    points: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    titles: Sequence[str] | None = None,
    ax: Panels | None = None,
) -> Panels:
    """Draw P(class 1) over a rectangle: its mean over draws, and its standard deviation.

    A set of draws is all of them, or one chain. The mean is the prediction; the standard deviation,
    from 0 to at most 0.5, says how far single draws differ from it. Both have scales that are the
    same in every figure. Many sets take several lines of panels; a single one's are side by side.

    Args:
        probabilities: P(class 1) by draw on the grid, shape ``(sets, draws, len(y_values),
            len(x_values))``.
        x_values: First input of the grid, increasing, shape ``(columns,)``.
        y_values: Second input of the grid, increasing, shape ``(rows,)``.
        points: Data to be drawn on the mean, shape ``(points, 2)``.
        labels: Classes 0 and 1 of the points, shape ``(points,)``: circles and crosses.
        titles: One title per set; "set 0" and so on when left out.
        ax: Axes to draw into, shape ``(2, sets)``; those of a new figure when left out. Two colour
            bars take some of their room.

    Returns:
        The axes, shape ``(2, sets)``: means, and standard deviations.

    Raises:
        ValueError: If a shape does not fit, a probability lies outside 0 to 1, a label is not 0 or
            1, ``ax`` has another shape, or ``points`` come without ``labels``.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> import numpy as np
        >>> x_values = np.linspace(0.0, 1.0, 20)
        >>> draws = np.random.default_rng(0).uniform(size=(1, 50, 20, 20))
        >>> ax = plot_decision_surface(draws, x_values, x_values, titles=["all chains"])
        >>> ax[0, 0].get_title("left")
        'all chains'
        >>> plt.close(ax[0, 0].figure)
    """
    draws = as_array("probabilities", probabilities, ("sets", "draws", "rows", "columns"))
    check_shares("probabilities", draws)
    num_sets, _, num_rows, num_columns = draws.shape
    columns = as_array("x_values", x_values, (num_columns,))
    rows = as_array("y_values", y_values, (num_rows,))
    check_increasing("x_values", columns)
    check_increasing("y_values", rows)
    data = _points_by_class(points, labels)
    titles = checked_titles(titles, num_sets, "set")
    is_new = ax is None
    ax = _new_panels(num_sets) if is_new else as_panels(ax, (2, num_sets), (0, 0))
    marks = "" if data is None else "\ndata: \u25cb class 0, \u00d7 class 1"
    # 0.5 is the middle of the mean's scale and the most that the deviation can be
    for panels, values, colours, highest, text in (
        (ax[0], draws.mean(1), "RdBu_r", 1.0, f"mean of P(class 1) over draws{marks}"),
        (ax[1], draws.std(1), "viridis", 0.5, "standard deviation over draws"),
    ):
        for panel, surface, title in zip(panels, values, titles, strict=True):
            mesh = panel.pcolormesh(
                columns, rows, surface, cmap=colours, vmin=0, vmax=highest, shading="gouraud"
            )
            panel.set_aspect("equal")
            # Where both stand in one line or column, one title is enough
            if highest == 1.0 or num_sets > MAX_SETS_IN_LINE:
                panel.set_title(title)
            panel.set_xlabel("first input")
            panel.set_ylabel("second input")
        where = "bottom" if num_sets == 1 else "right"
        bar = {"ax": panels.tolist(), "location": where, "pad": 0.02}
        panels[0].figure.colorbar(mesh, label=text, **bar)
    for panel in ax[0]:
        for (x, y), mark in zip(data or (), POINTS, strict=False):
            panel.scatter(x, y, **mark)
    if is_new and num_sets > 1:
        _label_edges(ax)
    return ax


def _sets_in_line(num_sets: int) -> int:
    """Share the sets out among as few lines as there must be."""
    return math.ceil(num_sets / math.ceil(num_sets / MAX_SETS_IN_LINE))


def _new_panels(num_sets: int) -> Panels:
    """Open a figure: a single set's panels side by side, those of more in lines, means above."""
    if num_sets == 1:
        return as_panels(None, (1, 2), (8.5, 5.2)).reshape(2, 1)
    width = _sets_in_line(num_sets)
    lines = math.ceil(num_sets / width)
    grid = as_panels(None, (2 * lines, width), (1.6 + 2.4 * width, 0.6 + 2.7 * 2 * lines))
    halves = grid.reshape(2, -1)
    unused: list[Axes] = halves[:, num_sets:].ravel().tolist()
    for panel in unused:
        panel.remove()
    return halves[:, :num_sets]


def _label_edges(ax: Panels) -> None:
    """Leave the numbers and names of the inputs to the panels at the left and at the bottom."""
    num_sets = ax.shape[1]
    width = _sets_in_line(num_sets)
    for number, column in enumerate(ax.T):
        for panel in column if number % width > 0 else ():
            panel.set_ylabel("")
            panel.tick_params(labelleft=False)
        for panel in column if number < num_sets - width else column[:1]:
            panel.set_xlabel("")
            panel.tick_params(labelbottom=False)


def _points_by_class(
    points: ArrayLike | None, labels: ArrayLike | None
) -> list[NDArray[np.float64]] | None:
    """Return first and second inputs of the points of class 0 and of class 1, if there are any."""
    check_together(points=points, labels=labels)
    if points is None or labels is None:
        return None
    places = as_array("points", points, ("points", 2))
    classes = as_labels(labels, len(places), 2)
    return [places[classes == number].T for number in (0, 1)]


def _checked_bands(
    intervals: object, num_points: int
) -> dict[float, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return lower and upper ends by probability."""
    if not isinstance(intervals, Mapping):
        raise ValueError(
            "intervals must be a mapping from probabilities to lower and upper ends, got "
            f"{shown(intervals)}"
        )
    bands = {}
    for key, ends in intervals.items():
        probability = as_probability("probabilities in intervals", key)
        if not is_list(ends) or len(ends) != 2:
            raise ValueError(
                f"intervals[{key!r}] must be a lower and an upper end, got {shown(ends)}"
            )
        lower, upper = (as_array(f"intervals[{key!r}]", end, (num_points,)) for end in ends)
        if (lower > upper).any():
            place = int((lower > upper).argmax())
            raise ValueError(
                f"intervals[{key!r}] must have lower ends below upper ends, got {lower[place]:g} "
                f"above {upper[place]:g}"
            )
        bands[probability] = lower, upper
    for low, high in pairwise(sorted(bands)):
        inner, outer = (bands[one][1] - bands[one][0] for one in (low, high))
        # Bands of a sample may be equal, up to rounding
        narrower = (outer < inner) & ~np.isclose(outer, inner, rtol=1e-3)
        if narrower.any():
            place = int(narrower.argmax())
            raise ValueError(
                f"intervals[{high:g}] must be as wide as intervals[{low:g}] or wider, got widths "
                f"of {outer[place]:g} and {inner[place]:g}"
            )
    return bands
