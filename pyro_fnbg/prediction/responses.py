"""The distribution of some rows' responses under some draws, and what is computed of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    Normal,
    OneHotCategorical,
)

from pyro_fnbg.core.checks import shown
from pyro_fnbg.model.supports import without_events, without_wrappers
from pyro_fnbg.networks.architecture import Architecture

__all__ = ["ClassResponse", "NumberResponse", "Response", "response_of", "stated_response"]


@dataclass(frozen=True)
class ClassResponse:
    """Hold distributions over classes: logits of shape ``(draws, classes, rows)``.

    Rows are last since sums over a few classes are then over whole vectors of rows.
    """

    logits: Tensor

    @property
    def probabilities(self) -> Tensor:
        """Probabilities of the classes, shape ``(draws, classes, rows)``."""
        return torch.softmax(self.logits, 1)

    @property
    def means(self) -> Tensor:
        """Probabilities of the classes, shape ``(draws, rows, classes)``."""
        return self.probabilities.mT

    def log_likelihood(self, labels: Tensor) -> Tensor:
        """Return the log probability of each row's label, shape ``(draws, rows)``."""
        places = labels.expand(len(self.logits), 1, -1)
        return torch.log_softmax(self.logits, 1).gather(1, places).squeeze(1)

    def sample(self) -> Tensor:
        """Draw a class for each draw and row."""
        found: Tensor = Categorical(logits=self.logits.mT, validate_args=False).sample()
        return found

    @property
    def size(self) -> Tensor:
        """Size of the largest logit of each row, by which its rounding grows: ``(rows,)``."""
        return self.logits.abs().amax((0, 1))

    def compared(self) -> list[Tensor]:
        """Return what two statements of one response are compared by, rows first."""
        return [self.probabilities.movedim(-1, 0).flatten(1)]


@dataclass(frozen=True)
class NumberResponse:
    """Hold distributions over numbers, of batch shape ``(draws, rows)``."""

    distribution: Distribution

    @property
    def means(self) -> Tensor:
        """Means, shape ``(draws, rows, *event shape)``."""
        return self.distribution.mean

    @property
    def variances(self) -> Tensor:
        """Variances, shape ``(draws, rows, *event shape)``."""
        return self.distribution.variance

    @property
    def normal(self) -> Normal | None:
        """The Normal distribution of each number, if that is what they have."""
        base = self.distribution
        while isinstance(base, Independent):
            base = base.base_dist
        return base if isinstance(base, Normal) else None

    def log_likelihood(self, numbers: Tensor) -> Tensor:
        """Return the log density of each row's numbers, shape ``(draws, rows)``."""
        found: Tensor = self.distribution.log_prob(numbers)
        return found

    def sample(self) -> Tensor:
        """Draw a response for each draw and row."""
        found: Tensor = self.distribution.sample()
        return found

    @property
    def size(self) -> Tensor:
        """Size of the largest mean of each row, by which its rounding grows: ``(rows,)``."""
        return self.means.abs().movedim(1, 0).flatten(1).amax(1)

    def compared(self) -> list[Tensor]:
        """Return what two statements of one response are compared by, rows first."""
        return [values.movedim(1, 0).flatten(1) for values in (self.means, self.variances.sqrt())]


Response = ClassResponse | NumberResponse
# Distributions over classes
CLASSES = (Bernoulli, Categorical, OneHotCategorical)


def stated_response(net: Architecture, outputs: Tensor, scales: Tensor | float) -> Response:
    """Turn a stated network's outputs into a response.

    Args:
        net: The network.
        outputs: Shape ``(draws, outputs, rows)``.
        scales: Standard deviations of a Normal response: a number, or ``(draws,)``.
    """
    if net.likelihood == "bernoulli":
        return ClassResponse(torch.cat([torch.zeros_like(outputs), outputs], 1))
    if net.likelihood == "categorical":
        return ClassResponse(outputs)
    several = net.widths[-1] > 1
    means = outputs.mT if several else outputs.squeeze(1)
    if isinstance(scales, Tensor):
        scales = scales.view(-1, *(1,) * (means.dim() - 1)).to(means)
    normal = Normal(means, scales, validate_args=False)
    return NumberResponse(Independent(normal, 1, validate_args=False) if several else normal)


def response_of(site: str, distribution: TorchDistributionMixin, num_rows: int) -> Response:
    """Read a response from the distribution that a model gave it under one draw.

    Raises:
        ValueError: If it does not have one value, or one vector, for each row; or if it is no
            distribution whose mean and variance are known.
    """
    base = without_events(distribution)
    if isinstance(base, CLASSES):
        logits = _class_logits(base)
        if logits.dim() != 2 or len(logits) != num_rows:
            raise _shape_error(site, base.batch_shape, num_rows)
        return ClassResponse(logits.mT.unsqueeze(0))
    try:
        is_known = not isinstance(without_wrappers(base), CLASSES)
        distribution.mean, distribution.variance  # noqa: B018
    except NotImplementedError:
        is_known = False
    if not is_known:
        raise ValueError(
            "the response must be one of classes (Bernoulli, Categorical) or of numbers whose mean "
            f"and variance are known; site {site!r} is {shown(base)}: draw its responses by Pyro's "
            "Predictive"
        )
    shape = distribution.shape()
    if len(shape) not in (1, 2) or shape[0] != num_rows:
        raise _shape_error(site, shape, num_rows)
    if len(shape) == 2 and len(distribution.event_shape) == 0:
        distribution = distribution.to_event(1)
    return NumberResponse(distribution.expand((1, num_rows)))


def _class_logits(base: Any) -> Tensor:
    """Return logits of shape ``(..., classes)``, which keep small probabilities apart from zero."""
    base = getattr(base, "_categorical", base)
    if not isinstance(base, Bernoulli):
        logits: Tensor = base.logits if "logits" in vars(base) else base.probs.log()
        return logits
    if "logits" in vars(base):
        return torch.stack([torch.zeros_like(base.logits), base.logits], -1)
    return torch.stack([torch.log1p(-base.probs), base.probs.log()], -1)


def _shape_error(site: str, shape: torch.Size, num_rows: int) -> ValueError:
    return ValueError(
        f"the response must have one value for each of the {num_rows} rows of x; site {site!r} "
        f"has shape {tuple(shape)}"
    )
