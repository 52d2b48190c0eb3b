import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroSample

from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.sites import PlateRows, inspect_model, prior_draws, seeded

Y = torch.arange(6.0).sin()


def draws_of(model, *args):
    bound = BoundModel(model, args)
    return prior_draws(bound, inspect_model(bound), PlateRows(None, None), 20)


def test_sites_come_in_trace_order_with_unconstrained_shapes_and_types():
    def model(y):
        pyro.sample("z", dist.Dirichlet(torch.ones(2, 3)).to_event(1))
        pyro.sample("a", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        s = pyro.sample("s", dist.HalfNormal(1.0))
        pyro.deterministic("twice", 2 * s)
        pyro.param("p", torch.ones(2))
        with pyro.plate("data", 6):
            pyro.sample("y", dist.Normal(0.0, s), obs=y)

    sites = inspect_model(BoundModel(model, (Y,)))
    found = [(site.name, site.shape, site.dtype) for site in sites.layout.sites]
    assert found == [
        ("z", (2, 2), torch.float32),
        ("a", (2,), torch.float64),
        ("s", (), torch.float32),
    ]
    assert sites.observed == ("y",)
    assert sites.real_sites == {"a"}


def test_pyro_module_networks_have_their_own_names():
    net = PyroModule[torch.nn.Sequential](
        PyroModule[torch.nn.Linear](2, 3), torch.nn.ReLU(), PyroModule[torch.nn.Linear](3, 1)
    )
    for layer in (net[0], net[2]):
        for name, value in list(layer.named_parameters()):
            prior = dist.Normal(torch.zeros_like(value), 1.0).to_event(value.dim())
            setattr(layer, name, PyroSample(prior))

    def model(x, y):
        mean = net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    sites = inspect_model(BoundModel(model, (torch.randn(6, 2), Y)))
    names = [site.name for site in sites.layout.sites]
    assert sorted(names) == ["0.bias", "0.weight", "2.bias", "2.weight"]


def test_plates_are_described():
    def model(y):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("groups", 3):
            pyro.sample("group", dist.Normal(loc, 1.0))
        with pyro.plate("data", 6, subsample_size=2) as rows:
            pyro.sample("y", dist.Normal(loc, 1.0), obs=y[rows])
        with pyro.plate("fixed", 6, subsample=torch.tensor([1, 4])) as rows:
            pyro.sample("v", dist.Normal(loc, 1.0), obs=y[rows])
        for i in pyro.plate("loop", 2):
            pyro.sample(f"u{i}", dist.Normal(loc, 1.0), obs=y[i])

    sites = inspect_model(BoundModel(model, (Y,)))
    described = {
        plate.name: (plate.size, plate.num_rows, plate.is_fixed, plate.is_sequential)
        for plate in sites.plates.values()
    }
    assert described == {
        "data": (6, 2, False, False),
        "fixed": (6, 2, True, False),
        "loop": (2, 2, False, True),
    }
    assert [plate.name for plate in sites.plates.values() if plate.is_subsampled] == ["data"]
    assert sites.latents_in_plate == {"groups": ["group"]}


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        (dist.Bernoulli(0.5), "'z' is discrete .Bernoulli."),
        (dist.Categorical(torch.ones(3)), "'z' is discrete .Categorical."),
        (dist.Poisson(2.0).expand([3]).to_event(1), "'z' is discrete .Independent."),
    ],
)
def test_discrete_latent_sites_are_refused_by_name(prior, words):
    def model():
        pyro.sample("z", prior)

    with pytest.raises(ValueError, match=words):
        inspect_model(BoundModel(model))


def test_a_model_without_latent_sites_is_refused():
    def model():
        pyro.deterministic("x", torch.ones(2))
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(1.0))

    with pytest.raises(ValueError, match=r"no latent sample site.*\['y'\]"):
        inspect_model(BoundModel(model))


@pytest.mark.parametrize("hide", [False, True])
def test_a_model_without_data_warns_and_names_its_sites(hide):
    def model(y=None):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with poutine.mask(mask=not hide), pyro.plate("data", 6):
            pyro.sample("y", dist.Normal(loc, 1.0), obs=Y if hide else y)

    with pytest.warns(UserWarning, match=r"no observed data and no factor.*\['loc'"):
        inspect_model(BoundModel(model))


def test_a_factor_counts_as_data():
    def model():
        pyro.factor("f", -pyro.sample("loc", dist.Normal(0.0, 1.0)).square())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert inspect_model(BoundModel(model)).observed == ("f",)


def test_prior_draws_are_unconstrained_draws_from_the_prior():
    def model():
        pyro.sample("a", dist.LogNormal(3.0, 0.5))
        pyro.sample("b", dist.Normal(torch.full((2,), -1.0), 2.0).to_event(1))
        pyro.factor("nothing", torch.zeros(()))

    sites = inspect_model(BoundModel(model))
    draws = prior_draws(BoundModel(model), sites, PlateRows(None, None), 4000)
    assert draws.shape == (4000, 3)
    means, sds = torch.tensor([3.0, -1.0, -1.0]), torch.tensor([0.5, 2.0, 2.0])
    assert ((draws.mean(0) - means).abs() < 4.5 * sds / 4000**0.5).all()


@pytest.mark.parametrize(
    ("is_new", "words"), [(False, r"\['extra'\]"), (True, r"\['extra', 'other'\]")]
)
def test_sites_that_depend_on_values_are_named(is_new, words):
    def model():
        pyro.factor("nothing", torch.zeros(()))
        above = pyro.sample("a", dist.Normal(0.0, 1.0)) > 0
        if above or len(runs) == 0:
            pyro.sample("extra", dist.Normal(0.0, 1.0))
        if is_new and not above:
            pyro.sample("other", dist.Normal(0.0, 1.0))
        runs.append(pyro.sample("b", dist.Normal(0.0, 1.0)))

    runs = []
    with pytest.raises(ValueError, match=rf"{words} came or went"):
        draws_of(model)


@pytest.mark.parametrize(
    "prior",
    [
        lambda a: dist.Uniform(torch.zeros(()), a),
        lambda a: dist.Uniform(-a, a),
        lambda a: dist.Pareto(a, 2.0),
        lambda a: dist.Normal(0.0, 1.0) if a > 1 else dist.HalfNormal(1.0),
    ],
)
def test_a_support_that_depends_on_another_site_is_refused(prior):
    def model():
        pyro.sample("b", prior(pyro.sample("a", dist.LogNormal(0.0, 1.0))))
        pyro.factor("nothing", torch.zeros(()))

    with pytest.raises(ValueError, match="support of latent site 'b' depends"):
        draws_of(model)


def test_a_draw_from_the_prior_leaves_the_model_after_its_last_latent_site():
    def model(y):
        with pyro.plate("data", 6), pyro.plate("columns", 2):
            loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        for group in pyro.plate("groups", 2):
            loc = loc + pyro.sample(f"group{group}", dist.Normal(0.0, 1.0))
        scored.append(y)
        with pyro.plate("data"):
            pyro.sample("y", dist.Normal(loc.sum(), 1.0), obs=y)

    scored = []
    bound = BoundModel(model, (Y,))
    sites = inspect_model(bound)
    assert prior_draws(bound, sites, PlateRows(None, None), 20).shape == (20, 14)
    assert len(scored) == 1
    # Nothing of the runs that were left is in the way of the next
    assert set(bound.trace().nodes) > {"loc", "group0", "group1", "y"}
    assert len(scored) == 2


def test_a_prior_that_depends_on_another_site_is_fine():
    def model():
        pyro.sample("b", dist.HalfNormal(pyro.sample("a", dist.LogNormal(0.0, 1.0))))
        pyro.factor("nothing", torch.zeros(()))

    assert draws_of(model).shape == (20, 2)


def test_seeded_gives_torchs_stream_back():
    before = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(2)
    assert torch.equal(before, torch.get_rng_state())
    with seeded(3):
        assert torch.equal(first, torch.rand(2))
