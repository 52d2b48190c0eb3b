"""Counts by the logarithm of their rate: against Poisson where that can, and beyond."""

import math

import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg.networks.counts import LogPoisson, poisson_log_probs, with_count_columns

COUNTS = torch.tensor([0.0, 1.0, 2.0, 7.0, 40.0, 3_000.0])


@pytest.mark.parametrize("away", [-5.0, -0.3, 0.0, 1e-6, 0.999, 1.001, 4.0])
def test_log_probabilities_are_those_of_poisson(away):
    counts = COUNTS.double()
    log_rates = counts.clamp(min=0.5).log() + away
    expected = dist.Poisson(log_rates.exp()).log_prob(counts)
    found = LogPoisson(log_rates)
    torch.testing.assert_close(found.log_prob(counts), expected, rtol=1e-11, atol=1e-10)
    assert torch.equal(found.mean, log_rates.exp())
    assert torch.equal(found.variance, log_rates.exp())


def test_single_precision_keeps_the_digits_of_large_counts():
    count, log_rate = torch.tensor(1e6), torch.tensor(math.log(1e6) + 1e-3)
    exact = dist.Poisson(log_rate.double().exp()).log_prob(count.double())
    by_poisson = dist.Poisson(log_rate.exp()).log_prob(count)
    # The logarithm of the count is rounded by 5e-7 at most, which a thousand too high a rate scales
    assert abs(float(LogPoisson(log_rate).log_prob(count) - exact)) < 6e-4
    assert abs(float(by_poisson - exact)) > 0.1


def test_rates_that_are_no_number_of_their_type():
    log_rates = torch.tensor([-200.0, -200.0, 100.0, 100.0, math.nan])
    counts = torch.tensor([0.0, 2.0, 0.0, 1e6, 1.0])
    found = LogPoisson(log_rates, validate_args=False).log_prob(counts)
    assert found[:4].tolist() == [0.0, pytest.approx(-400 - math.log(2)), -math.inf, -math.inf]
    assert found[4].isnan()


@pytest.mark.parametrize("log_rate", [-200.0, 0.0, 9.0, 80.0])
@pytest.mark.parametrize("count", [0.0, 3.0, 3_000.0])
def test_gradients_are_count_less_rate(log_rate, count):
    """Whatever the branch that is not taken."""
    value = torch.tensor(log_rate, dtype=torch.float64, requires_grad=True)
    LogPoisson(value).log_prob(torch.tensor(count).double()).backward()
    assert float(value.grad) == pytest.approx(count - math.exp(log_rate), rel=1e-12)


def test_columns_of_counts():
    """Joined to the comparison with the rates they make the log probability of all counts."""
    counts = torch.tensor([[0, 3], [1, 250]], dtype=torch.float64)
    columns = with_count_columns(counts)
    assert torch.equal(columns[:, :2], counts)
    torch.testing.assert_close(columns[:, 2:4], counts.clamp(min=1.0).log())
    at_best = dist.Poisson(counts).log_prob(counts)
    torch.testing.assert_close(columns[:, 4], at_best.sum(-1))
    log_rates = torch.tensor([[-1.0, 0.5], [2.0, 5.0]], dtype=torch.float64)
    found = poisson_log_probs(log_rates, counts, columns[:, 2:4]).sum(-1) + columns[:, 4]
    torch.testing.assert_close(found, dist.Poisson(log_rates.exp()).log_prob(counts).sum(-1))


def test_shapes_and_checks_are_those_of_a_distribution():
    found = LogPoisson(torch.zeros(3)).expand([4, 3]).to_event(1)
    assert (found.batch_shape, found.event_shape) == ((4,), (3,))
    assert found.log_prob(torch.ones(3)).shape == (4,)
    assert type(found.base_dist) is LogPoisson
    assert found.sample().shape == (4, 3)
    with pytest.raises(ValueError, match="support"):
        LogPoisson(torch.zeros(3), validate_args=True).log_prob(torch.tensor([0.5, 0.0, 0.0]))
