"""Posteriors known in closed form: means, variances and cross products of the real chains."""

from typing import NamedTuple

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.testing import assert_expectation, run_chain, start
from support.engines import ENGINES_OF_LONG_CHAINS

PRIOR_SD, NOISE_SD = 1.5, 0.7
ROWS = torch.tensor([0, 3, 4, 7, 10])

pytestmark = pytest.mark.parametrize("engine", ENGINES_OF_LONG_CHAINS)


class Data(NamedTuple):
    """Inputs and labels of a linear regression, and the inputs with a column for the bias."""

    x: Tensor
    y: Tensor
    design: Tensor


@pytest.fixture
def data():
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    y = x @ torch.tensor([0.8, -0.5], dtype=torch.float64) + 0.3
    return Data(x, y, torch.cat([x, torch.ones(12, 1, dtype=torch.float64)], 1))


def gaussian_posterior(data, rows, factor, noise_sd=NOISE_SD):
    """Mean and covariance of weights and bias, the likelihood raised to a power."""
    design, y = data.design[rows], data.y[rows]
    precision = torch.eye(3, dtype=torch.float64) / PRIOR_SD**2
    precision = precision + factor / noise_sd**2 * design.T @ design
    covariance = precision.inverse()
    return covariance @ (factor / noise_sd**2 * design.T @ y), covariance


def assert_moments(draws, mean, covariance):
    """Check draws of shape (chain, draw, 3) against a Gaussian."""
    centred = draws - mean
    for i in range(3):
        assert_expectation(draws[..., i], mean[i])
        for j in range(i + 1):
            assert_expectation(centred[..., i] * centred[..., j], covariance[i, j])


CASES = {
    "full data": (None, {}, torch.arange(12), 1.0),
    "full data, tempered": (None, {"likelihood_scale": 0.4}, torch.arange(12), 0.4),
    "frozen batch, factor 1": (ROWS, {"batch_size": 5}, ROWS, 1.0),
    "frozen batch, factor N/n": (
        ROWS,
        {"batch_size": 5, "likelihood_scale": "full"},
        ROWS,
        12 / 5,
    ),
}


@pytest.mark.parametrize(("rows", "options", "used", "factor"), CASES.values(), ids=CASES)
def test_linear_regression(engine, rows, options, used, factor, data):
    model = BayesianMLP([2, 1], PRIOR_SD, likelihood="normal", observation_scale=NOISE_SD)
    run = start(engine, model, data.x, data.y, **options)
    mean, covariance = gaussian_posterior(data, used, factor)
    scales = 2.4 / 3**0.5 * covariance.diagonal().mean().sqrt().reshape(1)
    draws = torch.stack(
        [run_chain(run, mean, scales, 2500, ChainKey(11, chain), rows) for chain in range(4)]
    )
    assert_moments(draws, mean, covariance)


def test_linear_regression_with_a_half_normal_scale(engine, data):
    """The scale's posterior by quadrature over its own line, the weights' given it in closed form.

    The site is positive, so this checks the log Jacobian inside the chain.
    """
    model = BayesianMLP(
        [2, 1],
        PRIOR_SD,
        likelihood="normal",
        observation_scale=dist.HalfNormal(torch.tensor(1.0, dtype=torch.float64)),
    )
    x, y, design = data
    noisy = y + 0.5 * torch.randn(12, generator=torch.Generator().manual_seed(6)).double()
    run = start(engine, model, x, noisy)
    grid = torch.linspace(0.02, 4.0, 2000, dtype=torch.float64)
    prior_covariance = PRIOR_SD**2 * design @ design.T
    log_weights, means = [], []
    for scale in grid:
        covariance = prior_covariance + scale**2 * torch.eye(12, dtype=torch.float64)
        evidence = dist.MultivariateNormal(torch.zeros(12, dtype=torch.float64), covariance)
        log_weights.append(evidence.log_prob(noisy) - 0.5 * scale**2)
        precision = torch.eye(3, dtype=torch.float64) / PRIOR_SD**2 + design.T @ design / scale**2
        means.append(torch.linalg.solve(precision, design.T @ noisy / scale**2))
    weights = torch.stack(log_weights).softmax(0)
    start_at = torch.cat([weights @ torch.stack(means), torch.tensor([-0.5])])
    scales = torch.tensor([0.35, 0.5], dtype=torch.float64)
    draws = torch.stack(
        [run_chain(run, start_at, scales, 4000, ChainKey(12, chain))[500:] for chain in range(4)]
    )
    scale_draws = draws[..., 3].exp()
    assert_expectation(scale_draws, weights @ grid)
    assert_expectation(scale_draws**2, weights @ grid**2)
    for i in range(3):
        assert_expectation(draws[..., i], (weights @ torch.stack(means))[i])


def test_the_kernel_under_mcmc_with_adaptation(engine, data):
    """The same moments through ``pyro.infer.MCMC``: warmup, freezing and storage included."""
    model = BayesianMLP([2, 1], PRIOR_SD, likelihood="normal", observation_scale=NOISE_SD)
    pyro.set_rng_seed(3)
    kernel = FNBG(model, engine=engine)
    mcmc = pyro.infer.MCMC(
        kernel, num_samples=2500, warmup_steps=500, num_chains=4, disable_progbar=True
    )
    mcmc.run(data.x, data.y)
    assert kernel.engine == engine
    samples = mcmc.get_samples(group_by_chain=True)
    draws = torch.cat([samples["layer1.weight"].squeeze(2), samples["layer1.bias"]], -1)
    assert_moments(draws, *gaussian_posterior(data, torch.arange(12), 1.0))
