"""Rescaling of relu nodes: candidates and ratios by hand, and the prior, which has to stay."""

import math

import pytest
import torch

from pyro_fnbg.core.noise import ChainKey, Stream, sweep_noise
from pyro_fnbg.core.priors import Family, ParameterPriors
from pyro_fnbg.core.rescaling import RescaledNodes, Rescaling, RescalingNoise
from pyro_fnbg.testing import assert_expectation

CPU = torch.device("cpu")
# One input, two relu nodes, then one that has no bias, and the output; each layer's weights first
W1, B1, W2, W3, B3 = [0, 1], [2, 3], [4, 5], [6], [7]
NODES = (
    RescaledNodes(1, torch.tensor([[0, 2], [1, 3]]), torch.tensor([[4], [5]])),
    RescaledNodes(2, torch.tensor([W2]), torch.tensor([W3])),
)
NUM_NODES = 3


def make(families=None, locs=0.0, scale=1.0):
    priors = ParameterPriors(
        families=torch.tensor(families or [Family.NORMAL] * 8),
        locs=torch.full((8,), locs).double(),
        scales=torch.full((8,), scale).double(),
        degrees_of_freedom=torch.full((8,), 3.0).double(),
        scale_coordinates=torch.full((8,), -1),
        scale_powers=torch.zeros(8).double(),
        positives=torch.zeros(0, dtype=torch.long),
        forms=torch.zeros(0, 8).double(),
    )
    return Rescaling(NODES, priors, CPU)


def noise_of(*factors, log_u):
    factors = torch.tensor(factors, dtype=torch.float64)
    return RescalingNoise(factors.log(), factors, torch.tensor(log_u, dtype=torch.float64))


def output(theta, x=0.7):
    hidden = (theta[W1] * x + theta[B1]).relu()
    return theta[W3] * (theta[W2] @ hidden).relu() + theta[B3]


def test_the_function_stays():
    theta = torch.randn(8, dtype=torch.float64)
    theta[W1 + B1 + W2] = theta[W1 + B1 + W2].abs()
    moved = make()(theta, noise_of(2.0, 0.3, 1.7, log_u=[-math.inf] * 3))
    torch.testing.assert_close(output(moved), output(theta))
    assert output(theta) != theta[B3]
    expected = theta[W2] / torch.tensor([2.0, 0.3]) * 1.7
    torch.testing.assert_close(moved[W2], expected)
    torch.testing.assert_close(moved[W3], theta[W3] / 1.7)
    torch.testing.assert_close(moved[W1 + B1], theta[W1 + B1] * torch.tensor([2, 0.3, 2, 0.3]))
    assert moved[7] == theta[7]


@pytest.mark.parametrize("family", ["normal", "laplace", "student"])
def test_ratios_by_hand(family):
    """Priors and the Jacobian determinant decide, at either side of their ratio."""
    build = {
        "normal": torch.distributions.Normal,
        "laplace": torch.distributions.Laplace,
        "student": lambda loc, scale: torch.distributions.StudentT(3.0, loc, scale),
    }[family]
    rescaling = make([Family[family.upper()]] * 8, locs=0.4, scale=1.5)
    prior = build(torch.tensor(0.4).double(), 1.5)
    theta, factor = torch.randn(8, dtype=torch.float64), 1.8
    for node, multiplied, divided in ((0, [0, 2], [4]), (1, [1, 3], [5]), (2, W2, W3)):
        candidate = theta.clone()
        candidate[multiplied] *= factor
        candidate[divided] /= factor
        ratio = float((prior.log_prob(candidate) - prior.log_prob(theta)).sum())
        # Two multiplied and one divided: the determinant is the factor, node by node
        ratio += math.log(factor)
        for margin, expected in ((-1e-9, candidate), (1e-9, theta)):
            log_u = [math.inf] * NUM_NODES
            log_u[node] = ratio + margin
            found = rescaling(theta, noise_of(factor, factor, factor, log_u=log_u))
            torch.testing.assert_close(found, expected, rtol=1e-14, atol=0.0)


def test_chains_are_rescaled_as_each_alone():
    rescaling, theta = make(), torch.randn(4, 8)
    noises = [rescaling.noise(ChainKey(1, chain), 0, 1) for chain in range(4)]
    together = RescalingNoise.of_chains(noises).at(slice(None), 0)
    found = rescaling(theta, together)
    assert found.dtype == torch.float32
    alone = [rescaling(theta[chain], noises[chain].at(0)) for chain in range(4)]
    torch.testing.assert_close(found, torch.stack(alone), rtol=0.0, atol=0.0)
    assert int((found != theta).any(-1).sum()) > 0


def test_it_goes_to_a_device_whole():
    meta = torch.device("meta")  # without memory: nothing can look at a value
    noise = make().noise(ChainKey(1, 0), 0, 4).to(meta)
    found = make().to(meta)(torch.empty(4, 8, device=meta), noise)
    assert found.is_meta
    assert found.shape == (4, 8)


def test_noise_is_that_of_the_sweep_and_of_each_node():
    rescaling, key = make(), ChainKey(2, 1)
    whole = rescaling.noise(key, 0, 40)
    parts = [rescaling.noise(key, 0, 23), rescaling.noise(key, 23, 17)]
    for values, *some in zip(whole, *parts, strict=True):
        assert values.shape == (40, NUM_NODES)
        assert torch.equal(values, torch.cat(some))
        assert len(values.unique()) == values.numel()
    torch.testing.assert_close(whole.factors, whole.log_factors.exp())
    blocks = sweep_noise(key, 0, NUM_NODES, NUM_NODES)
    assert not torch.equal(blocks.log_u, whole.log_u[0])
    of_stream = sweep_noise(key, 0, NUM_NODES, NUM_NODES, Stream.RESCALING)
    torch.testing.assert_close(whole.log_factors[0], 2.4 / 6**0.5 * of_stream.z)


def test_a_density_that_is_no_number_refuses():
    theta = torch.full((8,), torch.nan, dtype=torch.float64)
    assert make()(theta, noise_of(2.0, 2.0, 2.0, log_u=[-1e9] * 3)).isnan().all()
    theta = torch.zeros(8, dtype=torch.float64)
    assert torch.equal(make()(theta, noise_of(2.0, 2.0, 2.0, log_u=[1.0] * 3)), theta)


def test_draws_from_the_prior_stay_draws_from_the_prior():
    """Three times for each of 40,000: moments, also those that nodes share."""
    rescaling, size = make(), 40_000
    rng = torch.Generator().manual_seed(0)
    first = theta = torch.randn(size, 8, generator=rng, dtype=torch.float64)
    noise = rescaling.noise(ChainKey(3, 0), 0, 3 * size)
    for number in range(3):
        theta = rescaling(theta, noise.at(slice(number * size, (number + 1) * size)))
    rate = float((theta != first).double().mean())
    assert 0.5 < rate < 0.9
    squares = theta.square()
    for i in range(8):
        assert_expectation(theta[:, i].view(4, -1), 0.0)
        assert_expectation(squares[:, i].view(4, -1), 1.0)
        assert_expectation(squares[:, i].square().view(4, -1), 3.0)
        for j in range(i):
            assert_expectation((squares[:, i] * squares[:, j]).view(4, -1), 1.0)
