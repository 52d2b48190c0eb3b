"""Normal priors, as far as moves and engines make use of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["NormalPriors"]


@dataclass(frozen=True, eq=False)
class NormalPriors:
    """Hold the Normal priors of flat coordinates, on the CPU in double precision.

    Attributes:
        locs: Mean of each coordinate, shape ``(num_params,)``.
        scales: Standard deviation of each coordinate; infinite where the prior is another.
    """

    locs: Tensor
    scales: Tensor

    @property
    def log_normalizers(self) -> Tensor:
        """What normalises each prior, shape ``(num_params,)``; 0 where it is another."""
        values = -(self.scales.log() + 0.5 * math.log(2 * math.pi))
        return torch.where(torch.isfinite(values), values, 0.0)

    @property
    def log_constant(self) -> Tensor:
        """What normalises the Normal priors together, shape ``()``."""
        return self.log_normalizers.sum()
