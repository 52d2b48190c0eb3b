"""What all pictures share: their looks, and the axes that they are drawn into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from pyro_fnbg.core.checks import shown

__all__ = [
    "COLOURS",
    "Panels",
    "as_panel",
    "as_panels",
    "draw_grid",
    "legend_beside",
    "look",
    "mark_level",
    "styled",
]

# Axes, each of which is one panel
Panels = NDArray[np.object_]

# The palette of Okabe and Ito without its yellow, which is too pale for lines on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MAX_LEGEND_ENTRIES = 12
STYLE: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw with the looks of all pictures, and leave the caller's as they were.

    Matplotlib's ``rc_context`` would put back all settings: also what the first figure of a
    notebook changes for good, without which it shows no later one.
    """
    before = {name: plt.rcParams[name] for name in STYLE}
    plt.rcParams.update(STYLE)
    try:
        yield
    finally:
        plt.rcParams.update(before)


def look(number: int) -> dict[str, Any]:
    """Return colour and marker of a chain or group; both together differ among the first 49.

    Example:
        >>> look(8)
        {'color': '#D55E00', 'marker': '^'}
    """
    turn, place = divmod(number, len(COLOURS))
    return {"color": COLOURS[place], "marker": MARKERS[(place + turn) % len(MARKERS)]}


def as_panel(ax: Axes | None, figsize: tuple[float, float]) -> Axes:
    """Return the axes to draw into: those given, or those of a new figure.

    Raises:
        TypeError: If something else was given.
    """
    if ax is None:
        return plt.subplots(figsize=figsize)[1]
    if not isinstance(ax, Axes):
        raise TypeError(f"ax must be one Matplotlib Axes, got {shown(ax)}")
    return ax


def as_panels(
    ax: object, shape: Sequence[int], figsize: tuple[float, float], **options: Any
) -> Panels:
    """Return an array of axes to draw into: those given, or those of a new figure.

    Args:
        ax: An array of axes, or None.
        shape: The shape it must have; a new figure has as many lines and columns, and one line
            if there is one number only.
        figsize: Of a new figure, in inches.
        options: Of a new figure, as for `plt.subplots`.

    Raises:
        ValueError: If something else was given.
    """
    if ax is None:
        lines = (1, *shape)[-2:]
        panels: Panels = plt.subplots(*lines, figsize=figsize, squeeze=False, **options)[1]
        return panels.reshape(shape)
    panels = np.asarray(ax, dtype=object)
    if panels.shape != tuple(shape) or not all(isinstance(panel, Axes) for panel in panels.flat):
        raise ValueError(
            f"ax must be an array of Axes of shape {tuple(shape)}, got {shown(ax)} of shape "
            f"{panels.shape}"
        )
    return panels


def draw_grid(panel: Axes, axis: Literal["x", "y", "both"]) -> None:
    """Draw pale lines below everything else, on axes of the caller's as well."""
    panel.set_axisbelow(True)
    panel.grid(axis=axis, color="0.88", linestyle="-", linewidth=0.8)


def mark_level(panel: Axes, level: float, text: str, axis: Literal["x", "y"] = "y") -> None:
    """Draw a dashed line, and write what it is at its end, outside of the panel."""
    line: Any = {"color": "0.25", "linestyle": "--", "linewidth": 1.0, "zorder": 1}
    words: Any = {"fontsize": 9, "color": "0.25"}
    if axis == "x":
        panel.axvline(level, **line)
        above = panel.get_xaxis_transform()
        panel.text(level, 1.01, text, transform=above, ha="center", va="bottom", **words)
    else:
        panel.axhline(level, **line)
        beside = panel.get_yaxis_transform()
        panel.text(1.01, level, text, transform=beside, va="center", **words)


def legend_beside(panel: Axes) -> None:
    """Put the legend, if there is anything to tell, to the right of a panel and not over it."""
    handles, names = panel.get_legend_handles_labels()
    if 0 < len(names) <= MAX_LEGEND_ENTRIES:
        panel.legend(handles, names, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
