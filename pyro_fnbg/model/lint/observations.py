"""Whether the data of an observed site fit its distribution."""

from __future__ import annotations

from contextlib import suppress
from numbers import Real
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Independent

from pyro_fnbg.model.bound import BoundModel, running_again
from pyro_fnbg.model.sites import ModelSites
from pyro_fnbg.model.supports import without_checks

__all__ = ["check_observations"]


def check_observations(bound: BoundModel, sites: ModelSites) -> None:
    """Check the data of every observed site in a run of the model.

    Data off a support that moves with the parameters may yet be reached, so the support has to be
    that of the run that found the sites.

    Raises:
        TypeError: If data are no tensor or number, or of a type that cannot be scored.
        ValueError: If data do not fit their distribution's shape, or lie off its support; names the
            site, and what is allowed.
    """
    with running_again():
        trace = bound.prior_trace()
    for name in sites.observed:
        # A site that is gone has used up its data; the log density is told of that
        if name in trace:
            site = trace.nodes[name]
            if not isinstance(site["value"], Real):
                _check_tensor(site)
                _check_shape(site)
                _check_whole_numbers(site)
                if sites.supports[name].is_that_of(site["fn"]):
                    _check_values(site)


def _check_tensor(site: Any) -> None:
    fn, value = site["fn"], site["value"]
    if not isinstance(value, Tensor):
        raise TypeError(
            f"observed site {site['name']!r} must have its data in a tensor, got "
            f"{type(value).__name__} for {type(fn).__name__}: convert them by torch.as_tensor"
        )
    if value.is_complex():
        raise ValueError(f"observed site {site['name']!r} must have real data, got {value.dtype}")


def _check_whole_numbers(site: Any) -> None:
    """Refuse whole numbers where the distribution can score only floating ones."""
    fn, value = site["fn"], site["value"]
    if value.is_floating_point() or _log_density(fn, value) is not None:
        return
    if _log_density(fn, value.to(torch.get_default_dtype())) is not None:
        raise TypeError(
            f"observed site {site['name']!r} must have data that {type(fn).__name__} can score, "
            f"got {value.dtype}: convert them by .float() or .double()"
        )


def _log_density(fn: Any, value: Tensor) -> Tensor | None:
    """Score data as the sweeps do, without checks; None where the distribution fails on them."""
    try:
        scored: Tensor = without_checks(fn).log_prob(value)
    except (IndexError, RuntimeError, ValueError):
        return None
    return scored


def _check_shape(site: Any) -> None:
    """Refuse silent broadcasting.

    Pyro's own checks are off under ``MCMC``, where such data would give a likelihood of rows times
    rows.
    """
    fn, value = site["fn"], site["value"]
    data_shape = value.shape[: value.dim() - fn.event_dim]
    joint, outcome = None, "they do not fit together"
    if value.shape[len(data_shape) :] == fn.event_shape:
        with suppress(RuntimeError):
            joint = tuple(torch.broadcast_shapes(data_shape, fn.batch_shape))
    if joint is not None:
        # One value for all is a statement; several, repeated along a dimension, are an accident
        if (1,) * (len(joint) - len(data_shape)) + tuple(data_shape) == joint or value.dim() == 0:
            return _check_factor_shape(site)
        outcome = f"they would be broadcast to {joint}, so that rows count more than once"
    raise ValueError(
        f"observed site {site['name']!r} has data of shape {tuple(value.shape)} and a "
        f"distribution of batch shape {tuple(fn.batch_shape)} and event shape "
        f"{tuple(fn.event_shape)}: {outcome}; {_shape_advice(site)}"
    )


def _shape_advice(site: Any) -> str:
    fn, value = site["fn"], site["value"]
    if isinstance(fn, dist.Categorical) and value.shape == fn.logits.shape:
        return "these look like one-hot rows, so give their class numbers, argmax(-1)"
    plates = [
        f"; plate {frame.name!r} has {frame.size} rows on dimension {frame.dim}"
        for frame in site["cond_indep_stack"]
        if frame.vectorized
    ]
    return "give both the same shape (squeeze or unsqueeze one)" + "".join(plates)


def _check_factor_shape(site: Any) -> None:
    """Refuse a factor that has a plate's rows on a second dimension."""
    if not isinstance(site["fn"], dist.Unit):
        return
    plates = [frame for frame in site["cond_indep_stack"] if frame.vectorized]
    taken, shape = {frame.dim for frame in plates}, site["fn"].batch_shape
    others = [size for dim, size in enumerate(shape, -len(shape)) if dim not in taken]
    for frame in plates:
        if frame.size > 1 and frame.size in others:
            raise ValueError(
                f"factor {site['name']!r} has shape {tuple(shape)} inside plate {frame.name!r} of "
                f"{frame.size} rows, so that rows count more than once: give it one entry a row, "
                f"on dimension {frame.dim} (squeeze or unsqueeze what it is made of)"
            )


def _check_values(site: Any) -> None:
    """Refuse data off the support that have no log density either."""
    fn, value = site["fn"], site["value"]
    if isinstance(fn, dist.Unit) or value.numel() == 0:
        return
    try:
        support = fn.support
        valid = support.check(value)
    except (NotImplementedError, ValueError):
        return  # the distribution does not say
    if isinstance(site["mask"], Tensor):
        valid = valid | ~site["mask"]
    base = fn
    while isinstance(base, dist.MaskedDistribution | dist.ExpandedDistribution | Independent):
        if isinstance(base, dist.MaskedDistribution) and base.event_dim == support.event_dim:
            valid = valid | ~torch.as_tensor(base._mask)
        base = base.base_dist
    if bool(valid.all()):
        return
    value = value.expand(valid.shape + value.shape[value.dim() - support.event_dim :])
    scored = _log_density(fn, value)
    if scored is not None and scored.shape == valid.shape and not support.is_discrete:
        is_missing = value.isnan().reshape(*valid.shape, -1).any(-1)
        valid = valid | (scored.isfinite() & (is_missing | _scores_all(base)))
    off = value[~valid]
    if len(off) > 0:
        count = value.numel() // off[0].numel()
        raise ValueError(
            f"observed site {site['name']!r} has {len(off)} of {count} values outside the support "
            f"{support} of {type(fn).__name__}; the first is {off[0].tolist()}"
        )


def _scores_all(fn: Any) -> bool:
    """Whether a density off the support is one, where it is finite.

    Without checks PyTorch's formulas, and Pyro's, give numbers off the support that mean nothing,
    but not at missing values: what is finite there was made for them.
    """
    is_formula = type(fn).log_prob.__module__.startswith(("torch.", "pyro."))
    return isinstance(fn, dist.ZeroInflatedDistribution) or not is_formula
