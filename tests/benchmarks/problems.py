"""Two small problems on which gradients and random walks work as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import biject_to

from pyro_fnbg import BayesianMLP, predictive_probabilities

__all__ = ["PROBLEMS", "Problem", "starts"]

NUM_GROUPS, NUM_ROWS, NUM_POINTS = 8, 320, 20


@dataclass(frozen=True)
class Problem:
    """Hold a model with its data.

    Attributes:
        model: The Pyro model.
        data: Its arguments.
        predict: From draws of the sites to probabilities at some points, ``(draws, points)``.
    """

    model: Callable[..., Any]
    data: tuple[Tensor, ...]
    predict: Callable[[Mapping[str, Tensor]], Tensor]


def small_network() -> Problem:
    """Return a network of 13 parameters on 200 rows that a parabola divides, not sharply."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=generator)
    y = torch.bernoulli(torch.sigmoid(2 * (x[:, 0] + x[:, 1] ** 2 - 1)), generator=generator)
    points = torch.randn(NUM_POINTS, 2, generator=generator)
    model = BayesianMLP([2, 3, 1], activation="tanh", likelihood="bernoulli")

    def predict(draws: Mapping[str, Tensor]) -> Tensor:
        return predictive_probabilities(model, draws, points)[..., 1]

    return Problem(model, (x, y), predict)


def hierarchical_model(x: Tensor, group: Tensor, y: Tensor | None = None) -> None:
    """Let each group have an intercept of its own in a logistic regression."""
    mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
    spread = pyro.sample("spread", dist.LogNormal(0.0, 0.5))
    slope = pyro.sample("slope", dist.Normal(torch.zeros(2), 2.0).to_event(1))
    groups = dist.Normal(mean, spread).expand([NUM_GROUPS]).to_event(1)
    intercept = pyro.sample("intercept", groups)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ slope + intercept[group]), obs=y)


def hierarchical_regression() -> Problem:
    """Return a logistic regression with 12 parameters on 320 rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_ROWS, 2, generator=generator)
    group = torch.arange(NUM_ROWS) % NUM_GROUPS
    intercept = torch.randn(NUM_GROUPS, generator=generator)
    probability = torch.sigmoid(x @ torch.tensor([1.0, -0.5]) + intercept[group])
    y = torch.bernoulli(probability, generator=generator)

    def predict(draws: Mapping[str, Tensor]) -> Tensor:
        at = x[:NUM_POINTS], group[:NUM_POINTS]
        return torch.sigmoid(draws["slope"] @ at[0].mT + draws["intercept"][:, at[1]])

    return Problem(hierarchical_model, (x, group, y), predict)


PROBLEMS = {
    "MLP(2,3,1), 200 rows": small_network,
    "hierarchical logistic regression, 320 rows": hierarchical_regression,
}


def starts(problem: Problem, chains: int) -> list[dict[str, Tensor]]:
    """Draw a start of each chain from the prior, unconstrained as ``MCMC`` wants it."""
    found = []
    for _ in range(chains):
        nodes: Any = poutine.trace(problem.model).get_trace(*problem.data).nodes
        found.append(
            {
                name: biject_to(site["fn"].support).inv(site["value"])
                for name, site in nodes.items()
                if site["type"] == "sample"
                and not site["is_observed"]
                # a plate is a sample site too
                and name != "data"
            }
        )
    return found
