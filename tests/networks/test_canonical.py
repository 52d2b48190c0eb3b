"""Nodes in one order and sign: the same function, the same weights for all equal draws."""

import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import BayesianMLP, Feedforward
from pyro_fnbg.networks.architecture import Architecture
from pyro_fnbg.networks.canonical import canonical_samples
from pyro_fnbg.networks.likelihoods import Likelihood
from pyro_fnbg.networks.priors import ScalePrior
from pyro_fnbg.networks.statement import NotFeedforward
from pyro_fnbg.results.estimates import site_estimates
from support.data import normal

LAYERS = ("a", "b", "c")
# Layers whose nodes' signs are free, with biases in all layers, and with none above
FREE = {
    "tanh": (True, True),
    "identity": (True, True),
    "sigmoid": (True, False),
    "relu": (False, False),
    "step": (False, False),
    torch.tanh: (False, False),
}
ACTIVATIONS = pytest.mark.parametrize(
    "activation", FREE, ids=lambda value: getattr(value, "__name__", value)
)


def network(activation, has_bias=(True, True, True)):
    return Architecture(LAYERS, (3, 5, 4, 2), (activation,) * 2, has_bias, Likelihood("normal", 2))


def stated(net):
    x = torch.zeros(1, 3)
    return Feedforward(x, net.layers, net.activations, net.likelihood.name)


def draws_of(net, *leading, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(*leading, *shape, generator=generator, dtype=dtype)
        for name, shape in net.parameter_shapes.items()
    }


def flipped(parameters, net, layer, signs):
    """Change nodes' signs by hand, without a change in the function."""
    name, above = net.layers[layer], net.layers[layer + 1]
    found = dict(parameters)
    for node, sign in enumerate(signs.tolist()):
        if sign > 0:
            continue
        found = {key: value.clone() for key, value in found.items()}
        found[f"{name}.weight"][..., node, :] *= -1
        if f"{name}.bias" in found:
            found[f"{name}.bias"][..., node] *= -1
        if net.activations[layer] == "sigmoid":
            found[f"{above}.bias"] += found[f"{above}.weight"][..., node]
        found[f"{above}.weight"][..., node] *= -1
    return found


def permuted(parameters, net, layer, order):
    name, above = net.layers[layer], net.layers[layer + 1]
    found = dict(parameters)
    found[f"{name}.weight"] = found[f"{name}.weight"][..., order, :]
    if f"{name}.bias" in found:
        found[f"{name}.bias"] = found[f"{name}.bias"][..., order]
    found[f"{above}.weight"] = found[f"{above}.weight"][..., order]
    return found


def disguised(parameters, net, free):
    """Let nodes of both hidden layers trade places and, where these are free, signs."""
    for layer in (1, 0):
        width = net.widths[layer + 1]
        if free:
            signs = torch.where(torch.rand(width) < 0.5, -1, 1)
            parameters = flipped(parameters, net, layer, signs)
        parameters = permuted(parameters, net, layer, torch.randperm(width))
    return parameters


BIASES = [(True, True, True), (False, False, False), (True, False, True), (False, True, False)]


@ACTIVATIONS
@pytest.mark.parametrize("has_bias", BIASES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "allowed"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str
)
def test_the_function_stays(activation, has_bias, dtype, allowed):
    net, x = network(activation, has_bias), normal(20, 3).to(dtype)
    draws = draws_of(net, 50, dtype=dtype)
    found = canonical_samples(stated(net), draws)
    before, after = net.forward(draws, x), net.forward(found, x)
    torch.testing.assert_close(after, before, rtol=0, atol=allowed)
    assert not torch.equal(found["c.weight"], draws["c.weight"])
    assert {name: (value.shape, value.dtype) for name, value in found.items()} == {
        name: (value.shape, value.dtype) for name, value in draws.items()
    }


@ACTIVATIONS
@pytest.mark.parametrize("all_biases", [True, False])
def test_draws_that_are_the_same_function_get_the_same_weights(activation, all_biases):
    net = network(activation, (all_biases,) * 3)
    free = FREE[activation][0 if all_biases else 1]
    draws, x = draws_of(net, 7), normal(5, 3).double()
    expected = canonical_samples(stated(net), draws)
    for _ in range(5):
        other = disguised(draws, net, free)
        torch.testing.assert_close(net.forward(other, x), net.forward(draws, x))
        assert not torch.equal(other["b.weight"], draws["b.weight"])
        found = canonical_samples(stated(net), other)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value)


@ACTIVATIONS
def test_nodes_are_in_order_and_signs_positive(activation):
    net = network(activation)
    found = canonical_samples(stated(net), draws_of(net, 2, 20))
    for above in ("b", "c"):
        norms = found[f"{above}.weight"].square().sum(-2)
        assert (norms.diff(dim=-1) <= 0).all()
        positive = found[f"{above}.weight"][..., 0, :] >= 0
        assert positive.all() == FREE[activation][0]
    again = canonical_samples(stated(net), found)
    for name, value in found.items():
        assert torch.equal(again[name], value)


def test_a_sigmoid_without_a_bias_above_keeps_its_signs():
    net = network("sigmoid", (True, False, True))
    found = canonical_samples(stated(net), draws_of(net, 20))
    assert not (found["b.weight"][:, 0] >= 0).all()
    assert (found["c.weight"][:, 0] >= 0).all()


def test_leading_dimensions_are_free_and_other_sites_are_left_alone():
    net = network("tanh")
    draws = draws_of(net, 3, 4)
    statement = stated(net)._replace(observation_scale="spread")
    found = canonical_samples(statement, {**draws, "spread": torch.ones(3, 4)})
    assert torch.equal(found.pop("spread"), torch.ones(3, 4))
    one = canonical_samples(stated(net), {name: value[2, 1] for name, value in draws.items()})
    for name, value in one.items():
        torch.testing.assert_close(found[name][2, 1], value)


def test_scales_of_priors_follow_their_nodes():
    """Those of each node's outgoing weights; that of the layer below has none to follow."""
    per_input = ScalePrior(dist.HalfNormal(1.0), per="input")
    model = BayesianMLP([2, 5, 1], per_input, likelihood="normal")
    shapes = model.parameter_shapes | model.scale_shapes
    draws = {name: normal(4, *shape) for name, shape in shapes.items()}
    # A mark on each node
    draws["layer2.weight_scale"] = draws["layer2.weight"].abs().squeeze(-2)
    found = canonical_samples(model.feedforward(normal(3, 2)), draws)
    weights = found["layer2.weight"].abs().squeeze(-2)
    assert not torch.equal(weights, draws["layer2.weight"].abs().squeeze(-2))
    assert torch.equal(found["layer2.weight_scale"], weights)
    assert torch.equal(found["layer1.weight_scale"], draws["layer1.weight_scale"])


def test_a_network_without_hidden_nodes_has_nothing_to_sort():
    model = BayesianMLP([2, 3])
    draws = {name: normal(4, *shape) for name, shape in model.parameter_shapes.items()}
    found = canonical_samples(model.feedforward(normal(5, 2)), draws)
    assert all(torch.equal(found[name], value) for name, value in draws.items())


def test_weights_of_chains_that_differ_by_symmetries_agree():
    """R-hat of weights means something then."""
    net = network("sigmoid")
    position = draws_of(net)
    chains = {name: value + 0.02 * normal(4, 60, *value.shape) for name, value in position.items()}
    others = [
        disguised({name: value[chain] for name, value in chains.items()}, net, True)
        for chain in range(4)
    ]
    chains = {name: torch.stack([one[name] for one in others]) for name in chains}
    found = canonical_samples(stated(net), chains)

    def worst(draws):
        return max(float(site_estimates(value)["r_hat"].max()) for value in draws.values())

    assert worst(chains) > 1.5
    assert worst(found) < 1.05


@pytest.mark.parametrize(
    ("statement", "samples", "error", "message"),
    [
        (None, {}, TypeError, "statement must be a Feedforward, .* got NoneType"),
        (stated(network("tanh")), [], TypeError, "samples must map site names to tensors, got lis"),
        (stated(network("tanh")), {}, ValueError, "there must be a site 'a.weight' of two dim"),
        (stated(network("tanh"))._replace(layers=[]), {}, ValueError, "must name its layers"),
    ],
)
def test_what_is_no_network(statement, samples, error, message):
    with pytest.raises(error, match=message):
        canonical_samples(statement, samples)


def test_draws_of_several_lengths():
    net = network("tanh")
    draws = draws_of(net, 5)
    draws["b.bias"] = draws["b.bias"][:4]
    with pytest.raises(ValueError, match="same dimensions for draws in all layers, got .*(4,)"):
        canonical_samples(stated(net), draws)


def test_an_activation_that_is_not_known():
    net = network("tanh")
    with pytest.raises(NotFeedforward, match="gelu"):
        canonical_samples(stated(net)._replace(activations=["gelu", "tanh"]), draws_of(net, 2))
