"""Pictures of chains, acceptance rates and predictions, from plain arrays and dicts.

Every function returns a new Matplotlib figure and shows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from pyro_fnbg.plots.checks import (
    as_array,
    check_increasing,
    check_shares,
    checked_titles,
    common_nodes,
)

__all__ = ["plot_acceptance_by_node", "plot_decision_surface", "plot_traces"]

# The palette of Okabe and Ito without its yellow, which is too pale for lines on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
POINTS: Any = (
    {"s": 14, "color": "white", "edgecolor": "black"},
    {"s": 14, "color": "black", "marker": "x", "linewidth": 0.8},
)
STYLE: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "grid.color": "0.85",
    "legend.frameon": False,
}

# More chains than these stand in two columns, and more sets in several lines
MAX_STACKED_CHAINS, MAX_SETS_IN_LINE = 5, 5
MAX_LEGEND_ENTRIES = 12


@matplotlib.rc_context(STYLE)
def plot_traces(
    values: ArrayLike,
    label: str,
    titles: Sequence[str] | None = None,
    reference_lines: Mapping[str, float] | None = None,
) -> Figure:
    """Draw the course of one quantity through the draws of each chain.

    Chains have panels of their own on common axes, side by side where there are many: a chain that
    stays on another level than the rest, or is still on its way, shows at a glance. A pale line
    joins the draws; a dark one is their running mean over a fiftieth of the chain.

    Args:
        values: The quantity by draw, shape ``(chains, draws)``; NaN leaves a gap.
        label: What the quantity is, with its unit; labels the vertical axis.
        titles: One title per chain; "chain 1" and so on when left out.
        reference_lines: Levels to be marked by a dotted line, by the text to be written on it.

    Returns:
        A figure of one panel per chain.

    Raises:
        ValueError: If ``values`` has another shape or ``titles`` another length.

    Example:
        >>> import numpy as np
        >>> accuracy = np.random.default_rng(0).uniform(80, 100, size=(4, 250))
        >>> figure = plot_traces(accuracy, "accuracy (%)", reference_lines={"chance": 50.0})
        >>> len(figure.axes)
        4
        >>> plt.close(figure)
    """
    traces = as_array("values", values, ("chains", "draws"))
    num_chains, num_draws = traces.shape
    titles = checked_titles(titles, num_chains)
    columns = 1 if num_chains <= MAX_STACKED_CHAINS else 2
    lines = math.ceil(num_chains / columns)
    figure, panels = plt.subplots(
        lines,
        columns,
        sharex=True,
        sharey=True,
        squeeze=False,
        figsize=(9 if columns == 1 else 12, 1.2 + 1.5 * lines),
    )
    draws = np.arange(1, num_draws + 1)
    shown = _first_panels(panels, num_chains)
    for chain, axes in enumerate(shown):
        colour = COLOURS[chain % len(COLOURS)]
        axes.plot(draws, traces[chain], color=colour, linewidth=0.5, alpha=0.4)
        # Each running mean stands in the middle of its window
        window = max(1, num_draws // 50)
        mean = np.convolve(traces[chain], np.full(window, 1 / window), mode="valid")
        axes.plot(draws[: len(mean)] + (window - 1) / 2, mean, color=colour, linewidth=1.6)
        for text, level in (reference_lines or {}).items():
            axes.axhline(level, color="0.35", linewidth=0.9, linestyle=":")
            # Beside the panel, where no line can cross it
            beside = axes.get_yaxis_transform()
            axes.text(1.005, level, text, transform=beside, va="center", fontsize=9)
        axes.set_title(titles[chain])
        axes.margins(x=0.01)
        axes.grid(axis="y")
    for axes in shown[-columns:]:
        axes.tick_params(labelbottom=True)  # above a panel that was removed, too
    figure.supxlabel("draw (after warmup)")
    figure.supylabel(label)
    return figure


@matplotlib.rc_context(STYLE)
def plot_acceptance_by_node(
    rates: Sequence[Mapping[str, float]],
    target: float | None = None,
    titles: Sequence[str] | None = None,
) -> Figure:
    """Draw the acceptance rate of every node as one dot per chain.

    Chains of the same title, such as those that ended on one level, share a colour and a marker, so
    that groups can be compared. Nodes run from top to bottom in the order of the sweep. Layers,
    read from the node's name up to its last dot, lie on bands of alternating shade. A rate near
    zero says that the node hardly moved; nodes far above the target could have taken larger steps.

    Args:
        rates: For each chain, the rates between 0 and 1 by node, as in
            ``diagnostics()["acceptance rate by node"]``; the same nodes in every chain.
        target: Rate that tuning aimed at, between 0 and 1, for a dashed line.
        titles: One name per chain, or its group's, for the legend; "chain 1" and so on when left
            out.

    Returns:
        A figure of one panel.

    Raises:
        ValueError: If ``rates`` is empty, differs in nodes between chains or lies outside 0 to 1,
            or if ``target`` or ``titles`` do not fit.

    Example:
        >>> chain = {"layer1.node1": 0.31, "layer2.node1": 0.24}
        >>> figure = plot_acceptance_by_node([chain], target=0.3)
        >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
        ['layer1.node1', 'layer2.node1']
        >>> plt.close(figure)
    """
    nodes = common_nodes(rates)
    if target is not None:
        check_shares("target", target)
    titles = checked_titles(titles, len(rates))
    groups = list(dict.fromkeys(titles))
    height = min(2.0 + (0.28 + 0.02 * min(len(rates), 12)) * len(nodes), 16.0)
    figure, axes = plt.subplots(figsize=(8, height))
    layers = groupby(range(len(nodes)), key=lambda number: nodes[number].rpartition(".")[0])
    for count, (_, members) in enumerate(layers):
        numbers = list(members)
        if count % 2 == 0:
            axes.axhspan(numbers[0] - 0.5, numbers[-1] + 0.5, color="0.95", linewidth=0)
    # Chains lie above each other inside a node's row, so that equal rates do not hide each other
    offsets = np.linspace(-0.36, 0.36, 2 * len(rates) + 1)[1::2]
    in_order = sorted(range(len(rates)), key=lambda chain: groups.index(titles[chain]))
    for offset, chain in zip(offsets, in_order, strict=True):
        group = groups.index(titles[chain])
        axes.plot(
            [100 * rates[chain][node] for node in nodes],
            np.arange(len(nodes)) + offset,
            linestyle="",
            marker=MARKERS[(group + group // len(COLOURS)) % len(MARKERS)],
            markersize=5.5,
            color=COLOURS[group % len(COLOURS)],
            label=titles[chain] if chain == titles.index(titles[chain]) else None,
            clip_on=False,  # rates of 0 and 100 % lie on the frame
        )
    if target is not None:
        axes.axvline(100 * target, color="0.25", linestyle="--", linewidth=1.2, label="target")
    axes.set_yticks(range(len(nodes)), nodes)
    axes.set_ylim(len(nodes) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xlabel("acceptance rate over the draws (%)")
    axes.grid(axis="x")
    if len(groups) <= MAX_LEGEND_ENTRIES:
        figure.legend(loc="outside upper center", ncols=5)
    return figure


@matplotlib.rc_context(STYLE)
def plot_decision_surface(
    probabilities: ArrayLike,
    x_values: ArrayLike,
    y_values: ArrayLike,
    points: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    titles: Sequence[str] | None = None,
) -> Figure:
    """Draw P(class 1) over a rectangle: its mean over draws, and its standard deviation below.

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
        titles: One title per set; "set 1" and so on when left out.

    Returns:
        A figure with two panels per set and two colour bars.

    Raises:
        ValueError: If a shape does not fit, a probability lies outside 0 to 1, a label is not 0 or
            1, or one of ``points`` and ``labels`` comes without the other.

    Example:
        >>> import numpy as np
        >>> x_values = np.linspace(0.0, 1.0, 20)
        >>> draws = np.random.default_rng(0).uniform(size=(1, 50, 20, 20))
        >>> figure = plot_decision_surface(draws, x_values, x_values, titles=["all chains"])
        >>> figure.axes[0].get_title("left")
        'all chains'
        >>> plt.close(figure)
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
    is_single = num_sets == 1
    lines = math.ceil(num_sets / MAX_SETS_IN_LINE)
    width = math.ceil(num_sets / lines)
    figure, grid = plt.subplots(
        *((1, 2) if is_single else (2 * lines, width)),
        sharex=True,
        sharey=True,
        squeeze=False,
        figsize=(8.5, 5.2) if is_single else (1.4 + 2.4 * width, 0.6 + 2.5 * 2 * lines),
        subplot_kw={"aspect": "equal"},
    )
    halves = (grid[:, :1], grid[:, 1:]) if is_single else (grid[:lines], grid[lines:])
    shown = [_first_panels(half, num_sets) for half in halves]
    # 0.5 is the middle of the mean's scale and the most that the deviation can be
    for panels, values, colours, highest, text in (
        (shown[0], draws.mean(1), "RdBu_r", 1.0, "mean of P(class 1) over draws"),
        (shown[1], draws.std(1), "viridis", 0.5, "standard deviation over draws"),
    ):
        for axes, surface in zip(panels, values, strict=True):
            mesh = axes.pcolormesh(
                columns, rows, surface, cmap=colours, vmin=0, vmax=highest, shading="gouraud"
            )
        where = "bottom" if is_single else "right"
        figure.colorbar(mesh, ax=panels, label=text, location=where, pad=0.02)
    for panels in shown if lines > 1 else shown[:1]:
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title)
    if data is not None:
        for axes in shown[0]:
            for (x, y), label, look in zip(data, ("class 0", "class 1"), POINTS, strict=True):
                axes.scatter(x, y, label=label, **look)
        handles = shown[0][0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper right", ncols=2)
    for axes in grid[-1] if is_single else shown[1][-width:]:
        axes.set_xlabel("first input")
        axes.tick_params(labelbottom=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("second input")
    return figure


def _first_panels(panels: NDArray[np.object_], count: int) -> list[Axes]:
    """Return panels line by line, and remove those that are too many."""
    flat: list[Axes] = panels.ravel().tolist()
    for axes in flat[count:]:
        axes.remove()
    return flat[:count]


def _points_by_class(
    points: ArrayLike | None, labels: ArrayLike | None
) -> list[NDArray[np.float64]] | None:
    """Return first and second inputs of the points of class 0 and of class 1, if there are any."""
    if points is None and labels is None:
        return None
    if points is None or labels is None:
        missing = "points" if points is None else "labels"
        raise ValueError(f"points and labels must be given together, got None as {missing}")
    places = as_array("points", points, ("points", 2))
    classes = as_array("labels", labels, (len(places),))
    if not np.isin(classes, (0, 1)).all():
        raise ValueError(f"labels must be 0 or 1, got {np.unique(classes).tolist()}")
    return [places[classes == number].T for number in (0, 1)]
