"""Geweke's joint test: alternating data given parameters and parameters given data.

If the chain leaves the posterior of every data set invariant, then the parameters keep their prior
and functions of both agree with plain simulation from the model (Geweke, 2004).
"""

import pyro
import pytest
import torch

from pyro_fnbg import BayesianMLP
from pyro_fnbg.core.noise import ChainKey, sweep_noise
from pyro_fnbg.testing import assert_expectation, assert_joint_distribution, run_sweeps, start
from support.engines import ENGINES_OF_LONG_CHAINS, put_labels

X = torch.tensor([[-2.0], [-0.7], [0.1], [0.9], [2.2]], dtype=torch.float64)
NET = BayesianMLP([1, 1, 1], prior_scale=1.0, likelihood="bernoulli")
SWEEPS = 18_000


def logits(theta):
    parameters = {
        "layer1.weight": theta[..., 0:1].unsqueeze(-1),
        "layer1.bias": theta[..., 1:2],
        "layer2.weight": theta[..., 2:3].unsqueeze(-1),
        "layer2.bias": theta[..., 3:4],
    }
    return NET.forward(parameters, X).squeeze(-1)


def statistics(theta, y):
    """Functions of parameters (..., 4) and data (..., 5)."""
    found = {
        f"theta{i} theta{j}": theta[..., i] * theta[..., j] for i in range(4) for j in range(i)
    }
    found |= {f"theta{i}": theta[..., i] for i in range(4)}
    found |= {f"theta{i} squared": theta[..., i] ** 2 for i in range(4)}
    found |= {f"theta{i} y": theta[..., i] * y.mean(-1) for i in range(4)}
    found["fit"] = (torch.sigmoid(logits(theta)) * y).sum(-1)
    found["slope"] = theta[..., 0] * theta[..., 2] * (y * X.squeeze(-1)).mean(-1)
    return found


def sample_prior(draws, rng):
    return torch.randn(draws, 4, generator=rng, dtype=torch.float64)


def simulate(theta, rng):
    return torch.bernoulli(torch.sigmoid(logits(theta)), generator=rng)


@pytest.mark.slow  # long chains
@pytest.mark.parametrize("engine", ENGINES_OF_LONG_CHAINS)
def test_joint_distribution(engine):
    scales = torch.full((2,), 1.6, dtype=torch.float64)
    with pyro.validation_enabled(False):
        run = start(engine, NET, X, torch.zeros(5))

        def sweep(theta, labels, number):
            put_labels(run, labels)
            noise = sweep_noise(ChainKey(9, 0), number, 4, 2)
            record = run_sweeps(run, theta, [None], noise.z[None], noise.log_u[None], scales)
            return record.positions[0]

        draws = assert_joint_distribution(sweep, sample_prior, simulate, statistics, SWEEPS, seed=8)
    for i in range(4):
        assert_expectation(draws.parameters[..., i], 0.0, min_ess=400)
        assert_expectation(draws.parameters[..., i] ** 2, 1.0, min_ess=400)
