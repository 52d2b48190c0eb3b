"""The statistical assertions pass what is right and fail what is wrong."""

import numpy as np
import pytest
import torch

from pyro_fnbg.testing import assert_expectation, assert_same_expectation, estimate


def ar1(correlation: float, num_chains: int, num_draws: int, seed: int) -> np.ndarray:
    """Draw stationary autoregressive chains of mean 0 and variance 1."""
    noise = np.random.default_rng(seed).normal(size=(num_chains, num_draws))
    draws = np.empty_like(noise)
    draws[:, 0] = noise[:, 0]
    for t in range(1, num_draws):
        draws[:, t] = correlation * draws[:, t - 1] + np.sqrt(1 - correlation**2) * noise[:, t]
    return draws


@pytest.fixture
def normal_draws() -> torch.Tensor:
    return torch.randn(4, 1000, dtype=torch.float64)


@pytest.mark.parametrize("convert", [torch.Tensor.numpy, torch.Tensor.float, torch.Tensor.tolist])
def test_independent_normal_draws_pass(normal_draws, convert):
    assert_expectation(convert(normal_draws), 0.0)
    assert_expectation(convert(normal_draws**2), 1.0)


def test_one_chain_is_enough(normal_draws):
    assert_expectation(normal_draws[:1], 0.0)


def test_shifted_draws_fail_and_the_message_says_by_how_much(normal_draws):
    # The standard error is 1 / sqrt(4000) = 0.016, so the shift is more than 12 of them.
    with pytest.raises(AssertionError, match=r"mean 0\.\d+, expected 0: z = 1\d\.\d+ .* ess \d+"):
        assert_expectation(normal_draws + 0.2, 0.0)


def test_standard_error_of_correlated_draws():
    num_chains, num_draws, correlation = 4, 5000, 0.9
    draws = ar1(correlation, num_chains, num_draws, seed=1)
    exact = np.sqrt((1 + correlation) / (1 - correlation) / (num_chains * num_draws))
    assert estimate(draws).error == pytest.approx(exact, rel=0.25)
    assert_expectation(draws, 0.0)
    # As if draws were independent, the same error would be less than a quarter of this.
    assert estimate(draws).error > 4 * draws.std() / np.sqrt(draws.size) * 0.75


def test_z_values_have_variance_one():
    zs = []
    for seed in range(200):
        mean, error, _ = estimate(ar1(0.5, 2, 500, seed))
        zs.append(mean / error)
    # The mean of 200 squared normal values has standard deviation sqrt(2 / 200) = 0.1.
    assert np.mean(np.square(zs)) == pytest.approx(1.0, abs=0.45)


@pytest.mark.parametrize("check", [assert_expectation, assert_same_expectation])
def test_too_few_effective_draws_are_refused(check):
    draws = ar1(0.99, 2, 1000, seed=2)
    other = draws if check is assert_same_expectation else 0.0
    with pytest.raises(AssertionError, match=r"effective sample size \d+\.\d is below 100"):
        check(draws, other)
    check(draws, other, min_ess=1.0)


def test_chains_that_disagree_are_refused(normal_draws):
    offsets = torch.tensor([[-3.0], [-1.0], [1.0], [3.0]])
    with pytest.raises(AssertionError, match="effective sample size"):
        assert_expectation(normal_draws + offsets, 0.0)


def test_stuck_and_non_finite_draws_are_refused(normal_draws):
    with pytest.raises(AssertionError, match="all draws equal 2"):
        assert_expectation(torch.full((4, 1000), 2.0), 2.0)
    normal_draws[0, 0] = float("nan")
    with pytest.raises(AssertionError, match="1 draws are not finite"):
        assert_expectation(normal_draws, 0.0)


def test_draws_without_a_chain_dimension_are_an_error(normal_draws):
    with pytest.raises(ValueError, match=r"shape \(1000,\); expected \(chain, draw\)"):
        assert_expectation(normal_draws[0], 0.0)


def test_two_samplers_are_compared_with_both_errors(normal_draws):
    other = torch.randn(2, 500)
    assert_same_expectation(normal_draws, other)
    with pytest.raises(AssertionError, match="exceeds 4.5"):
        assert_same_expectation(normal_draws + 0.3, other)
    # Errors 1 / sqrt(4000) and 1 / sqrt(1000) add up to 0.035 in quadrature.
    shifted = normal_draws - normal_draws.mean() + other.mean() + 0.1
    with pytest.raises(AssertionError, match=r"z = [23]\.\d+ exceeds 1"):
        assert_same_expectation(shifted, other, z_max=1.0)
