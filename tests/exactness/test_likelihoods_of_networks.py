"""Posteriors of tiny networks with each kind of numbers, by quadrature over all of their space.

A hidden node and no biases, so that a grid over the two or three parameters is enough. Densities
are those of SciPy, and scales are written out: nothing of the package is in what is expected.
"""

from typing import NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

from pyro_fnbg import Feedforward
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.networks.counts import LogPoisson
from pyro_fnbg.testing import assert_expectation, run_chain, start
from support.engines import ENGINES_OF_LONG_CHAINS

X = np.array([-1.5, -0.8, -0.2, 0.3, 0.9, 1.6])
PRIOR_SD, DEGREES = 1.2, 3.0
# The functions of the network are judged at these inputs
AT = np.array([-1.0, 0.5])


class Tiny:
    """Outputs b tanh(a x), of which a likelihood makes responses.

    Args:
        likelihood: Its name.
        scale: 1.0, the name of a site, or "network", where a second output gives it.
    """

    def __init__(self, likelihood, scale):
        self.likelihood, self.scale = likelihood, scale

    def __call__(self, x, y):
        outputs = 2 if self.scale == "network" else 1
        values = x
        for layer, nodes in (("a", 1), ("b", outputs)):
            prior = dist.Normal(x.new_zeros(nodes, 1), PRIOR_SD).to_event(2)
            values = values @ pyro.sample(f"{layer}.weight", prior).mT
            values = values.tanh() if layer == "a" else values
        scale = 1.0
        if self.scale == "network":
            scale = torch.nn.functional.softplus(values[:, 1], threshold=700) + 1e-6
        elif isinstance(self.scale, str):
            scale = pyro.sample(self.scale, dist.HalfNormal(x.new_ones(())))
        location = values[:, 0]
        response = {
            "normal": lambda: dist.Normal(location, scale),
            "student": lambda: dist.StudentT(DEGREES, location, scale),
            "poisson": lambda: LogPoisson(location),
        }[self.likelihood]()
        with pyro.plate("data", len(x)):
            pyro.sample("y", response, obs=y)

    def feedforward(self, x, y):
        return Feedforward(x, ["a", "b"], ["tanh"], self.likelihood, self.scale, DEGREES)


class Case(NamedTuple):
    """A likelihood, its scale, what was observed, and proposal scales."""

    likelihood: str
    scale: float | str
    y: np.ndarray
    step: float


NUMBERS = np.array([-0.9, -1.4, 0.1, 0.2, 1.8, 0.6])
CASES = {
    "scales": Case("normal", "network", NUMBERS, 1.5),
    "student": Case("student", 1.0, NUMBERS, 1.8),
    "student, scales": Case("student", "network", NUMBERS, 1.6),
    "student, sampled scale": Case("student", "sigma", NUMBERS, 1.4),
    "poisson": Case("poisson", 1.0, np.array([0, 1, 0, 2, 1, 4]), 1.5),
}


def functions(case, parameters, x):
    """Locations and scales at some inputs, shape ``(parameters, inputs)``, by hand."""
    hidden = np.tanh(parameters[:, :1] * x)
    locations = parameters[:, 1:2] * hidden
    scales = np.ones_like(locations)
    if case.scale == "network":
        scales = np.logaddexp(0.0, parameters[:, 2:3] * hidden) + 1e-6
    elif isinstance(case.scale, str):
        scales = np.exp(parameters[:, 2:3]) * scales
    return locations, scales


def log_target(case, parameters):
    """The log posterior, up to a constant, of unconstrained parameters."""
    locations, scales = functions(case, parameters, X)
    weights = parameters
    found = 0.0
    if case.scale == "sigma":
        weights, log_scale = parameters[:, :2], parameters[:, 2]
        found = stats.halfnorm.logpdf(np.exp(log_scale)) + log_scale
    found = found + stats.norm.logpdf(weights, scale=PRIOR_SD).sum(1)
    if case.likelihood == "poisson":
        return found + stats.poisson.logpmf(case.y, np.exp(locations)).sum(1)
    kind = stats.norm if case.likelihood == "normal" else stats.t(DEGREES)
    return found + (kind.logpdf((case.y - locations) / scales) - np.log(scales)).sum(1)


def summaries(case, parameters):
    """Functions that nodes of another sign do not change, by name."""
    locations, scales = functions(case, parameters, AT)
    found = {}
    for place in range(len(AT)):
        found[f"location {place}"] = locations[:, place]
        found[f"location {place} squared"] = locations[:, place] ** 2
        found[f"log scale {place}"] = np.log(scales[:, place])
    found["slope squared"] = parameters[:, 0] ** 2
    return {name: values for name, values in found.items() if np.ptp(values) > 0}


@pytest.mark.parametrize("engine", ENGINES_OF_LONG_CHAINS)
@pytest.mark.parametrize("name", CASES)
def test_the_posterior_is_that_of_quadrature(name, engine):
    case = CASES[name]
    size = 3 if isinstance(case.scale, str) else 2
    # A grid of 121 changes no expectation by more than 7e-4, far below the chains' errors
    axes = [np.linspace(-6 * PRIOR_SD, 6 * PRIOR_SD, 73 if size == 3 else 301)] * size
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], -1)
    logs = log_target(case, grid)
    weights = np.exp(logs - logs.max())
    expected = {
        key: float((weights * values).sum() / weights.sum())
        for key, values in summaries(case, grid).items()
    }
    x = torch.from_numpy(X).unsqueeze(-1)
    run = start(engine, Tiny(case.likelihood, case.scale), x, torch.from_numpy(case.y).double())
    num_blocks = run.problem.partition.num_blocks
    scales = torch.full((num_blocks,), case.step, dtype=torch.float64)
    begin = torch.full((size,), 0.5, dtype=torch.float64)
    chains = [
        run_chain(run, begin, scales, 5000, ChainKey(21, chain))[100:].numpy() for chain in range(4)
    ]
    found = [summaries(case, chain) for chain in chains]
    for key, value in expected.items():
        draws = torch.from_numpy(np.stack([one[key] for one in found]))
        assert_expectation(draws, value, min_ess=400)
