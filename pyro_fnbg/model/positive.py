"""Log densities of the logarithms of positive numbers, in one form for all engines."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_fnbg.core.priors import NUM_FORM

__all__ = ["log_form"]


def log_form(prior: Any) -> Tensor | None:
    """Write the log density of u = log(s), for s of a given prior, by coefficients.

    They are those of ``ParameterPriors.forms``, the Jacobian included, in double precision.

    Returns:
        The coefficients, of the prior's shape with a dimension for them at the end; None if the
        prior has no such form.

    Example:
        >>> log_form(dist.Exponential(2.0)).tolist()  # log 2 - 2 s + u
        [1.0, 0.0, -2.0, 0.0, 0.0, 0.0, 0.0, 0.6931471824645996]
    """

    def value(name: str) -> Tensor:
        found: Tensor = getattr(prior, name).detach().double().cpu()
        return found

    shape = prior.batch_shape
    c = torch.zeros(*shape, NUM_FORM, dtype=torch.float64)
    c[..., 0] = 1.0  # the Jacobian
    if isinstance(prior, dist.HalfNormal):
        c[..., 3] = -0.5 / value("scale").square()
    elif isinstance(prior, dist.HalfCauchy):
        c[..., 5], c[..., 6] = -1.0, value("scale") ** -2
    elif isinstance(prior, dist.Exponential):
        c[..., 2] = -value("rate")
    elif isinstance(prior, dist.Gamma):
        c[..., 0] += value("concentration") - 1
        c[..., 2] = -value("rate")
    elif isinstance(prior, dist.InverseGamma):
        c[..., 0] -= value("concentration") + 1
        c[..., 4] = -value("rate")
    elif isinstance(prior, dist.LogNormal):
        precision = value("scale") ** -2
        c[..., 0] += value("loc") * precision - 1
        c[..., 1] = -0.5 * precision
    else:
        return None
    at_one = c[..., 2] + c[..., 3] + c[..., 4] + c[..., 5] * c[..., 6].log1p()
    one = torch.ones(shape, device=getattr(prior, next(iter(prior.arg_constraints))).device)
    c[..., 7] = prior.log_prob(one).detach().double().cpu() - at_one
    return c
