"""Which latent sites have independent Normal priors, and what these are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal

from pyro_fnbg.core.layout import Layout
from pyro_fnbg.core.priors import NormalPriors
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.supports import without_events

__all__ = ["NotNormal", "is_one", "normal_prior", "normal_priors", "sample_sites"]


class NotNormal(ValueError):
    """Say why a site's prior is no independent Normal of its own."""


def sample_sites(bound: BoundModel) -> dict[str, Any]:
    """Run the model from its prior and return its sample sites by name."""
    nodes = bound.prior_trace().nodes
    return {name: site for name, site in nodes.items() if site["type"] == "sample"}


def normal_prior(name: str, site: Any, again: Any) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of a site's coordinates, in the site's shape.

    Args:
        name: The site's name.
        site: The site in one run of the model from its prior.
        again: The site in another.

    Raises:
        NotNormal: If the prior is another, is masked or scaled, or depends on other sites.
    """
    loc, scale = _parameters(name, site)
    other_loc, other_scale = _parameters(name, again)
    if not (torch.equal(loc, other_loc) and torch.equal(scale, other_scale)):
        raise NotNormal(f"the prior of {name!r} depends on other sites")
    shape = site["value"].shape
    return loc.expand(shape).double().cpu(), scale.expand(shape).double().cpu()


def normal_priors(bound: BoundModel, layout: Layout) -> NormalPriors:
    """Read the Normal priors of all latent sites; those of other sites count as infinitely wide."""
    sites, again = sample_sites(bound), sample_sites(bound)
    locs, scales = [], []
    for site in layout.sites:
        try:
            loc, scale = normal_prior(site.name, sites[site.name], again[site.name])
        except NotNormal:
            loc = torch.zeros(site.shape, dtype=torch.float64)
            scale = torch.full_like(loc, torch.inf)
        locs.append(loc.reshape(-1))
        scales.append(scale.reshape(-1))
    return NormalPriors(torch.cat(locs), torch.cat(scales))


def _parameters(name: str, site: Any) -> tuple[Tensor, Tensor]:
    fn = without_events(site["fn"])
    if not isinstance(fn, Normal):
        raise NotNormal(f"the prior of {name!r} is no independent Normal: {fn}")
    if site["mask"] is not None or not is_one(site["scale"]):
        raise NotNormal(f"the prior of {name!r} is masked or scaled")
    return fn.loc.detach(), fn.scale.detach()


def is_one(scale: Any) -> bool:
    """Whether a site counts once."""
    return not isinstance(scale, Tensor) and scale == 1.0
