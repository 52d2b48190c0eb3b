"""Acceptance rates by node and by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Literal

import numpy as np
from matplotlib.axes import Axes

from pyro_fnbg.plots.boxes import draw_boxes
from pyro_fnbg.plots.checks import as_level, check_shares, checked_titles, common_names
from pyro_fnbg.plots.style import as_panel, draw_grid, legend_beside, look, mark_level, styled

__all__ = ["plot_acceptance_by_layer", "plot_acceptance_by_node"]

Rates = Sequence[Mapping[str, float]]


@styled()
def plot_acceptance_by_node(
    rates: Rates,
    target: float | None = None,
    groups: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the acceptance rates of every node as a box over chains.

    A box spans the quartiles, the line in it is the median. Up to 30 chains are all dots, and
    whiskers reach the extremes; of more, whiskers reach the 5th and the 95th percentile, and those
    beyond are dots. A box of two or three says little.

    Nodes run from top to bottom in the order of the sweep. Layers, read from the node's name up to
    its last dot, lie on bands of alternating shade. A rate near zero says that the node hardly
    moved; nodes far above the target could have taken larger steps.

    Args:
        rates: For each chain, the rates between 0 and 1 by node, as in
            ``diagnostics()["acceptance rate by node"]``; the same nodes in every chain.
        target: Rate that tuning aimed at, between 0 and 1, for a dashed line.
        groups: For each chain the name of its group; each group has boxes of its own. All chains
            are one group when left out.
        ax: Axes to draw into; those of a new figure when left out.

    Returns:
        The axes.

    Raises:
        TypeError: If ``ax`` is no axes.
        ValueError: If ``rates`` is empty, differs in nodes between chains or lies outside 0 to 1,
            or if ``target`` or ``groups`` do not fit.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> chain = {"layer1.node1": 0.31, "layer2.node1": 0.24}
        >>> ax = plot_acceptance_by_node([chain, chain], target=0.3)
        >>> [text.get_text() for text in ax.get_yticklabels()]
        ['layer1.node1', 'layer2.node1']
        >>> plt.close(ax.figure)
    """
    nodes = common_names(rates, "nodes")
    members = _members(rates, target, groups)
    ax = as_panel(ax, (9, min(1.2 + (0.12 + 0.2 * len(members)) * len(nodes), 16.0)))
    layers = groupby(range(len(nodes)), key=lambda number: nodes[number].rpartition(".")[0])
    for count, (_, of_layer) in enumerate(layers):
        numbers = list(of_layer)
        if count % 2 == 0:
            ax.axhspan(numbers[0] - 0.5, numbers[-1] + 0.5, color="0.95", linewidth=0)
    _draw_rates(ax, members, nodes, "horizontal")
    if target is not None:
        mark_level(ax, 100 * target, "target", "x")
    ax.set_yticks(range(len(nodes)), nodes)
    ax.set_ylim(len(nodes) - 0.5, -0.5)
    ax.set_xlim(0, 100)
    ax.set_xlabel("acceptance rate over the draws (%)")
    draw_grid(ax, "x")
    legend_beside(ax)
    return ax


@styled()
def plot_acceptance_by_layer(
    rates: Rates,
    target: float | None = None,
    groups: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the acceptance rates of every layer, from the first to the last, as a box over chains.

    Boxes and dots are as in `plot_acceptance_by_node`. Layers stand side by side, so that a rate
    that falls or rises with depth shows.

    Args:
        rates: For each chain, the rates between 0 and 1 by layer, as in
            ``diagnostics()["acceptance rate by layer"]``; the same layers in every chain.
        target: As in `plot_acceptance_by_node`.
        groups: As in `plot_acceptance_by_node`.
        ax: Axes to draw into; those of a new figure when left out.

    Returns:
        The axes.

    Raises:
        TypeError: If ``ax`` is no axes.
        ValueError: As in `plot_acceptance_by_node`.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> chains = [{"layer1": 0.31, "layer2": 0.24}, {"layer1": 0.29, "layer2": 0.35}]
        >>> ax = plot_acceptance_by_layer(chains, target=0.3, groups=["tuned", "fixed"])
        >>> [text.get_text() for text in ax.get_xticklabels()]
        ['layer1', 'layer2']
        >>> plt.close(ax.figure)
    """
    layers = common_names(rates, "layers")
    members = _members(rates, target, groups)
    ax = as_panel(ax, (min(3.0 + (0.4 + 0.3 * len(members)) * len(layers), 16.0), 4))
    _draw_rates(ax, members, layers, "vertical")
    if target is not None:
        mark_level(ax, 100 * target, "target")
    ax.set_xticks(range(len(layers)), layers)
    ax.set_xlim(-0.5, len(layers) - 0.5)
    ax.set_ylim(0, 100)
    ax.set_ylabel("acceptance rate over the draws (%)")
    draw_grid(ax, "y")
    legend_beside(ax)
    return ax


def _members(
    rates: Rates, target: float | None, groups: Sequence[str] | None
) -> dict[str | None, Rates]:
    """Return the chains of each group; the one group of a picture without groups has no name."""
    if target is not None:
        check_shares("target", as_level("target", target))
    if groups is None:
        return {None: rates}
    names = checked_titles(groups, len(rates), name="groups")
    return {
        group: [chain for chain, name in zip(rates, names, strict=True) if name == group]
        for group in dict.fromkeys(names)
    }


def _draw_rates(
    ax: Axes,
    members: Mapping[str | None, Rates],
    names: Sequence[str],
    orientation: Literal["vertical", "horizontal"],
) -> None:
    """Draw the boxes of each group beside those of the others."""
    offsets = np.linspace(-0.4, 0.4, 2 * len(members) + 1)[1::2]
    for number, (group, chains) in enumerate(members.items()):
        draw_boxes(
            ax,
            [np.array([100 * chain[name] for chain in chains], dtype=np.float64) for name in names],
            [place + offsets[number] for place in range(len(names))],
            0.7 / len(members),
            orientation,
            look(number),
            group,
        )
