"""Blocks of three kinds in one sweep: one walks, one has Crank-Nicolson steps, one is drawn.

A node whose weights' variance is sampled walks, since its prior depends on another site; the node
above it has a Normal prior of its own, which "pcn" keeps; the variance is drawn from its
conditional, given where the walk has just led.
"""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import BayesianMLP
from pyro_fnbg.core.noise import ChainKey, sweep_noise
from pyro_fnbg.networks.priors import ScalePrior
from pyro_fnbg.testing import (
    assert_as_model,
    assert_joint_distribution,
    make_inputs,
    run_on,
    run_sweeps,
    start,
)
from support.engines import (
    ENGINES_OF_LONG_CHAINS,
    WITH_COMPILED,
    assert_as_trace,
    assert_decides_both_ways,
    past_the_check,
    put_labels,
)
from support.slow import slowly

X = torch.tensor([[-2.0], [-0.7], [0.1], [0.9], [2.2]], dtype=torch.float64)
SHAPE, RATE = 5.0, 4.0  # of the variance's inverse gamma prior: its moments exist
KINDS = ["walk", "pcn", "conjugate"]
NET = BayesianMLP(
    [1, 1, 1],
    prior_scale=[ScalePrior(dist.InverseGamma(SHAPE, RATE), of="variance"), 1.0],
    bias_prior_scale=1.0,
    likelihood="bernoulli",
)
# Flat: the logarithm of the variance, then the parameters of one layer after the other
LOG_VARIANCE, WEIGHT, BIAS, SLOPE, OFFSET = range(5)
LABELS = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])


def set_up(engine, warmup_steps=0):
    run = start("trace", NET, X, LABELS.clone(), moves="pcn", warmup_steps=warmup_steps)
    assert [move.name for move in run.problem.moves.of_block] == KINDS
    return past_the_check(run, engine)


def logits(theta):
    hidden = (theta[..., WEIGHT, None] * X[:, 0] + theta[..., BIAS, None]).sigmoid()
    return theta[..., SLOPE, None] * hidden + theta[..., OFFSET, None]


def sample_prior(draws, rng):
    theta = torch.randn(draws, 5, generator=rng, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**31, (), generator=rng)))
        variance = dist.InverseGamma(SHAPE, RATE).expand([draws]).sample().double()
    theta[:, WEIGHT] *= variance.sqrt()
    theta[:, LOG_VARIANCE] = variance.log()
    return theta


def simulate(theta, rng):
    return torch.bernoulli(logits(theta).sigmoid(), generator=rng)


def statistics(theta, y):
    """Functions of parameters (..., 5) and data (..., 5)."""
    squares = {f"theta{i} squared": theta[..., i] ** 2 for i in range(1, 5)}
    products = {
        f"theta{i} theta{j}": theta[..., i] * theta[..., j] for i in range(5) for j in range(i)
    }
    with_data = {f"theta{i} y": theta[..., i] * y.mean(-1) for i in range(5)}
    return {
        "log variance": theta[..., LOG_VARIANCE],
        "standardized": theta[..., WEIGHT] ** 2 / theta[..., LOG_VARIANCE].exp(),
        "fit": (logits(theta).sigmoid() * y).sum(-1),
        "slope": theta[..., WEIGHT] * theta[..., SLOPE] * (y * X[:, 0]).mean(-1),
        **squares,
        **products,
        **with_data,
    }


@pytest.mark.slow  # long chains
@pytest.mark.parametrize("engine", ENGINES_OF_LONG_CHAINS)
def test_three_kinds_keep_the_joint_distribution(engine):
    scales = torch.full((3,), 1.6, dtype=torch.float64)
    with pyro.validation_enabled(False):
        run = set_up(engine)

        def sweep(theta, labels, number):
            put_labels(run, labels)
            noise = sweep_noise(ChainKey(9, 0), number, 5, 3)
            record = run_sweeps(run, theta, [None], noise.z[None], noise.log_u[None], scales)
            return record.positions[0]

        assert_joint_distribution(sweep, sample_prior, simulate, statistics, 18_000, seed=8)


@pytest.mark.parametrize("engine", [slowly("captured"), "feedforward", "fused"])
def test_three_kinds_are_decided_as_by_the_trace_engine(engine):
    """While they learn, too: each from its own blocks."""
    run = set_up(engine, warmup_steps=20)
    assert_as_trace(run, make_inputs(run, sweeps=20))
    after = make_inputs(run, 2, 20, scale=1.2, spread=0.5, first=20)
    accepted = assert_as_trace(run, after).accepted
    assert accepted[..., 2].all()
    assert_decides_both_ways(accepted[..., :2])


@pytest.mark.parametrize("engine", WITH_COMPILED)
def test_three_kinds_are_each_judged_as_by_the_model(engine):
    run = set_up(engine)
    # Not every scale will do: torch's square root, and pCN's steps with it, may be an ulp off
    inputs = make_inputs(run, 2, 10, scale=1.1, spread=0.5)
    assert_as_model(run, inputs, run_on(run, inputs))
