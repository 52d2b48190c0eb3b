"""The likelihoods of networks: how many outputs each takes, which labels, and its density.

Of a row with outputs v:

- "bernoulli": one output, log(P(1) / P(0)). A label, 0 or 1.
- "categorical": an output a class, P(k) = exp(v_k) / sum_j exp(v_j). A label, a class.
- "normal": K responses y_k, independent, Normal(v_k, s_k) with standard deviations s_k.
- "student": the same with Student's t: y_k = v_k + s_k t_k, where t_k has the density
  Gamma((d + 1) / 2) / (Gamma(d / 2) sqrt(pi d)) (1 + t^2 / d)^(-(d + 1) / 2), d the degrees of
  freedom. So s_k is a scale, and the standard deviation s_k sqrt(d / (d - 2)) for d > 2.
- "poisson": K counts y_k, independent: P(y) = exp(y v_k - exp(v_k)) / y!.

The scales s_k are one number, fixed or sampled; or from the network, which then has 2 K outputs:
s_k = log(1 + exp(v_{K + k})) + `LEAST_SCALE`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.nn.functional import logsigmoid

from pyro_fnbg.networks.counts import LogPoisson

__all__ = [
    "DEGREES_OF_FREEDOM",
    "FROM_NETWORK",
    "LEAST_SCALE",
    "LIKELIHOODS",
    "Likelihood",
    "scales_of",
]

LIKELIHOODS = ("bernoulli", "categorical", "normal", "student", "poisson")
# The observation scale that the network's last outputs give, a row and a response
FROM_NETWORK = "network"
# Degrees of freedom of "student": the variance is finite, and tails are heavy
DEGREES_OF_FREEDOM = 4.0
# The smallest scale that a network can give. Without one, a network that goes through
# a few rows exactly would have a density without bound there
LEAST_SCALE = 1e-6


def scales_of(outputs: Tensor, least: float = LEAST_SCALE) -> Tensor:
    """Turn outputs of a network into scales: log(1 + exp(output)), and a least scale more.

    Softplus and not the exponential: outputs of deep networks are large under wide priors, those of
    "relu" above all, and exp would overflow, or make one row decide everything. Right to a few
    units in the last place, however negative the output, and without the threshold above which
    PyTorch's own softplus leaves the logarithm out.

    Example:
        >>> scales_of(torch.tensor([-100.0, 0.0, 100.0]))
        tensor([1.0000e-06, 6.9315e-01, 1.0000e+02])
    """
    return least - logsigmoid(-outputs)


@dataclass(frozen=True)
class Likelihood:
    """Describe how a network's outputs in a row give the distribution of the row's responses.

    Attributes:
        name: One of `LIKELIHOODS`.
        num_outputs: Number of nodes of the last layer.
        observation_scale: Of "normal" and "student": a number, the name of a latent site, or
            `FROM_NETWORK`.
        degrees_of_freedom: Of "student".
        has_exponential_scale: Whether scales from the network are exponentials of outputs, which
            only models do that do not state what they are; else they are those of `scales_of`.
        least_scale: What is added to scales from the network.
    """

    name: str
    num_outputs: int
    observation_scale: float | str = 1.0
    degrees_of_freedom: float = DEGREES_OF_FREEDOM
    has_exponential_scale: bool = False
    least_scale: float = LEAST_SCALE

    @property
    def has_scale(self) -> bool:
        """Whether it has an observation scale."""
        return self.name in ("normal", "student")

    @property
    def is_of_classes(self) -> bool:
        """Whether responses are classes, and not numbers."""
        return self.name in ("bernoulli", "categorical")

    @property
    def has_network_scale(self) -> bool:
        """Whether the outputs are those of K locations and then of K scales."""
        return self.observation_scale == FROM_NETWORK

    @property
    def num_responses(self) -> int:
        """Number of responses in a row."""
        if self.is_of_classes:
            return 1
        return self.num_outputs // 2 if self.has_network_scale else self.num_outputs

    @property
    def scale_site(self) -> str | None:
        """Name of the latent site that holds the observation scale, if one does."""
        scale = self.observation_scale
        return scale if isinstance(scale, str) and not self.has_network_scale else None

    @property
    def fixed_scale(self) -> float:
        """The observation scale, where it is a number; 1 where it is none."""
        return 1.0 if isinstance(self.observation_scale, str) else self.observation_scale

    @property
    def log_normalizer(self) -> float:
        """Log density of one number at its location, for a scale of 1; 0 of labels and counts."""
        if self.name == "normal":
            return -0.5 * math.log(2 * math.pi)
        if self.name == "student":
            degrees = self.degrees_of_freedom
            of_gammas = math.lgamma(0.5 * (degrees + 1)) - math.lgamma(0.5 * degrees)
            return of_gammas - 0.5 * math.log(math.pi * degrees)
        return 0.0

    def student_log_densities(
        self, locations: Tensor, scales: Tensor | float, numbers: Tensor
    ) -> Tensor:
        """Return the log density of each number under Student's t, as its distribution does."""
        scales, degrees = torch.as_tensor(scales, dtype=locations.dtype), self.degrees_of_freedom
        tails = torch.log1p(((numbers - locations) / scales).square() / degrees)
        return self.log_normalizer - scales.log() - 0.5 * (degrees + 1) * tails

    def locations_and_scales(self, outputs: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Split the outputs, along a dimension, into locations and what their scales are."""
        locations, others = outputs.split(self.num_responses, dim)
        if self.has_exponential_scale:
            return locations, others.exp() + self.least_scale
        return locations, scales_of(others, self.least_scale)

    def response(
        self, outputs: Tensor, scale: float | Tensor, validate: bool | None
    ) -> TorchDistributionMixin:
        """Return the distribution of each row's response.

        K responses are one event where K is above 1.

        Args:
            outputs: Shape ``(..., rows, num_outputs)``.
            scale: The observation scale, unless the network gives it: a number, or one a draw.
            validate: Whether the distribution checks its arguments and values.
        """
        checks: dict[str, Any] = {"validate_args": validate}
        response: Any
        if self.name == "bernoulli":
            response = dist.Bernoulli(logits=outputs.squeeze(-1), **checks)
        elif self.name == "categorical":
            response = dist.Categorical(logits=outputs, **checks)
        else:
            several = self.num_responses > 1
            if self.has_network_scale:
                outputs, scale = self.locations_and_scales(outputs, -1)
                scale = scale if several else scale.squeeze(-1)
            elif isinstance(scale, Tensor):
                if scale.dim() == outputs.dim() - 2:  # one scale per draw: make room for the rows
                    scale = scale.unsqueeze(-1)
                scale = (scale.unsqueeze(-1) if several else scale).to(outputs)
            locations = outputs if several else outputs.squeeze(-1)
            if self.name == "poisson":
                response = LogPoisson(locations, **checks)
            elif self.name == "student":
                response = dist.StudentT(self.degrees_of_freedom, locations, scale, **checks)
            else:
                response = dist.Normal(locations, scale, **checks)
            response = response.to_event(int(several))
        found: TorchDistributionMixin = response
        return found

    def check_label_shape(self, y: object, rows: int) -> None:
        """Check that labels are a tensor with one entry, or one for each output, in each row.

        Raises:
            TypeError: If they are no tensor of real numbers.
            ValueError: If their shape is not allowed; names it.
        """
        if not isinstance(y, Tensor) or y.is_complex():
            received = f"{type(y).__name__}, dtype {getattr(y, 'dtype', None)}"
            raise TypeError(f"y must be a torch tensor of real or bool dtype, got {received}")
        columns = self.num_outputs if self.name == "categorical" else self.num_responses
        allowed = [(rows,), (rows, 1), (rows, columns)]
        if self.name != "categorical":
            allowed = allowed[2:] if columns > 1 else allowed[:2]
        if y.shape not in allowed:
            shapes = " or ".join(map(str, allowed))
            got = tuple(y.shape)
            raise ValueError(f"y must have shape {shapes}, got {got}, for the {rows} rows of x")

    def check_labels(self, y: Tensor) -> None:
        """Check that labels of a shape that is allowed have values that are possible.

        Raises:
            ValueError: If they do not; names the first.
        """
        if self.has_scale:
            _require(torch.isfinite(y), y, "finite numbers")
            return
        labels = y.long()
        whole = labels == (y if y.is_floating_point() else labels)  # not so for NaN and infinity
        if self.name == "poisson":
            _require(whole & (labels >= 0), y, "counts, whole numbers from 0 on")
            return
        if y.dim() == 2:
            binary = whole & ((labels == 0) | (labels == 1))
            _require(binary.all(-1) & (labels.sum(-1) == 1), y, "one-hot rows")
            return
        classes = max(self.num_outputs, 2)
        valid = whole & (labels >= 0) & (labels < classes)
        _require(valid, y, f"whole numbers from 0 to {classes - 1}")

    def converted_labels(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Return checked labels as the response's distribution takes them."""
        if not self.is_of_classes:
            return y.to(dtype)
        labels = y.long()
        if self.name == "bernoulli":
            return labels.to(dtype)
        return labels.argmax(-1) if y.dim() == 2 else labels


def _require(valid: Tensor, y: Tensor, allowed: str) -> None:
    if not bool(valid.all()):
        raise ValueError(f"y must hold {allowed}, got {y[~valid][0].tolist()}")
