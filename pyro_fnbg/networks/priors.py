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

__all__ = ["FAN_IN", "PRIORS", "NetworkPriors", "Scale", "ScalePrior"]

PRIORS = ("normal", "laplace", "student")
# In place of a number: 1 over the root of the layer's number of inputs
FAN_IN = "fan_in"
# Of scales and variances: those that all engines know, made anew in the type of the inputs
KNOWN = (
    dist.Exponential,
    dist.Gamma,
    dist.HalfCauchy,
    dist.HalfNormal,
    dist.InverseGamma,
    dist.LogNormal,
)


@dataclass(frozen=True)
class ScalePrior:
    """State that the scale of the priors of a layer is sampled, and what its own prior is.

    For `BayesianMLP(prior_scale=...)`. The model then samples, before the layer's weights, a latent
    site such as `layer1.weight_variance`, and given it the weights, whose priors have that scale.
    Exact on every engine. A variance with an InverseGamma prior, of weights with Normal priors, is
    drawn from its conditional (an exact Gibbs step); any other walks on its logarithm.

    Args:
        prior: A scalar distribution of `pyro.distributions`: Exponential, Gamma, HalfCauchy,
            HalfNormal, InverseGamma or LogNormal.
        of: Of what: "scale", the standard deviation of a Normal prior, or "variance", its square.
        per: "layer" for one number a layer, of shape (); or "input" for one a node below, of shape
            (kappa_j-1,): automatic relevance determination.

    Raises:
        ValueError: If an argument is not allowed; names it.

    References:
        MacKay (1994), "Bayesian nonlinear modeling for the prediction competition"; Neal (1996),
        "Bayesian learning for neural networks".

    Example:
        >>> import pyro.distributions as dist
        >>> from pyro_fnbg import BayesianMLP
        >>> relevance = ScalePrior(dist.InverseGamma(1.5, 0.5), of="variance", per="input")
        >>> model = BayesianMLP([8, 10, 1], [relevance, "fan_in"], likelihood="normal")
        >>> model.scale_shapes
        {'layer1.weight_variance': (8,)}
    """

    prior: TorchDistributionMixin
    of: str = "scale"
    per: str = "layer"

    def __post_init__(self) -> None:
        """Check the arguments."""
        if type(self.prior) not in KNOWN or self.prior.shape() != ():
            names = ", ".join(kind.__name__ for kind in KNOWN)
            raise ValueError(
                f"prior must be a scalar distribution of pyro.distributions, one of {names}; got "
                f"{shown(self.prior)}"
            )
        check_choice("of", self.of, ("scale", "variance"))
        check_choice("per", self.per, ("layer", "input"))

    def site_of(self, name: str) -> str:
        """Name the site that holds the scale of another site's prior."""
        return f"{name}_{self.of}"

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of that site, given the other's."""
        return shape[1:] if self.per == "input" else ()

    def sample(self, name: str, shape: tuple[int, ...], x: Tensor) -> Tensor:
        """Sample the scale of a site's prior, in the dtype and on the device of ``x``.

        Args:
            name: Name of the site.
            shape: Its shape.
            x: Inputs.

        Returns:
            Scales that broadcast to the site's shape, with dimensions of plates around the model in
            front.
        """
        prior: TorchDistributionMixin = self.prior
        words = {word: getattr(prior, word).to(x) for word in prior.arg_constraints}
        own = self.shape_of(shape)
        prior = type(prior)(**words, validate_args=False).expand(own).to_event(len(own))
        value: Tensor = pyro.sample(self.site_of(name), prior)
        scales = value.sqrt() if self.of == "variance" else value
        front = scales.shape[: scales.dim() - len(own)]
        return scales.reshape(*front, *(1,) * (len(shape) - len(own)), *own)


Scale = float | str | ScalePrior


@dataclass(frozen=True)
class NetworkPriors:
    """Hold the priors of all layers: one family, and a location and a scale a layer.

    A scale is a number, or says how it is sampled.

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
    scales: tuple[float | ScalePrior, ...]
    bias_locs: tuple[float, ...]
    bias_scales: tuple[float | ScalePrior, ...]

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
            bias_prior_scale = [scale if isinstance(scale, float) else 1.0 for scale in scales]
        bias_scales = _checked_scales("bias_prior_scale", bias_prior_scale, len(inputs))
        if any(isinstance(scale, ScalePrior) and scale.per != "layer" for scale in bias_scales):
            raise ValueError(
                "bias_prior_scale must be sampled per='layer', since biases have no inputs; got "
                f"{shown(bias_prior_scale)}"
            )
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

    def sampled(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, ScalePrior]:
        """Return, by site of weights or biases, the priors of scales that are sampled.

        Args:
            shapes: Shape of every weight and bias by site name: each layer's weights, its biases.
        """
        pairs = zip(shapes, self._by_site(), strict=True)
        return {name: scale for name, (_, scale) in pairs if isinstance(scale, ScalePrior)}

    def sample(self, shapes: Mapping[str, tuple[int, ...]], x: Tensor) -> dict[str, Tensor]:
        """Sample all weights and biases, in the dtype and on the device of ``x``.

        Args:
            shapes: Shape of every weight and bias by site name: each layer's weights, its biases.
            x: Inputs.
        """
        parameters = {}
        for (name, shape), (loc, scale) in zip(shapes.items(), self._by_site(), strict=True):
            # `expand` would cost more than filling
            if isinstance(scale, ScalePrior):
                scales = scale.sample(name, shape, x)
            else:
                scales = x.new_full(shape, scale)
            prior = self._distribution(x.new_full(shape, loc), scales)
            value = pyro.sample(name, prior.to_event(len(shape)))
            # A plate around the model leaves a 1 where the plate "data" has its rows.
            if value.dim() > len(shape) + 1 and value.shape[-len(shape) - 1] == 1:
                value = value.squeeze(-len(shape) - 1)
            parameters[name] = value
        return parameters

    def _by_site(self) -> list[tuple[float, float | ScalePrior]]:
        """Return location and scale of each site: each layer's weights, its biases."""
        of_weights = zip(self.locs, self.scales, strict=True)
        of_biases = zip(self.bias_locs, self.bias_scales, strict=True)
        return [pair for layer in zip(of_weights, of_biases, strict=True) for pair in layer]

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
            f"{name} must be a positive finite number, {FAN_IN!r} or a ScalePrior, or {layers}, "
            f"one per layer; got {shown(value)}"
        )
    return tuple(scales)


def _as_scale(entry: object) -> Scale | None:
    if isinstance(entry, ScalePrior) or (isinstance(entry, str) and entry == FAN_IN):
        return entry
    number = as_finite(entry)
    return number if number is not None and number > 0 else None


def _in_numbers(scales: Sequence[Scale], inputs: Sequence[int]) -> tuple[float | ScalePrior, ...]:
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
