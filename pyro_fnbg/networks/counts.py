"""Counts of a Poisson distribution, by the logarithm of its rate."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

__all__ = ["LogPoisson", "poisson_log_probs", "with_count_columns"]

# Counts may be so much smaller than the rate, as a logarithm, before nothing cancels any more
NEAR = 1.0


def with_count_columns(counts: Tensor) -> Tensor:
    """Add to counts what of their log probabilities depends on nothing else.

    Args:
        counts: Whole numbers from 0 on, shape ``(..., K)``.

    Returns:
        Shape ``(..., 2 K + 1)``: the counts; their logarithms, 0 of those that are 0; and the log
        probability of all K at rates that are the counts themselves, from double precision.
    """
    exact = counts.double()
    logs = exact.clamp(min=1.0).log()
    at_best = exact * logs - exact - torch.lgamma(exact + 1.0)
    return torch.cat([exact, logs, at_best.sum(-1, keepdim=True)], -1).to(counts.dtype)


def poisson_log_probs(log_rates: Tensor, counts: Tensor, logs: Tensor) -> Tensor:
    """Compare rates with counts: the log probability, less that at a rate equal to the count.

    With d = log rate - log count it is count (d - expm1(d)), without a difference of numbers that
    are far larger: y log(rate) - rate - log(y!) would lose the digits of counts in the thousands in
    single precision. Exact to a few units of rounding, also where the rate itself underflows; -inf
    where it overflows.

    Args:
        log_rates: Logarithms of the rates.
        counts: The counts, broadcast with them.
        logs: Logarithms of the counts, 0 of those that are 0.
    """
    away = log_rates - logs
    is_near = (away < NEAR) & (counts > 0)
    # Clamped, so that what is not taken has no gradient that is not finite
    more = torch.where(
        is_near, counts * torch.expm1(away.clamp(max=NEAR)), log_rates.exp() - counts
    )
    return counts * away - more


class LogPoisson(dist.Poisson):
    """Describe counts with a rate of which the logarithm is given.

    log p(y) = y log_rate - exp(log_rate) - log(y!), as of ``Poisson(log_rate.exp())``, but right
    where that rate is no number of its type: an underflow of the rate to 0 makes counts unlikely,
    and not impossible. Write your own models with it where a network gives log rates.

    Args:
        log_rate: Logarithm of the rate.
        validate_args: Whether arguments and values are checked.

    Example:
        >>> rare = LogPoisson(torch.tensor(-200.0))
        >>> rare.log_prob(torch.tensor(1.0))
        tensor(-200.)
    """

    def __init__(self, log_rate: Tensor, *, validate_args: bool | None = None) -> None:
        self.log_rate = log_rate
        base: Any = super()
        base.__init__(log_rate.exp(), validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the distribution in a larger shape."""
        base: Any = super()
        new = base._get_checked_instance(LogPoisson, _instance)
        new.log_rate = self.log_rate.expand(batch_shape)
        return base.expand(batch_shape, _instance=new)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log probabilities."""
        if self._validate_args:
            self._validate_sample(value)
        counts, logs, at_best = with_count_columns(value.to(self.log_rate).unsqueeze(-1)).unbind(-1)
        return poisson_log_probs(self.log_rate, counts, logs) + at_best
