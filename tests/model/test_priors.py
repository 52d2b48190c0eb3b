"""What is read of priors whose scales are sampled, and what contradicts a statement."""

import math
import re

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, Feedforward
from pyro_fnbg.core.priors import Family
from pyro_fnbg.model.priors import parameter_priors, sample_sites, stated_scales
from pyro_fnbg.testing import make_inputs, start
from support.data import even_normal
from support.engines import FAST, assert_as_trace, assert_decides_both_ways

X = even_normal(12, 3).double()
Y = torch.arange(12) % 2
SCALES = {"a.weight": "spread", "a.bias": "tau", "b.weight": "tau"}


class Net:
    """A user's network: one scale an input in layer a; one for biases of a and weights of b."""

    stated = SCALES
    hyper = {
        "spread": dist.InverseGamma(torch.tensor([1.0, 2.0, 3.0]).double(), 1.0).to_event(1),
        "tau": dist.HalfCauchy(torch.tensor(0.5).double()),
    }

    def __init__(self, **changes):
        vars(self).update(changes)

    def scales(self, spread, tau):
        return {"a.weight": spread.sqrt(), "a.bias": tau, "b.weight": tau}

    def prior(self, loc, scale):
        return dist.Normal(loc, scale)

    def sample(self):
        spread, tau = (pyro.sample(name, self.hyper[name]) for name in ("spread", "tau"))
        scales, values = self.scales(spread, tau), {}
        for name, shape in {"a.weight": (2, 3), "a.bias": (2,), "b.weight": (1, 2)}.items():
            loc = torch.full(shape, 0.3, dtype=torch.float64)
            fn = self.prior(loc, scales[name]).to_event(len(shape))
            values[name] = pyro.sample(name, fn)
        zero = torch.zeros(1, dtype=torch.float64)
        values["b.bias"] = pyro.sample("b.bias", dist.Normal(zero, 2.0).to_event(1))
        return values, tau

    def __call__(self, x, y):
        values, _ = self.sample()
        with pyro.plate("data", len(x)) as rows:
            hidden = (x[rows] @ values["a.weight"].mT + values["a.bias"]).tanh()
            logits = (hidden @ values["b.weight"].mT + values["b.bias"]).squeeze(-1)
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y[rows].to(x.dtype))

    def feedforward(self, x, y):
        return Feedforward(x, ["a", "b"], ["tanh"], "bernoulli", prior_scales=self.stated)


def bound(model):
    return start("trace", model, X, Y).problem


def test_scales_and_variances_are_told_apart():
    problem = bound(Net())
    layout = problem.sites.layout
    runs = sample_sites(problem.bound), sample_sites(problem.bound)
    priors, reasons = parameter_priors(layout, *runs, stated_scales(problem.bound, layout))
    assert not reasons
    positive, normal = Family.POSITIVE, Family.NORMAL
    # Sites are spread (3), tau (), a.weight (2, 3), a.bias (2), b.weight (1, 2), b.bias (1)
    assert priors.families.tolist() == [positive] * 4 + [normal] * 11
    assert priors.scale_coordinates.tolist() == [-1] * 4 + [0, 1, 2] * 2 + [3] * 4 + [-1]
    assert priors.scale_powers.tolist() == [0.0] * 4 + [0.5] * 6 + [1.0] * 4 + [0.0]
    assert priors.locs.tolist() == pytest.approx([0.0] * 4 + [0.3] * 10 + [0.0])
    assert priors.scales.tolist() == [math.inf] * 4 + [1.0] * 10 + [2.0]
    assert priors.positives.tolist() == [0, 1, 2, 3]
    assert priors.forms[:3, 0].tolist() == [-1.0, -2.0, -3.0]
    assert priors.variances.coordinates.tolist() == [0, 1, 2]
    assert priors.variances.shapes.tolist() == [2.0, 3.0, 4.0]


@pytest.mark.parametrize("warmup_steps", [0, 40])
@pytest.mark.parametrize("engine", FAST)
def test_a_users_own_network_runs_as_the_model_itself_does(engine, warmup_steps):
    run = start(engine, Net(), X, Y, batch_size=7, warmup_steps=warmup_steps)
    moves = {block.name: move.name for block, move in zip(
        run.problem.partition.blocks, run.problem.moves.of_block, strict=True
    )}  # fmt: skip
    assert moves == {
        "a.node1": "walk", "a.node2": "walk", "b.node1": "walk",
        "spread": "conjugate", "tau": "walk",
    }  # fmt: skip
    record = assert_as_trace(run, make_inputs(run, 2, 40, scale=0.5, spread=0.3))
    assert_decides_both_ways(record.accepted)


# --- What is run by the model itself -------------------------------------------------------------

UNKNOWN = {
    "hyperprior": (
        {"hyper": Net.hyper | {"tau": dist.Weibull(*torch.ones(2).double())}},
        "the prior of 'tau', which holds scales, is Weibull",
    ),
    "family": (
        {"prior": lambda loc, scale: dist.Cauchy(loc, scale)},
        "the prior of 'a.weight' is no independent Normal, Laplace or StudentT",
    ),
}
# Statements that cannot be taken, of models that show what they are
SHOWN = {
    "scale of observations": {
        "feedforward": lambda x, y: Feedforward(
            x, ["a", "b"], ["tanh"], "normal", "tau", prior_scales=SCALES
        )
    },
    "not stated": {"stated": {}},
}


@pytest.mark.parametrize(("changes", "reason"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_no_fast_engine_knows(changes, reason):
    kernel = FNBG(Net(**changes))
    kernel.setup(0, X, Y)
    assert kernel.engine == "captured"
    assert reason in kernel.diagnostics()["reason for the engine"]


@pytest.mark.parametrize("changes", SHOWN.values(), ids=SHOWN)
def test_scales_of_priors_are_found_where_a_statement_is_not_enough(changes):
    kernel = FNBG(Net(**changes))
    kernel.setup(0, X, Y)
    assert kernel.engine == "fused"
    assert "was found to be" in kernel.diagnostics()["reason for the engine"]
    assert kernel.diagnostics()["move by block"]["spread"] == "conjugate"


def test_an_unknown_hyperprior_leaves_the_others_to_be_drawn():
    kernel = FNBG(Net(**UNKNOWN["hyperprior"][0]))
    kernel.setup(0, X, Y)
    assert kernel.diagnostics()["move by block"]["spread"] == "conjugate"


# --- What contradicts the model ------------------------------------------------------------------

WRONG = {
    "unknown site": ({"stated": {"a.weight": "sigma"}}, "got {'a.weight': 'sigma'}: the latent"),
    "no mapping": ({"stated": ["spread"]}, "prior_scales as a mapping from latent sites"),
    "two levels": (
        {"stated": SCALES | {"tau": "spread"}},
        "in which a site that holds a scale has a sampled scale itself",
    ),
    "another power": (
        {"scales": lambda spread, tau: Net().scales(spread, tau) | {"a.weight": spread.square()}},
        "states that site 'spread' holds the scales of the prior of 'a.weight', but these are",
    ),
    "a multiple": (
        {"scales": lambda spread, tau: Net().scales(spread, tau) | {"b.weight": 2.0 * tau}},
        "states that site 'tau' holds the scales of the prior of 'b.weight'",
    ),
    "another shape": (
        {"stated": SCALES | {"b.weight": "spread"}},
        "broadcast to the shape (1, 2)",
    ),
}


@pytest.mark.parametrize("engine", ["auto", "trace"])
@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_statement_is_refused(changes, message, engine):
    with pytest.raises(ValueError, match=re.escape(message)):
        FNBG(Net(**changes), engine=engine).setup(0, X, Y)


class Seen(Net):
    """A variance that something else depends on as well."""

    hyper = Net.hyper | {"tau": dist.InverseGamma(*torch.tensor([2.0, 1.0]).double())}

    def scales(self, spread, tau):
        return {"a.weight": spread.sqrt(), "a.bias": tau.sqrt(), "b.weight": tau.sqrt()}

    def sample(self):
        values, tau = super().sample()
        return values | {"a.bias": values["a.bias"] + tau}, tau


@pytest.mark.parametrize("engine", ["auto", "trace"])
def test_a_variance_that_the_likelihood_sees_is_not_drawn_from_its_prior_alone(engine):
    with pytest.raises(ValueError, match="block 'tau' cannot be drawn from an inverse gamma"):
        FNBG(Seen(), engine=engine).setup(0, X, Y)
