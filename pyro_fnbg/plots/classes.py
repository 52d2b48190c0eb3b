"""Predictions of classes: of single images, and how far their probabilities can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from pyro_fnbg.core.checks import check_count
from pyro_fnbg.plots.checks import as_array, as_labels, as_probabilities, checked_titles
from pyro_fnbg.plots.style import (
    COLOURS,
    Panels,
    as_panel,
    as_panels,
    draw_grid,
    legend_beside,
    styled,
)
from pyro_fnbg.prediction.selection import risk_coverage

__all__ = ["plot_images", "plot_reliability", "plot_risk_coverage"]

MAX_IMAGES_IN_LINE = 6
# Inches
IMAGE_HEIGHT, BAR_HEIGHT = 1.6, 0.22
# The error bars of a reliability curve hold the accuracy with this probability
CONFIDENCE_LEVEL = 0.95


@styled()
def plot_images(
    images: ArrayLike,
    probabilities: ArrayLike,
    labels: ArrayLike,
    top: int = 3,
    class_names: Sequence[str] | None = None,
    ax: Panels | None = None,
) -> Panels:
    r"""Draw images with the classes that are most probable for each, and with their labels.

    Under each image are bars of the probabilities, from 0 to 100 %; that of the label is blue.
    Above it is the label; where it is not what was predicted, both are there in bold type. All
    images have one scale of grey, from the lowest number to the highest.

    Args:
        images: Shape ``(images, rows, columns)``. Flattened images want a ``reshape``.
        probabilities: Of the classes of each image, as in ``ClassPrediction.probabilities``, shape
            ``(images, classes)``.
        labels: The class of each image, from 0, shape ``(images,)``.
        top: How many classes to show of each image.
        class_names: The name of each class; its number when left out.
        ax: Axes to draw into, shape ``(images,)``; those of a new figure when left out.

    Returns:
        The axes, shape ``(images,)``. Each has two inside: of the image and of its bars.

    Raises:
        ValueError: If a shape does not fit, a row of ``probabilities`` is no distribution, a label
            is no class, or ``top`` is larger than the number of classes.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> import numpy as np
        >>> images = np.random.default_rng(0).uniform(size=(2, 8, 8))
        >>> ax = plot_images(images, [[0.1, 0.9], [0.4, 0.6]], [1, 0], top=2)
        >>> [panel.get_title() for panel in ax]
        ['label 1', 'label 0\npredicted 1']
        >>> plt.close(ax[0].figure)
    """
    pictures = as_array("images", images, ("images", "rows", "columns"))
    shares = as_probabilities(probabilities, len(pictures))
    num_images, num_classes = shares.shape
    truth = as_labels(labels, num_images, num_classes)
    check_count("top", top, 1, num_classes)
    if class_names is None:
        class_names = [str(number) for number in range(num_classes)]
    names = checked_titles(class_names, num_classes, name="class_names")
    ax = _image_panels(num_images, top) if ax is None else as_panels(ax, (num_images,), (0, 0))
    for panel, picture, of_classes, label in zip(ax, pictures, shares, truth, strict=True):
        room = top * BAR_HEIGHT / (top * BAR_HEIGHT + IMAGE_HEIGHT)
        image = panel.inset_axes((0, room, 1, 1 - room), anchor="S")
        image.imshow(picture, cmap="gray", vmin=pictures.min(), vmax=pictures.max())
        panel.set_axis_off()
        image.set_axis_off()
        likeliest = np.argsort(-of_classes, kind="stable")[:top]
        is_right = likeliest[0] == label
        panel.set_title(
            f"label {names[label]}" + ("" if is_right else f"\npredicted {names[likeliest[0]]}"),
            loc="center",
            fontsize=9,
            fontweight="normal" if is_right else "bold",
        )
        bars = panel.inset_axes((0, 0, 1, 0.97 * room))
        _draw_bars(bars, of_classes, likeliest, label, names)
    return ax


@styled()
def plot_reliability(
    probabilities: ArrayLike, labels: ArrayLike, num_bins: int = 10, ax: Axes | None = None
) -> Axes:
    """Draw how often predictions are right against how sure they are.

    The confidence of a row is the probability of its most probable class. Rows are sorted into
    bins of equal width by it; a dot stands at the mean confidence and the accuracy of its bin. Dots
    below the diagonal are predictions that are too sure. Error bars are Wilson's 95 % intervals,
    for the accuracy of independent rows. Pale bars are the share of all rows in each bin. Guo and
    others (2017), "On calibration of modern neural networks".

    Args:
        probabilities: Of the classes of each row, as in ``ClassPrediction.probabilities``, shape
            ``(rows, classes)``.
        labels: The class of each row, from 0, shape ``(rows,)``.
        num_bins: Number of bins between 0 and 1. Confidence is no lower than 1 / classes, so the
            first ones are empty.
        ax: Axes to draw into; those of a new figure when left out.

    Returns:
        The axes.

    Raises:
        TypeError: If ``ax`` is no axes.
        ValueError: If a shape does not fit, a row of ``probabilities`` is no distribution or a
            label is no class.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> import numpy as np
        >>> p = np.random.default_rng(0).uniform(size=500)
        >>> ax = plot_reliability(np.stack([1 - p, p], axis=1), p > 0.5)
        >>> [float(end) for end in ax.get_xlim()]
        [0.5, 1.0]
        >>> plt.close(ax.figure)
    """
    from scipy.stats import binned_statistic, binomtest

    shares = as_probabilities(probabilities)
    truth = as_labels(labels, *shares.shape)
    check_count("num_bins", num_bins, 1)
    confidence, is_right = shares.max(-1), shares.argmax(-1) == truth
    # One call, so that counts and means are of the same bins
    sums, edges, _ = binned_statistic(
        confidence,
        [np.ones_like(confidence), confidence, is_right],
        statistic="sum",
        bins=num_bins,
        range=(0, 1),
    )
    ax = as_panel(ax, (8, 4.5))
    ax.stairs(sums[0] / len(truth), edges, fill=True, color="0.88", label="share of the rows")
    ax.plot([0, 1], [0, 1], color="0.25", linestyle="--", linewidth=1.2, label="as sure as right")
    counts, of_confidence, num_right = sums[:, sums[0] > 0]
    ends = [
        binomtest(int(right), int(count)).proportion_ci(CONFIDENCE_LEVEL, "wilson")
        for right, count in zip(num_right, counts, strict=True)
    ]
    accuracy = num_right / counts
    ax.errorbar(
        of_confidence / counts,
        accuracy,
        yerr=np.abs(np.array(ends).T - accuracy),
        color=COLOURS[0],
        marker="o",
        markersize=5,
        linewidth=1.5,
        elinewidth=1,
        label="accuracy, with 95 % interval",
        clip_on=False,
    )
    ax.set_xlim(1 / shares.shape[1], 1)
    ax.set_ylim(0, 1)
    ax.set_xlabel("confidence: probability of the predicted class")
    ax.set_ylabel("share")
    draw_grid(ax, "both")
    legend_beside(ax)
    return ax


@styled()
def plot_risk_coverage(probabilities: ArrayLike, labels: ArrayLike, ax: Axes | None = None) -> Axes:
    """Draw the share of errors among the predictions that are kept against how many are kept.

    The surest predictions are kept first; the confidence of a row is the probability of its most
    probable class. Rows of equal confidence count with their mean error. For comparison: the same
    errors if they had been the least sure ones, which no order beats; and all errors spread evenly,
    as in an order at random. The curve is wild at its left end, where it stands on few rows.
    El-Yaniv and Wiener (2010), "On the foundations of noise-free selective classification".

    Args:
        probabilities: Of the classes of each row, as in ``ClassPrediction.probabilities``, shape
            ``(rows, classes)``.
        labels: The class of each row, from 0, shape ``(rows,)``.
        ax: Axes to draw into; those of a new figure when left out.

    Returns:
        The axes.

    Raises:
        TypeError: If ``ax`` is no axes.
        ValueError: If a shape does not fit, a row of ``probabilities`` is no distribution or a
            label is no class.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> p = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]]
        >>> ax = plot_risk_coverage(p, [0, 1, 1, 0])
        >>> ax.lines[0].get_ydata().tolist()  # the only error is the least sure
        [0.0, 0.0, 0.0, 25.0]
        >>> plt.close(ax.figure)
    """
    shares = as_probabilities(probabilities)
    truth = as_labels(labels, *shares.shape)
    is_wrong = shares.argmax(-1) != truth
    ax = as_panel(ax, (8, 4))
    for uncertainty, label, style, colour in (
        (-shares.max(-1), "surest first", "-", COLOURS[0]),
        (is_wrong, "best order", ":", COLOURS[2]),
        (np.zeros(len(truth)), "order at random", "--", "0.25"),
    ):
        curve = risk_coverage(uncertainty, is_wrong)
        x, y = 100 * curve.coverage, 100 * curve.risk
        ax.plot(x, y, label=label, linestyle=style, color=colour, linewidth=1.6)
    ax.set_xlim(0, 100)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("coverage: share of the rows that are kept (%)")
    ax.set_ylabel("risk: share of errors among them (%)")
    draw_grid(ax, "both")
    legend_beside(ax)
    return ax


def _image_panels(num_images: int, top: int) -> Panels:
    """Open a figure with images in lines."""
    width = min(num_images, MAX_IMAGES_IN_LINE)
    lines = math.ceil(num_images / width)
    height = IMAGE_HEIGHT + top * BAR_HEIGHT + 0.45
    panels = as_panels(None, (lines, width), (1.7 * width, height * lines)).ravel()
    for panel in panels[num_images:]:
        panel.remove()
    return panels[:num_images]


def _draw_bars(
    bars: Axes,
    of_classes: NDArray[np.float64],
    likeliest: NDArray[np.int64],
    label: int,
    names: Sequence[str],
) -> None:
    """Draw the probabilities of some classes, the likeliest on top."""
    colours = [COLOURS[4] if number == label else "0.85" for number in likeliest]
    bars.barh(range(len(likeliest)), of_classes[likeliest], height=0.9, color=colours)
    for place, number in enumerate(likeliest):
        bars.text(0.02, place, names[number], va="center", fontsize=8)
        text = f"{100 * of_classes[number]:.1f} %"
        bars.text(0.98, place, text, va="center", ha="right", fontsize=8)
    bars.set_xlim(0, 1)
    bars.set_ylim(len(likeliest) - 0.5, -0.5)
    bars.set_axis_off()
