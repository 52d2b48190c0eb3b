"""Quantiles of mixtures over draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution, Normal, Poisson, StudentT

__all__ = ["Parts", "mixture_quantiles", "parts_of"]

# The parameters of the distributions whose mixtures have exact quantiles
PARAMETERS: dict[type[Distribution], tuple[str, ...]] = {
    Normal: ("loc", "scale"),
    StudentT: ("loc", "scale", "df"),
    Poisson: ("rate",),
}
# Up to here a sum is faster than SciPy, ten times for 4 degrees of freedom
MANY_DEGREES = 30


@dataclass(frozen=True)
class Parts:
    """Hold the parts of mixtures, one a draw: independent numbers with one kind of distribution.

    Attributes:
        kind: The kind, one of those with `PARAMETERS`.
        parameters: Its parameters, each of shape ``(draws, ...)``.
    """

    kind: type[Distribution]
    parameters: tuple[Tensor, ...]

    @classmethod
    def joined(cls, several: Sequence[Parts]) -> Parts:
        """Put draws after draws."""
        columns = zip(*(parts.parameters for parts in several), strict=True)
        return cls(several[0].kind, tuple(torch.cat(column) for column in columns))


def parts_of(distribution: Distribution) -> Parts | None:
    """Return the parts that the draws of a distribution are, if mixtures have exact quantiles."""
    for kind, names in PARAMETERS.items():
        if isinstance(distribution, kind):
            return Parts(kind, tuple(getattr(distribution, name) for name in names))
    return None


def mixture_quantiles(parts: Parts, levels: Sequence[float], max_numbers: int) -> list[Tensor]:
    """Find quantiles of equally weighted mixtures.

    Exact up to the root finder's tolerance, far below the rounding of float32; of counts, the
    smallest number that is not exceeded with the level's probability.

    Args:
        parts: Parameters of shape ``(draws, mixtures)``, broadcast with the first.
        levels: Of the quantiles, between 0 and 1.
        max_numbers: How many numbers may be held at a time.

    Returns:
        For each level, a tensor of shape ``(mixtures,)``, in double precision.

    Example:
        >>> parts = Parts(Normal, (torch.tensor([[-1.0], [1.0]]), torch.tensor([[1e-3], [1e-3]])))
        >>> mixture_quantiles(parts, [0.25, 0.75], 1000)
        [tensor([-1.], dtype=torch.float64), tensor([1.], dtype=torch.float64)]
    """
    first, *others = parts.parameters
    whole = [first, *(parameter.expand(first.shape) for parameter in others)]
    at_a_time = max(1, max_numbers // (2 * max(2, len(whole)) * len(first)))
    found = []
    for piece in zip(*(parameter.split(at_a_time, 1) for parameter in whole), strict=True):
        columns = [some.double().cpu() for some in piece]
        found.append(torch.stack([_quantiles(parts.kind, columns, level) for level in levels]))
    return list(torch.cat(found, 1))


def _quantiles(kind: type[Distribution], parameters: Sequence[Tensor], level: float) -> Tensor:
    if kind is Poisson:
        return _quantiles_of_counts(parameters[0], level)
    means, scales, *degrees = parameters
    if kind is Normal:
        at_level = torch.special.ndtri(torch.tensor(level, dtype=torch.float64))
        return _roots(means, scales, lambda values, _: torch.special.ndtr(values), at_level, level)
    from scipy.special import stdtrit

    (degrees_of_freedom,) = degrees
    at_level = torch.from_numpy(stdtrit(degrees_of_freedom.numpy(), level))
    return _roots(means, scales, _student(degrees_of_freedom), at_level, level)


def _roots(
    means: Tensor,
    scales: Tensor,
    distribution: Callable[[Tensor, Tensor], Tensor],
    at_level: Tensor,
    level: float,
) -> Tensor:
    """Find where distribution functions of mixtures of shifted and stretched numbers are a level.

    Args:
        means: Shifts, shape ``(draws, mixtures)``.
        scales: Stretches, of the same shape.
        distribution: Distribution function of values in some columns.
        at_level: Where that of a part is at the level, before it is shifted and stretched.
        level: The level.
    """
    from scipy.optimize.elementwise import find_root

    def above(values: NDArray[Any], places: NDArray[Any]) -> NDArray[Any]:
        """Return by how much the mixtures' distribution functions exceed the level."""
        columns = torch.from_numpy(places.astype(np.int64).ravel())
        points = torch.from_numpy(values.ravel())
        below = distribution((points - means[:, columns]) / scales[:, columns], columns)
        found: NDArray[Any] = (below.mean(0) - level).numpy().reshape(values.shape)
        return found

    # A standard deviation of 0 is a point
    scales = scales.clamp_min(torch.finfo(scales.dtype).tiny)
    # A mixture's quantile lies between the least and the largest of its parts'
    of_parts = means + scales * at_level
    lowest, highest = of_parts.amin(0), of_parts.amax(0)
    # A hair wider, since rounding may leave both ends on one side
    sizes = torch.maximum(lowest.abs(), highest.abs())
    rounding = 4 * torch.finfo(sizes.dtype).eps * sizes
    margin = 1e-9 * (scales.amin(0) + (highest - lowest)) + rounding
    places = np.arange(means.shape[1], dtype=np.float64)
    found = find_root(
        above, ((lowest - margin).numpy(), (highest + margin).numpy()), args=(places,)
    )
    # Where not even that is wide enough, the ends are one number but for rounding
    return torch.where(torch.from_numpy(found.success), torch.from_numpy(found.x), lowest)


def _student(degrees: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the distribution function of Student's t, with degrees of freedom for each part."""
    number = float(degrees[0, 0])
    if not (bool((degrees == number).all()) and number <= MANY_DEGREES and number % 2 == 0):
        from scipy.special import stdtr

        def by_scipy(values: Tensor, columns: Tensor) -> Tensor:
            below: NDArray[Any] = stdtr(degrees[:, columns].numpy(), values.numpy())
            return torch.from_numpy(below)

        return by_scipy
    coefficients = [1.0]
    for j in range(1, int(number) // 2):
        coefficients.append(coefficients[-1] * (j - 0.5) / j)

    def by_sum(values: Tensor, columns: Tensor) -> Tensor:
        # P(|T| > |t|) is an incomplete beta function, for even degrees a polynomial and a root:
        # Abramowitz and Stegun (1964), 26.7.4
        share = number / (number + values.square())
        total = torch.full_like(share, coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total = total * share + coefficient
        return 0.5 + 0.5 * values / (number + values.square()).sqrt() * total

    return by_sum


def _quantiles_of_counts(rates: Tensor, level: float) -> Tensor:
    """Find the smallest counts whose distribution functions reach a level, by halving."""

    def reaches(counts: Tensor) -> Tensor:
        # P(count <= k) is an incomplete gamma function of k + 1 and the rate
        below: Tensor = torch.special.gammaincc(counts + 1, rates).mean(0)
        return below >= level

    # Cantelli: a count exceeds its mean by k standard deviations with probability 1 / (1 + k^2)
    wide = math.sqrt(level / (1 - level))
    highest = (rates + wide * rates.sqrt()).amax(0).ceil()
    lowest = torch.full_like(highest, -1.0)
    while bool((highest - lowest > 1).any()):
        middle = ((lowest + highest) / 2).floor()
        is_enough = reaches(middle)
        # Beyond 2**53 neighbours are further apart than 1
        if bool(((middle == lowest) | (middle == highest)).all()):
            break
        highest = torch.where(is_enough, middle, highest)
        lowest = torch.where(is_enough, lowest, middle)
    return highest
