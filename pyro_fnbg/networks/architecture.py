"""What a fully connected network computes: it needs neither priors nor data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from pyro_fnbg.core.checks import as_finite, is_list, shown
from pyro_fnbg.networks.likelihoods import FROM_NETWORK, LIKELIHOODS, Likelihood
from pyro_fnbg.networks.statement import ACTIVATIONS, Activation, Feedforward, NotFeedforward

__all__ = ["Architecture", "activated"]


@dataclass(frozen=True)
class Architecture:
    """Describe a fully connected network. Layers count from 1, as in the paper.

    Attributes:
        layers: Name of each layer, whose weights are "<name>.weight" and biases "<name>.bias".
        widths: Number of inputs, then of nodes of each layer.
        activations: One a hidden layer: a name or a callable.
        has_bias: Whether each layer has biases.
        likelihood: What the outputs say of the responses.
    """

    layers: tuple[str, ...]
    widths: tuple[int, ...]
    activations: tuple[Activation, ...]
    has_bias: tuple[bool, ...]
    likelihood: Likelihood

    @classmethod
    def from_statement(
        cls, statement: Feedforward, shapes: Mapping[str, tuple[int, ...]]
    ) -> Architecture:
        """Read what a model states of itself, against the shapes of its latent sites.

        Raises:
            NotFeedforward: If it has activations that are not known.
            ValueError: If the statement contradicts itself or the shapes; names both.
        """
        widths, has_bias = _checked_layers(statement.layers, shapes)
        return cls(
            tuple(statement.layers),
            widths,
            _checked_activations(statement.activations, len(widths) - 2),
            has_bias,
            _checked_likelihood(statement, widths[-1], shapes),
        )

    @property
    def num_layers(self) -> int:
        """Number of layers of nodes, the output layer included: rho."""
        return len(self.layers)

    @property
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of all weights and biases by site name, layer by layer."""
        shapes: dict[str, tuple[int, ...]] = {}
        sizes = zip(self.layers, self.has_bias, pairwise(self.widths), strict=True)
        for layer, has_bias, (fan_in, fan_out) in sizes:
            shapes[f"{layer}.weight"] = (fan_out, fan_in)
            if has_bias:
                shapes[f"{layer}.bias"] = (fan_out,)
        return shapes

    def check_inputs(self, inputs: object, dtype: torch.dtype, device: torch.device) -> None:
        """Check the inputs that a model states, given what its parameters are.

        Raises:
            ValueError: If they have another shape, dtype or device.
        """
        if not isinstance(inputs, Tensor) or inputs.shape[1:] != self.widths[:1]:
            got = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
            raise ValueError(
                f"feedforward() must give inputs of shape (rows, {self.widths[0]}), got {got}"
            )
        if inputs.dtype != dtype or inputs.device != device:
            raise ValueError(
                f"feedforward() must give inputs of the parameters' dtype and device, {dtype} on "
                f"{device}, got {inputs.dtype} on {inputs.device}"
            )

    def forward(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Compute the outputs of each row, of which `Likelihood` says what they are.

        Exact and deterministic; nothing is checked.

        Args:
            parameters: Weights ``(..., nodes, nodes below)`` and biases ``(..., nodes)`` by site
                name, with as many leading dimensions for draws as one likes.
            x: Inputs of shape ``(rows, widths[0])``.

        Returns:
            Outputs of shape ``(..., rows, widths[-1])``.

        Example:
            >>> net = Architecture(("a",), (2, 1), (), (False,), Likelihood("bernoulli", 1))
            >>> net.forward({"a.weight": torch.ones(10, 1, 2)}, torch.ones(5, 2)).shape
            torch.Size([10, 5, 1])
        """
        values = x
        activations = (*self.activations, "identity")
        for number, (layer, activation) in enumerate(zip(self.layers, activations, strict=True), 1):
            values = values @ parameters[f"{layer}.weight"].mT
            if self.has_bias[number - 1]:
                values = values + parameters[f"{layer}.bias"].unsqueeze(-2)
            if isinstance(activation, str):
                values = ACTIVATIONS[activation](values)
            else:
                values = activated(activation, number, values)
        return values


def activated(activation: Callable[[Tensor], Tensor], layer: int, values: Tensor) -> Tensor:
    """Apply a user's activation.

    Raises:
        TypeError: If it does not return a tensor of its argument's shape and dtype.
    """
    found = activation(values)
    if not isinstance(found, Tensor) or (found.shape, found.dtype) != (values.shape, values.dtype):
        is_tensor = isinstance(found, Tensor)
        received = f"{tuple(found.shape)}, {found.dtype}" if is_tensor else shown(found)
        raise TypeError(
            f"activation {shown(activation)} of layer {layer} must return a tensor of its "
            f"argument's shape and dtype, {tuple(values.shape)}, {values.dtype}; got {received}"
        )
    return found


def _checked_layers(
    layers: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return the widths, and which layers have biases."""
    found = f"the latent sites are {dict(shapes)}"
    if not is_list(layers) or not layers or not all(isinstance(name, str) for name in layers):
        raise ValueError(f"feedforward() must name its layers, got layers={shown(layers)}")
    widths: tuple[int, ...] = ()
    for layer in layers:
        weight = shapes.get(f"{layer}.weight", ())
        if len(weight) != 2 or (widths and weight[1] != widths[-1]):
            after = f", with {widths[-1]} columns for the layer below" if widths else ""
            raise ValueError(
                f"feedforward() names layer {layer!r}, so there must be a site "
                f"'{layer}.weight' of two dimensions{after}: {found}"
            )
        widths = (*(widths or weight[1:]), weight[0])
        if shapes.get(f"{layer}.bias", weight[:1]) != weight[:1]:
            raise ValueError(f"site '{layer}.bias' must have shape ({weight[0]},): {found}")
    return widths, tuple(f"{layer}.bias" in shapes for layer in layers)


def _checked_activations(activations: Sequence[Activation], hidden: int) -> tuple[Activation, ...]:
    if not is_list(activations) or len(activations) != hidden:
        raise ValueError(
            f"feedforward() must give one activation a hidden layer, {hidden}, "
            f"got {shown(activations)}"
        )
    known = list(ACTIVATIONS)
    if unknown := [name for name in activations if not callable(name) and name not in known]:
        raise NotFeedforward(f"activations {shown(unknown)} are none of {known}")
    return tuple(activations)


def _checked_likelihood(
    statement: Feedforward, num_outputs: int, shapes: Mapping[str, tuple[int, ...]]
) -> Likelihood:
    if statement.likelihood not in LIKELIHOODS:
        raise ValueError(
            f"feedforward() must give a likelihood of {LIKELIHOODS}, "
            f"got {shown(statement.likelihood)}"
        )
    scale = _checked_scale(statement.observation_scale, shapes)
    degrees = as_finite(statement.degrees_of_freedom)
    if degrees is None or degrees <= 0:
        raise ValueError(
            "feedforward() must give degrees_of_freedom as a positive number, got "
            f"{shown(statement.degrees_of_freedom)}"
        )
    likelihood = Likelihood(statement.likelihood, num_outputs, scale, degrees)
    if likelihood.has_network_scale and (not likelihood.has_scale or num_outputs % 2):
        raise ValueError(
            f"feedforward() gives observation_scale={FROM_NETWORK!r}, so its likelihood must be "
            "'normal' or 'student', and its last layer have a node for each location and one for "
            f"each scale; got {statement.likelihood!r} and {num_outputs} node(s)"
        )
    return likelihood


def _checked_scale(scale: float | str, shapes: Mapping[str, tuple[int, ...]]) -> float | str:
    if isinstance(scale, str):
        if scale == FROM_NETWORK:
            return scale
        if shapes.get(scale) != ():
            raise ValueError(
                f"feedforward() names the scalar site {scale!r} as its scale, which must be one of "
                f"its sites: the latent sites are {dict(shapes)}"
            )
        return scale
    number = as_finite(scale)
    if number is None or number <= 0:
        raise ValueError(
            "feedforward() must give observation_scale as a positive number, the name of a site or "
            f"{FROM_NETWORK!r}, got {shown(scale)}"
        )
    return number
