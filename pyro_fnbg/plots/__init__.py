"""Pictures of chains and of predictions, from plain arrays and dicts.

Every function draws into the Matplotlib axes that it is given as `ax`, or into those of a new
figure, returns the axes, and shows nothing.
"""

from pyro_fnbg.plots.acceptance import plot_acceptance_by_layer, plot_acceptance_by_node
from pyro_fnbg.plots.chains import plot_ranks, plot_score, plot_traces
from pyro_fnbg.plots.classes import plot_images, plot_reliability, plot_risk_coverage
from pyro_fnbg.plots.comparisons import plot_accuracy, plot_by_batch_size
from pyro_fnbg.plots.inputs import plot_decision_surface, plot_regression_band

__all__ = [
    "plot_acceptance_by_layer",
    "plot_acceptance_by_node",
    "plot_accuracy",
    "plot_by_batch_size",
    "plot_decision_surface",
    "plot_images",
    "plot_ranks",
    "plot_regression_band",
    "plot_reliability",
    "plot_risk_coverage",
    "plot_score",
    "plot_traces",
]
