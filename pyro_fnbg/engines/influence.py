"""Which latent sites a model samples and never uses, so that their draws are those of the prior."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from pyro_fnbg.engines.network import Network
from pyro_fnbg.engines.structure import Structure
from pyro_fnbg.graphs.capture import Captured, placeholders_of
from pyro_fnbg.model.density import ModelDensity

__all__ = ["unused_sites"]


def unused_sites(structure: Structure, positions: Tensor) -> list[str]:
    """Name the latent sites that nothing observed depends on, not even by way of other sites.

    Exact where the model's operations are known. Where they are not, sites are moved one at a time,
    and those that nothing was seen to follow from are named.

    Args:
        structure: What is known of the model.
        positions: Unconstrained positions, two or more, shape ``(positions, num_params)``.
    """
    sites, density = structure.sites, structure.density
    if isinstance(structure.network, Network) or not sites.observed:
        return []
    names = [site.name for site in sites.layout.sites]
    captured = structure.captured
    if isinstance(captured, Captured):
        # The rows of a batch come after the sites
        numbered = dict(enumerate(names))
        sources = {
            term: {numbered[n] for n in placeholders_of(captured.graph, node) & numbered.keys()}
            for term, node in captured.terms.items()
        }
        return _apart(names, density, sources)
    sources = {}
    unused = names
    for position, other in zip(positions[:-1], positions[1:], strict=True):
        if not unused:
            break
        for term, movers in _followers(density, unused, position, other, structure.rows).items():
            sources.setdefault(term, set()).update(movers)
        unused = _apart(names, density, sources)
    return unused


def _followers(
    density: ModelDensity,
    names: Iterable[str],
    position: Tensor,
    other: Tensor,
    rows: Tensor | None,
) -> dict[str, set[str]]:
    """Say of each term which sites change it, when one at a time moves to another position."""
    before = density.site_terms(position, rows)
    values, others = density.layout.split(position), density.layout.split(other)
    found: dict[str, set[str]] = {term: set() for term in before}
    for name in names:
        moved = density.layout.flatten(values | {name: others[name]})
        after = density.site_terms(moved, rows)
        for term, own in after.items():
            if not torch.allclose(own, before[term], rtol=0.0, atol=0.0, equal_nan=True):
                found[term].add(name)
    return found


def _apart(
    names: list[str], density: ModelDensity, sources: Mapping[str, Iterable[str]]
) -> list[str]:
    """Name the sites that no chain of terms joins to anything but latent sites.

    Args:
        names: The latent sites.
        density: What names their terms.
        sources: By term, the sites that it depends on.
    """
    owner = {term: name for name in names for term in density.own_terms(name)}
    used: set[str] = set()
    while True:
        before = len(used)
        for term, depends in sources.items():
            joined = {*depends, owner[term]} if term in owner else set(depends)
            if term not in owner or joined & used:
                used |= joined
        if len(used) == before:
            return [name for name in names if name not in used]
