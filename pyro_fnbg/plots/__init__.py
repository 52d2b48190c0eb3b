"""Pictures of chains, acceptance rates and predictions, from plain arrays and dicts."""

from pyro_fnbg.plots.drawing import plot_acceptance_by_node, plot_decision_surface, plot_traces

__all__ = ["plot_acceptance_by_node", "plot_decision_surface", "plot_traces"]
