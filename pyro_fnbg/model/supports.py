"""Supports of sites: how unconstrained values are mapped to them, and whether they move."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Independent, Transform, biject_to, constraints
from torch.distributions.transforms import _InverseTransform

__all__ = [
    "KnownSupport",
    "bijection_of",
    "check_support",
    "is_off_interval",
    "is_point_mass",
    "is_pushed_forward",
    "is_real_space",
    "known_support",
    "sampled_support",
    "within_support",
    "without_checks",
    "without_events",
    "without_wrappers",
]

# Their densities are periodic on the whole real line, while they draw angles: as densities of a
# real number they have no finite integral, and a random walk would never come back
_PERIODIC = (dist.VonMises, dist.SineBivariateVonMises, dist.SineSkewed)
_ANGLES = constraints.interval(-math.pi, math.pi)


class KnownSupport(NamedTuple):
    """Hold a site's support in one run of the model, to be compared with those in others.

    Attributes:
        fixed_by: Class of distributions that says by itself what the support is; None if the
            support depends on the distribution's parameters.
        constraint: The support; None if the distribution does not say.
    """

    fixed_by: type | None
    constraint: Any

    def is_that_of(self, fn: Any) -> bool:
        """Whether another run's distribution has the same support."""
        if self.fixed_by is not None and type(without_events(fn)) is self.fixed_by:
            return True
        return _are_same(fn.support, self.constraint)

    def equals(self, other: KnownSupport) -> bool:
        """Whether this is the support that was found in another run."""
        are_fixed = self.fixed_by is not None and self.fixed_by is other.fixed_by
        return are_fixed or _are_same(self.constraint, other.constraint)


def known_support(fn: Any) -> KnownSupport:
    """Take down the support of a site's distribution."""
    base = type(without_events(fn))
    declared = getattr(base, "support", None)
    if isinstance(declared, constraints.Constraint) and not constraints.is_dependent(declared):
        return KnownSupport(base, fn.support)
    try:
        return KnownSupport(None, fn.support)
    except NotImplementedError:
        return KnownSupport(base, None)


def sampled_support(fn: Any) -> Any:
    """Return the set that a latent site is sampled on: its support, in words that PyTorch can map.

    Angles are sampled in (-pi, pi), a mixture where its components are, and an interval without an
    upper end is everything above the lower.
    """
    base = without_wrappers(fn)
    if isinstance(base, _PERIODIC):
        support: Any = _ANGLES
    elif isinstance(base, torch.distributions.MixtureSameFamily):
        components = known_support(base.component_distribution)
        # Components that differ in their supports have none that a single map could reach
        support = fn.support if components.fixed_by is None else components.constraint
    elif isinstance(base.support, constraints.interval) and _is_unbounded(base.support):
        support = constraints.greater_than(base.support.lower_bound)
    else:
        return fn.support
    missing = fn.event_dim - support.event_dim
    return constraints.independent(support, missing) if missing > 0 else support


def _is_unbounded(interval: Any) -> bool:
    return bool((torch.as_tensor(interval.upper_bound) == math.inf).all())


def is_off_interval(fn: Any, value: Tensor) -> bool:
    """Whether a value lies outside an interval, which the map from there would hide."""
    support = sampled_support(fn)
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return isinstance(support, constraints.interval) and not bool(support.check(value).all())


def bijection_of(site: Any) -> Any:
    """Map unconstrained values to those of a latent site of a trace.

    The map records no gradients of the support's bounds.

    Raises:
        ValueError: If PyTorch has no such map; names the site and its support.
    """
    support = sampled_support(site["fn"])
    try:
        return _detached(biject_to(support))
    except NotImplementedError as error:
        raise ValueError(
            f"latent site {site['name']!r} has support {support} ({type(site['fn']).__name__}), "
            "and PyTorch has no map to it from unconstrained values: write the site as a function "
            "of others, for instance by pyro.poutine.reparam"
        ) from error


def check_support(name: str, known: KnownSupport, fn: Any) -> None:
    """Check that a latent site's distribution has the support that set-up found.

    Raises:
        ValueError: If it has not; names the site and both supports.
    """
    if not known.is_that_of(fn):
        raise ValueError(
            f"the support of latent site {name!r} depends on another site or on chance "
            f"({known.constraint} at set-up, {fn.support} now): FNBG needs a fixed support; write "
            "the site as a function of one with a fixed support, such as a scaled unit interval"
        )


def within_support(fn: Any, value: Tensor) -> Tensor:
    """Tell which values a distribution gives a density above zero, one answer an event.

    A transformed distribution says no more than what its last transform can reach, so the value is
    traced back to the distribution that is transformed. Masked values count as inside.
    """
    if isinstance(fn, dist.MaskedDistribution):
        return within_support(fn.base_dist, value) | ~torch.as_tensor(fn._mask)
    inside: Tensor = fn.support.check(value)
    if is_pushed_forward(fn):
        for transform in reversed(fn.transforms):
            value = transform.inv(value)
        inside = inside & within_support(fn.base_dist, value)
    return inside


def without_checks(fn: Any) -> Any:
    """Copy a distribution with PyTorch's checks of values off, in its parts too."""
    fn = copy.copy(fn)
    fn._validate_args = False
    for name, part in vars(fn).items():
        if isinstance(part, torch.distributions.Distribution):
            setattr(fn, name, without_checks(part))
    return fn


def is_pushed_forward(fn: Any) -> bool:
    """Whether a distribution's support is read off its last transform alone."""
    transformed = torch.distributions.TransformedDistribution
    return isinstance(fn, transformed) and type(fn).support is transformed.support


def is_real_space(support: Any) -> bool:
    """Tell by the support, since a transform's codomain may claim more than it reaches."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real


def is_point_mass(fn: Any) -> bool:
    """Whether a distribution has all its mass on one value."""
    return isinstance(without_wrappers(fn), dist.Delta)


def without_events(fn: Any) -> Any:
    """Return the distribution of single events that ``to_event`` made one of."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return fn


def without_wrappers(fn: Any) -> Any:
    """Return the distribution that others were put around: events, masks, expansions."""
    while isinstance(fn, Independent | dist.MaskedDistribution | dist.ExpandedDistribution):
        fn = fn.base_dist
    return fn


def _are_same(one: Any, other: Any) -> bool:
    """Compare two constraints by their kinds and bounds."""
    if one is other:
        return True
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        one, other = torch.as_tensor(one), torch.as_tensor(other)
        return one.shape == other.shape and bool((one == other).all())
    if isinstance(one, constraints.Constraint):
        return type(one) is type(other) and _are_same(vars(one), vars(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_are_same, one, other))
    return bool(one == other)


def _detached(part: Any) -> Any:
    """Copy a transform with the tensors in it cut off from gradients and from later changes."""
    if isinstance(part, Tensor):
        return part.detach().clone()
    if isinstance(part, list | tuple):
        return type(part)(map(_detached, part))
    if isinstance(part, _InverseTransform):
        return _detached(part.inv).inv
    if isinstance(part, Transform):
        part = copy.copy(part)
        part._inv = None  # made again on demand, from this copy
        for name, value in vars(part).items():
            setattr(part, name, _detached(value))
    return part
