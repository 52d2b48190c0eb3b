"""Sites that cannot be sampled, or not as they stand: discrete, point masses, moving supports."""

import math

import pyro
import pyro.distributions as dist
import pyro.distributions.transforms as transforms
import pytest
import torch
from pyro import poutine
from pyro.infer import config_enumerate

from pyro_fnbg import FNBG
from support.drivers import drive, each_driver

Y = torch.tensor([2.0, 3.0, 5.0])


def bernoulli(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 3.0))
    pyro.sample("y", dist.Normal(mean + pyro.sample("z", dist.Bernoulli(0.5)), 0.1), obs=y)


@config_enumerate
def enumerated_in_a_plate(y):
    means = pyro.sample("means", dist.Normal(torch.zeros(2), 3.0).to_event(1))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Categorical(torch.ones(2)))
        pyro.sample("y", dist.Normal(means[z], 1.0), obs=y)


def masked(y):
    with poutine.mask(mask=False):
        pyro.sample("z", dist.Poisson(2.0).expand([2]).to_event(1))
    pyro.sample("y", dist.Normal(pyro.sample("a", dist.Normal(0.0, 1.0)), 1.0), obs=y)


@each_driver
@pytest.mark.parametrize("model", [bernoulli, enumerated_in_a_plate, masked])
def test_discrete_sites_are_refused_by_name_wherever_they_hide(run, model):
    with pytest.raises(ValueError, match="latent site 'z' is discrete"):
        run(FNBG(model), Y)


DEPENDENT = {
    "uniform": lambda a: dist.Uniform(torch.zeros(()), a),
    "pareto": lambda a: dist.Pareto(a, 2.0),
    "affine beta": lambda a: dist.AffineBeta(2.0, 2.0, a, 1.0),
    "generalized pareto": lambda a: dist.GeneralizedPareto(a, 1.0, 0.5),
    "in an event": lambda a: dist.Uniform(-a, a).expand([2]).to_event(1),
    "by chance": lambda a: dist.Uniform(0.0, 1.0 + torch.rand(())),
}


@each_driver
@pytest.mark.parametrize("prior", DEPENDENT.values(), ids=DEPENDENT)
def test_a_support_that_moves_is_refused_by_name(run, prior):
    def model(y):
        a = pyro.sample("a", dist.LogNormal(0.0, 1.0))
        pyro.sample("b", prior(a))
        pyro.sample("y", dist.Normal(a, 0.5), obs=y)

    with pytest.raises(ValueError, match=r"support of latent site 'b' depends on another site"):
        run(FNBG(model), torch.tensor(20.0))


@pytest.mark.filterwarnings("ignore:the run was stopped by an error")
@each_driver
def test_a_support_that_moves_where_no_prior_draw_went_is_refused_there(run):
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("b", dist.Normal(0.0, 1.0) if a < 5 else dist.HalfNormal(1.0))
        pyro.sample("y", dist.Normal(a, 0.1), obs=y)

    with pytest.raises(ValueError, match=r"'b' depends.*Real\(\) at set-up, GreaterThan"):
        run(FNBG(model), torch.tensor(12.0), draws=500, warmup=100)


def test_a_prior_that_moves_on_a_fixed_support_and_a_bound_by_hand_are_scored_exactly():
    def model():
        a = pyro.sample("a", dist.LogNormal(0.0, 1.0))
        pyro.sample("b", dist.LogNormal(a, 0.3))
        unit = dist.Uniform(torch.zeros(()), 1.0)
        scaled = [transforms.AffineTransform(0.0, a)]
        pyro.sample("c", dist.TransformedDistribution(unit, scaled))
        pyro.factor("no data", torch.zeros(()))

    kernel = FNBG(model)
    kernel.setup(0)
    density = kernel.problem.density.on(None)
    for log_a, log_b, c in ((0.5, 1.0, 1.6), (1.5, -2.0, 0.1), (-1.0, 0.0, 0.3)):
        expected = dist.Normal(0.0, 1.0).log_prob(torch.tensor(log_a))
        expected += dist.Normal(math.exp(log_a), 0.3).log_prob(torch.tensor(log_b)) - log_a
        found = density(torch.tensor([log_a, log_b, c])).log_density
        assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    for c in (-0.01, 1.66):  # e^0.5 is 1.65
        assert density(torch.tensor([0.5, 1.0, c])).log_density == -math.inf


def test_data_off_a_bound_that_does_not_move_are_refused():
    def model(y):
        pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Uniform(0.0, 1.0).expand([3]).to_event(1), obs=y)

    with pytest.raises(ValueError, match=r"'y' has .*outside the support"):
        drive(FNBG(model), Y)


REFUSED = {
    "point mass": (dist.Delta(torch.tensor(2.0)), r"'site' has all its mass on one value \(Delta"),
    "hidden point mass": (
        dist.Delta(torch.zeros(2)).mask(True).to_event(1),
        "'site' has all its mass on one value",
    ),
    "sphere": (dist.ProjectedNormal(torch.zeros(3)), r"'site' has support Sphere .*no map"),
    "mixture of bounds": (
        dist.MixtureSameFamily(
            dist.Categorical(torch.ones(2)), dist.Uniform(torch.tensor([0.0, 2.0]), 3.0)
        ),
        "'site' has support MixtureSameFamilyConstraint",
    ),
}


@each_driver
@pytest.mark.parametrize(("prior", "words"), REFUSED.values(), ids=REFUSED)
def test_sites_that_no_step_can_move_are_refused_by_name(run, prior, words):
    def model():
        pyro.sample("site", prior)
        pyro.factor("no data", torch.zeros(()))

    with pytest.raises(ValueError, match=words):
        run(FNBG(model))
