"""The log priors of a network's coordinates, compiled by Numba; see ``core.prior_terms``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.core.priors import Family
from pyro_fnbg.engines.fused.elementwise import INLINE, compiled
from pyro_fnbg.engines.fused.memory import Net

__all__ = ["log_prior_at"]

# Plain numbers, which compile to constants
LAPLACE, STUDENT, POSITIVE = int(Family.LAPLACE), int(Family.STUDENT), int(Family.POSITIVE)

Array = NDArray[Any]


@compiled(**INLINE)
def _positive_log_prior(c: Array, value: float) -> float:
    """Score the logarithm of a positive number by the form of its prior, up to a constant."""
    number = math.exp(value)
    score: float = c[0] * value + c[1] * value * value + c[2] * number + c[3] * number * number
    score += c[4] / number + c[5] * math.log1p(c[6] * number * number)
    return score


@compiled(**INLINE)
def log_prior_at(net: Net, position: Array, at: int, value: float) -> float:
    """Score one coordinate, up to a constant; its scale may be in the position."""
    family = net.prior_families[at]
    if family == POSITIVE:
        return _positive_log_prior(net.prior_forms[net.form_rows[at]], value)
    error, rate, log_scale = value - net.prior_locs[at], net.prior_rates[at], 0.0
    if net.holders[at] >= 0:
        log_scale = net.holder_powers[at] * np.float64(position[net.holders[at]])
        error *= math.exp(-log_scale)
    score: float = -rate * error * error
    if family == LAPLACE:
        score = -rate * abs(error)
    elif family == STUDENT:
        score = -net.prior_powers[at] * math.log1p(rate * error * error)
    return score - log_scale
