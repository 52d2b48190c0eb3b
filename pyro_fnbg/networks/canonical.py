"""One order and one sign for nodes that could trade them without any change in the network."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_fnbg.networks.architecture import Architecture
from pyro_fnbg.networks.statement import Activation, Feedforward

__all__ = ["canonical_samples"]

# Activations with f(-a) = -f(a)
ODD = ("tanh", "identity")


def canonical_samples(statement: Feedforward, samples: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Bring the hidden nodes of every draw into one order, and to one sign where that is free.

    Hidden nodes of a fully connected network can trade places, and some activations let a node
    change its sign, without any change in what the network computes (Sussmann, 1992, "Uniqueness
    of the weights for minimal feedforward nets with a given input-output map"). So R-hat of its
    weights says little. In the result, all draws that are the same but for these symmetries have
    the same weights, and the network computes what it did, up to rounding.

    From the last hidden layer down, each node's weight to the first node above it is made positive,
    if the activation allows for it:

    - "tanh" and "identity": the node's weights, biases and weights above change their signs;
    - "sigmoid", which gives 1 - sigmoid(a) at -a: the same, and what was the weight above is added
      to the bias above. Where there is none, the sign is not free.

    Then nodes are sorted by the Euclidean norm of their weights to the layer above, largest first.
    That norm says how much a node matters, and what is sorted last is hardly known to the data;
    every network has it, also without biases; and it does not change when nodes elsewhere trade
    places or signs, as biases do above a "sigmoid".

    What is left out: "relu" and "identity" also let a node's scale go from one layer to the next,
    "step" lets it go altogether, and softmax lets a number be added to all logits. Nodes of all but
    equal norms may be sorted either way from draw to draw, and weights above that are all but zero
    may have either sign. The prior need not be the same for a draw and its canonical form: the
    result predicts as the draws do, and is for diagnosing weights, but it is no sample of the
    posterior. To judge a chain, look at its predictions first, by
    `pyro_fnbg.results.function_space.diagnose_predictions`.

    Args:
        statement: What the model states: `model.feedforward(x)` with any inputs.
        samples: Draws by site name, with as many dimensions for draws and chains in front as one
            likes. Other sites are passed on as they are; but sampled scales of priors, one a node,
            are sorted with the nodes.

    Returns:
        The draws, by the same names.

    Raises:
        TypeError: If ``statement`` or ``samples`` is something else.
        NotFeedforward: If the network has activations that are not known.
        ValueError: If the statement contradicts the samples' shapes, or weights and biases have not
            the same dimensions for draws.

    Example:
        >>> weights = {"a.weight": [[[1.0], [2.0]]], "b.weight": [[[-3.0, 4.0]]]}
        >>> samples = {name: torch.tensor(values) for name, values in weights.items()}
        >>> stated = Feedforward(torch.zeros(1, 1), ["a", "b"], ["tanh"], "bernoulli")
        >>> {name: values.tolist() for name, values in canonical_samples(stated, samples).items()}
        {'a.weight': [[[2.0], [-1.0]]], 'b.weight': [[[4.0, 3.0]]]}
    """
    net = _network(statement, samples)
    found = {name: values.detach() for name, values in samples.items()}
    layers = list(zip(net.layers, net.layers[1:], net.activations, strict=False))
    for layer, above, activation in reversed(layers):
        found |= _signed(found, layer, above, activation)
        found |= _sorted(found, layer, above, statement.prior_scales.get(f"{above}.weight", ""))
    return found


def _network(statement: Feedforward, samples: Mapping[str, Tensor]) -> Architecture:
    """Read the network from what is stated, and check that all of its draws are as many."""
    if not isinstance(statement, Feedforward):
        raise TypeError(
            "statement must be a Feedforward, as model.feedforward(x) gives; got "
            f"{type(statement).__name__}"
        )
    if not isinstance(samples, Mapping):
        raise TypeError(f"samples must map site names to tensors, got {type(samples).__name__}")
    first = samples.get(f"{next(iter(statement.layers), '')}.weight")
    num_leading = 0 if first is None else max(0, first.dim() - 2)
    shapes = {name: tuple(values.shape[num_leading:]) for name, values in samples.items()}
    net = Architecture.from_statement(statement, shapes)
    leading = {name: tuple(samples[name].shape[:num_leading]) for name in net.parameter_shapes}
    if len(set(leading.values())) > 1:
        raise ValueError(
            f"samples must have the same dimensions for draws in all layers, got {leading}"
        )
    return net


def _signed(
    samples: Mapping[str, Tensor], layer: str, above: str, activation: Activation
) -> dict[str, Tensor]:
    """Make the weight of each node to the first node above positive, if its sign is free."""
    adds_to_bias = activation == "sigmoid"
    if not (activation in ODD or (adds_to_bias and f"{above}.bias" in samples)):
        return {}
    weights = samples[f"{above}.weight"]
    signs = torch.where(weights[..., 0, :] < 0, -1.0, 1.0).to(weights.dtype)
    changed = {f"{above}.weight": weights * signs.unsqueeze(-2)}
    changed[f"{layer}.weight"] = samples[f"{layer}.weight"] * signs.unsqueeze(-1)
    if f"{layer}.bias" in samples:
        changed[f"{layer}.bias"] = samples[f"{layer}.bias"] * signs
    if adds_to_bias:
        moved = (weights * (signs < 0).unsqueeze(-2)).sum(-1)
        changed[f"{above}.bias"] = samples[f"{above}.bias"] + moved
    return changed


def _sorted(
    samples: Mapping[str, Tensor], layer: str, above: str, scales: str
) -> dict[str, Tensor]:
    """Sort nodes by the norm of their weights to the layer above, largest first.

    Where each node has a scale of these weights' prior, in the site ``scales``, it goes with it.
    """
    weights = samples[f"{above}.weight"]
    order = weights.norm(dim=-2).argsort(dim=-1, descending=True, stable=True)
    changed = {f"{above}.weight": weights.take_along_dim(order.unsqueeze(-2), -1)}
    own = samples[f"{layer}.weight"]
    changed[f"{layer}.weight"] = own.take_along_dim(order.unsqueeze(-1), -2)
    if f"{layer}.bias" in samples:
        changed[f"{layer}.bias"] = samples[f"{layer}.bias"].take_along_dim(order, -1)
    if scales in samples and samples[scales].shape == order.shape:
        changed[scales] = samples[scales].take_along_dim(order, -1)
    return changed
