"""Priors of flat coordinates, as far as moves and engines make use of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["Family", "NormalPriors", "ParameterPriors"]


class Family(IntEnum):
    """Name the distributions whose densities the fast engines know; any other is ``OTHER``."""

    NORMAL = 0
    LAPLACE = 1
    STUDENT = 2
    OTHER = 3


@dataclass(frozen=True, eq=False)
class NormalPriors:
    """Hold the Normal priors of flat coordinates, on the CPU in double precision.

    Attributes:
        locs: Mean of each coordinate, shape ``(num_params,)``.
        scales: Standard deviation of each coordinate; infinite where the prior is another.
    """

    locs: Tensor
    scales: Tensor


@dataclass(frozen=True, eq=False)
class ParameterPriors:
    """Hold the independent priors of flat coordinates in double precision.

    Attributes:
        families: Number of each coordinate's ``Family``, shape ``(num_params,)``.
        locs: Location of each coordinate.
        scales: Scale of each coordinate; infinite where the family is ``OTHER``.
        degrees_of_freedom: Of Student's t distribution; 1 where the family is another.
    """

    families: Tensor
    locs: Tensor
    scales: Tensor
    degrees_of_freedom: Tensor

    def to(self, device: torch.device) -> ParameterPriors:
        """Return the same on a device."""
        return ParameterPriors(*(getattr(self, field.name).to(device) for field in fields(self)))

    @property
    def normal(self) -> NormalPriors:
        """The Normal priors alone."""
        scales = torch.where(self.families == Family.NORMAL, self.scales, torch.inf)
        return NormalPriors(self.locs, scales)

    @property
    def log_normalizers(self) -> Tensor:
        """What normalises each density, shape ``(num_params,)``; 0 where it is not known."""
        half = 0.5 * self.degrees_of_freedom
        of_student = half.lgamma() - (half + 0.5).lgamma() + 0.5 * (2 * math.pi * half).log()
        own = torch.full_like(self.scales, 0.5 * math.log(2 * math.pi))
        own = torch.where(self.families == Family.LAPLACE, math.log(2), own)
        own = torch.where(self.families == Family.STUDENT, of_student, own)
        return torch.where(self.families == Family.OTHER, 0.0, -(self.scales.log() + own))

    @property
    def log_constant(self) -> Tensor:
        """What normalises all densities together, shape ``()``."""
        return self.log_normalizers.sum()

    def log_shapes(self, position: Tensor) -> Tensor:
        """Score each coordinate up to its normaliser, in double precision.

        Args:
            position: Unconstrained parameters, shape ``(..., num_params)``.
        """
        errors = (position.double() - self.locs) / self.scales
        shapes = -0.5 * errors.square()
        if (is_laplace := self._masks[Family.LAPLACE]) is not None:
            shapes = torch.where(is_laplace, -errors.abs(), shapes)
        if (is_student := self._masks[Family.STUDENT]) is not None:
            degrees = self.degrees_of_freedom
            of_student = -0.5 * (degrees + 1) * (errors.square() / degrees).log1p()
            shapes = torch.where(is_student, of_student, shapes)
        return shapes

    @cached_property
    def _masks(self) -> dict[Family, Tensor | None]:
        """Where each family is; None for those that are nowhere."""
        masks = {family: self.families == family for family in Family}
        return {family: mask if bool(mask.any()) else None for family, mask in masks.items()}
