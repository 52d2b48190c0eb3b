"""The distribution of some rows' responses under some draws, and what is computed of it."""

from __future__ import annotations

from collections.abc import Mapping
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
    OneHotCategorical,
    StudentT,
    VonMises,
)

from pyro_fnbg.core.checks import shown
from pyro_fnbg.model.supports import without_events, without_wrappers
from pyro_fnbg.networks.architecture import Architecture
from pyro_fnbg.prediction.mixtures import Parts, parts_of

__all__ = [
    "ClassResponse",
    "NumberResponse",
    "Response",
    "response_of",
    "stated_response",
    "without_moments",
]


@dataclass(frozen=True)
class ClassResponse:
    """Hold distributions over classes: logits of shape ``(draws, classes, rows)``.

    Rows are last since sums over a few classes are then over whole vectors of rows.

    Attributes:
        logits: The logits.
        is_of_logits: Whether they were given, not taken from probabilities, which are rounded to 0
            and 1 where logits are large.
    """

    logits: Tensor
    is_of_logits: bool = True

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

    def compared(self) -> list[Tensor]:
        """Return what two runs for one response are compared by."""
        return [self.logits]

    def differing_rows(self, other: ClassResponse) -> Tensor:
        """Return in which rows two responses differ by more than rounding, ``(rows,)``."""
        if self.logits.shape != other.logits.shape:
            return torch.ones(self.logits.shape[-1], dtype=torch.bool)
        precision = _precision(self.logits, other.logits)
        # What is rounded are logits, as large as they are before they are normalised
        size = self.logits.abs().amax(1, keepdim=True)
        one, two = (torch.log_softmax(found.logits, 1) for found in (self, other))
        is_same = ((one - two).abs() <= precision * (1 + size)) | (one.isnan() & two.isnan())
        if not (self.is_of_logits and other.is_of_logits):
            is_same |= (one.exp() - two.exp()).abs() <= precision
        return ~is_same.all(1).all(0)


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
    def parts(self) -> Parts | None:
        """The parts that the draws are of a mixture, if that has exact quantiles."""
        base = self.distribution
        while isinstance(base, Independent):
            base = base.base_dist
        return parts_of(base)

    def log_likelihood(self, numbers: Tensor) -> Tensor:
        """Return the log density of each row's numbers, shape ``(draws, rows)``.

        Raises:
            ValueError: If counts are asked of which none is one.
        """
        try:
            support: Any = self.distribution.support
            is_possible = support.check(numbers.expand(self.means.shape))
        except NotImplementedError:
            return torch.as_tensor(self.distribution.log_prob(numbers))
        if support.is_discrete and not bool(is_possible.all()):
            raise ValueError(f"y must hold values of {support}, which some of its numbers are not")
        # Supports may differ between draws; their middle is possible wherever y is not
        likely = numbers.where(_for_events(is_possible, self.means), self.means)
        found: Tensor = self.distribution.log_prob(likely)
        return found.where(is_possible, -torch.inf)

    def sample(self) -> Tensor:
        """Draw a response for each draw and row."""
        found: Tensor = self.distribution.sample()
        return found

    def compared(self) -> list[Tensor]:
        """Return what two runs for one response are compared by."""
        return [self.means, self.variances]

    def differing_rows(self, other: NumberResponse) -> Tensor:
        """Return in which rows two responses differ by more than rounding, ``(rows,)``."""
        one, two = self.parts, other.parts
        is_another_kind = one is not None and two is not None and one.kind is not two.kind
        if self.means.shape != other.means.shape or is_another_kind:
            return torch.ones(self.means.shape[1], dtype=torch.bool)
        precision = _precision(self.means, other.means)
        differs = torch.zeros_like(self.means, dtype=torch.bool)
        scale = self.variances.sqrt()
        # A scale of exp(-10) is an output of -10, whose error is relative to that
        of_scales = scale * (1 + scale.log().abs())
        compared = [
            (self.means, other.means, 1 + self.means.abs()),
            (scale, other.variances.sqrt(), of_scales.where(scale > 0, 0.0)),
        ]
        if one is not None and two is not None and one.kind is StudentT:
            # Other tails may have the same moments
            compared.append((one.parameters[-1], two.parameters[-1], one.parameters[-1]))
        for found, expected, size in compared:
            is_same = (found - expected).abs() <= precision * size
            differs |= ~(is_same | (found.isnan() & expected.isnan()))
        return differs.any(0).view(differs.shape[1], -1).any(1)


Response = ClassResponse | NumberResponse
# Distributions over classes
CLASSES = (Bernoulli, Categorical, OneHotCategorical)


def stated_response(net: Architecture, outputs: Tensor, scales: Tensor | float) -> Response:
    """Turn a stated network's outputs into a response.

    Args:
        net: The network.
        outputs: Shape ``(draws, outputs, rows)``.
        scales: Scales of a response that has them from elsewhere: a number, or ``(draws,)``.
    """
    likelihood = net.likelihood
    if likelihood.name == "bernoulli":
        return ClassResponse(torch.cat([torch.zeros_like(outputs), outputs], 1))
    if likelihood.name == "categorical":
        return ClassResponse(outputs)
    return NumberResponse(likelihood.response(outputs.mT, scales, validate=False))


def response_of(name: str, site: Mapping[str, Any], num_rows: int) -> Response:
    """Read a response from what a model says of its site under one draw.

    Args:
        name: The site's name.
        site: Its entry in the trace of a run.
        num_rows: Number of rows.

    Raises:
        ValueError: If it does not have one value, or one vector, for each row; or if it is no
            distribution whose mean and variance are known.
    """
    distribution: TorchDistributionMixin = site["fn"]
    base = without_events(distribution)
    if isinstance(base, CLASSES):
        logits, is_of_logits = _class_logits(base)
        if logits.dim() != 2 or len(logits) != num_rows:
            raise _shape_error(name, base.batch_shape, num_rows)
        return ClassResponse(logits.mT.unsqueeze(0), is_of_logits)
    try:
        is_known = not isinstance(without_wrappers(base), (*CLASSES, VonMises))
        distribution.mean, distribution.variance  # noqa: B018
    except NotImplementedError:
        is_known = False
    if not is_known:
        raise without_moments(name, base)
    shape = distribution.shape()
    plates = {frame.dim: frame.size for frame in site["cond_indep_stack"]}
    if len(distribution.batch_shape) == 2 and plates.get(-1) == num_rows:
        raise ValueError(
            f"site {name!r} has shape {tuple(shape)}, and its last dimension is a plate of as many "
            f"as the {num_rows} rows of x: rows must come first; make an event of several numbers "
            "of a row by to_event(1)"
        )
    # Rows must be independent: those that `to_event` made one event are, those of one vector not
    if len(shape) not in (1, 2) or base.batch_shape[:1] != (num_rows,):
        raise _shape_error(name, shape, num_rows)
    if len(base.batch_shape) == 2:
        base = base.to_event(1)
    return NumberResponse(base.expand((1, num_rows)))


def _for_events(values: Tensor, like: Tensor) -> Tensor:
    """Give values of draws and rows the dimensions of events, for which they hold."""
    return values.view(*values.shape, *(1,) * (like.dim() - values.dim()))


def _precision(one: Tensor, two: Tensor) -> float:
    """Return what two ways of computing a response may differ by, relative to its size.

    A sum of a thousand terms is a few dozen rounding errors of its largest off, and layers add up.
    Where large terms cancel, the next layers may magnify that a thousandfold: double precision has
    room for it.
    """
    eps = max(torch.finfo(values.dtype).eps for values in (one, two))
    return 2**10 * eps if eps > torch.finfo(torch.float64).eps else 2**20 * eps


def without_moments(site: str, distribution: Any) -> ValueError:
    """Return the error of a response that has no moments."""
    return ValueError(
        "the response must be one of classes (Bernoulli, Categorical) or of numbers whose mean and "
        f"variance are known and finite; site {site!r} is {shown(distribution)}: draw its "
        "responses by Pyro's Predictive"
    )


def _class_logits(base: Any) -> tuple[Tensor, bool]:
    """Return logits of shape ``(..., classes)``, and whether they are what was given."""
    base = getattr(base, "_categorical", base)
    is_given = "logits" in vars(base)
    if not isinstance(base, Bernoulli):
        return (base.logits if is_given else base.probs.log()), is_given
    if is_given:
        return torch.stack([torch.zeros_like(base.logits), base.logits], -1), True
    return torch.stack([torch.log1p(-base.probs), base.probs.log()], -1), False


def _shape_error(site: str, shape: torch.Size, num_rows: int) -> ValueError:
    return ValueError(
        f"the response must have one value for each of the {num_rows} rows of x; site {site!r} "
        f"has shape {tuple(shape)}"
    )
