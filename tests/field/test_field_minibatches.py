"""Troubles with minibatches: a model's own subsample, own random numbers, data read only once."""

import random
from collections.abc import Iterator

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from pyro_fnbg.testing import assert_expectation
from support.drivers import DRIVERS, WAYS

N, B = 41, 6
OFFSETS = torch.linspace(-2.0, 2.0, N)


def sampled(driver, kernel, *args, draws=5, warmup=3, seed=1, **options):
    pyro.set_rng_seed(seed)
    options = {"num_samples": draws, "warmup_steps": warmup, "disable_progbar": True} | options
    mcmc = driver(kernel, **options)
    mcmc.run(*args)
    return mcmc


def located(y, size=B):
    """Locate data around 1, which are symmetric as the prior is, so the chain's mean is 1."""
    mean = pyro.sample("mean", dist.Normal(1.0, 10.0))
    with pyro.plate("data", len(y), subsample_size=size) as rows:
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])


def test_a_models_own_subsample_is_sampled_on_shared_batches():
    kernel = FNBG(located)
    mcmc = sampled(MCMC, kernel, 1.0 + OFFSETS, draws=800, warmup=150)
    assert "hotter" in kernel.target
    assert kernel.diagnostics()["likelihood factor"] == pytest.approx(N / B)
    mean = mcmc.get_samples(group_by_chain=True)["mean"]
    assert_expectation(mean, 1.0)
    # No narrower than the posterior of all rows, and no wider than the batches' posteriors, each of
    # variance 1 / N, are spread
    batch_means = OFFSETS.var() / B * (1 - B / N)
    assert 1 / N < float(mean.var()) < 1 / N + float(batch_means)
    # Our driver makes the same draws
    ours = sampled(MultiChainMCMC, FNBG(located), 1.0 + OFFSETS, draws=20, warmup=150)
    assert torch.equal(ours.get_samples()["mean"], mean[0, :20])


@WAYS
def test_batches_of_a_network_leave_a_remainder(driver, engine):
    x, y = torch.randn(N, 2).double(), torch.arange(N) % 3
    model = BayesianMLP([2, 3, 3])
    kernel = FNBG(model, batch_size=B, engine=engine)
    reference = FNBG(model, batch_size=B, engine="trace")
    found = sampled(driver, kernel, x, y, draws=20).get_samples()
    expected = sampled(MCMC, reference, x, y, draws=20).get_samples()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    assert f"{B} of {N}" in kernel.target


# Rows that a model draws by itself, by the generators that people use

OWN_ROWS = {
    "torch": lambda _: torch.randperm(N)[:B],
    "numpy": lambda _: torch.from_numpy(np.random.choice(N, B)),  # noqa: NPY002
    "random": lambda _: torch.tensor(random.sample(range(N), B)),
    "a generator of its own": lambda own: torch.from_numpy(own.choice(N, B)),
}


@DRIVERS
@pytest.mark.parametrize("rows", OWN_ROWS.values(), ids=OWN_ROWS)
def test_a_model_that_draws_its_own_minibatch_is_refused_by_site(driver, rows):
    own = np.random.default_rng(0)

    def model(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.poutine.scale(scale=N / B), pyro.plate("batch", B):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows(own)])

    with pytest.raises(ValueError, match=r"\['y'\] differs.*random numbers.*batch_size"):
        sampled(driver, FNBG(model), OFFSETS)


def with_factor(factor):
    def model(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", N):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        pyro.factor("noise", factor(mean))

    return model


HIDDEN = {
    "small against the density": lambda mean: -1e6 + 0.5 * torch.randn(()),
    "small in double precision": lambda mean: 1e-3 * torch.randn(()).double() - 1e6,
}


@DRIVERS
@pytest.mark.parametrize("factor", HIDDEN.values(), ids=HIDDEN)
def test_randomness_that_hides_is_found_at_set_up(driver, factor):
    with pytest.raises(ValueError, match=r"\['noise'\] differs between two runs"):
        sampled(driver, FNBG(with_factor(factor)), OFFSETS)


@DRIVERS
def test_dropout_that_trains_is_named_and_passes_once_it_does_not(driver):
    layer = nn.Dropout(0.2)

    def model(y):
        mean = pyro.sample("mean", dist.Normal(torch.zeros(N), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(layer(mean), 1.0).to_event(1), obs=y)

    with pytest.raises(ValueError, match=r"\['y'\] differs.*Dropout\(p=0.2.*eval\(\)"):
        sampled(driver, FNBG(model), OFFSETS)
    layer.eval()
    sampled(driver, FNBG(model), OFFSETS)


@DRIVERS
def test_random_numbers_that_do_not_enter_the_density_are_no_fault(driver):
    def model(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", N):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        pyro.deterministic("new", dist.Normal(mean, 1.0).rsample())

    sampled(driver, FNBG(model), OFFSETS)


# What a row's density must not depend on


def standardised(x):
    return (x - x.mean(0)) / x.std(0)


@DRIVERS
@pytest.mark.parametrize(
    "change",
    [standardised, nn.BatchNorm1d(2, affine=False, track_running_stats=False)],
    ids=["standardised", "batch normalisation"],
)
def test_a_model_that_standardises_its_batch_is_refused(driver, change):
    def model(x, y):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", N) as rows:
            pyro.sample("y", dist.Normal(change(x[rows]) @ weight, 1.0), obs=y[rows])

    x = torch.randn(N, 2)
    with pytest.raises(ValueError, match="'y' scores a row otherwise where other rows stand"):
        sampled(driver, FNBG(model, batch_size=B), x, OFFSETS)
    sampled(driver, FNBG(model), x, OFFSETS)  # with all rows it is a function of the data


# Data that can be read once only


def loop(batches):
    weight = pyro.sample("weight", dist.Normal(0.0, 5.0))
    for number, batch in enumerate(batches):
        with pyro.plate(f"data{number}", len(batch)):
            pyro.sample(f"y{number}", dist.Normal(weight, 1.0), obs=batch)


PIECES = OFFSETS.split(20)
ONE_SHOT = {
    "generator": lambda: (piece for piece in PIECES),
    "map": lambda: map(torch.neg, PIECES),
    "zip": lambda: zip(PIECES, PIECES, strict=True),
    "_SingleProcessDataLoaderIter": lambda: iter(DataLoader(TensorDataset(OFFSETS))),
    "TextIOWrapper": lambda: open(__file__, encoding="utf-8"),  # noqa: SIM115
}


@DRIVERS
@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize("is_keyword", [False, True])
@pytest.mark.parametrize("kind", ONE_SHOT)
def test_an_iterator_is_refused_by_argument_and_nothing_is_read(driver, chains, is_keyword, kind):
    data = ONE_SHOT[kind]()
    mcmc = driver(FNBG(loop), num_samples=5, num_chains=chains, disable_progbar=True)
    try:
        with pytest.raises(TypeError, match=f"argument 'batches' must be.*got a {kind},.*a list"):
            mcmc.run(**{"batches": data}) if is_keyword else mcmc.run(data)
        assert isinstance(data, Iterator)
        assert next(data, None) is not None
    finally:
        getattr(data, "close", lambda: None)()


@DRIVERS
def test_an_iterator_inside_a_tuple_or_a_dict_is_found_too(driver):
    with pytest.raises(TypeError, match="'batches' must be.*got a tuple that holds a generator"):
        sampled(driver, FNBG(loop), (1, ONE_SHOT["generator"]()))
    with pytest.raises(TypeError, match="'batches' must be.*got a dict that holds a map"):
        sampled(driver, FNBG(loop), {"x": ONE_SHOT["map"]()})


def test_an_iterator_for_processes_is_refused_before_any_starts():
    with pytest.raises(TypeError, match="'batches' must be data that can be read again"):
        sampled(
            MultiChainMCMC,
            FNBG(loop),
            ONE_SHOT["generator"](),
            num_chains=2,
            chain_method="processes",
        )


@DRIVERS
def test_an_iterator_that_a_model_holds_itself_is_an_error_that_says_so(driver):
    data = iter(PIECES)

    def model():
        weight = pyro.sample("weight", dist.Normal(0.0, 5.0))
        pyro.sample("y", dist.Normal(weight, 1.0), obs=torch.cat(list(data)))

    with pytest.raises(Exception) as caught:  # noqa: PT011 - torch's own words
        sampled(driver, FNBG(model))
    assert "ran with the same arguments before" in str(caught.value)


@DRIVERS
def test_a_loader_that_shuffles_is_refused_and_one_that_does_not_is_data(driver):
    data = TensorDataset(3.0 + OFFSETS)

    def model(loader):
        loop(batch for (batch,) in loader)

    shuffled = DataLoader(data, batch_size=20, shuffle=True)
    with pytest.raises(ValueError, match="'y0'.* differs between two runs.*shuffled DataLoader"):
        sampled(driver, FNBG(model), shuffled)
    in_order = DataLoader(data, batch_size=20)
    # Where the start does not come from the prior, whose draws the loader's own seed would shift
    options = {"draws": 20, "initial_params": {"weight": torch.tensor(0.0)}}
    found = sampled(driver, FNBG(model, proposal_scale=0.3), in_order, **options)
    pieces = list((3.0 + OFFSETS).split(20))
    same = sampled(driver, FNBG(loop, proposal_scale=0.3), pieces, **options)
    assert torch.equal(found.get_samples()["weight"], same.get_samples()["weight"])
