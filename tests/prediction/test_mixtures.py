import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import norm
from torch.distributions import Normal, Poisson, StudentT

from pyro_fnbg.prediction.mixtures import Parts, mixture_quantiles

LEVELS = [1e-300, 1e-12, 0.01, 0.5, 0.99, 1 - 1e-12]


def quantiles(means, scales, levels=LEVELS, max_numbers=10**6):
    tensors = (torch.as_tensor(value, dtype=torch.float64) for value in (means, scales))
    parts = Parts(Normal, tuple(tensors))
    return torch.stack(mixture_quantiles(parts, levels, max_numbers)).numpy()


@pytest.mark.parametrize("mean", [0.0, 1e8, -1e8, 1e15])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-30, 0.0])
@pytest.mark.parametrize("num_draws", [1, 3])
def test_equal_parts_have_the_quantiles_of_one(mean, scale, num_draws):
    found = quantiles(np.full((num_draws, 2), mean), np.full((num_draws, 2), scale))
    expected = mean + scale * norm.ppf(LEVELS)
    # The root finder stops within a few roundings of the larger one of place and spread
    allowed = 1e-7 * scale + 1e-14 * abs(mean) + 1e-300
    assert (np.abs(found - expected[:, None]) <= allowed).all()


def test_parts_far_apart_have_quantiles_between_them():
    found = quantiles([[-1e6], [1e6]], np.ones((2, 1)), [0.25, 0.75])
    np.testing.assert_allclose(found[:, 0], [-1e6, 1e6], atol=1e-3)


@pytest.mark.parametrize("max_numbers", [1, 30, 10**6])
def test_mixtures_are_worked_out_a_few_at_a_time(max_numbers):
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(5, 7, generator=generator)
    scales = 0.1 + torch.rand(5, 1, generator=generator)
    levels = [0.1, 0.6]
    found = quantiles(means, scales, levels, max_numbers)
    below = norm.cdf(found[:, None], means[None].numpy(), scales[None].numpy()).mean(1)
    np.testing.assert_allclose(below, np.repeat([[0.1], [0.6]], 7, 1), atol=1e-9)


# Up to 30 even degrees by a sum, others by SciPy, and by SciPy where they differ between parts
@pytest.mark.parametrize("degrees", [2.0, 2.5, 4.0, 5.0, 12.0, 30.0, 1e6, [4.0, 4.0, 3.0]])
def test_student_mixtures_have_the_level_below_their_quantiles(degrees):
    generator = torch.Generator().manual_seed(1)
    means = 3 * torch.randn(3, 6, generator=generator, dtype=torch.float64)
    scales = 0.1 + torch.rand(3, 6, generator=generator, dtype=torch.float64)
    number = torch.tensor(degrees, dtype=torch.float64).expand(3).unsqueeze(-1)
    levels = [1e-6, 0.025, 0.5, 0.9, 1 - 1e-6]
    parts = Parts(StudentT, (means, scales, number))
    found = torch.stack(mixture_quantiles(parts, levels, 10**6)).numpy()
    below = stats.t.cdf(found[:, None], number, means[None], scales[None]).mean(1)
    np.testing.assert_allclose(below, np.repeat(np.array(levels)[:, None], 6, 1), atol=1e-12)


@pytest.mark.parametrize("level", [1e-9, 0.025, 0.5, 0.9, 1 - 1e-9])
def test_quantiles_of_counts_are_the_smallest_that_reach_the_level(level):
    rates = torch.tensor(
        [[0.0, 1e-8, 0.3, 4.0, 1e3, 1e7], [0.0, 5.0, 0.3, 90.0, 1e3, 2e7]]
    ).double()
    (found,) = mixture_quantiles(Parts(Poisson, (rates,)), [level], 10**6)
    assert torch.equal(found, found.floor())
    assert (found >= 0).all()
    assert (stats.poisson.cdf(found, rates).mean(0) >= level - 1e-12).all()
    assert (stats.poisson.cdf(found - 1, rates).mean(0) < level + 1e-12).all()


def test_a_count_of_a_rate_beyond_whole_numbers_ends():
    rates = torch.full((2, 1), 1e30, dtype=torch.float64)
    (found,) = mixture_quantiles(Parts(Poisson, (rates,)), [0.5], 10**6)
    assert float(found[0]) == pytest.approx(1e30)
