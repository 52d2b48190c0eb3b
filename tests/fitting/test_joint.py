"""The log density of several chains is that of each by itself, and so are its gradients."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import BayesianMLP
from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.fitting.joint import JointDensity, find_gradients, network_densities
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.planning import NO_PLATE
from pyro_fnbg.model.sites import PlateRows, inspect_model, prior_draws
from pyro_fnbg.networks.priors import ScalePrior
from support.data import even_normal, normal

X, LABELS = even_normal(30, 4), torch.arange(30) % 3
Y = X[:, 0]
ROWS = torch.tensor([3, 28, 5, 17, 0, 11, 9])


def hierarchical(x, y):
    """Two constrained sites, one of which is the scale of another."""
    spread = pyro.sample("spread", dist.HalfCauchy(1.0))
    slopes = pyro.sample("slopes", dist.StudentT(4.0, 0.0, spread).expand([4]).to_event(1))
    rate = pyro.sample("rate", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("data", len(x)) as rows:
        pyro.sample("y", dist.Normal(x[rows] @ slopes + rate[0], 1.0), obs=y[rows])


def net(activation, likelihood, **arguments):
    widths = [4, 5, 3, 3 if likelihood == "categorical" else 1]
    return BayesianMLP(widths, activation=activation, likelihood=likelihood, **arguments)


MODELS = {
    "relu normal": (net("relu", "normal", observation_scale=dist.HalfNormal(1.0)), Y),
    "tanh categorical": (net("tanh", "categorical"), LABELS),
    "step bernoulli": (net("step", "bernoulli"), (LABELS > 0).float()),
    "hierarchical": (hierarchical, Y),
}


def density_of(model, *args, plan=NO_PLATE):
    bound = BoundModel(model, args)
    with torch.no_grad():
        sites = inspect_model(bound)
        positions = prior_draws(bound, sites, PlateRows(plan.plate, None), 4)
    return ModelDensity(bound, sites, plan), sites, positions


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [None, ROWS], ids=["all rows", "a batch"])
def test_chains_in_one_run_have_the_values_and_gradients_of_single_chains(name, rows):
    model, y = MODELS[name]
    plan = BatchPlan("data", 30, 30 if rows is None else 7, "shuffled", 30 / 7)
    density, _, positions = density_of(model, X, y, plan=plan)
    together, apart = JointDensity(density), JointDensity(density)
    apart.joins_chains = False
    found = []
    for joint in (together, apart):
        at = positions.clone().requires_grad_()
        values = joint(at, rows)
        found.append((values.detach(), torch.autograd.grad(values.sum(), at)[0]))
    assert together.joins_chains
    assert torch.allclose(found[0][0], found[1][0], rtol=1e-5)
    assert torch.allclose(found[0][1], found[1][1], rtol=1e-3, atol=1e-3)
    # The sampler's own density, which takes no gradients
    expected = [density.on(rows)(position).log_terms.sum() for position in positions]
    assert torch.allclose(found[0][0].double(), torch.stack(expected), rtol=1e-5)


STATED = {
    "relu normal": {"likelihood": "normal", "observation_scale": dist.HalfNormal(1.0)},
    "relu scales": {"likelihood": "normal", "observation_scale": "network"},
    "relu student": {"likelihood": "student", "prior": "student"},
    "tanh poisson": {"likelihood": "poisson", "prior_scale": 0.3},
    "tanh categorical": {"likelihood": "categorical", "prior": "laplace"},
    "step bernoulli": {"likelihood": "bernoulli"},
    "tanh normal": {"likelihood": "normal", "prior_scale": ScalePrior(dist.HalfNormal(1.0))},
}


@pytest.mark.parametrize("name", STATED)
@pytest.mark.parametrize("rows", [None, ROWS], ids=["all rows", "a batch"])
def test_a_stated_network_has_the_values_and_gradients_of_the_model(name, rows):
    arguments = STATED[name]
    outputs = 3 if "categorical" in name else 2 if "scales" in name else 1
    model = BayesianMLP([4, 5, 3, outputs], activation=name.split()[0], **arguments)
    y = {"categorical": LABELS, "bernoulli": (LABELS > 0).float(), "poisson": LABELS.float()}
    bound = BoundModel(model, (X, y.get(name.split()[1], Y)))
    plan = BatchPlan("data", 30, 30 if rows is None else 7, "shuffled", 30 / 7)
    with torch.no_grad():
        sites = inspect_model(bound)
        positions = prior_draws(bound, sites, PlateRows(None, None), 4)
    single = ModelDensity(bound, sites, plan)
    model_density = JointDensity(single)
    stated = network_densities(bound, sites, plan, single, model_density, positions, rows)
    found = []
    for density in (model_density, stated.density):
        at = positions.clone().requires_grad_()
        values = density(at, rows)
        found.append((values.detach().double(), torch.autograd.grad(values.sum(), at)[0]))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-4, atol=1e-4)
    sizes = found[0][1].abs().amax()
    assert ((found[1][1] - found[0][1]).abs() <= 1e-4 * sizes).all()
    # Each row of the likelihood counts once
    of_data = JointDensity(ModelDensity(bound, sites, plan), lambda terms: terms["obs"].sum())
    torch.testing.assert_close(
        stated.log_likelihood(positions, rows),
        of_data(positions, rows).double() / plan.factor,
        rtol=1e-4,
        atol=1e-4,
    )


def density_alone(bound, sites):
    return JointDensity(ModelDensity(bound, sites, BatchPlan("data", 30, 30, "full", 1.0)))


def test_a_statement_that_is_not_the_models_is_not_used():
    class Other(BayesianMLP):
        def __call__(self, x, y=None):
            return super().__call__(2 * x, y)

    model = Other([4, 5, 1], likelihood="normal")
    bound = BoundModel(model, (X, Y))
    with torch.no_grad():
        sites = inspect_model(bound)
        positions = prior_draws(bound, sites, PlateRows(None, None), 4)
    plan = BatchPlan("data", 30, 30, "full", 1.0)
    single = ModelDensity(bound, sites, plan)
    density = JointDensity(single)
    assert network_densities(bound, sites, plan, single, density, positions, None) is None


def by_hand(x, y=None):
    inner = pyro.sample("inner", dist.Normal(0.0, 1.0).expand([4, 3]).to_event(2))
    outer = pyro.sample("outer", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with pyro.plate("data", len(x)) as rows:
        mean = torch.tanh(x[rows] @ inner) @ outer
        pyro.sample("obs", dist.Normal(mean, 0.5), obs=None if y is None else y[rows])


def test_a_network_that_is_not_stated_is_known_as_well():
    bound = BoundModel(by_hand, (X, Y))
    plan = BatchPlan("data", 30, 7, "shuffled", 30 / 7)
    with torch.no_grad():
        sites = inspect_model(bound)
        positions = prior_draws(bound, sites, PlateRows(None, None), 4)
        single = ModelDensity(bound, sites, plan)
        model = JointDensity(single)
        known = network_densities(bound, sites, plan, single, model, positions, ROWS)
        assert known is not None
        torch.testing.assert_close(
            known.density(positions, ROWS),
            model(positions, ROWS).double(),
            rtol=1e-4,
            atol=1e-4,
        )


def test_gradient_is_the_slope_of_the_density():
    torch.set_default_dtype(torch.float64)
    density, _, positions = density_of(hierarchical, X.double(), Y.double())
    at = positions.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(JointDensity(density)(at, None).sum(), at)
    shift = torch.zeros_like(at)
    for coordinate in range(at.shape[1]):
        shift[:, coordinate] = 1e-5
        above, below = (JointDensity(density)(positions + sign * shift, None) for sign in (1, -1))
        slope = (above - below) / 2e-5
        assert torch.allclose(gradient[:, coordinate], slope, rtol=1e-4, atol=1e-4)
        shift[:, coordinate] = 0.0


def test_chain_where_the_model_is_impossible_is_nan_and_others_are_not():
    def model(y):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        if level > 1.0:
            raise torch.linalg.LinAlgError("not positive definite")
        pyro.sample("y", dist.Normal(level, 1.0).expand([30]).to_event(1), obs=y)

    density, _, _ = density_of(model, Y)
    values = JointDensity(density)(torch.tensor([[0.5], [2.0], [-1.0]]), None)
    assert torch.isfinite(values).tolist() == [True, False, True]


def test_error_of_the_model_reaches_the_user():
    def model(y):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        if level > 20.0:
            raise KeyError("mine")
        pyro.sample("y", dist.Normal(level, 1.0).expand([30]).to_event(1), obs=y)

    density, _, _ = density_of(model, Y)
    with pytest.raises(KeyError, match="mine"):
        JointDensity(density)(torch.tensor([[0.5], [21.0]]), None)


def below_a_step(x, y):
    place = pyro.sample("place", dist.Normal(0.0, 1.0))
    width = pyro.sample("width", dist.HalfNormal(1.0))
    level = pyro.sample("level", dist.Normal(0.0, width))
    pyro.sample("idle", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)) as rows:
        mean = level * (x[rows, 0] > place).float()
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])


def detached(x, y):
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    with torch.no_grad(), pyro.plate("data", len(x)) as rows:
        pyro.sample("y", dist.Normal(level * x[rows, 0], 1.0), obs=y[rows])


def levels(x, y):
    centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
    level = pyro.sample("level", dist.Normal(centre, 1.0))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)) as rows:
        pyro.sample("y", dist.Normal(level, scale), obs=y[rows])


@pytest.mark.parametrize(
    ("model", "fitted", "held"),
    [
        # A scale acts by the prior of another site; what is below a step, or idle, not at all
        (below_a_step, ["level"], ["width"]),
        (hierarchical, ["slopes", "rate"], ["spread"]),
        (levels, ["centre", "level", "scale"], []),
        (detached, [], []),
    ],
)
def test_sites_with_a_gradient_are_those_that_the_rest_of_the_model_has_one_for(
    model, fitted, held
):
    density, sites, positions = density_of(model, X, Y)
    found = find_gradients(density, sites, positions, None)
    assert (found.fitted, found.held) == (fitted, held)


def test_step_activations_are_given_a_gradient_here_and_nowhere_else():
    model, y = MODELS["step bernoulli"]
    density, sites, positions = density_of(model, X, y)
    found = find_gradients(density, sites, positions, None)
    assert (len(found.fitted), found.replaced) == (6, {"step"})
    at = positions[0].clone().requires_grad_()
    value = density.terms(at, None)["obs"].sum()
    gradient = density.layout.split(torch.autograd.grad(value, at)[0])
    assert not gradient["layer1.weight"].any()
    assert gradient["layer3.weight"].any()


def test_straight_through_leaves_values_as_they_are():
    model, y = MODELS["step bernoulli"]
    density, _, positions = density_of(model, X, y)
    exact = torch.stack([density.on(None)(position).log_terms.sum() for position in positions])
    assert torch.allclose(JointDensity(density)(positions, None).double(), exact, rtol=1e-6)


def test_dtype_of_each_site_is_its_own():
    def model(y):
        level = pyro.sample("level", dist.Normal(torch.zeros((), dtype=torch.float64), 1.0))
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        assert (level.dtype, scale.dtype) == (torch.float64, torch.float32)
        pyro.sample("y", dist.Normal(level.float(), scale).expand([30]).to_event(1), obs=y)

    density, _, positions = density_of(model, normal(30))
    joint = JointDensity(density)
    at = positions.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(joint(at, None).sum(), at)
    assert joint.joins_chains
    assert gradient.all()
