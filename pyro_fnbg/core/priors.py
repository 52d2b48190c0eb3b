"""Priors of flat coordinates, as far as moves and engines make use of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["NUM_FORM", "Family", "NormalPriors", "ParameterPriors", "Variances"]

# Numbers that say what the log density of a positive number is; see ``ParameterPriors.forms``
NUM_FORM = 8


class Family(IntEnum):
    """Name the distributions whose densities the fast engines know; any other is ``OTHER``."""

    NORMAL = 0
    LAPLACE = 1
    STUDENT = 2
    POSITIVE = 3
    OTHER = 4


class NormalPriors(NamedTuple):
    """Hold the Normal priors of flat coordinates, on the CPU in double precision.

    Attributes:
        locs: Mean of each coordinate, shape ``(num_params,)``.
        scales: Standard deviation of each coordinate; infinite where the prior is another, or has a
            scale that is sampled.
    """

    locs: Tensor
    scales: Tensor


class Variances(NamedTuple):
    r"""Hold the conditionals of sampled variances with inverse gamma priors, of Normal priors.

    Given n parameters w with priors Normal(m, v\ :sup:`1/2`), a variance v with the prior
    InverseGamma(a, b) has the conditional InverseGamma(a + n / 2, b + S / 2), where S is the sum of
    (w - m)\ :sup:`2`: the likelihood does not see it.

    Attributes:
        coordinates: Flat coordinate of the logarithm of each variance, ascending, shape ``(V,)``.
        shapes: a + n / 2, shape ``(V,)``.
        rates: b, shape ``(V,)``.
        members: Flat coordinates of the parameters, shape ``(M,)``.
        owners: Place among ``coordinates`` of each one's variance.
        locs: m of each.
    """

    coordinates: Tensor
    shapes: Tensor
    rates: Tensor
    members: Tensor
    owners: Tensor
    locs: Tensor


@dataclass(frozen=True, eq=False)
class ParameterPriors:
    """Hold the priors of flat coordinates, on the CPU in double precision.

    All are independent but for scales that are sampled: the scale of a coordinate's prior may be a
    power of another coordinate's value, which is ``POSITIVE``.

    Attributes:
        families: Number of each coordinate's ``Family``, shape ``(num_params,)``.
        locs: Location of each coordinate.
        scales: Scale of each coordinate; 1 where it is sampled, infinite for other families.
        degrees_of_freedom: Of Student's t distribution; 1 where the family is another.
        scale_coordinates: Coordinate of the logarithm of the scale or variance, -1 where it is
            fixed.
        scale_powers: By what this logarithm is multiplied: 1 for a scale, 1/2 for a variance; 0
            where it is fixed.
        positives: Coordinates of logarithms u of positive numbers, ascending, shape ``(V,)``.
        forms: The log density of each, the Jacobian of the logarithm included, by its coefficients:
            c0 u + c1 u^2 + c2 s + c3 s^2 + c4 / s + c5 log(1 + c6 s^2) + c7 with s = exp(u); shape
            ``(V, 8)``.
    """

    families: Tensor
    locs: Tensor
    scales: Tensor
    degrees_of_freedom: Tensor
    scale_coordinates: Tensor
    scale_powers: Tensor
    positives: Tensor
    forms: Tensor

    @property
    def normal(self) -> NormalPriors:
        """The Normal priors of a fixed scale alone."""
        is_normal = (self.families == Family.NORMAL) & (self.scale_coordinates < 0)
        return NormalPriors(self.locs, torch.where(is_normal, self.scales, torch.inf))

    @cached_property
    def log_normalizers(self) -> Tensor:
        """What does not depend on the position in each density, ``(num_params,)``; 0 for others."""
        half = 0.5 * self.degrees_of_freedom
        of_student = half.lgamma() - (half + 0.5).lgamma() + 0.5 * (2 * math.pi * half).log()
        own = torch.full_like(self.scales, 0.5 * math.log(2 * math.pi))
        own = torch.where(self.families == Family.LAPLACE, math.log(2), own)
        own = torch.where(self.families == Family.STUDENT, of_student, own)
        known = torch.where(self.families < Family.POSITIVE, -(self.scales.log() + own), 0.0)
        return known.index_copy(0, self.positives, self.forms[:, -1])

    @property
    def log_constant(self) -> Tensor:
        """What does not depend on the position in all densities together, shape ``()``."""
        return self.log_normalizers.sum()

    def scaled_by(self, coordinates: Tensor) -> Tensor:
        """Return the coordinates whose priors have their scale from some coordinates."""
        return torch.isin(self.scale_coordinates, coordinates).nonzero().squeeze(-1)

    def terms_of(self, coordinates: Tensor) -> Tensor | None:
        """Return the coordinates whose priors change with a block; None if these are its own alone.

        A block's own priors do not depend on other blocks then, either.
        """
        is_scaled = bool((self.scale_coordinates[coordinates] >= 0).any())
        is_positive = self.families[coordinates] == Family.POSITIVE
        if not bool(is_positive.any()):
            return coordinates if is_scaled else None
        others = self.scaled_by(coordinates[is_positive])
        terms: Tensor = torch.cat([coordinates, others]).unique()
        return terms if is_scaled or len(others) else None

    @property
    def variances(self) -> Variances:
        """The sampled scales that have a conditional which can be drawn from."""
        # An inverse gamma distribution is what has no other terms than c0 u + c4 / s
        is_other = (self.forms[:, [1, 2, 3, 5]] != 0).any(-1)
        is_conjugate = ~is_other & (self.forms[:, 0] < 0) & (self.forms[:, 4] < 0)
        fits = (self.families == Family.NORMAL) & (self.scale_powers == 0.5)
        # Nor may there be one that scales something else as well
        misfits = self.scale_coordinates[~fits]
        is_conjugate &= ~torch.isin(self.positives, misfits)
        is_conjugate &= torch.isin(self.positives, self.scale_coordinates)
        coordinates, forms = self.positives[is_conjugate], self.forms[is_conjugate]
        members = self.scaled_by(coordinates)
        owners = torch.searchsorted(coordinates, self.scale_coordinates[members])
        counts = owners.bincount(minlength=len(coordinates))
        return Variances(
            coordinates, counts / 2 - forms[:, 0], -forms[:, 4], members, owners, self.locs[members]
        )
