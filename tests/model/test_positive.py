"""The form of log densities of logarithms, against the distributions themselves."""

import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg.model.positive import log_form

PRIORS = {
    "half-normal": dist.HalfNormal(0.7),
    "half-cauchy": dist.HalfCauchy(torch.tensor([0.4, 2.0])),
    "exponential": dist.Exponential(1.7),
    "gamma": dist.Gamma(2.5, 0.8),
    "inverse gamma": dist.InverseGamma(1.5, 0.6),
    "inverse gammas": dist.InverseGamma(torch.tensor([1.5, 0.3, 4.0]), 0.6),
    "log-normal": dist.LogNormal(torch.tensor([[0.3], [-1.0]]), torch.tensor([0.8, 0.2])),
}


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
def test_form_is_the_density_of_the_logarithm(prior):
    u = torch.linspace(-4, 3, 29, dtype=torch.float64)
    u = u.reshape(-1, *(1,) * len(prior.batch_shape)).expand(-1, *prior.batch_shape)
    s, c = u.exp(), log_form(prior).unbind(-1)
    found = c[0] * u + c[1] * u**2 + c[2] * s + c[3] * s**2 + c[4] / s + c[7]
    found = found + c[5] * torch.log1p(c[6] * s**2)
    # The distributions compute in single precision
    torch.testing.assert_close(found, prior.log_prob(s) + u, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("prior", [dist.Weibull(1.0, 2.0), dist.Uniform(0.0, 1.0), dist.Chi2(3.0)])
def test_others_have_none(prior):
    assert log_form(prior) is None
