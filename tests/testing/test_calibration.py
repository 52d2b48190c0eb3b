"""Calibration of samplers whose faults are known, and chains of kernels as Pyro runs them."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC

from pyro_fnbg import FNBG, Layout, Site
from pyro_fnbg.testing import assert_calibrated, kernel_posterior

LAYOUT = Layout((Site("mean", ()),))
ROWS = 3


def model(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", ROWS):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def sample_prior(draws, rng):
    return torch.randn(draws, 1, generator=rng)


def simulate(parameters, rng):
    return parameters + torch.randn(*parameters.shape[:-1], ROWS, generator=rng)


def statistics(parameters, data):
    return {"mean": parameters[..., 0], "fit": -(data - parameters).square().sum(-1)}


GIVEN = sample_prior, simulate, statistics


def posterior(spread=1.0, shift=0.0, repeats=1):
    """Draws whose mean or standard deviation is off, each of them so many times in a row."""

    def draw(data, number):
        precision = 1.0 + ROWS
        noise = spread * precision**-0.5 * torch.randn(400 // repeats, 1)
        return (data.sum() / precision + shift + noise).repeat_interleave(repeats, 0)

    return draw


def test_places_among_exact_draws_are_uniform():
    found = assert_calibrated(posterior(), *GIVEN, 150)
    assert set(found.places) == set(found.ess) == {"mean", "fit"}
    for places in found.places.values():
        assert places.shape == (150,)
        # Kolmogorov's distance, which is greater 8 times in 100,000
        steps = torch.arange(1, 151) / 150
        assert float((places.sort().values - steps).abs().max()) < 2.25 / 150**0.5
    assert all(300 < ess < 500 for ess in found.ess.values())


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"spread": 1.6}, "^mean: draws spread too far: .* exceeds 4.5"),
        ({"spread": 0.6}, "^mean: draws spread too little: .* exceeds 4.5"),
        ({"shift": 0.3}, "^mean: draws are too large: .* exceeds 4.5"),
        ({"shift": -0.3}, "^mean: draws are too small: .* exceeds 4.5"),
        ({"repeats": 20}, "^mean: effective sample size .* is below 100: draw more"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(wrong, complaint):
    with pytest.raises(AssertionError, match=complaint):
        assert_calibrated(posterior(**wrong), *GIVEN, 200)


def test_the_place_among_equals_is_any():
    """A statistic of two values, by which most draws equal the teacher."""

    def sign(parameters, data):
        return {"sign": parameters[..., 0].sign()}

    assert_calibrated(posterior(), sample_prior, simulate, sign, 150)


def test_draws_that_are_not_finite_are_no_proof():
    with pytest.raises(AssertionError, match="^mean: numbers of data set 0 are not all finite"):
        assert_calibrated(lambda data, number: torch.full((9, 1), torch.nan), *GIVEN)


@pytest.mark.parametrize("num_teachers", [0, 2.5])
def test_a_number_of_teachers_that_is_none_is_refused(num_teachers):
    with pytest.raises(ValueError, match=f"num_teachers must be .*{num_teachers}"):
        assert_calibrated(posterior(), *GIVEN, num_teachers)


def test_a_chain_of_a_kernel_is_that_of_pyros_driver():
    y = torch.tensor([0.3, 1.0, -0.2])
    pyro.set_rng_seed(2)
    draws = kernel_posterior(lambda: FNBG(model), lambda y: (y,), LAYOUT, 30, 20)(y, 0)
    pyro.set_rng_seed(2)
    mcmc = MCMC(FNBG(model), 30, 20, disable_progbar=True)
    mcmc.run(y)
    assert torch.equal(draws.squeeze(-1), mcmc.get_samples()["mean"])
