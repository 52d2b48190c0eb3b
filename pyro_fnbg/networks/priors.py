"""Priors of a network's weights and biases: from the arguments of ``BayesianMLP`` to its sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyro
import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from pyro_fnbg.core.checks import as_finite, check_choice, is_list, shown

__all__ = ["FAN_IN", "PRIORS", "NetworkPriors", "Scale"]

PRIORS = ("normal", "laplace", "student")
# In place of a number: 1 over the root of the layer's number of inputs
FAN_IN = "fan_in"

Scale = float | str


@dataclass(frozen=True)
class NetworkPriors:
    """Hold the priors of all layers: one family, and a location and a scale a layer.

    Attributes:
        family: "normal", "laplace" or "student".
        degrees_of_freedom: Of "student".
        locs: Location of each layer's weights.
        scales: Scale of each layer's weights.
        bias_locs: Location of each layer's biases.
        bias_scales: Scale of each layer's biases.
    """

    family: str
    degrees_of_freedom: float
    locs: tuple[float, ...]
    scales: tuple[float, ...]
    bias_locs: tuple[float, ...]
    bias_scales: tuple[float, ...]

    @classmethod
    def from_arguments(
        cls,
        widths: Sequence[int],
        prior: str,
        prior_degrees_of_freedom: float,
        prior_scale: Scale | Sequence[Scale],
        prior_loc: float | Sequence[float],
        bias_prior_scale: Scale | Sequence[Scale] | None,
        bias_prior_loc: float | Sequence[float] | None,
    ) -> NetworkPriors:
        """Check what ``BayesianMLP`` was given, and spread it over the layers.

        Raises:
            ValueError: Naming the argument, its value and what is allowed.
        """
        check_choice("prior", prior, PRIORS)
        degrees = as_finite(prior_degrees_of_freedom)
        if degrees is None or degrees <= 0:
            raise ValueError(
                "prior_degrees_of_freedom must be a positive finite number, got "
                f"{shown(prior_degrees_of_freedom)}"
            )
        inputs = tuple(below for below, _ in pairwise(widths))
        scales = _checked_scales("prior_scale", prior_scale, len(inputs))
        if bias_prior_scale is None:
            # A bias has one input, which is 1
            bias_prior_scale = [1.0 if scale == FAN_IN else scale for scale in scales]
        bias_scales = _checked_scales("bias_prior_scale", bias_prior_scale, len(inputs))
        locs = _checked_locs("prior_loc", prior_loc, len(inputs))
        if bias_prior_loc is None:
            bias_prior_loc = locs
        return cls(
            family=prior,
            degrees_of_freedom=degrees,
            locs=locs,
            scales=_in_numbers(scales, inputs),
            bias_locs=_checked_locs("bias_prior_loc", bias_prior_loc, len(inputs)),
            bias_scales=_in_numbers(bias_scales, inputs),
        )

    def sample(self, shapes: Mapping[str, tuple[int, ...]], x: Tensor) -> dict[str, Tensor]:
        """Sample all weights and biases, in the dtype and on the device of ``x``.

        Args:
            shapes: Shape of every weight and bias by site name: each layer's weights, its biases.
            x: Inputs.
        """
        parameters = {}
        for position, (name, shape) in enumerate(shapes.items()):
            layer, is_bias = divmod(position, 2)
            loc = (self.bias_locs if is_bias else self.locs)[layer]
            scale = (self.bias_scales if is_bias else self.scales)[layer]
            # `expand` would cost more than filling
            prior = self._distribution(x.new_full(shape, loc), x.new_full(shape, scale))
            value = pyro.sample(name, prior.to_event(len(shape)))
            # A plate around the model leaves a 1 where the plate "data" has its rows.
            if value.dim() > len(shape) + 1 and value.shape[-len(shape) - 1] == 1:
                value = value.squeeze(-len(shape) - 1)
            parameters[name] = value
        return parameters

    def _distribution(self, loc: Tensor, scale: Tensor) -> TorchDistributionMixin:
        # The numbers were checked when they were given
        prior: TorchDistributionMixin
        if self.family == "laplace":
            prior = dist.Laplace(loc, scale, validate_args=False)
        elif self.family == "student":
            degrees = loc.new_full((), self.degrees_of_freedom)
            prior = dist.StudentT(degrees, loc, scale, validate_args=False)
        else:
            prior = dist.Normal(loc, scale, validate_args=False)
        return prior


def _per_layer(value: object, layers: int) -> Sequence[object]:
    """Return one value a layer, of one value or one a layer."""
    return value if is_list(value) else (value,) * layers


def _checked_scales(name: str, value: object, layers: int) -> tuple[Scale, ...]:
    entries = _per_layer(value, layers)
    scales = [scale for scale in map(_as_scale, entries) if scale is not None]
    if not len(entries) == len(scales) == layers:
        raise ValueError(
            f"{name} must be a positive finite number or {FAN_IN!r}, or {layers}, one per layer; "
            f"got {shown(value)}"
        )
    return tuple(scales)


def _as_scale(entry: object) -> Scale | None:
    if isinstance(entry, str):
        return entry if entry == FAN_IN else None
    number = as_finite(entry)
    return number if number is not None and number > 0 else None


def _in_numbers(scales: Sequence[Scale], inputs: Sequence[int]) -> tuple[float, ...]:
    pairs = zip(scales, inputs, strict=True)
    return tuple(below**-0.5 if isinstance(scale, str) else scale for scale, below in pairs)


def _checked_locs(name: str, value: object, layers: int) -> tuple[float, ...]:
    entries = _per_layer(value, layers)
    numbers = [number for number in map(as_finite, entries) if number is not None]
    if not len(entries) == len(numbers) == layers:
        raise ValueError(
            f"{name} must be a finite number, or {layers}, one per layer; got {shown(value)}"
        )
    return tuple(numbers)
