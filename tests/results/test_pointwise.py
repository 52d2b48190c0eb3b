"""Log likelihoods and responses of a run's data, in ArviZ's groups."""

import math

import arviz as az
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC
from scipy.special import logsumexp

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, to_arviz
from pyro_fnbg.results.estimates import has_arviz_1

NET = BayesianMLP([2, 3, 3])
REGRESSION = BayesianMLP([2, 2, 2], likelihood="normal", observation_scale=0.5)


def two_sites(x, y=None, counts=None):
    """Two responses that share a weight, one of them masked: no statement of a network."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        with pyro.poutine.mask(mask=torch.arange(len(x)) > 2):
            pyro.sample("y", dist.Normal(x @ weight, 1.0), obs=y)
        pyro.sample("counts", dist.Poisson((x @ weight).exp()), obs=counts)


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(20, 2, generator=generator), torch.arange(20) % 3


def names_of_groups(idata):
    return set(idata.children) if has_arviz_1() else set(idata.groups())


def run(model, *data, driver=MultiChainMCMC, num_samples=30, num_chains=2, **options):
    pyro.set_rng_seed(1)
    mcmc = driver(FNBG(model, **options), num_samples, num_chains=num_chains, disable_progbar=True)
    mcmc.run(*data)
    return mcmc


@pytest.mark.parametrize("driver", [MCMC, MultiChainMCMC])
def test_log_likelihoods_of_a_network_are_those_of_the_model(driver, data):
    x, y = data
    mcmc = run(NET, x, y, driver=driver)
    idata = to_arviz(mcmc, log_likelihood=True, posterior_predictive=True)
    samples = mcmc.get_samples(group_by_chain=True)
    for chain, draw in ((0, 0), (1, 17)):
        one = {name: value[chain, draw] for name, value in samples.items()}
        trace = pyro.poutine.trace(pyro.condition(NET, one)).get_trace(x, y)
        expected = trace.nodes["obs"]["fn"].log_prob(y)
        found = idata["log_likelihood"]["obs"].values[chain, draw]
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)
    responses = idata["posterior_predictive"]["obs"]
    assert responses.dims == idata["log_likelihood"]["obs"].dims
    assert set(np.unique(responses.values)) <= {0, 1, 2}
    assert idata["observed_data"]["obs"].dims == responses.dims[2:]


def test_several_sites_masks_and_counts_go_through_the_model(data):
    x, _ = data
    generator = torch.Generator().manual_seed(2)
    y, counts = torch.randn(20, generator=generator), torch.arange(20) % 4.0
    mcmc = run(two_sites, x, y, counts)
    idata = to_arviz(mcmc, log_likelihood=True, posterior_predictive=True)
    weights = mcmc.get_samples(group_by_chain=True)["weight"]
    means = torch.einsum("cdi,ri->cdr", weights, x)
    expected = dist.Normal(means, 1.0).log_prob(y)
    expected[..., :3] = 0.0
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(idata["log_likelihood"]["y"].values, expected.numpy(), **close)
    expected = dist.Poisson(means.exp()).log_prob(counts)
    np.testing.assert_allclose(idata["log_likelihood"]["counts"].values, expected.numpy(), **close)
    drawn = idata["posterior_predictive"]["counts"].values
    error = means.exp().sqrt().mean((0, 1)) / math.sqrt(drawn.shape[0] * drawn.shape[1])
    assert (np.abs(drawn.mean((0, 1)) - means.exp().mean((0, 1)).numpy()) < 5 * error.numpy()).all()


def test_responses_of_several_numbers_have_one_likelihood_a_row(data):
    x, _ = data
    y = torch.randn(20, 2, generator=torch.Generator().manual_seed(3))
    mcmc = run(REGRESSION, x, y)
    idata = to_arviz(
        mcmc, log_likelihood=True, posterior_predictive=True, dims={"obs": ["row", "output"]}
    )
    assert idata["log_likelihood"]["obs"].dims == ("chain", "draw", "row")
    assert idata["posterior_predictive"]["obs"].dims == ("chain", "draw", "row", "output")


def test_arviz_uses_the_groups(data):
    idata = to_arviz(run(NET, *data, num_samples=2000), log_likelihood=True)
    log_likelihood = idata["log_likelihood"]["obs"].values.reshape(-1, 20)
    lppd = (logsumexp(log_likelihood, axis=0) - math.log(len(log_likelihood))).sum()
    found = az.loo(idata)
    elpd = found.elpd_loo if hasattr(found, "elpd_loo") else found.elpd
    # What is left out predicts a row worse than all rows do; by the number of parameters, about
    assert lppd - 15 < elpd < lppd
    if hasattr(az, "waic"):  # not in ArviZ 1
        assert lppd - 15 < az.waic(idata).elpd_waic < lppd


def test_responses_and_data_are_of_one_type_whole_numbers_where_there_are_no_others(data):
    """ArviZ draws bars of whole numbers and curves of others, and compares them."""
    x, y = data
    binary = BayesianMLP([2, 1], likelihood="bernoulli")

    def both(model, *labels):
        mcmc = run(model, x, *labels, num_samples=5)
        idata = to_arviz(mcmc, posterior_predictive=True)
        groups = idata["posterior_predictive"], idata["observed_data"]
        return {name: {group[name].dtype.kind for group in groups} for name in groups[0]}

    assert both(binary, y.clamp_max(1)) == {"obs": {"i"}}
    assert both(binary, y.clamp_max(1).float()) == {"obs": {"i"}}
    assert both(two_sites, torch.zeros(20), y.float()) == {"y": {"f"}, "counts": {"i"}}


@pytest.mark.parametrize("scale", ["batch", "full"])
def test_runs_that_target_something_else_are_refused(scale, data):
    mcmc = run(NET, *data, num_samples=5, batch_size=5, likelihood_scale=scale)
    with pytest.raises(ValueError, match=r"this run targets approximate.*Score rows that the"):
        to_arviz(mcmc, log_likelihood=True)
    # Responses can be drawn whatever the draws are
    assert to_arviz(mcmc, posterior_predictive=True)["posterior_predictive"]["obs"].shape[1] == 5


def test_a_model_that_takes_some_of_the_rows_is_refused(data):
    def subsampled(x, y=None):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("rows", len(x), subsample_size=5) as rows:
            pyro.sample("y", dist.Normal(x[rows] @ weight, 1.0), obs=y[rows])

    mcmc = run(subsampled, data[0], data[1].float(), num_samples=5)
    with pytest.raises(ValueError, match="subsample_size in plate 'rows'"):
        to_arviz(mcmc, posterior_predictive=True)


@pytest.mark.parametrize("driver", [MCMC, MultiChainMCMC])
@pytest.mark.parametrize("group", ["log_likelihood", "posterior_predictive"])
def test_draws_that_were_not_kept_are_not_drawn_from_the_prior(group, driver, data):
    def scaled(x, y=None):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        scale = pyro.sample("scale", dist.LogNormal(torch.zeros(()), 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ weight, scale), obs=y)

    mcmc = driver(FNBG(scaled), 5, save_params=["weight"], disable_progbar=True)
    mcmc.run(data[0], data[1].float())
    with pytest.raises(ValueError, match=r"kept no draws of \['scale'\]"):
        to_arviz(mcmc, **{group: True})


def test_groups_come_on_request_only_and_leave_the_random_state(data):
    mcmc = run(NET, *data, num_samples=5)
    assert not {"log_likelihood", "posterior_predictive"} & names_of_groups(to_arviz(mcmc))
    state = torch.get_rng_state()
    only = to_arviz(mcmc, observed_data=False, posterior_predictive=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert "observed_data" not in names_of_groups(only)
    for name in ("log_likelihood", "posterior_predictive"):
        with pytest.raises(ValueError, match=f"{name} must be True or False, got 'no'"):
            to_arviz(mcmc, **{name: "no"})
