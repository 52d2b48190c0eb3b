"""What is summed over draws, and what predictions follow from the sums.

The sums are values: those of two parts of the draws, added, are those of both. So parts can be
evaluated in any order and place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pyro_fnbg.prediction.mixtures import Parts, mixture_quantiles
from pyro_fnbg.prediction.outcomes import ClassPrediction, NumberPrediction
from pyro_fnbg.prediction.responses import ClassResponse, NumberResponse

__all__ = ["ClassTotals", "NumberTotals"]


@dataclass(frozen=True)
class ClassTotals:
    """Hold sums of class probabilities over draws, in double precision.

    Attributes:
        num_draws: Number of draws.
        probabilities: Shape ``(rows, classes)``.
        entropies: Shape ``(rows,)``; zeros where they were not asked for.
    """

    num_draws: int
    probabilities: Tensor
    entropies: Tensor

    @classmethod
    def of(cls, response: ClassResponse, has_entropies: bool) -> ClassTotals:
        """Sum over the draws of a response."""
        probabilities = response.probabilities
        total = probabilities.sum(0, dtype=torch.float64).mT
        if has_entropies:
            # Over draws and classes at once: nobody asks for one draw's
            entropies = torch.special.entr(probabilities).sum((0, 1), dtype=torch.float64)
        else:
            entropies = total.new_zeros(len(total))
        return cls(len(probabilities), total, entropies)

    def __add__(self, other: ClassTotals) -> ClassTotals:
        return ClassTotals(
            self.num_draws + other.num_draws,
            self.probabilities + other.probabilities,
            self.entropies + other.entropies,
        )

    @property
    def mean(self) -> Tensor:
        """Averages over draws, shape ``(rows, classes)``."""
        return self.probabilities / self.num_draws

    def prediction(self, dtype: torch.dtype) -> ClassPrediction:
        """Return the averages over draws."""
        return ClassPrediction(
            self.mean.to(dtype),
            (self.entropies / self.num_draws).to(dtype),
            self.num_draws,
        )


@dataclass(frozen=True)
class NumberTotals:
    """Hold sums of moments over draws, in double precision.

    Attributes:
        num_draws: Number of draws.
        mean: Mean over draws of the mean responses, shape ``(rows, *event shape)``.
        squares: Sum over draws of squared deviations from it.
        variances: Sum over draws of the responses' variances.
        log_densities: Logarithm of the sum over draws of the densities of the rows' numbers, shape
            ``(rows,)``; None if there are none.
        parts: Parts of mixtures that have exact quantiles, if these are wanted.
        responses: Otherwise a response drawn for each draw, if quantiles are wanted.
    """

    num_draws: int
    mean: Tensor
    squares: Tensor
    variances: Tensor
    log_densities: Tensor | None
    parts: tuple[Parts, ...] = ()
    responses: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, response: NumberResponse, y: Tensor | None, has_quantiles: bool) -> NumberTotals:
        """Sum over the draws of a response."""
        means = response.means.double()
        mean = means.mean(0)
        parts = response.parts if has_quantiles else None
        return cls(
            len(means),
            mean,
            (means - mean).square().sum(0),
            response.variances.sum(0, dtype=torch.float64).expand_as(mean),
            None if y is None else response.log_likelihood(y).double().logsumexp(0),
            (parts,) if parts else (),
            (response.sample(),) if has_quantiles and not parts else (),
        )

    def __add__(self, other: NumberTotals) -> NumberTotals:
        num_draws = self.num_draws + other.num_draws
        step = other.mean - self.mean
        log_densities = self.log_densities
        if log_densities is not None and other.log_densities is not None:
            log_densities = torch.logaddexp(log_densities, other.log_densities)
        return NumberTotals(
            num_draws,
            self.mean + step * (other.num_draws / num_draws),
            self.squares
            + other.squares
            + step.square() * (self.num_draws * other.num_draws / num_draws),
            self.variances + other.variances,
            log_densities,
            self.parts + other.parts,
            self.responses + other.responses,
        )

    def prediction(
        self, dtype: torch.dtype, levels: Sequence[float], max_numbers: int
    ) -> NumberPrediction:
        """Return the mixture's moments and quantiles."""
        quantiles = self._quantiles(levels, max_numbers)
        log_density = self.log_densities
        if log_density is not None:
            log_density = (log_density - torch.tensor(self.num_draws).log()).to(dtype)
        return NumberPrediction(
            self.mean.to(dtype),
            (self.variances / self.num_draws).to(dtype),
            (self.squares / self.num_draws).to(dtype),
            self.num_draws,
            {level: value.to(dtype) for level, value in zip(levels, quantiles, strict=True)},
            not self.responses,
            log_density,
        )

    def _quantiles(self, levels: Sequence[float], max_numbers: int) -> list[Tensor]:
        if self.parts:
            parts = Parts.joined(self.parts)
            first = parts.parameters[0]
            flat = tuple(value.expand_as(first).flatten(1) for value in parts.parameters)
            found = mixture_quantiles(replace(parts, parameters=flat), levels, max_numbers)
            return [value.view(first.shape[1:]).to(first.device) for value in found]
        if not self.responses:
            return []
        drawn = torch.cat(self.responses)
        at_a_time = max(1, max_numbers // (4 * len(drawn)))
        # PyTorch's own refuses more than 16 million numbers
        pieces = [
            np.quantile(some.double().numpy(force=True), levels, axis=0)
            for some in drawn.split(at_a_time, 1)
        ]
        return list(torch.from_numpy(np.concatenate(pieces, 1)).to(drawn.device))
