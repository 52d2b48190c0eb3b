"""Constrained and circular sites, bounds that are sampled, priors of infinite spread."""

import math

import pyro
import pyro.distributions as dist
import pyro.distributions.transforms as transforms
import pytest
import torch
from pyro import poutine
from torch import nn

from pyro_fnbg import FNBG
from pyro_fnbg.testing import assert_expectation
from support.drivers import by_chain, drive, each_driver

Y = torch.tensor([2.0, 3.0, 5.0])


def alone(prior):
    """A model of one site and no data."""

    def model():
        pyro.sample("site", prior)
        pyro.factor("no data", torch.zeros(()))

    return model


def posterior(model, *args, low=-12.0, high=12.0, edge=0.0, step=0.1):
    """Return values of a model's only number and their shares of its posterior, by the mid-points.

    The grid is over the unconstrained line, and one of its cells ends at ``edge``.
    """
    kernel = FNBG(model)
    kernel.setup(0, *args)
    problem = kernel.problem
    cells = torch.arange(round((low - edge) / step), round((high - edge) / step))
    grid = edge + step * (cells.double() + 0.5)
    density = problem.density.on(None)
    log_densities = torch.stack([density(u.reshape(1).float()).log_density for u in grid])
    (bijection,) = problem.sites.constrain.values()
    return bijection(grid), log_densities.softmax(0)


def assert_mean(values, shares, expected):
    # The mid-point rule is off by step^2 / 24 times the second derivative, and the grid ends
    assert float((values * shares).sum()) == pytest.approx(float(expected), rel=2e-3, abs=2e-3)


def moved_exponential(low, scale=1.0):
    return dist.TransformedDistribution(
        dist.Exponential(1.0), [transforms.AffineTransform(low, scale)]
    )


HALF_NORMAL, KUMARASWAMY = 2.0 * (2 / math.pi) ** 0.5, 2.0 * math.gamma(1.5) / math.gamma(3.5)
# A prior of one number, its expectation and bounds of its support
PRIORS = {
    "half normal": (dist.HalfNormal(2.0), HALF_NORMAL, 0, math.inf),
    "kumaraswamy": (dist.Kumaraswamy(2.0, 2.0), KUMARASWAMY, 0, 1),
    "shifted exponential": (moved_exponential(2.0, 3.0), 5.0, 2, math.inf),
    "scaled beta": (
        dist.TransformedDistribution(dist.Beta(1.0, 1.0), [transforms.AffineTransform(0.0, 3.0)]),
        1.5, 0, 3,
    ),
    "two transforms": (
        dist.TransformedDistribution(
            dist.Normal(0.0, 0.5), [transforms.ExpTransform(), transforms.AffineTransform(1.0, 2.0)]
        ),
        1 + 2 * math.exp(0.125), 1, math.inf,
    ),
    "open interval": (dist.GeneralizedPareto(1.0, 1.0, 0.1), 1 + 1 / 0.9, 1, math.inf),
    "closed interval": (dist.GeneralizedPareto(1.0, 1.0, -0.5), 1 + 1 / 1.5, 1, 3),
    "angle": (dist.VonMises(0.5, 2.0), None, -math.pi, math.pi),
    "mixture": (
        dist.MixtureSameFamily(
            dist.Categorical(torch.tensor([0.75, 0.25])),
            dist.LogNormal(torch.tensor([0.0, 1.0]), 0.5),
        ),
        (0.75 + 0.25 * math.e) * math.exp(0.125), 0, math.inf,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("prior", "mean", "low", "high"), PRIORS.values(), ids=PRIORS)
def test_a_constrained_site_keeps_its_prior(prior, mean, low, high):
    is_mapped = prior.support is not dist.constraints.real or isinstance(prior, dist.VonMises)
    values, shares = posterior(alone(prior), **({} if is_mapped else {"low": -5, "high": 45}))
    assert (shares[(values < low) | (values > high)] == 0).all()
    if mean is None:
        # The mean direction of the circle, by the ratio of Bessel functions
        kappa = prior.concentration
        mean = torch.special.i1(kappa) / torch.special.i0(kappa) * prior.loc.cos()
        values = values.cos()
    assert_mean(values, shares, mean)


def test_draws_of_a_positive_site_have_the_law_of_its_prior():
    draws = by_chain(drive(FNBG(alone(dist.HalfNormal(2.0))), draws=800, warmup=150))["site"]
    assert (draws > 0).all()
    assert_expectation(draws, HALF_NORMAL)


@each_driver
def test_simplexes_beside_a_matrix_sum_to_one_and_move(run):
    def model():
        pyro.sample("p", dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0])))
        pyro.sample("q", dist.Dirichlet(torch.ones(2, 4)).to_event(1))
        pyro.sample("w", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))
        pyro.factor("no data", torch.zeros(()))

    samples = run(FNBG(model), draws=60).get_samples()
    assert samples["q"].shape == (60, 2, 4)
    for name in "pq":
        # Single precision: 6e-8 of 1 for each of up to four summands and the map
        assert torch.allclose(samples[name].sum(-1), torch.tensor(1.0), atol=1e-5)
        assert (samples[name] != samples[name][0]).any(0).all()


def test_draws_of_a_simplex_have_the_mean_of_its_prior():
    prior = dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0]))
    draws = by_chain(drive(FNBG(alone(prior)), draws=1200, warmup=200))["site"]
    for k in range(3):
        assert_expectation(draws[..., k], (k + 1) / 6)


@each_driver
@pytest.mark.parametrize("kind", [dist.LKJCholesky, dist.LKJ])
def test_correlations_are_those_of_a_matrix(run, kind):
    draws = run(FNBG(alone(kind(3, 1.0))), draws=40).get_samples()["site"].double()
    matrices = draws if kind is dist.LKJ else draws @ draws.mT
    diagonal = matrices.diagonal(dim1=-2, dim2=-1)
    # Single precision: 6e-8 of each of three summands below 1
    assert torch.allclose(diagonal, torch.ones_like(diagonal), atol=1e-6)
    assert (torch.linalg.eigvalsh(matrices) > -1e-6).all()
    assert (matrices[:, 0, 1] != matrices[0, 0, 1]).any()


def uniform_data(prior, **checks):
    """Data below a bound that is sampled, where most of the prior's draws lie below the data."""

    def model(y):
        bound = pyro.sample("bound", prior)
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Uniform(torch.zeros(()), bound, **checks), obs=y)

    return model


@pytest.mark.parametrize("checks", [{}, {"validate_args": True}], ids=["plain", "checked"])
def test_data_below_a_sampled_bound_are_not_judged_by_one_draw_of_it(checks):
    values, shares = posterior(
        uniform_data(dist.Pareto(1.0, 1.0), **checks), Y, edge=math.log(5.0 - 1.0), step=0.05
    )
    assert (shares[values < 5.0] == 0).all()
    assert_mean(values.log(), shares, math.log(5.0) + 1 / 4)  # conjugate: Pareto(5, 1 + 3)


# Below the least of the data, 2, a bound m has density m^6, or that of Normal(3, 1); the last is
# where 2 is on the unconstrained line
CUT = dist.Normal(0.0, 1.0).log_prob(torch.tensor(1.0)).exp() / 0.158655
LOWER_BOUNDS = {
    "pareto": (lambda m: dist.Pareto(m, 2.0), dist.Uniform(0.0, 10.0), 2 * 7 / 8, -math.log(4.0)),
    "shifted exponential": (moved_exponential, dist.Normal(0.0, 1.0), 3.0 - CUT, 2.0),
}


@pytest.mark.parametrize(("data", "prior", "mean", "edge"), LOWER_BOUNDS.values(), ids=LOWER_BOUNDS)
def test_a_sampled_bound_stays_below_the_data(data, prior, mean, edge):
    def model(y):
        bound = pyro.sample("bound", prior)
        with pyro.plate("data", len(y)):
            pyro.sample("y", data(bound), obs=y)

    values, shares = posterior(model, Y, edge=edge, step=0.05)
    assert (shares[values > Y.min()] == 0).all()
    assert_mean(values, shares, mean)


@each_driver
def test_a_flat_angle_does_not_wander_off(run):
    draws = run(FNBG(alone(dist.VonMises(0.0, 0.1))), draws=30, warmup=300).get_samples()["site"]
    assert (draws.abs() <= math.pi).all()


@each_driver
def test_a_scale_mixture_is_a_prior_for_weights(run):
    spike_and_slab = dist.MixtureSameFamily(
        dist.Categorical(torch.ones(2)), dist.Normal(torch.zeros(2), torch.tensor([1.0, 0.05]))
    )

    def model(x, y):
        weight = pyro.sample("weight", spike_and_slab.expand([2, 3]).to_event(2))
        with pyro.plate("data", len(x)):
            logits = nn.functional.linear(x, weight)
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    weight = run(FNBG(model), torch.randn(9, 3), torch.arange(9) % 2).get_samples()["weight"]
    assert (weight != weight[0]).any(0).all()


@pytest.mark.parametrize("prior", [dist.Cauchy(0.0, 1.0), dist.StudentT(0.05)])
def test_a_prior_without_a_variance_has_a_proposal_scale_of_its_quartiles(prior):
    scales = []
    for seed in range(5):
        pyro.set_rng_seed(seed)
        kernel = FNBG(alone(prior))
        kernel.setup(0)
        scales += kernel.diagnostics()["proposal scale by block"].values()
    draws = prior.sample((200_000,)).double()
    spread = (draws.quantile(0.75) - draws.quantile(0.25)).item() / 1.349
    # Quartiles of 100 draws: a standard error of a tenth to a quarter of the spread of a Cauchy;
    # those of the other prior, of 1e13 and more, vary by orders of magnitude
    factor = 1.8 if isinstance(prior, dist.Cauchy) else 1e5
    assert all(1 / factor < scale / (2.4 * 3 * spread) < factor for scale in scales)


@each_driver
def test_sites_that_nothing_bounds_are_pointed_out(run):
    def model(y):
        pyro.sample("free", dist.Normal(0.0, 1.0).mask(False))
        pyro.sample("y", dist.Normal(pyro.sample("a", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    with pytest.warns(UserWarning, match=r"1 of 2 blocks accepted every .*\['free'\]"):
        run(FNBG(model), Y[0], draws=100, warmup=200)


@pytest.mark.parametrize("is_outside", [True, False])
def test_a_prior_switched_off_by_a_mask_is_flat(is_outside):
    def model(y):
        prior = dist.HalfNormal(1.0)
        with poutine.mask(mask=not is_outside):
            scale = pyro.sample("scale", prior if is_outside else prior.mask(False))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Exponential(1 / scale), obs=y)

    # Flat times scale^-3 exp(-10 / scale): an inverse Gamma of shape 2
    values, shares = posterior(model, Y, high=16.0)
    assert_mean(values.log(), shares, math.log(10.0) - (1 - 0.5772156649))
