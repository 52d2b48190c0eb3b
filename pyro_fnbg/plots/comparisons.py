"""Accuracies by group, and what batches of several sizes say."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from pyro_fnbg.core.checks import check_count
from pyro_fnbg.plots.boxes import draw_boxes
from pyro_fnbg.plots.checks import as_level, as_samples, check_shares, check_text
from pyro_fnbg.plots.style import as_panel, draw_grid, look, mark_level, styled

__all__ = ["plot_accuracy", "plot_by_batch_size"]


@styled()
def plot_accuracy(accuracies: Mapping[str, ArrayLike], ax: Axes | None = None) -> Axes:
    """Draw accuracies as one box for each group: of chains, of draws or of repeated runs.

    A box spans the quartiles, the line in it is the median. Up to 30 values are all dots, and
    whiskers reach the extremes; of more, whiskers reach the 5th and the 95th percentile, and those
    beyond are dots.

    The number of values stands behind the name of the group. The scale is that of the values: it
    need not begin at 0.

    Args:
        accuracies: Shares of right predictions between 0 and 1 by group, each of shape
            ``(values,)``; groups may differ in size.
        ax: Axes to draw into; those of a new figure when left out.

    Returns:
        The axes.

    Raises:
        TypeError: If ``ax`` is no axes.
        ValueError: If ``accuracies`` is no mapping, is empty, or has other numbers.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> ax = plot_accuracy({"mean prediction": [0.98, 0.99], "single draws": [0.91, 0.97]})
        >>> [text.get_text() for text in ax.get_yticklabels()]
        ['mean prediction (2)', 'single draws (2)']
        >>> plt.close(ax.figure)
    """
    samples = as_samples("accuracies", accuracies)
    for group, values in samples.items():
        check_shares(f"accuracies[{group!r}]", values)
    ax = as_panel(ax, (8, 1.0 + 0.5 * len(samples)))
    per_cent = [100 * values for values in samples.values()]
    draw_boxes(ax, per_cent, range(len(samples)), 0.6, "horizontal", look(0))
    names = [f"{group} ({len(values):,})" for group, values in samples.items()]
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel("accuracy (%)")
    draw_grid(ax, "x")
    return ax


@styled()
def plot_by_batch_size(
    values: Mapping[int, ArrayLike],
    label: str,
    all_rows: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a quantity of batches, such as their log likelihood, as one box for each batch size.

    A box spans the quartiles, the line in it is the median. Up to 30 values are all dots, and
    whiskers reach the extremes; of more, whiskers reach the 5th and the 95th percentile, and those
    beyond are dots.

    Sizes stand in order and evenly: their axis has no scale.

    Args:
        values: The quantity on batches drawn at random, by the number of their rows, each of shape
            ``(batches,)``. Sums over rows compare only if they are scaled alike: by N / n to all
            rows, say, or by 1 / n to one.
        label: What the quantity is, with its scaling; labels the vertical axis.
        all_rows: The quantity on all rows at once, for a dashed line.
        ax: Axes to draw into; those of a new figure when left out.

    Returns:
        The axes.

    Raises:
        TypeError: If ``ax`` is no axes.
        ValueError: If ``values`` is no mapping, is empty, or has other keys or values, also
            infinite ones; if ``label`` is no text, or ``all_rows`` no finite number.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> import numpy as np
        >>> rows = np.random.default_rng(0).normal(-0.5, 0.2, size=(50, 100))
        >>> by_size = {size: rows[:, :size].mean(1) for size in (10, 30, 100)}
        >>> ax = plot_by_batch_size(by_size, "log likelihood per row", all_rows=rows.mean())
        >>> [text.get_text() for text in ax.get_xticklabels()]
        ['10', '30', '100']
        >>> plt.close(ax.figure)
    """
    samples = as_samples("values", values)
    for size in samples:
        check_count("batch sizes in values", size, 1)
    check_text("label", label)
    level = None if all_rows is None else as_level("all_rows", all_rows)
    sizes = sorted(values)
    ax = as_panel(ax, (min(3.0 + 0.7 * len(sizes), 16.0), 4))
    boxes = [samples[size] for size in sizes]
    draw_boxes(ax, boxes, range(len(sizes)), 0.6, "vertical", look(0))
    if level is not None:
        mark_level(ax, level, "all rows")
    ax.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
    ax.set_xlabel("batch size (rows)")
    ax.set_ylabel(label)
    draw_grid(ax, "y")
    return ax
