"""Sampled scales of a ``BayesianMLP``: sites, shapes and density, by hand."""

import math
import pickle
import re

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive

from pyro_fnbg import BayesianMLP
from pyro_fnbg.networks.priors import ScalePrior

X = torch.linspace(-1, 1, 15, dtype=torch.float64).view(5, 3)
VARIANCE = ScalePrior(dist.InverseGamma(2.0, 0.5), of="variance")
SCALES = ScalePrior(dist.HalfNormal(0.7), per="input")


def model(prior="normal", **changes):
    arguments = {
        "prior_scale": [SCALES, VARIANCE],
        "prior_loc": [0.2, -0.1],
        "bias_prior_scale": [ScalePrior(dist.LogNormal(0.0, 1.0)), 3.0],
        "prior": prior,
    }
    return BayesianMLP([3, 2, 2], **arguments | changes)


SHAPES = {
    "layer1.weight_scale": (3,),
    "layer1.weight": (2, 3),
    "layer1.bias_scale": (),
    "layer1.bias": (2,),
    "layer2.weight_variance": (),
    "layer2.weight": (2, 2),
    "layer2.bias": (2,),
}


def test_sites_come_before_what_they_scale_and_in_the_type_of_the_inputs():
    net = model()
    trace = pyro.poutine.trace(net).get_trace(X)
    values = {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes}
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    assert list(shapes) == [*SHAPES, "data", "obs"]
    assert SHAPES.items() <= shapes.items()
    assert all(values[name].dtype == torch.float64 for name in SHAPES)
    assert net.scale_shapes == {name: SHAPES[name] for name in SHAPES if "_" in name}
    assert net.prior_scales == (SCALES, VARIANCE)
    assert net.feedforward(X).prior_scales == {
        "layer1.weight": "layer1.weight_scale",
        "layer1.bias": "layer1.bias_scale",
        "layer2.weight": "layer2.weight_variance",
    }


def test_biases_have_a_fixed_scale_unless_one_is_given():
    net = BayesianMLP([3, 2, 2, 2], prior_scale=[SCALES, 0.5, "fan_in"])
    assert net.bias_prior_scales == (1.0, 0.5, 1.0)


def log_density(prior, value, loc, scale):
    error = (value - loc) / scale
    if prior == "normal":
        return -0.5 * error**2 - math.log(scale * math.sqrt(2 * math.pi))
    return -abs(error) - math.log(2 * scale)


@pytest.mark.parametrize("prior", ["normal", "laplace"])
def test_density_by_hand(prior):
    """A column of weights has its input's scale; hyperpriors count once an entry."""
    rng = torch.Generator().manual_seed(3)
    values = {
        name: torch.rand(shape, generator=rng, dtype=torch.float64) + 0.2
        for name, shape in SHAPES.items()
    }
    trace = pyro.poutine.trace(pyro.condition(model(prior), values)).get_trace(X)
    trace.compute_log_prob()
    found = {name: float(trace.nodes[name]["log_prob_sum"]) for name in SHAPES}
    scales = values["layer1.weight_scale"].tolist()
    of_half_normal = [math.log(2) + log_density("normal", s, 0.0, 0.7) for s in scales]
    assert found["layer1.weight_scale"] == pytest.approx(sum(of_half_normal), rel=1e-6)
    variance = float(values["layer2.weight_variance"])
    # Gamma(2) is 1
    of_variance = 2.0 * math.log(0.5) - 3.0 * math.log(variance) - 0.5 / variance
    assert found["layer2.weight_variance"] == pytest.approx(of_variance, rel=1e-6)
    expected = {
        "layer1.weight": [
            log_density(prior, w, 0.2, s)
            for row in values["layer1.weight"].tolist()
            for w, s in zip(row, scales, strict=True)
        ],
        "layer1.bias": [
            log_density(prior, b, 0.2, float(values["layer1.bias_scale"]))
            for b in values["layer1.bias"].tolist()
        ],
        "layer2.weight": [
            log_density(prior, w, -0.1, math.sqrt(variance))
            for w in values["layer2.weight"].flatten().tolist()
        ],
        "layer2.bias": [log_density(prior, b, -0.1, 3.0) for b in values["layer2.bias"].tolist()],
    }
    for name, terms in expected.items():
        assert found[name] == pytest.approx(sum(terms), rel=1e-6), name


@pytest.mark.parametrize("is_parallel", [False, True])
def test_many_draws_at_a_time(is_parallel):
    """With plates around the model, each draw's weights have that draw's scales."""
    net, count = model(prior_loc=0.0), 4_000 if is_parallel else 400
    sites = ["layer1.weight_scale", "layer1.weight", "layer2.weight_variance", "layer2.weight"]
    draw = Predictive(net, num_samples=count, parallel=is_parallel, return_sites=[*sites, "obs"])
    draws = draw(X)
    assert draws["obs"].shape == (count, 5)
    weights = draws["layer1.weight"].view(count, 2, 3)
    ratios = weights / draws["layer1.weight_scale"].view(count, 1, 3)
    others = draws["layer2.weight"].view(count, 2, 2)
    errors = others / draws["layer2.weight_variance"].view(count, 1, 1).sqrt()
    # The fourth moment of a normal variable is 3, with a standard deviation of sqrt(96)
    for standard in (ratios, errors):
        bound = 4.5 * math.sqrt(96 / standard.numel())
        assert float(standard.pow(4).mean()) == pytest.approx(3.0, abs=bound)


def test_it_pickles():
    again = pickle.loads(pickle.dumps(model()))
    assert again.scale_shapes == model().scale_shapes
    pyro.poutine.trace(again).get_trace(X)


WRONG = [
    (
        {"prior": dist.Weibull(1.0, 1.0)},
        "prior must be a scalar distribution of pyro.distributions",
    ),
    ({"prior": dist.HalfNormal(torch.ones(3))}, "InverseGamma, LogNormal; got HalfNormal"),
    ({"prior": 2.0}, "got 2.0"),
    ({"of": "precision"}, "of must be one of ('scale', 'variance'), got 'precision'"),
    ({"per": "node"}, "per must be one of ('layer', 'input'), got 'node'"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_refused_arguments(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ScalePrior(**{"prior": dist.HalfNormal(1.0)} | changes)


def test_biases_have_no_inputs():
    with pytest.raises(ValueError, match="bias_prior_scale must be sampled per='layer'"):
        model(bias_prior_scale=SCALES)


def test_a_distribution_is_no_scale():
    message = "prior_scale must be a positive finite number, 'fan_in' or a ScalePrior, or 2, one"
    with pytest.raises(ValueError, match=message):
        model(prior_scale=dist.HalfNormal(1.0))
