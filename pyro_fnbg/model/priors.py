"""Which latent sites have independent priors of a known family, and what these are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Laplace, Normal, StudentT

from pyro_fnbg.core.checks import shown
from pyro_fnbg.core.layout import Layout
from pyro_fnbg.core.priors import NUM_FORM, Family, ParameterPriors
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.positive import log_form
from pyro_fnbg.model.supports import without_events
from pyro_fnbg.networks.statement import Feedforward

__all__ = ["UnknownPrior", "is_one", "parameter_priors", "sample_sites", "stated_scales"]

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
        scale_power: By which power of the site that holds it the scale is one; 0 where it is fixed.
    """

    family: Family
    loc: Tensor
    scale: Tensor
    degrees_of_freedom: Tensor
    scale_power: float = 0.0


NOT_KNOWN = SitePrior(Family.OTHER, torch.zeros(()), torch.tensor(torch.inf), torch.ones(()))
# Relative difference of a scale and the value, or its root, of the site that holds it
TOLERANCE = 1e-5


def sample_sites(bound: BoundModel) -> dict[str, Any]:
    """Run the model from its prior and return its sample sites by name."""
    nodes = bound.prior_trace().nodes
    return {name: site for name, site in nodes.items() if site["type"] == "sample"}


def stated_scales(bound: BoundModel, layout: Layout) -> dict[str, str]:
    """Return what a model states of sampled scales: by site, the site that holds its priors' scale.

    Raises:
        ValueError: If these are not among the latent sites.
    """
    state = getattr(bound.model, "feedforward", None)
    statement = None if state is None else state(*bound.args, **bound.kwargs)
    if not isinstance(statement, Feedforward):
        return {}
    scales, sites = statement.prior_scales, [site.name for site in layout.sites]
    is_mapping = isinstance(scales, Mapping)
    names = [*scales, *scales.values()] if is_mapping else []
    if not is_mapping or not all(name in sites for name in names):
        raise ValueError(
            "feedforward() must give prior_scales as a mapping from latent sites to the latent "
            f"sites that hold the scales of their priors, got {shown(scales)}: the latent sites "
            f"are {sites}"
        )
    if set(scales) & set(scales.values()):
        raise ValueError(
            "feedforward() gives prior_scales in which a site that holds a scale has a sampled "
            f"scale itself: {shown(scales)}"
        )
    return dict(scales)


def parameter_priors(
    layout: Layout, sites: Mapping[str, Any], again: Mapping[str, Any], scales: Mapping[str, str]
) -> tuple[ParameterPriors, dict[str, UnknownPrior]]:
    """Read the priors of all latent sites.

    Args:
        layout: The latent sites.
        sites: The model's sample sites in one run from its prior.
        again: The same in another.
        scales: By site, the site that holds the scale or the variance of its prior.

    Returns:
        The priors, and by name of the site why a prior is not known.

    Raises:
        ValueError: If a prior's scale is not what it is stated to be.
    """
    offsets, shapes = layout.offsets(), {site.name: site.shape for site in layout.sites}
    columns: list[tuple[Tensor, ...]] = []
    forms: list[Tensor] = []
    reasons: dict[str, UnknownPrior] = {}
    for name, shape in shapes.items():
        runs = sites[name], again[name]
        prior, coordinates = NOT_KNOWN, torch.tensor(-1)
        try:
            if name in scales.values():
                forms.append(_positive_form(name, *runs).expand(*shape, -1).reshape(-1, NUM_FORM))
                prior = NOT_KNOWN._replace(family=Family.POSITIVE)
            elif name in scales:
                holder = scales[name]
                prior = _scaled_prior(name, runs, holder, (sites[holder], again[holder]))
                size = math.prod(shapes[holder])
                coordinates = offsets[holder] + torch.arange(size).reshape(shapes[holder])
            else:
                prior = _site_prior(name, *runs)
        except UnknownPrior as reason:
            reasons[name] = reason
        numbers = prior.loc, prior.scale, prior.degrees_of_freedom, torch.tensor(prior.scale_power)
        values = torch.tensor(int(prior.family)), *(v.double().cpu() for v in numbers), coordinates
        columns.append(tuple(value.expand(shape).reshape(-1) for value in values))
    families, locs, sizes, degrees, powers, holders = map(torch.cat, zip(*columns, strict=True))
    # Where the prior of a scale is not known, nothing can be made of what it scales
    families[(holders >= 0) & (families[holders] != Family.POSITIVE)] = Family.OTHER
    return ParameterPriors(
        families,
        locs,
        sizes,
        degrees,
        holders,
        powers,
        (families == Family.POSITIVE).nonzero().squeeze(-1),
        torch.cat([torch.zeros(0, NUM_FORM, dtype=torch.float64), *forms]),
    ), reasons


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
    prior, other = _read(name, site), _read(name, again)
    if prior.family != other.family or not all(map(torch.equal, prior[1:4], other[1:4])):
        raise UnknownPrior(f"the prior of {name!r} depends on other sites")
    return prior


def _scaled_prior(
    name: str, runs: tuple[Any, Any], holder: str, holders: tuple[Any, Any]
) -> SitePrior:
    """Return the prior of a site whose scale another site holds, or as a variance.

    Raises:
        UnknownPrior: As ``_site_prior`` does.
        ValueError: If the other site holds neither.
    """
    shape = runs[0]["value"].shape
    priors = [_read(name, site) for site in runs]
    for power in (1.0, 0.5):
        pairs = zip(priors, holders, strict=True)
        if all(_is_scale(prior, site["value"].detach() ** power, shape) for prior, site in pairs):
            fixed = [prior._replace(scale=torch.ones(())) for prior in priors]
            if not all(map(torch.equal, fixed[0][1:4], fixed[1][1:4])):
                raise UnknownPrior(f"the prior of {name!r} depends on other sites")
            return fixed[0]._replace(scale_power=power)
    raise ValueError(
        f"feedforward() states that site {holder!r} holds the scales of the prior of {name!r}, but "
        "these are neither its value nor the root of it, broadcast to the shape "
        f"{tuple(shape)}"
    )


def _is_scale(prior: SitePrior, value: Tensor, shape: torch.Size) -> bool:
    try:
        expected = value.expand(shape)
    except RuntimeError:
        return False
    return torch.allclose(prior.scale.expand(shape), expected, rtol=TOLERANCE, atol=0.0)


def _positive_form(name: str, site: Any, again: Any) -> Tensor:
    """Return the form of the log density of a site that holds scales or variances.

    Raises:
        UnknownPrior: If it has none, is masked or scaled, or depends on other sites.
    """
    found = [log_form(without_events(run["fn"])) for run in (site, again)]
    form, other = found
    if form is None or other is None:
        raise UnknownPrior(f"the prior of {name!r}, which holds scales, is {site['fn']}")
    if site["mask"] is not None or not is_one(site["scale"]) or not torch.equal(form, other):
        raise UnknownPrior(f"the prior of {name!r} is masked, scaled or depends on other sites")
    return form


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
