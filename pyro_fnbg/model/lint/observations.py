"""Whether the data of an observed site fit its distribution."""

from __future__ import annotations

from numbers import Real
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_fnbg.model.bound import BoundModel, running_again
from pyro_fnbg.model.sites import ModelSites

__all__ = ["check_observations"]


def check_observations(bound: BoundModel, sites: ModelSites) -> None:
    """Check the data of every observed site in a run of the model.

    Data off a support that moves with the parameters may yet be reached, so the support has to be
    that of the run that found the sites.

    Raises:
        TypeError: If data are neither a tensor nor a number that the distribution can score.
        ValueError: If data do not fit their distribution's shape, or lie off its support; names the
            site, and what is allowed.
    """
    with running_again():
        trace = bound.trace()
    for name in sites.observed:
        # A site that is gone has used up its data; the log density is told of that
        if name in trace:
            site = trace.nodes[name]
            check_form(site)
            if sites.supports[name].is_that_of(site["fn"]):
                check_values(site)


def check_form(site: Any) -> None:
    """Check an observed site of a trace: no silent broadcasting.

    Pyro's own checks are off under ``MCMC``, where such data would give a likelihood of rows times
    rows.

    Raises:
        TypeError: If the data are neither a tensor nor a number that the distribution can score.
        ValueError: Naming the site, the shapes and what is allowed.
    """
    value = site["value"]
    if not isinstance(value, Tensor):
        _check_scored(site)
    elif value.is_complex():
        raise ValueError(f"observed site {site['name']!r} must have real data, got {value.dtype}")
    else:
        _check_shape(site)


def _check_shape(site: Any) -> None:
    fn, value = site["fn"], site["value"]
    data_shape = value.shape[: value.dim() - fn.event_dim]
    fits = value.shape[len(data_shape) :] == fn.event_shape
    outcome = "they do not fit together"
    joint = _broadcast(data_shape, fn.batch_shape) if fits else None
    if joint is not None:
        # One value for all is a statement; several, repeated along a dimension, are an accident
        padded = (1,) * (len(joint) - len(data_shape)) + tuple(data_shape)
        fits = padded == joint or value.dim() == 0
        outcome = f"they would be broadcast to {joint}, so that rows count more than once"
    if not fits or joint is None:
        raise ValueError(
            f"observed site {site['name']!r} has data of shape {tuple(value.shape)} and a "
            f"distribution of batch shape {tuple(fn.batch_shape)} and event shape "
            f"{tuple(fn.event_shape)}: {outcome}; {_shape_advice(site)}"
        )
    if isinstance(fn, dist.Unit):
        _check_factor_shape(site)
    elif not value.is_floating_point():
        _check_whole_numbers(site)


def _check_whole_numbers(site: Any) -> None:
    """Refuse whole numbers where the distribution can score only floating ones."""
    fn, value = site["fn"], site["value"]
    if _can_score(fn, value) or not _can_score(fn, value.to(torch.get_default_dtype())):
        return
    raise TypeError(
        f"observed site {site['name']!r} must have data that {type(fn).__name__} can score, "
        f"got {value.dtype}: convert them by .float() or .double()"
    )


def _can_score(fn: Any, value: Tensor) -> bool:
    """Whether a distribution does not fail on some data, whatever it makes of them."""
    try:
        fn.log_prob(value)
    except (IndexError, RuntimeError, ValueError):
        return False
    return True


def _broadcast(one: torch.Size, other: torch.Size) -> tuple[int, ...] | None:
    """Join two shapes, where they can be."""
    try:
        return tuple(torch.broadcast_shapes(one, other))
    except RuntimeError:
        return None


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


def _check_scored(site: Any) -> None:
    """Leave numbers to the distribution, and refuse what it cannot score."""
    fn, value = site["fn"], site["value"]
    try:
        if isinstance(value, Real):
            fn.log_prob(value)
            return
    except ValueError:
        return  # a check that is off under MCMC
    except (AttributeError, TypeError):
        pass
    raise TypeError(
        f"observed site {site['name']!r} must have its data in a tensor, got "
        f"{type(value).__name__} for {type(fn).__name__}: convert them by torch.as_tensor"
    )


def check_values(site: Any) -> None:
    """Refuse data off the support.

    Raises:
        ValueError: Naming the site, the values and the support.
    """
    off = _values_off_support(site)
    if len(off) > 0:
        count = site["value"].numel() // off[0].numel()
        raise ValueError(
            f"observed site {site['name']!r} has {len(off)} of {count} values outside the support "
            f"{site['fn'].support} of {type(site['fn']).__name__}; the first is {off[0].tolist()}"
        )


def _values_off_support(site: Any) -> Tensor:
    """Return the values of an observed site that lie outside its support, one a row."""
    fn, value, mask = site["fn"], site["value"], site["mask"]
    nothing = torch.empty(0)
    if isinstance(fn, dist.Unit) or not isinstance(value, Tensor) or value.numel() == 0:
        return nothing
    try:
        support = fn.support
        valid = support.check(value)
    except (NotImplementedError, ValueError):
        return nothing  # the distribution does not say
    if isinstance(mask, Tensor):
        valid = valid | ~mask
    while isinstance(fn, dist.MaskedDistribution | torch.distributions.Independent):
        if isinstance(fn, dist.MaskedDistribution) and fn.event_dim == support.event_dim:
            valid = valid | ~torch.as_tensor(fn._mask)
        fn = fn.base_dist
    event_shape = value.shape[value.dim() - support.event_dim :]
    return value.expand(valid.shape + event_shape)[~valid]
