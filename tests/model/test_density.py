import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.distributions import biject_to

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.planning import NO_PLATE
from pyro_fnbg.model.sites import inspect_model

DATA = torch.tensor([0.3, -1.2, 0.7, 2.0])


def density_of(model, *args, plan=NO_PLATE):
    return ModelDensity(BoundModel(model, args), inspect_model(BoundModel(model, args)), plan)


def log_density(model, values, *args, plan=NO_PLATE, rows=None):
    sites = inspect_model(BoundModel(model, args))
    position = sites.layout.flatten(sites.unconstrain(values))
    return ModelDensity(BoundModel(model, args), sites, plan).on(rows)(position)


def pyro_log_joint(model, values, *args):
    """The log joint by Pyro's own handlers, plus the log Jacobians."""
    conditioned = poutine.condition(model, data=values)
    total = poutine.trace(conditioned).get_trace(*args).log_prob_sum().double()
    for name, site in poutine.trace(model).get_trace(*args).nodes.items():
        if site["type"] == "sample" and not site["is_observed"] and name in values:
            bijection = biject_to(site["fn"].support)
            unconstrained = bijection.inv(values[name])
            total += bijection.log_abs_det_jacobian(unconstrained, values[name]).sum().double()
    return total


PRIORS = {
    "normal": dist.Normal(0.5, 2.0),
    "normal matrix": dist.Normal(torch.zeros(3, 2), 2.0).to_event(2),
    "plain batch": dist.Normal(torch.zeros(3, 2), 2.0),
    "half normal": dist.HalfNormal(2.0),
    "half cauchy": dist.HalfCauchy(torch.ones(3)).to_event(1),
    "log normal": dist.LogNormal(0.0, 1.0),
    "gamma": dist.Gamma(2.0, 3.0),
    "exponential": dist.Exponential(0.5),
    "beta": dist.Beta(2.0, 5.0),
    "uniform": dist.Uniform(-1.0, 3.0),
    "uniform event": dist.Uniform(-torch.ones(2), 3.0).to_event(1),
    "pareto": dist.Pareto(1.5, 3.0),
    "dirichlet": dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0])),
    "dirichlet rows": dist.Dirichlet(torch.ones(2, 3)).to_event(1),
    "student": dist.StudentT(3.0, 0.0, 1.0),
    "multivariate": dist.MultivariateNormal(torch.zeros(2), torch.eye(2) + 0.5),
    "cholesky": dist.LKJCholesky(3, 2.0),
    "transformed": dist.TransformedDistribution(
        dist.Normal(0.0, 1.0), [dist.transforms.ExpTransform()]
    ),
}


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
def test_the_unconstrained_density_has_its_jacobian(prior):
    def model():
        pyro.sample("site", prior)
        pyro.factor("nothing", torch.zeros(()))

    values = {"site": prior.sample()}
    assert log_density(model, values).log_density.item() == pytest.approx(
        pyro_log_joint(model, values).item(), abs=1e-4
    )


TWO = torch.tensor(2.0, dtype=torch.float64)


@pytest.mark.parametrize(
    ("prior", "low", "high"), [(dist.HalfNormal(TWO), -30, 5), (dist.VonMises(TWO, TWO), -30, 30)]
)
def test_a_change_of_variables_integrates_to_one(prior, low, high):
    # independent of Pyro's Jacobians: the density over the unconstrained line is a density
    def model():
        pyro.sample("site", prior)
        pyro.factor("nothing", torch.zeros(()))

    density = density_of(model).on(None)
    grid = torch.linspace(low, high, 4001, dtype=torch.float64)
    values = torch.stack([density(u.reshape(1)).log_density.exp() for u in grid])
    assert torch.trapezoid(values, grid).item() == pytest.approx(1.0, abs=1e-6)


def nested_plates(y):
    loc = pyro.sample("loc", dist.Normal(0.0, 3.0))
    with pyro.plate("columns", 2), pyro.plate("rows", 3):
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y)


def scaled_and_masked(y):
    loc = pyro.sample("loc", dist.Normal(0.0, 3.0))
    keep = torch.tensor([True, False, True, True])
    with poutine.scale(scale=0.3), pyro.plate("data", 4), poutine.mask(mask=keep):
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y)
    with poutine.scale(scale=torch.tensor([1.0, 2.0, 3.0])), pyro.plate("vector", 3):
        pyro.sample("v", dist.Normal(loc, 1.0).expand([3, 2]).to_event(1), obs=torch.ones(3, 2))


def masked_events(y):
    loc = pyro.sample("loc", dist.Normal(torch.zeros(4, 2), 3.0).to_event(1).mask(True))
    with pyro.plate("data", 4), poutine.mask(mask=y > 0):
        pyro.sample("y", dist.Normal(loc, 1.0).to_event(1), obs=y.unsqueeze(-1).expand(4, 2))


def factor_and_deterministic(y):
    loc = pyro.sample("loc", dist.Normal(0.0, 3.0))
    pyro.deterministic("twice", 2 * loc)
    pyro.factor("fit", -0.5 * (y - loc).square().sum())
    with poutine.mask(mask=False):
        pyro.sample("ignored", dist.Normal(loc, 1.0), obs=torch.tensor(9.0))


def parameters(y):
    offset = pyro.param("offset", torch.tensor(0.7))
    loc = pyro.sample("loc", dist.Normal(0.0, 3.0))
    with pyro.plate("data", 4):
        pyro.sample("y", dist.Normal(loc + offset, 1.0), obs=y)


def hierarchical(y):
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    loc = pyro.sample("loc", dist.Normal(torch.zeros(4), tau).to_event(1))
    with pyro.plate("data", 4):
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y)


def step_network(y):
    weight = pyro.sample("weight", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    hidden = (weight > 0).float().sum()
    with pyro.plate("data", 4):
        pyro.sample("y", dist.Normal(hidden, 1.0), obs=y)


MODELS = {
    model.__name__: (model, y)
    for model, y in [
        (nested_plates, torch.arange(6.0).sin().reshape(3, 2)),
        (scaled_and_masked, DATA),
        (masked_events, DATA),
        (factor_and_deterministic, DATA),
        (parameters, DATA),
        (hierarchical, DATA),
        (step_network, DATA),
    ]
}


@pytest.mark.parametrize(("model", "y"), MODELS.values(), ids=MODELS)
def test_the_density_is_pyros(model, y):
    for _ in range(5):
        trace = poutine.trace(model).get_trace(y)
        values = {
            name: site["value"]
            for name, site in trace.nodes.items()
            if site["type"] == "sample"
            and not site["is_observed"]
            and name not in ("data", "rows", "columns", "vector")
        }
        found = log_density(model, values, y).log_density.item()
        assert found == pytest.approx(pyro_log_joint(model, values, y).item(), rel=1e-5)


def test_nan_behind_a_mask_has_no_effect():
    def model(y, keep):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 4), poutine.mask(mask=keep):
            pyro.sample("y", dist.Normal(loc, 1.0, validate_args=False), obs=y)

    keep = torch.tensor([True, False, True, True])
    values = {"loc": torch.tensor(0.2)}
    with pyro.validation_enabled(False):
        holed = log_density(model, values, DATA.where(keep, torch.nan), keep).log_density
        whole = log_density(model, values, DATA, keep).log_density
    assert torch.equal(holed, whole)


def regression(y):
    loc = pyro.sample("loc", dist.Normal(0.0, 3.0))
    with pyro.plate("other", 2), poutine.scale(scale=0.5):
        pyro.sample("prior data", dist.Normal(loc, 1.0), obs=torch.ones(2))
    with pyro.plate("data", 4) as rows:
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y[rows])


@pytest.mark.parametrize("factor", [1.0, 2.0, 0.1])
def test_the_factor_scales_the_batch_and_nothing_else(factor):
    rows = torch.tensor([3, 0])
    plan = BatchPlan("data", 4, 2, "shuffled", factor)
    loc = torch.tensor(0.4)
    found = log_density(regression, {"loc": loc}, DATA, plan=plan, rows=rows).log_density
    expected = (
        dist.Normal(0.0, 3.0).log_prob(loc)
        + 0.5 * dist.Normal(loc, 1.0).log_prob(torch.ones(2)).sum()
        + factor * dist.Normal(loc, 1.0).log_prob(DATA[rows]).sum()
    )
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_terms_are_kept_apart_by_row_and_coordinate():
    def model(y):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
        with pyro.plate("data", 4):
            pyro.sample("y", dist.Normal(weight.sum(), 1.0), obs=y)

    state = density_of(model, DATA).on(None)(torch.zeros(6))
    assert state.log_terms.shape == (6 + 4,)
    assert state.log_terms.dtype == torch.float64


def test_single_precision_does_not_drown_one_coordinate():
    def model():
        pyro.sample("w", dist.Normal(torch.zeros(100_000), 1.0).to_event(1))
        pyro.factor("nothing", torch.zeros(()))

    density = density_of(model).on(None)
    position = torch.full((100_000,), 3.0)
    moved = position.clone()
    moved[7] = 3.001
    change = density(moved).log_density - density(position).log_density
    assert change.item() == pytest.approx(-0.5 * (moved[7].item() ** 2 - 9), rel=1e-3)


def test_sites_that_come_or_go_are_named():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        if a > 1.0:
            pyro.sample("extra", dist.Normal(0.0, 1.0))
        pyro.factor("nothing", torch.zeros(()))

    def other():
        if pyro.sample("a", dist.Normal(-5.0, 1e-3)) < 0:
            pyro.sample("b", dist.Normal(0.0, 1.0))
        pyro.factor("nothing", torch.zeros(()))

    sites = inspect_model(BoundModel(poutine.condition(model, {})))
    while sites.layout.num_params > 1:
        sites = inspect_model(BoundModel(model))
    density = ModelDensity(BoundModel(model), sites, NO_PLATE).on(None)
    density(torch.zeros(1))
    with pytest.raises(ValueError, match="'extra' was not in the model at set-up"):
        density(torch.full((1,), 2.0))
    with pytest.raises(ValueError, match=r"\['b'\] were in the model at set-up"):
        density_of(other).on(None)(torch.ones(2))


def test_a_term_that_comes_and_goes_with_the_values_is_named():
    def model():
        v = pyro.sample("v", dist.Normal(0.0, 1.0))
        pyro.factor("always", v)
        if v > 0:
            pyro.factor("sometimes", v)

    pyro.set_rng_seed(0)
    density = density_of(model).on(None)
    density(torch.full((1,), -1.0))
    with pytest.raises(ValueError, match=r"sites \['sometimes'\] came, went or changed"):
        density(torch.ones(1))


def test_a_term_that_changes_its_shape_is_named():
    def model():
        v = pyro.sample("v", dist.Normal(0.0, 1.0))
        pyro.factor("f", torch.zeros(2 if v > 0 else 3))

    density = density_of(model).on(None)
    density(torch.full((1,), -1.0))
    with pytest.raises(ValueError, match=r"sites \['f'\] came, went or changed"):
        density(torch.ones(1))


def test_impossible_values_have_a_density_even_where_pyro_checks_them():
    def model():
        scale = pyro.sample("v", dist.Normal(0.0, 1.0)).exp() - 1.0
        pyro.sample("y", dist.Normal(0.0, scale.abs() + 0.1), obs=torch.tensor(0.3))
        pyro.sample("z", dist.Normal(0.0, scale), obs=torch.tensor(0.3))

    with pyro.validation_enabled(False):
        density = density_of(model).on(None)
    with pyro.validation_enabled(True):
        assert density(torch.full((1,), -1.0)).log_density.isnan()


def test_no_gradients_are_recorded():
    def model(y):
        offset = pyro.param("offset", torch.tensor(0.7))
        pyro.sample("y", dist.Normal(pyro.sample("a", dist.Normal(offset, 1.0)), 1.0), obs=y)

    with torch.no_grad():
        density = density_of(model, torch.tensor(1.0)).on(None)
    state = density(torch.zeros(1))
    assert not state.log_terms.requires_grad
    assert pyro.param("offset").grad is None
