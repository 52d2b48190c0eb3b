"""Troubles on the way to ArviZ: what a run leaves, names and dimensions, a run that was stopped."""

import warnings
from importlib.metadata import version

import arviz as az
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, to_arviz
from support.drivers import DRIVERS, WAYS
from support.engines import ENGINES

IS_FIRST_ARVIZ = int(version("arviz").partition(".")[0]) < 1
N = 12
X = torch.linspace(-1.0, 1.0, 2 * N).reshape(N, 2)
Y = (X.sum(1) > 0).long()
MODEL = BayesianMLP([2, 2, 1], likelihood="bernoulli")


def run(driver, kernel, *args, draws=8, warmup=4, **options):
    pyro.set_rng_seed(4)
    mcmc = driver(kernel, draws, warmup, disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc


def scaled(x, y):
    weight = pyro.sample("weight", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ weight, scale), obs=y)


# Conversion of every kind of run


@WAYS
def test_networks_of_every_engine_keep_names_and_shapes(driver, engine):
    mcmc = run(driver, FNBG(MODEL, engine=engine), X, Y, num_chains=2)
    posterior = to_arviz(mcmc)["posterior"]
    for name, value in mcmc.get_samples(group_by_chain=True).items():
        assert posterior[name].dims[:2] == ("chain", "draw")
        assert (posterior[name].values == value.numpy()).all()
        assert posterior[name].shape == (2, 8, *MODEL.parameter_shapes[name])


@DRIVERS
def test_sites_without_events_and_scalars_keep_their_dimensions(driver):
    def model(y):
        level = pyro.sample("level", dist.Normal(torch.zeros(5), torch.ones(5)))
        spread = pyro.sample("spread", dist.HalfNormal(torch.ones(1)).to_event(1))
        share = pyro.sample("share", dist.Dirichlet(torch.ones(3)))
        mean = level * pyro.sample("factor", dist.Normal(0.0, 1.0)) * share.sum()
        pyro.sample("y", dist.Normal(mean, 0.1 + spread), obs=y)

    posterior = to_arviz(run(driver, FNBG(model), torch.arange(5.0)))["posterior"]
    shapes = {name: posterior[name].shape[2:] for name in posterior.data_vars}
    assert shapes == {"level": (5,), "spread": (1,), "share": (3,), "factor": ()}


@pytest.mark.skipif(not IS_FIRST_ARVIZ, reason="ArviZ 1 has no converter for Pyro")
@DRIVERS
def test_the_converter_of_arviz_takes_a_run(driver):
    mcmc = run(driver, FNBG(scaled), X, X[:, 0], num_chains=2, draws=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ArviZ's own, about its future
        data = az.from_pyro(mcmc, log_likelihood=False)
        assert len(az.summary(data)) == 3
    assert data.posterior["weight"].shape == (2, 20, 2)
    assert int(data.sample_stats["diverging"].sum()) == 0
    ours = to_arviz(mcmc)["posterior"]
    assert all((data.posterior[name].values == ours[name].values).all() for name in ours.data_vars)


# Part of the sweeps, of the sites, of the run


@DRIVERS
def test_thinned_draws_say_how_many_sweeps_they_are(driver):
    thinned = run(driver, FNBG(MODEL, thin=3, batch_size=5), X, Y)
    every = run(driver, FNBG(MODEL, batch_size=5), X, Y, draws=24)
    found, expected = to_arviz(thinned), to_arviz(every)
    assert found["posterior"].attrs["thin"] == 3
    assert found["posterior"].attrs["nominal_likelihood_temperature"] == pytest.approx(N / 5)
    name = "layer1.bias"
    thirds = expected["posterior"][name].values[:, 2::3]
    assert (found["posterior"][name].values == thirds).all()
    rates = expected["sample_stats"]["acceptance_rate"].values.reshape(1, 8, 3).mean(-1)
    assert found["sample_stats"]["acceptance_rate"].values == pytest.approx(rates)


@DRIVERS
@pytest.mark.parametrize("names", [["layer2.bias", "layer1.bias"], []])
def test_saved_sites_alone_are_converted_with_all_statistics(driver, names):
    found = to_arviz(run(driver, FNBG(MODEL), X, Y, num_chains=2, save_params=names))
    kept = set(found["posterior"].data_vars) if names else set()
    assert kept == set(names)
    assert found["sample_stats"]["acceptance_rate"].shape == (2, 8)
    assert found["observed_data"]["obs"].values.tolist() == Y.tolist()


def stopping(at):
    """Make a hook that stands for Ctrl-C after some calls."""
    calls = iter(range(at))

    def hook(kernel, params, stage, i):
        if next(calls, None) is None:
            raise KeyboardInterrupt

    return hook


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_that_was_stopped_is_converted_with_what_there_is(engine):
    kernel = FNBG(MODEL, engine=engine)
    with pytest.warns(UserWarning, match="stopped by Ctrl-C: kept are 6 of 8 draws"):
        mcmc = run(MultiChainMCMC, kernel, X, Y, hook_fn=stopping(at=9))
    found = to_arviz(mcmc)
    assert found["posterior"].attrs["is_complete"] == 0
    assert found["posterior"]["layer1.weight"].shape == (1, 6, 2, 2)
    assert found["sample_stats"]["acceptance_rate"].shape == (1, 6)
    whole = run(MultiChainMCMC, FNBG(MODEL, engine=engine), X, Y).get_samples()
    for name, value in whole.items():
        assert (found["posterior"][name].values[0] == value[:6].numpy()).all()


@DRIVERS
def test_a_run_that_was_stopped_before_its_first_draw_is_told_so(driver):
    mcmc = driver(FNBG(MODEL), 8, 4, hook_fn=stopping(at=2), disable_progbar=True)
    with pytest.raises(KeyboardInterrupt):
        mcmc.run(X, Y)
    with pytest.raises(RuntimeError, match=r"no finished run to convert: call mcmc\.run"):
        to_arviz(mcmc)


@DRIVERS
def test_a_single_draw_without_warmup_is_converted(driver):
    found = to_arviz(run(driver, FNBG(MODEL), X, Y, draws=1, warmup=0))
    assert found["posterior"]["layer1.weight"].shape == (1, 1, 2, 2)


# The same driver again


@DRIVERS
def test_a_second_run_brings_its_own_data(driver):
    mcmc = run(driver, FNBG(MODEL), X, Y)
    mcmc.run(X[:5], Y[:5])
    found = to_arviz(mcmc)
    assert found["observed_data"]["obs"].shape == (5,)
    assert found["posterior"].attrs["num_rows"] == 5


def test_a_second_run_that_is_refused_leaves_the_first_as_it_was():
    mcmc = run(MultiChainMCMC, FNBG(MODEL), X, Y)
    before = to_arviz(mcmc)
    for chain_method in ("vectorized", "sequential", "processes"):
        mcmc._chain_method = chain_method
        with pytest.raises(ValueError, match="y must have shape"):
            mcmc.run(X, Y[:3])
    after = to_arviz(mcmc)
    assert mcmc.is_complete
    assert before["posterior"].equals(after["posterior"])
    assert before["observed_data"].equals(after["observed_data"])


# Names


@DRIVERS
@pytest.mark.parametrize("name", ["chain", "draw"])
def test_a_site_with_the_name_of_a_dimension_is_told_so(driver, name):
    def model(y):
        mean = pyro.sample(name, dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    mcmc = run(driver, FNBG(model), torch.tensor(1.0))
    with pytest.raises(ValueError, match=rf"sites \['{name}'\] have the names of dimensions"):
        to_arviz(mcmc)
    assert mcmc.get_samples()[name].shape == (8,)


@DRIVERS
def test_names_of_sites_may_look_like_those_of_dimensions_and_statistics(driver):
    def model(y):
        mean = pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        other = pyro.sample("a_dim_1", dist.Normal(0.0, 1.0))
        third = pyro.sample("layer", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))
        pyro.sample("lp", dist.Normal(mean.sum() + other + third.sum(), 1.0), obs=y)

    found = to_arviz(run(driver, FNBG(model), torch.tensor(1.0)))
    assert set(found["posterior"].data_vars) == {"a", "a_dim_1", "layer"}
    assert found["observed_data"]["lp"].shape == ()
    assert found["sample_stats"]["lp"].shape == (1, 8)
