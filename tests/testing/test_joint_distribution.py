"""Geweke's test on transitions whose faults are known, and on kernels as Pyro runs them."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC

from pyro_fnbg import FNBG, Layout, Site
from pyro_fnbg.testing import assert_joint_distribution, kernel_transition

LAYOUT = Layout((Site("mean", ()),))
ROWS = 3


def model(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", ROWS):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def make_kernel():
    return FNBG(model, proposal_scale=1.2, engine="trace")


def sample_prior(draws, rng):
    return torch.randn(draws, 1, generator=rng)


def simulate(parameters, rng):
    return parameters + torch.randn(*parameters.shape[:-1], ROWS, generator=rng)


def statistics(parameters, data):
    mean = parameters[..., 0]
    return {"square": mean**2, "product": mean * data.mean(-1)}


def posterior(spread):
    """Independent draws, whose standard deviation is off by a factor."""

    def transition(parameters, data, number):
        precision = 1.0 + ROWS
        return data.sum(-1, keepdim=True) / precision + spread * precision**-0.5 * torch.randn(1)

    return transition


def test_a_wrong_spread_is_found_and_named():
    given = sample_prior, simulate, statistics, 6_000
    draws = assert_joint_distribution(posterior(1.0), *given)
    assert draws.parameters.shape == (4, 1500, 1)
    assert draws.data.shape == (4, 1500, ROWS)
    with pytest.raises(AssertionError, match=r"^square: means .* exceeds 4.5"):
        assert_joint_distribution(posterior(1.3), *given)


def test_a_chain_that_stands_still_is_no_proof():
    with pytest.raises(AssertionError, match="^square: all draws equal"):
        assert_joint_distribution(
            lambda parameters, data, number: parameters, sample_prior, simulate, statistics, 40
        )


@pytest.mark.parametrize("num_sweeps", [0, 10, 2.5])
def test_a_length_that_cannot_be_cut_is_refused(num_sweeps):
    with pytest.raises(ValueError, match=f"num_sweeps must be .*{num_sweeps}"):
        assert_joint_distribution(posterior(1.0), sample_prior, simulate, statistics, num_sweeps)


def test_a_step_of_a_kernel_is_that_of_pyros_driver():
    y, begin = torch.tensor([0.3, 1.0, -0.2]), torch.tensor([0.4])
    pyro.set_rng_seed(2)
    moved = kernel_transition(make_kernel, lambda y: (y,), LAYOUT)(begin, y, 0)
    pyro.set_rng_seed(2)
    mcmc = MCMC(make_kernel(), 1, 0, initial_params={"mean": begin[0]}, disable_progbar=True)
    mcmc.run(y)
    assert torch.equal(moved, mcmc.get_samples()["mean"])
    assert not torch.equal(moved, begin)


@pytest.mark.slow  # sets a kernel up for every data set
def test_the_kernel_keeps_the_joint_distribution():
    transition = kernel_transition(make_kernel, lambda y: (y,), LAYOUT)
    # Short: this is for what goes wrong between set-up and a step; test_geweke.py is for the step
    assert_joint_distribution(transition, sample_prior, simulate, statistics, 600, min_ess=60)
