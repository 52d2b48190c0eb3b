"""What a model may consist of: factors, masks, scalars, nothing at all, sites that come and go."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.testing import assert_expectation
from support.data import normal
from support.drivers import by_chain, drive, each_driver, stock


def responses():
    return 2.0 + normal(25)


def factor_model(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    pyro.factor("likelihood", -0.5 * ((y - mean) ** 2).sum())


def test_a_factor_counts_once():
    y = responses()
    draws = by_chain(drive(FNBG(factor_model), y, draws=1000, warmup=200))["mean"]
    precision = 25 + 0.01
    centre = float(y.sum()) / precision
    assert_expectation(draws, centre)
    assert_expectation((draws - centre).square(), 1 / precision)


@each_driver
def test_batches_of_a_factor_alone_are_refused_with_the_reason(run):
    with pytest.raises(ValueError, match="batch_size.*plate"):
        run(FNBG(factor_model, batch_size=5), responses())


@each_driver
@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("checks", [{}, {"validate_args": True}], ids=["plain", "checked"])
def test_missing_responses_behind_a_mask_have_no_effect(run, outside, checks):
    y, keep = responses(), torch.arange(25) % 3 > 0
    y[~keep] = math.nan

    def model(y, keep):
        mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        likelihood = dist.Normal(mean, 1.0, **checks)
        with pyro.plate("data", len(y)), poutine.mask(mask=keep if outside else True):
            fn = likelihood if outside else likelihood.expand([len(y)]).mask(keep)
            pyro.sample("y", fn, obs=y)

    def without_them(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    masked = run(FNBG(model), y, keep, draws=60).get_samples()["mean"]
    cut = run(FNBG(without_them), y[keep], draws=60).get_samples()["mean"]
    assert torch.isfinite(masked).all()
    assert torch.equal(masked, cut)


@each_driver
def test_missing_responses_of_a_likelihood_made_for_them_have_no_effect(run):
    missing = torch.arange(25) % 3 == 0

    def model(y, likelihood):
        mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", likelihood(mean, 1.0), obs=y)

    y = responses()
    holed = y.masked_fill(missing, math.nan)
    found = run(FNBG(model), holed, dist.NanMaskedNormal, draws=60).get_samples()["mean"]
    cut = run(FNBG(model), y[~missing], dist.Normal, draws=60).get_samples()["mean"]
    assert torch.equal(found, cut)


@each_driver
def test_a_forgotten_response_is_pointed_out(run):
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 0.1), obs=y)

    with pytest.warns(UserWarning, match=r"no observed data.*\['w', 'y'\].*is the response"):
        run(FNBG(model), torch.randn(9, 2), draws=2, warmup=0)


@each_driver
def test_a_network_without_its_labels_is_refused_by_site(run):
    with pytest.raises(ValueError, match="site 'obs' is discrete.*pass its data to run"):
        run(FNBG(BayesianMLP([2, 2], likelihood="categorical")), torch.randn(9, 2))


@each_driver
def test_scalars_and_sites_of_one_number_keep_their_shapes(run):
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(torch.zeros(1), 1.0).to_event(1))
        c = pyro.sample("c", dist.Normal(torch.zeros(1, 1), 1.0).to_event(2))
        pyro.sample("y", dist.Normal(a + b.sum() + c.sum(), 1.0), obs=y)

    samples = run(FNBG(model), responses()[0], draws=30).get_samples()
    shapes = {name: tuple(value.shape) for name, value in samples.items()}
    assert shapes == {"a": (30,), "b": (30, 1), "c": (30, 1, 1)}
    assert all((value != value[0]).any() for value in samples.values())


def partly_empty(y):
    a = pyro.sample("a", dist.Normal(torch.zeros(3, 0), 1.0).to_event(2))
    b = pyro.sample("b", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(b.sum() + a.sum(), 1.0), obs=y)


@pytest.mark.parametrize("method", ["vectorized", "processes"])
def test_a_site_without_coordinates_is_there_and_empty(method):
    mcmc = drive(FNBG(partly_empty), responses()[0], num_chains=2, chain_method=method)
    assert mcmc.get_samples()["a"].shape == (40, 3, 0)
    assert mcmc.get_samples(5)["a"].shape == (5, 3, 0)
    assert by_chain(mcmc)["a"].shape == (2, 20, 3, 0)
    assert by_chain(mcmc)["b"].shape == (2, 20, 3)


def test_pyros_driver_keeps_a_site_without_coordinates_by_chain():
    assert by_chain(stock(FNBG(partly_empty), responses()[0]))["a"].shape == (1, 20, 3, 0)


@each_driver
def test_a_model_with_nothing_to_sample_is_refused(run):
    def model(y):
        pyro.deterministic("x", torch.ones(2))
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    with pytest.raises(ValueError, match="no latent sample site"):
        run(FNBG(model), responses()[0])


@each_driver
def test_a_model_that_masks_hide_altogether_is_refused(run):
    kernel = FNBG(poutine.mask(factor_model, mask=False))
    with pytest.raises(ValueError, match=r"masks hide every site.*\['mean'\]"):
        run(kernel, responses())


@pytest.mark.filterwarnings("ignore:the run was stopped by an error")
@each_driver
@pytest.mark.parametrize(("bound", "data"), [(0.0, 1.0), (5.0, 12.0)], ids=["often", "late"])
def test_sites_that_come_and_go_are_named(run, bound, data):
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        if a > bound:
            pyro.sample("extra", dist.Bernoulli(0.5) if bound else dist.Normal(0.0, 5.0))
        pyro.sample("y", dist.Normal(a, 0.1), obs=y)

    pyro.set_rng_seed(3)
    with pytest.raises(ValueError, match="extra"):
        run(FNBG(model), torch.tensor(data), draws=500, warmup=100)


@each_driver
def test_a_shape_that_changes_is_named(run):
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("b", dist.Normal(torch.zeros(2 if a > 0 else 3), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)

    with pytest.raises(ValueError, match="the shape of latent site 'b' depends"):
        run(FNBG(model), responses()[0])


@each_driver
def test_derivatives_inside_the_model_leave_no_gradients_in_the_draws(run):
    """As of networks that are fitted to a differential equation."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            network = w[0] * torch.tanh(w[1] * x + w[2])
            (slope,) = torch.autograd.grad(network.sum(), x, create_graph=True)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(slope, 0.1), obs=y)

    samples = run(FNBG(model), responses(), torch.ones(25)).get_samples()
    assert not samples["w"].requires_grad
    assert (samples["w"] != samples["w"][0]).any(0).all()


@each_driver
def test_computed_sites_scales_and_remarks_are_the_models_own(run):
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})
        twice = pyro.deterministic("twice", 2 * a)
        with poutine.scale(scale=3.0):
            pyro.sample("y", dist.Normal(twice, 1.0), obs=y)

    kernel = FNBG(model)
    mcmc = run(kernel, torch.tensor(1.0))
    assert set(mcmc.get_samples()) == {"a"}
    last = mcmc.get_samples()["a"][-1]
    expected = dist.Normal(0.0, 1.0).log_prob(last)
    expected += 3 * dist.Normal(2 * last, 1.0).log_prob(torch.tensor(1.0))
    reported = mcmc._diagnostics[0]["sample_stats"]["batch_log_density"][-1]
    assert reported == pytest.approx(float(expected), rel=1e-5)
