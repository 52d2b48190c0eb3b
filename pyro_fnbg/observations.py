"""Whether the data of an observed site fit its distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_fnbg.supports import KnownSupport

__all__ = ["check_shape", "check_values"]


def check_shape(site: Any) -> None:
    """Check an observed site of a trace: no silent broadcasting.

    Pyro's own checks are off under ``MCMC``, where such data would give a likelihood of rows times
    rows.

    Raises:
        ValueError: Naming the site, the shapes and what is allowed.
    """
    fn, value = site["fn"], site["value"]
    if not isinstance(value, Tensor):
        return
    data_shape = value.shape[: value.dim() - fn.event_dim]
    fits = value.shape[len(data_shape) :] == fn.event_shape
    joint = data_shape
    if fits:
        joint = torch.broadcast_shapes(data_shape, fn.batch_shape)
        # One value for all is a statement; several, repeated along a dimension, are an accident
        padded = (1,) * (len(joint) - len(data_shape)) + tuple(data_shape)
        fits = padded == tuple(joint) or value.numel() <= 1
    if not fits:
        raise ValueError(
            f"observed site {site['name']!r} has data of shape {tuple(value.shape)} and a "
            f"distribution of batch shape {tuple(fn.batch_shape)} and event shape "
            f"{tuple(fn.event_shape)}: they would be broadcast to {tuple(joint)}, so that rows "
            "count more than once; give both the same shape (squeeze or unsqueeze one)"
        )


def check_values(
    observed: Mapping[str, Any],
    supports: Mapping[str, KnownSupport],
    run_again: Callable[[], Any],
) -> None:
    """Refuse data off the support; one that moves with the parameters may yet reach the data.

    Args:
        observed: Observed sites of a trace.
        supports: Their supports in that trace.
        run_again: Makes another trace of the model.

    Raises:
        ValueError: Naming the site, the values and the support.
    """
    found = {name: _values_off_support(site) for name, site in observed.items()}
    off = {name: values for name, values in found.items() if len(values) > 0}
    if not off:
        return
    again = run_again()
    for name, values in off.items():
        # A site that is gone has used up its data, as a one-shot iterator has
        if name not in again or supports[name].is_that_of(again.nodes[name]["fn"]):
            site = observed[name]
            count = site["value"].numel() // values[0].numel()
            raise ValueError(
                f"observed site {name!r} has {len(values)} of {count} values "
                f"outside the support {supports[name].constraint} of {type(site['fn']).__name__}; "
                f"the first is {values[0].tolist()}"
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
