"""Boxes over values, each value a dot where there are few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

__all__ = ["draw_boxes"]

# A box of more values than these stands without dots
MAX_DOTS = 30


def draw_boxes(
    panel: Axes,
    samples: Sequence[NDArray[np.float64]],
    places: Sequence[float],
    width: float,
    orientation: Literal["vertical", "horizontal"],
    look: dict[str, Any],
    label: str | None = None,
) -> None:
    """Draw one box a sample: quartiles and median.

    Up to 30 values are all dots, and whiskers reach the extremes. Of more, whiskers reach the 5th
    and the 95th percentile, since extremes depend on their number; those beyond are dots.

    Args:
        panel: Axes to draw into.
        samples: Values of each box, of any number; NaN is left out.
        places: Where each box stands.
        width: Of a box, in the units of the places.
        orientation: Of the values.
        look: Colour, and marker of the dots.
        label: For the legend.
    """
    line = {"color": look["color"], "linewidth": 1.2}
    dots = {"linestyle": "", "markersize": 4, "markeredgewidth": 0, "alpha": 0.8, **look}
    beyond = {"marker": ".", "markersize": 2, "markeredgecolor": look["color"]}
    for sample, place in zip(samples, places, strict=True):
        is_small = len(sample) <= MAX_DOTS
        panel.boxplot(
            sample[~np.isnan(sample)],
            positions=[place],
            widths=width,
            orientation=orientation,
            whis=(0, 100) if is_small else (5, 95),
            showfliers=not is_small,
            manage_ticks=False,
            patch_artist=True,
            boxprops={"facecolor": (look["color"], 0.15), "edgecolor": look["color"]},
            medianprops=line | {"linewidth": 2.2},
            whiskerprops=line,
            capprops=line,
            flierprops=beyond,
        )
        if is_small:
            # Apart across the box, so that equal values do not hide each other
            across = place + width * np.linspace(-0.4, 0.4, 2 * len(sample) + 1)[1::2]
            x, y = (sample, across) if orientation == "horizontal" else (across, sample)
            panel.plot(x, y, clip_on=False, **dots)  # 0 and 100 % lie on the frame
    if label is not None:
        panel.plot([], [], label=label, **dots)
