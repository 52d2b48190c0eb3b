"""The log density of several chains at once, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pyro
import torch
from torch import Tensor

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.core.checks import checks_done
from pyro_fnbg.core.layout import Layout
from pyro_fnbg.engines.network import NotFeedforward
from pyro_fnbg.engines.network_density import NetworkDensity
from pyro_fnbg.engines.structure import Structure
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.impossible import is_impossible
from pyro_fnbg.model.sites import ModelSites
from pyro_fnbg.networks.surrogate import straight_through

__all__ = [
    "Density",
    "Gradients",
    "JointDensity",
    "NetworkDensities",
    "find_gradients",
    "network_densities",
    "total",
]

Terms = Mapping[str, Tensor]
# From the positions of C chains, and the rows that all of them see or None for all, to C numbers
Density = Callable[[Tensor, Tensor | None], Tensor]

# By how much a stated network's log density may differ from the model's where fits start, relative
# to its size: more than rounding, and less than another likelihood
ROUNDING = 1e-3


def total(terms: Terms) -> Tensor:
    """Sum the log densities of sites."""
    return torch.stack([term.sum() for term in terms.values()]).sum()


class JointDensity:
    """Evaluate a model's log density at the positions of several chains.

    All chains go through one run of the model, mapped over chains by ``torch.func.vmap``. A model
    that this cannot be done with (one that decides by the values of its sites, say) is run for one
    chain after the other, from then on. The values are the same, up to rounding.

    Args:
        density: The model's log density.
        summed: What is made of the log densities of its sites; their sum by default.

    Attributes:
        joins_chains: Whether all chains go through one run of the model, as far as is known.
    """

    def __init__(self, density: ModelDensity, summed: Callable[[Terms], Tensor] = total) -> None:
        self._density, self._summed = density, summed
        self.joins_chains = True

    def __call__(self, positions: Tensor, rows: Tensor | None) -> Tensor:
        """Return each chain's log density, shape ``(C,)``; NaN where the model has none.

        Args:
            positions: Unconstrained parameters, shape ``(C, num_params)``.
            rows: The rows that all of them see; None for all.
        """

        def one(position: Tensor) -> Tensor:
            return self._summed(self._density.terms(position, rows))

        with checks_done(), pyro.validation_enabled(False), straight_through():
            if self.joins_chains:
                try:
                    # A product for one chain rounds otherwise than one for several
                    several = positions if len(positions) > 1 else positions.expand(2, -1)
                    values: Tensor = torch.func.vmap(one, randomness="different")(several)
                    return values[: len(positions)]
                except Exception:
                    # Whether the model or the mapping is at fault shows when it is run by itself
                    self.joins_chains = False
            return torch.stack([_possible(one, position) for position in positions])


def _possible(one: Callable[[Tensor], Tensor], position: Tensor) -> Tensor:
    """Evaluate one chain; NaN, without a gradient, where the model says it is impossible."""
    try:
        return one(position)
    except Exception as error:
        if not is_impossible(error):
            raise
        return position.sum() * torch.nan


class NetworkDensities(NamedTuple):
    """Evaluate the network that a model is, which takes a fraction of the model's own time.

    Attributes:
        density: The log density on batches of a plan.
        log_likelihood: The log likelihood of any rows, each counted once.
    """

    density: Density
    log_likelihood: Density


def network_densities(
    bound: BoundModel,
    sites: ModelSites,
    plan: BatchPlan,
    density: ModelDensity,
    model: Density,
    positions: Tensor,
    rows: Tensor | None,
) -> NetworkDensities | None:
    """Return the densities of the network that a model states or shows; None if it is none.

    Args:
        bound: The model.
        sites: What set-up found in it.
        plan: The batches.
        density: The model's log density.
        model: The same of several chains, which the network's has to agree with.
        positions: Where they are compared.
        rows: The rows that they are compared on.
    """
    network = Structure(bound, sites, plan, density, positions[0], rows).network
    if isinstance(network, NotFeedforward):
        return None
    known, factor = NetworkDensity(network), network.factor

    def of_network(positions: Tensor, rows: Tensor | None) -> Tensor:
        with straight_through():
            return known(positions, rows)

    def log_likelihood(positions: Tensor, rows: Tensor | None) -> Tensor:
        with straight_through():
            return known.log_likelihood(positions, rows) / factor

    with torch.no_grad():
        expected, found = model(positions, rows), of_network(positions, rows)
    agrees = (found - expected).abs() <= ROUNDING * (1 + expected.abs())
    return NetworkDensities(of_network, log_likelihood) if bool(agrees.all()) else None


class Gradients(NamedTuple):
    """Say what a model has gradients for.

    Attributes:
        fitted: Latent sites that the density can be raised by.
        held: Constrained ones that act through the priors of others alone, such as a scale of
            weights: by these the density can often be raised without end, as weights and their
            scale shrink together.
        replaced: Activations without a gradient of their own, whose place another takes.
    """

    fitted: list[str]
    held: list[str]
    replaced: set[str]


def find_gradients(
    density: ModelDensity,
    sites: ModelSites,
    positions: Tensor,
    rows: Tensor | None,
    stated: Density | None = None,
) -> Gradients:
    """Find out which latent sites the rest of the model has a gradient for, at some position.

    A site's own prior does not count: it has a gradient where the data have none, as below a step.

    Args:
        density: The model's log density.
        sites: What set-up found in it.
        positions: Where to look, shape ``(C, num_params)``.
        rows: The rows to look at; None for all.
        stated: The log likelihood of the network that the model states, which may have a gradient
            where code of the model's own has none.
    """
    names = [site.name for site in sites.layout.sites]
    by_data, by_any, replaced = set[str](), set[str](), set[str]()
    for position in positions:
        start = position.clone().requires_grad_()
        with checks_done(), pyro.validation_enabled(False), straight_through() as used:
            terms = density.terms(start, rows)
            likelihoods = [terms[name].sum() for name in sites.observed if name in terms]
            likelihoods += [] if stated is None else [stated(start.unsqueeze(0), rows).sum()]
        replaced |= used
        for value in likelihoods:
            by_data |= _sites_with_slope(value, start, sites.layout, names)
        for name in [name for name in names if name not in by_any | by_data]:
            own = density.own_terms(name)
            others = {term: value for term, value in terms.items() if term not in own}
            if others:
                by_any |= _sites_with_slope(total(others), start, sites.layout, [name])
    fitted = by_data | (by_any & sites.real_sites)
    return Gradients(
        [name for name in names if name in fitted],
        [name for name in names if name in by_any - fitted],
        replaced,
    )


def _sites_with_slope(
    value: Tensor, start: Tensor, layout: Layout, names: Sequence[str]
) -> set[str]:
    """Name those among some sites with a coordinate that changes a value, to first order."""
    if not value.requires_grad:
        return set()
    (gradient,) = torch.autograd.grad(value, start, retain_graph=True)
    slopes = layout.split(gradient)
    return {name for name in names if bool((slopes[name] != 0).any())}
