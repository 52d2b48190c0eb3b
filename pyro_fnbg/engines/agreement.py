"""Whether a log ratio is that of the model itself, up to rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.core.step import log_accept_ratio
from pyro_fnbg.model.density import ModelDensity

__all__ = ["ROUNDINGS", "TOLERANCES", "Terms", "agree", "sensitivity", "terms_at", "tolerance"]

# How far log ratios may lie apart: absolutely, as a share of the summed changes of their terms, and
# in units of rounding of the terms themselves, see _rounding
TOLERANCES = {torch.float32: (1e-3, 1e-4), torch.float64: (1e-8, 1e-9)}
ROUNDINGS = 8


class Terms(NamedTuple):
    """Hold the summands of a model's log density, those of latent sites and of observed ones."""

    latent: Tensor
    observed: Tensor


def terms_at(
    density: ModelDensity, position: Tensor, rows: Tensor | None, observed: Sequence[str]
) -> Terms:
    """Evaluate the model at a position."""
    terms = density.site_terms(position, rows)
    # Where masks hide all data, or all priors, there is still something to join
    nothing = torch.zeros(0, dtype=torch.float64, device=position.device)
    of_data = [term.reshape(-1).double() for name, term in terms.items() if name in observed]
    others = [term.reshape(-1).double() for name, term in terms.items() if name not in observed]
    return Terms(torch.cat([nothing, *others]), torch.cat([nothing, *of_data]))


def agree(ratio: float, before: Terms, after: Terms, allowed: float) -> bool:
    """Whether a log ratio is the model's, up to what is allowed."""
    expected = float(log_accept_ratio(torch.cat(after), torch.cat(before)))
    if not math.isfinite(expected):
        return not math.isfinite(ratio)
    return abs(ratio - expected) <= allowed


def tolerance(before: Terms, after: Terms, dtype: torch.dtype, factor: float) -> float:
    """Say how far a log ratio may lie from the model's, as far as the terms alone tell."""
    absolute, relative = TOLERANCES[dtype]
    # A factor on the likelihood multiplies the rounding of its terms
    changes = float((torch.cat(after) - torch.cat(before)).abs().sum())
    allowed = absolute * max(1.0, factor) + relative * changes
    return allowed + _rounding(before, after, dtype, factor)


def sensitivity(
    density: ModelDensity,
    rows: Tensor | None,
    observed: Sequence[str],
    position: Tensor,
    z: Tensor,
    terms: Terms,
) -> float:
    """Return how far the terms move when every parameter does by a unit of rounding.

    Sums of a layer come out as if its weights had been rounded so, whatever the order of their
    terms. Where a scale follows from the network and is small, a row's term is far more sensitive
    to that than its size tells: an output of -10, the difference of what is larger, is a standard
    deviation of exp(-10).
    """
    unit = torch.finfo(position.dtype).eps * z.sign().to(position)
    around = terms_at(density, position + position * unit, rows, observed)
    return float((torch.cat(around) - torch.cat(terms)).abs().nansum())


def _rounding(before: Terms, after: Terms, dtype: torch.dtype, factor: float) -> float:
    """Bound what rounding does to a log ratio; on equal rows it is the same, and adds up.

    Each term has a few units of rounding relative to its size, from both sides and from what they
    score: 1.6 at most in some hundred networks with few distinct rows, unless outcomes are a
    thousand standard deviations from 0. A row's term may be far smaller than what torch's own
    likelihoods subtract for it, a logit and its log sigmoid or log-sum-exp: logit x is rounded, by
    half a unit on each side, as long as the term exp(-x) is noticed beside it, up to -log(epsilon).
    Priors that do not change are not computed.
    """
    epsilon = torch.finfo(dtype).eps
    sizes = [old.abs() + new.abs() for old, new in zip(before, after, strict=True)]
    of_terms = float(sizes[0][before.latent != after.latent].sum() + sizes[1].sum())
    of_logits = factor * len(sizes[1]) * -math.log(epsilon)
    return epsilon * (ROUNDINGS * of_terms + of_logits)
