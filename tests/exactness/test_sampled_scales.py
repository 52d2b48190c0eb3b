"""Posteriors with sampled scales, and with priors of other families, against quadrature."""

import math

import pyro
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from scipy.special import digamma

from pyro_fnbg import BayesianMLP, Block, Partition
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.networks.priors import ScalePrior
from pyro_fnbg.testing import assert_expectation, run_chain, start
from support.engines import ENGINES_OF_LONG_CHAINS

CHAINS = 4
on_every_engine = pytest.mark.parametrize("engine", ENGINES_OF_LONG_CHAINS)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def draws_of(run, scales, num_sweeps):
    """Run chains from the run's start; shape (chains, sweeps, parameters)."""
    widths = torch.full((run.problem.partition.num_blocks,), 1.0, dtype=torch.float64) * scales
    with pyro.validation_enabled(False):
        chains = [
            run_chain(run, run.chain.position, widths, num_sweeps, ChainKey(21, chain))
            for chain in range(CHAINS)
        ]
    return torch.stack(chains)[:, 500:]


# --- Regression with one weight and one bias -----------------------------------------------------

X, Y, NOISE = double(-1.5, -0.2, 0.6, 1.9), double(-0.4, 0.5, 0.1, 1.2), 0.8
LOC = 0.3
# Log density of an error in units of the scale, up to a constant
FAMILIES = {
    "normal": lambda error: -0.5 * error**2,
    "laplace": lambda error: -error.abs(),
    "student": lambda error: -2 * torch.log1p(error**2 / 3),
}
# Family; scale, fixed or sampled; move of the scale's block
VARIANCE = ScalePrior(dist.InverseGamma(1.5, 0.4), of="variance")
CASES = {
    "drawn variance": ("normal", VARIANCE, None),
    "walking variance": ("normal", VARIANCE, "walk"),
    "scale of an input": ("laplace", ScalePrior(dist.HalfCauchy(0.5), per="input"), None),
    "scale of student's t": ("student", ScalePrior(dist.HalfNormal(1.2)), None),
    "laplace": ("laplace", 0.4, None),
    "student": ("student", 0.4, None),
}
HYPERPRIORS = {  # of u, the logarithm of the variance or the scale
    "drawn variance": lambda u: -1.5 * u - 0.4 * torch.exp(-u),
    "scale of an input": lambda u: u - torch.log1p((torch.exp(u) / 0.5) ** 2),
    "scale of student's t": lambda u: u - 0.5 * (torch.exp(u) / 1.2) ** 2,
}
HYPERPRIORS["walking variance"] = HYPERPRIORS["drawn variance"]


def expectations(case):
    """Means of u, if a scale is sampled, of weight and bias, and of their squares, on a grid.

    The weight is LOC plus the scale times sinh(t): all is smooth in t, however small the scale is.
    """
    family, scale, _ = CASES[case]
    log_density = FAMILIES[family]
    b = torch.linspace(-2.5, 3.0, 91, dtype=torch.float64)
    t = torch.linspace(-9, 9, 361, dtype=torch.float64)[:, None]
    if case in HYPERPRIORS:
        u = torch.linspace(-16, 12, 281, dtype=torch.float64)[:, None, None]
        size, size_of_bias = torch.exp(0.5 * u if scale is VARIANCE else u), 1.0
    else:
        u, size, size_of_bias = None, scale, scale
    w = LOC + size * t.sinh()
    residuals = ((y - w * x - b) / NOISE for x, y in zip(X, Y, strict=True))
    total = sum(-0.5 * error.square() for error in residuals)
    total = total + log_density(t.sinh()) + t.cosh().log() + log_density((b - LOC) / size_of_bias)
    if u is not None:
        total = total + HYPERPRIORS[case](u)
    weights = torch.softmax(total.flatten(), 0).view(total.shape)
    grids = [grid for grid in (u, w, b) if grid is not None]
    return [(float((weights * grid).sum()), float((weights * grid**2).sum())) for grid in grids]


@pytest.mark.slow  # long chains
@on_every_engine
@pytest.mark.parametrize("case", CASES)
def test_posterior_of_a_regression(case, engine):
    family, scale, move = CASES[case]
    model = BayesianMLP(
        [1, 1],
        prior_scale=scale,
        prior_loc=LOC,
        likelihood="normal",
        observation_scale=NOISE,
        prior=family,
        prior_degrees_of_freedom=3.0,
    )
    parts = Partition((Block("node", (1, 2)), Block("u", (0,), move=move)), 3)
    run = start(engine, model, X[:, None], Y, blocks=parts if case in HYPERPRIORS else "node")
    moves = [own.name for own in run.problem.moves.of_block]
    assert ("conjugate" in moves) == (case == "drawn variance")
    draws = draws_of(run, double(0.7, 2.0)[: len(moves)], 6_000)
    for place, (mean, square) in enumerate(expectations(case)):
        assert_expectation(draws[..., place], mean, min_ess=400)
        assert_expectation(draws[..., place] ** 2, square, min_ess=400)


# --- A prior without data ------------------------------------------------------------------------


@on_every_engine
def test_without_data_the_hyperpriors_come_back(engine):
    """Variances are drawn, scales walk, and the weights follow both: a power of 1e-9 is no data."""
    a, b, size = 4.0, 2.0, 0.7
    model = BayesianMLP(
        [2, 2, 1],
        prior_scale=[
            ScalePrior(dist.InverseGamma(a, b), of="variance", per="input"),
            ScalePrior(dist.HalfNormal(size)),
        ],
        likelihood="bernoulli",
        bias_prior_scale=1.0,
    )
    x = torch.randn(8, 2, dtype=torch.float64)
    run = start(engine, model, x, torch.arange(8) % 2, likelihood_scale=1e-9)
    layout = run.problem.sites.layout
    draws = layout.unflatten(draws_of(run, double(0.9, 0.9, 0.7, 0.0, 1.5), 8_000))
    logs, weights = draws["layer1.weight_variance"], draws["layer1.weight"]
    for entry in range(2):
        u = logs[..., entry]
        assert_expectation(u, math.log(b) - digamma(a), min_ess=400)
        assert_expectation((-u).exp(), a / b, min_ess=400)
        assert_expectation(weights[..., entry].square().mean(-1), b / (a - 1), min_ess=400)
        for node in range(2):
            standard = weights[..., node, entry] * (-u / 2).exp()
            assert_expectation(standard.abs(), math.sqrt(2 / math.pi), min_ess=400)
    scale = draws["layer2.weight_scale"].exp()
    half = scipy.stats.halfnorm(scale=size)
    assert_expectation(scale, half.mean(), min_ess=400)
    assert_expectation((scale < half.median()).double(), 0.5, min_ess=400)
    errors = draws["layer2.weight"].squeeze(-2) / scale.unsqueeze(-1)
    assert_expectation(errors.square().mean(-1), 1.0, min_ess=400)
