"""All models by name, in the order of the tables."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.models import classification, layers, priors, regression, responses
from benchmarks.models.case import Case

__all__ = ["CASES"]

CASES: dict[str, Callable[[], Case]] = {
    "two-layer regression, sampled scale": regression.two_layers,
    "heteroscedastic regression": regression.heteroscedastic,
    "deep regression": regression.deep,
    "lifted Sequential": regression.sequential,
    "matrices by hand": regression.by_hand,
    "classes, Categorical": classification.categorical,
    "classes, Bernoulli": classification.bernoulli,
    "counts, Poisson": classification.poisson,
    "hierarchical scales of weights": priors.weight_scales,
    "horseshoe regression": priors.horseshoe,
    "convolutional digits": layers.convolutional,
    "GRU on short sequences": layers.recurrent,
    "embedding beside numbers": layers.embedding,
    "mixture density": responses.mixture,
    "ordinal": classification.ordinal,
    "two observed sites": responses.two_sites,
    "hierarchical regression, no network": priors.groups,
}
