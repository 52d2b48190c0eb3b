import numpy as np
import pytest
import torch
from scipy.stats import norm

from pyro_fnbg.prediction.mixtures import normal_mixture_quantiles

LEVELS = [1e-300, 1e-12, 0.01, 0.5, 0.99, 1 - 1e-12]


def quantiles(means, scales, levels=LEVELS, max_numbers=10**6):
    tensors = (torch.as_tensor(value, dtype=torch.float64) for value in (means, scales))
    return torch.stack(normal_mixture_quantiles(*tensors, levels, max_numbers)).numpy()


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
