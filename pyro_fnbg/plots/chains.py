"""The course of chains: a quantity draw by draw, and how good predictions are after so many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from pyro_fnbg.core.checks import check_count, shown
from pyro_fnbg.plots.checks import as_array, as_level, check_increasing, check_text, checked_titles
from pyro_fnbg.plots.style import (
    COLOURS,
    Panels,
    as_panel,
    as_panels,
    draw_grid,
    legend_beside,
    look,
    mark_level,
    styled,
)

__all__ = ["plot_ranks", "plot_score", "plot_traces"]

# Ranks are counted in so many parts of equal width
NUM_BINS = 20


@styled()
def plot_traces(
    values: ArrayLike,
    label: str,
    warmup: int = 0,
    near: int | None = None,
    every: int = 1,
    titles: Sequence[str] | None = None,
    reference_lines: Mapping[str, float] | None = None,
    ax: Panels | None = None,
) -> Panels:
    """Draw the course of one quantity through each chain: the whole run, and its end from near.

    Each chain has two panels side by side. On the left is the whole run on axes that all chains
    share: a chain that stays on another level than the rest, or is still on its way, shows at a
    glance. A pale line joins the draws; a dark one is their running mean over a fiftieth of the
    run; the warmup is shaded. On the right are the last draws alone on a scale of their own, which
    differs between chains: it shows how the chain moves. Their mean is in the title.

    Args:
        values: The quantity by draw, those of the warmup first, shape ``(chains, warmup + draws)``;
            NaN leaves a gap.
        label: What the quantity is, with its unit; labels the vertical axes.
        warmup: How many of the values belong to the warmup; they are numbered from below up to 0.
        near: How many of the last draws the right panels show; a tenth of them when left out.
        every: Of how many draws, one after the other, a value is the last: 1 if all are given.
        titles: One title per chain; "chain 0" and so on when left out.
        reference_lines: Levels to be marked by a dashed line in the left panels, by the text to be
            written beside it.
        ax: Axes to draw into, shape ``(chains, 2)``; those of a new figure when left out.

    Returns:
        The axes, shape ``(chains, 2)``.

    Raises:
        ValueError: If ``values`` or ``ax`` has another shape, ``titles`` another length,
            ``warmup`` or ``near`` is larger than what there is, ``every`` is no whole number from
            1, ``label`` is no text, or ``reference_lines`` is no mapping from texts to finite
            numbers.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> import numpy as np
        >>> accuracy = np.random.default_rng(0).uniform(80, 100, size=(4, 250))
        >>> ax = plot_traces(accuracy, "accuracy (%)", warmup=50, reference_lines={"chance": 50.0})
        >>> ax[0, 1].get_title("left")
        'last 20 of 200 draws: mean 91.94'
        >>> plt.close(ax[0, 0].figure)
    """
    traces = as_array("values", values, ("chains", "draws"))
    num_chains, num_values = traces.shape
    check_count("warmup", warmup, 0, num_values - 1)
    num_draws = num_values - warmup
    if near is None:
        near = max(1, num_draws // 10)
    check_count("near", near, 1, num_draws)
    check_count("every", every, 1)
    check_text("label", label)
    titles = checked_titles(titles, num_chains)
    levels = _levels(reference_lines)
    ax = as_panels(
        ax, (num_chains, 2), (11, 0.8 + 1.5 * num_chains), width_ratios=(2, 1), sharex="col"
    )
    numbers = every * (np.arange(1, num_values + 1) - warmup)
    word, shown_draws = ("draws", "") if every == 1 else ("values", f"one in {every:,}")
    limits = _limits([*traces.flat, *levels.values()])
    for chain, ((wide, close), trace) in enumerate(zip(ax, traces, strict=True)):
        colour = COLOURS[chain % len(COLOURS)]
        wide.plot(numbers, trace, color=colour, linewidth=0.5, alpha=0.4)
        # Each running mean stands in the middle of its window
        window = max(1, num_values // 50)
        mean = np.convolve(trace, np.full(window, 1 / window), mode="valid")
        places = numbers[: len(mean)] + every * (window - 1) / 2
        wide.plot(places, mean, color=colour, linewidth=1.6)
        for text, level in levels.items():
            mark_level(wide, level, text)
        if warmup > 0:
            wide.axvspan(numbers[0], 0.5 * every, color="0.88", linewidth=0, zorder=0)
        wide.set_ylim(limits)
        wide.set_title(titles[chain])
        wide.set_ylabel(fill(label, 16))
        last = trace[-near:]
        close.plot(numbers[-near:], last, color=colour, linewidth=0.8)
        close.set_title(f"last {near:,} of {num_draws:,} {word}: mean {_mean(last)}")
        for panel in (wide, close):
            panel.margins(x=0.01)
            draw_grid(panel, "y")
    notes = [shown_draws, "shaded, up to 0: warmup" if warmup > 0 else ""]
    told = "; ".join(filter(None, notes))
    ax[-1, 0].set_xlabel(f"draw ({told})" if told else "draw")
    ax[-1, 1].set_xlabel("draw (vertical scales differ)")
    return ax


@styled()
def plot_ranks(
    values: ArrayLike,
    label: str,
    titles: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw how the draws of each chain rank among those of all chains.

    Chains that draw from one distribution have ranks that are uniform: their shares of each
    twentieth of all draws are near 1. One that stays on another level than the rest has more of the
    lowest or highest ranks; one that varies less, more of those in the middle. Shares scatter more
    the more draws depend on each other.

    Args:
        values: The quantity by draw, shape ``(chains, draws)``, finite, of two chains or more.
        label: What the quantity is; labels the horizontal axis.
        titles: One title per chain, for the legend; "chain 0" and so on when left out.
        ax: Axes to draw into; those of a new figure when left out.

    Returns:
        The axes.

    Raises:
        TypeError: If ``ax`` is no axes.
        ValueError: If ``values`` has another shape, is not finite or of one chain, ``label`` is no
            text, or ``titles`` has another length.

    References:
        Vehtari and others (2021), "Rank-normalization, folding, and localization: an improved R-hat
        for assessing convergence of MCMC".

    Example:
        >>> import matplotlib.pyplot as plt
        >>> import numpy as np
        >>> ax = plot_ranks(np.random.default_rng(0).normal(size=(4, 250)), "slope")
        >>> ax.get_xlabel()
        'rank of slope among all draws (%)'
        >>> plt.close(ax.figure)
    """
    draws = as_array("values", values, ("chains", "draws"))
    if len(draws) < 2 or not np.isfinite(draws).all():
        raise ValueError(
            f"values must be finite numbers of two chains or more, got {len(draws)} chains of "
            f"which {int(np.isfinite(draws).all(1).sum())} are finite"
        )
    check_text("label", label)
    titles = checked_titles(titles, len(draws))
    ax = as_panel(ax, (7, 3.2))
    ranks = (rankdata(draws).reshape(draws.shape) - 0.5) / draws.size
    edges = np.linspace(0, 100, NUM_BINS + 1)
    for chain, (own, title) in enumerate(zip(ranks, titles, strict=True)):
        counts = np.histogram(100 * own, edges)[0]
        shares = counts * NUM_BINS / draws.shape[1]
        ax.stairs(shares, edges, color=look(chain)["color"], label=title, linewidth=1.3)
    ax.axhline(1.0, color="0.25", linestyle="--", linewidth=1.0, label="uniform", zorder=1)
    ax.set_xlim(0, 100)
    ax.set_ylim(bottom=0)
    ax.set_xlabel(f"rank of {label} among all draws (%)")
    ax.set_ylabel("share, 1 if uniform")
    draw_grid(ax, "y")
    legend_beside(ax)
    return ax


@styled()
def plot_score(
    scores: ArrayLike,
    draws: ArrayLike,
    label: str,
    seconds: ArrayLike | None = None,
    pooled: ArrayLike | None = None,
    titles: Sequence[str] | None = None,
    ax: Panels | None = None,
) -> Panels:
    """Draw how good the prediction is after so many draws, and after so many seconds if given.

    A panel each, with one scale of scores; draws and seconds have logarithmic scales. Chains are
    pooled as if all ran at once: the prediction of all chains together stands where each has so
    many draws, and in time where the last chain has them.

    Args:
        scores: Score, such as the test accuracy, of the mean prediction over the first draws of
            each chain, shape ``(chains, points)``, such as a line of ``ScoreCourse.by_chain``.
        draws: So many first draws, increasing, shape ``(points,)``.
        label: What the score is, with its unit; labels the vertical axis.
        seconds: Time that each chain took to make them, shape ``(chains, points)``. Say in
            ``label`` or elsewhere whether it contains the warmup.
        pooled: Score of the mean prediction over the first draws of all chains together, shape
            ``(points,)``.
        titles: One title per chain, for the legend; "chain 0" and so on when left out.
        ax: Axes to draw into, shape ``(2,)``, or ``(1,)`` without seconds; those of a new figure
            when left out.

    Returns:
        The axes: score against draws, and against seconds if given.

    Raises:
        ValueError: If a shape does not fit, ``draws`` or ``seconds`` do not increase from above 0,
            or ``label`` is no text.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> draws = [10, 100, 1000]
        >>> seconds = [[0.1, 1.0, 10.0], [0.2, 1.1, 12.0]]
        >>> scores = [[55.0, 80.0, 84.0], [52.0, 86.0, 98.0]]
        >>> ax = plot_score(scores, draws, "accuracy (%)", seconds, pooled=[56.0, 85.0, 97.0])
        >>> [panel.get_xlabel() for panel in ax]
        ['draws of each chain', 'seconds']
        >>> plt.close(ax[0].figure)
    """
    by_chain = as_array("scores", scores, ("chains", "points"))
    num_chains, num_points = by_chain.shape
    counts = as_array("draws", draws, (num_points,))
    scales = [("draws", "draws of each chain", np.broadcast_to(counts, by_chain.shape))]
    if seconds is not None:
        times = as_array("seconds", seconds, (num_chains, num_points))
        scales.append(("seconds", "seconds", times))
    for name, _, places in scales:
        for of_chain in places:
            check_increasing(name, of_chain)
            if of_chain[0] <= 0:
                raise ValueError(f"{name} must be above 0, got {of_chain[0]:g}")
    of_all = None if pooled is None else as_array("pooled", pooled, (num_points,))
    check_text("label", label)
    titles = checked_titles(titles, num_chains)
    ax = as_panels(ax, (len(scales),), (1.5 + 4.75 * len(scales), 4), sharey=True)
    for panel, (_, word, places) in zip(ax, scales, strict=True):
        for chain, title in enumerate(titles):
            style = look(chain)
            panel.plot(
                places[chain], by_chain[chain], label=title, linewidth=1, markersize=4, **style
            )
        if of_all is not None:
            look_of_all = {"color": "black", "linewidth": 2.5, "linestyle": "--"}
            panel.plot(places.max(0), of_all, label="all pooled", **look_of_all)
        panel.set_xscale("log")
        # Few and short numbers, which do not run into each other
        steps = (1.0,) if places.max() > 100 * places.min() else (1.0, 2.0, 5.0)
        panel.xaxis.set_major_locator(LogLocator(subs=steps))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_xlabel(word)
        draw_grid(panel, "y")
    ax[0].set_ylabel(label)
    legend_beside(ax[-1])
    return ax


def _levels(lines: object) -> dict[str, float]:
    """Return the levels to be marked, by their text."""
    if lines is None:
        return {}
    if not isinstance(lines, Mapping):
        raise ValueError(
            f"reference_lines must be a mapping from texts to levels, got {shown(lines)}"
        )
    for text in lines:
        check_text("texts in reference_lines", text)
    return {text: as_level(f"reference_lines[{text!r}]", level) for text, level in lines.items()}


def _limits(values: Sequence[float]) -> tuple[float, float] | None:
    """Return where an axis begins and ends that shows all values, if there are any."""
    finite = [value for value in values if np.isfinite(value)]
    if not finite:
        return None
    lowest, highest = min(finite), max(finite)
    margin = 0.05 * (highest - lowest) or 0.5
    return lowest - margin, highest + margin


def _mean(values: NDArray[np.float64]) -> str:
    """Write the mean of the values that there are."""
    defined = values[~np.isnan(values)]
    if len(defined) == 0:
        return "not defined"
    return f"{defined.mean():#.4g}".rstrip(".").replace("-", "\N{MINUS SIGN}")
