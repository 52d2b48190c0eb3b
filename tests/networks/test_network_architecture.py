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
