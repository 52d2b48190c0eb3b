"""Which latent sites have independent priors of a known family, and what these are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Laplace, Normal, StudentT

from pyro_fnbg.core.layout import Layout
from pyro_fnbg.core.priors import Family, NormalPriors, ParameterPriors
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.supports import without_events

__all__ = ["UnknownPrior", "is_one", "normal_priors", "parameter_priors", "sample_sites"]

FAMILIES: dict[type, Family] = {
    Normal: Family.NORMAL,
    Laplace: Family.LAPLACE,
    StudentT: Family.STUDENT,
}


class UnknownPrior(ValueError):
    """Say why a site's prior is no independent one of a known family."""


class SitePrior(NamedTuple):
    """Hold the prior of a site, as read in one run of the model.

    Attributes:
        family: The family.
        loc: Location, in a shape that expands to the site's.
        scale: Scale, likewise.
        degrees_of_freedom: Of Student's t distribution, else 1.
    """

    family: Family
    loc: Tensor
    scale: Tensor
    degrees_of_freedom: Tensor

    def equals(self, other: SitePrior) -> bool:
        """Whether another run found the same."""
        return self.family == other.family and all(map(torch.equal, self[1:], other[1:]))


NOT_KNOWN = SitePrior(
    Family.OTHER,
    loc=torch.zeros(()),
    scale=torch.tensor(torch.inf),
    degrees_of_freedom=torch.ones(()),
)


def sample_sites(bound: BoundModel) -> dict[str, Any]:
    """Run the model from its prior and return its sample sites by name."""
    nodes = bound.prior_trace().nodes
    return {name: site for name, site in nodes.items() if site["type"] == "sample"}


def _site_prior(name: str, site: Any, again: Any) -> SitePrior:
    """Return the prior of a site's coordinates.

    Args:
        name: The site's name.
        site: The site in one run of the model from its prior.
        again: The site in another.

    Raises:
        UnknownPrior: If the prior is of another family, is masked or scaled, or depends on other
            sites.
    """
    prior = _read(name, site)
    if not prior.equals(_read(name, again)):
        raise UnknownPrior(f"the prior of {name!r} depends on other sites")
    return prior


def parameter_priors(
    layout: Layout, sites: Mapping[str, Any], again: Mapping[str, Any]
) -> tuple[ParameterPriors, dict[str, UnknownPrior]]:
    """Read the priors of all latent sites.

    Args:
        layout: The latent sites.
        sites: The model's sample sites in one run from its prior.
        again: The same in another.

    Returns:
        The priors, and by name of the site why a prior is not known.
    """
    columns: list[tuple[Tensor, ...]] = []
    reasons: dict[str, UnknownPrior] = {}
    for site in layout.sites:
        try:
            prior = _site_prior(site.name, sites[site.name], again[site.name])
        except UnknownPrior as reason:
            reasons[site.name] = reason
            prior = SitePrior(
                Family.OTHER, torch.zeros(()), torch.tensor(torch.inf), torch.ones(())
            )
        values = torch.tensor(int(prior.family)), *(v.double().cpu() for v in prior[1:])
        columns.append(tuple(value.expand(site.shape).reshape(-1) for value in values))
    return ParameterPriors(*map(torch.cat, zip(*columns, strict=True))), reasons


def normal_priors(bound: BoundModel, layout: Layout) -> NormalPriors:
    """Read the Normal priors of all latent sites; those of other sites count as infinitely wide."""
    priors, _ = parameter_priors(layout, sample_sites(bound), sample_sites(bound))
    return priors.normal


def _read(name: str, site: Any) -> SitePrior:
    fn = without_events(site["fn"])
    family = next((known for kind, known in FAMILIES.items() if isinstance(fn, kind)), None)
    if family is None:
        raise UnknownPrior(
            f"the prior of {name!r} is no independent Normal, Laplace or StudentT: {fn}"
        )
    if site["mask"] is not None or not is_one(site["scale"]):
        raise UnknownPrior(f"the prior of {name!r} is masked or scaled")
    degrees = fn.df.detach() if family == Family.STUDENT else torch.ones(())
    return SitePrior(family, fn.loc.detach(), fn.scale.detach(), degrees)


def is_one(scale: Any) -> bool:
    """Whether a site counts once."""
    return not isinstance(scale, Tensor) and scale == 1.0
