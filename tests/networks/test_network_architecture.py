"""What is read of a statement, and the forward pass, node by node."""

import math
import re

import pytest
import torch

from pyro_fnbg import Feedforward
from pyro_fnbg.networks.architecture import Architecture
from pyro_fnbg.networks.likelihoods import Likelihood
from pyro_fnbg.networks.statement import NotFeedforward

X = torch.tensor([[0.3, -1.2], [2.0, 0.1], [-0.7, 0.9]])
SHAPES = {"a.weight": (3, 2), "b.bias": (1,), "b.weight": (1, 3), "spread": ()}


def statement(**changes):
    return Feedforward(X, ["a", "b"], ["tanh"], "bernoulli")._replace(**changes)


def test_what_is_read():
    net = Architecture.from_statement(statement(observation_scale="spread"), SHAPES)
    assert net == Architecture(
        ("a", "b"), (2, 3, 1), ("tanh",), (False, True), Likelihood("bernoulli", 1, "spread")
    )
    assert (net.num_layers, net.likelihood.fixed_scale) == (2, 1.0)
    assert list(net.parameter_shapes.items()) == [
        ("a.weight", (3, 2)),
        ("b.weight", (1, 3)),
        ("b.bias", (1,)),
    ]
    fixed = Architecture.from_statement(statement(observation_scale=2), SHAPES)
    assert fixed.likelihood.fixed_scale == 2.0


@pytest.mark.parametrize("activation", ["tanh", torch.tanh])
@pytest.mark.parametrize("draws", [(), (4,), (2, 4)])
def test_outputs_by_hand(activation, draws):
    net = Architecture.from_statement(statement(activations=[activation]), SHAPES)
    generator = torch.Generator().manual_seed(0)
    parameters = {
        name: torch.randn(*draws, *shape, generator=generator)
        for name, shape in net.parameter_shapes.items()
    }
    outputs = net.forward(parameters, X)
    assert outputs.shape == (*draws, 3, 1)
    last = {name: value[(-1,) * len(draws)] for name, value in parameters.items()}
    for row, output in zip(X.tolist(), outputs[(-1,) * len(draws)], strict=True):
        hidden = [
            math.tanh(sum(w * v for w, v in zip(node, row, strict=True)))
            for node in last["a.weight"].tolist()
        ]
        (weights,) = last["b.weight"].tolist()
        expected = sum(w * v for w, v in zip(weights, hidden, strict=True)) + float(last["b.bias"])
        assert float(output) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("unknown", ["gelu", 3, ["tanh"]])
def test_unknown_activations_are_no_mistake(unknown):
    message = f"activations {[unknown]} are none of ['sigmoid', 'tanh', 'relu', 'step', 'identity']"
    with pytest.raises(NotFeedforward, match=re.escape(message)):
        Architecture.from_statement(statement(activations=[unknown]), SHAPES)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, None, True])
def test_scales_that_are_none(scale):
    with pytest.raises(ValueError, match="observation_scale as a positive number, the name of"):
        Architecture.from_statement(statement(observation_scale=scale), SHAPES)


@pytest.mark.parametrize("kind", ["normal", "student"])
def test_scales_of_the_network(kind):
    """Half of the last layer's nodes; it is no site of that name."""
    stated = statement(likelihood=kind, observation_scale="network", degrees_of_freedom=3)
    net = Architecture.from_statement(stated, SHAPES | {"b.weight": (4, 3), "b.bias": (4,)})
    assert net.likelihood == Likelihood(kind, 4, "network", 3.0)
    assert net.likelihood.has_network_scale
    assert (net.likelihood.num_responses, net.likelihood.scale_site) == (2, None)
    sampled = Architecture.from_statement(statement(observation_scale="spread"), SHAPES)
    assert (sampled.likelihood.scale_site, sampled.likelihood.num_responses) == ("spread", 1)


@pytest.mark.parametrize(("kind", "nodes"), [("normal", 3), ("student", 1), ("poisson", 2)])
def test_scales_that_no_outputs_are_left_for(kind, nodes):
    message = (
        "its likelihood must be 'normal' or 'student', and its last layer have a node for each "
        f"location and one for each scale; got {kind!r} and {nodes} node(s)"
    )
    shapes = SHAPES | {"b.weight": (nodes, 3), "b.bias": (nodes,)}
    with pytest.raises(ValueError, match=re.escape(message)):
        Architecture.from_statement(statement(likelihood=kind, observation_scale="network"), shapes)


@pytest.mark.parametrize("degrees", [0.0, -1.0, math.inf, None, True, "4"])
def test_degrees_of_freedom_that_are_none(degrees):
    with pytest.raises(ValueError, match="must give degrees_of_freedom as a positive number, got"):
        Architecture.from_statement(statement(degrees_of_freedom=degrees), SHAPES)
