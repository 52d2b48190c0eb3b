"""Pictures of a store, each as text that a page can hold."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from pyro_fnbg.chains.report import ChainReport
from pyro_fnbg.command_line.quantities import Quantity
from pyro_fnbg.plots.acceptance import plot_acceptance_by_layer
from pyro_fnbg.plots.chains import plot_ranks, plot_traces
from pyro_fnbg.plots.style import STYLE

__all__ = ["MAX_TRACED", "acceptance_figure", "ranks_figure", "traces_figure"]

# Traces of so many chains are drawn
MAX_TRACED = 4
# A dollar in a name begins no formula
LOOK = {**STYLE, "text.parse_math": False}
# Dots an inch
RESOLUTION = 120


def acceptance_figure(reports: Sequence[ChainReport]) -> str:
    """Draw the acceptance of every layer."""
    rates = [report.by_layer(report.acceptance_rates) for report in reports]
    figure = _figure(min(3.0 + 0.8 * len(rates[0]), 12.0), 3.5)
    aims = set(reports[0].target_rates.round(2).tolist())
    target = aims.pop() if len(aims) == 1 else None
    with matplotlib.rc_context(LOOK):
        panel = figure.subplots()
        plot_acceptance_by_layer(rates, target=None if target != target else target, ax=panel)
        if len(rates[0]) > 6:
            panel.tick_params(axis="x", labelrotation=90)
    return _as_text(figure)


def traces_figure(quantity: Quantity, chains: Sequence[int]) -> str:
    """Draw the course of a quantity through the first chains."""
    values = quantity.values[:MAX_TRACED]
    figure = _figure(9.5, 0.8 + 1.5 * len(values))
    titles = [f"chain {chain}" for chain in chains[: len(values)]]
    with matplotlib.rc_context(LOOK):
        panels = figure.subplots(len(values), 2, squeeze=False, width_ratios=(5, 4), sharex="col")
        plot_traces(values, quantity.axis, every=quantity.every, titles=titles, ax=panels)
        for panel in panels[-1]:
            panel.locator_params(axis="x", nbins=5)
    return _as_text(figure)


def ranks_figure(quantity: Quantity, chains: Sequence[int]) -> str:
    """Draw how the draws of chains rank among each other."""
    figure = _figure(7.0, 3.0)
    with matplotlib.rc_context(LOOK):
        titles = [f"chain {chain}" for chain in chains[: len(quantity.values)]]
        plot_ranks(quantity.values, quantity.label, titles, ax=figure.subplots())
    return _as_text(figure)


def _figure(width: float, height: float) -> Figure:
    # Of no window, and not among those that pyplot keeps
    return Figure(figsize=(width, height), layout="constrained", dpi=RESOLUTION)


def _as_text(figure: Figure) -> str:
    """Return the picture as the address of an image that holds it, a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
