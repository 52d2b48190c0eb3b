"""Networks that a model does not state, but computes: what the fast engines need to know of them.

What the layers and the likelihood are is read from the captured operations; priors and labels from
the model's sites, as of a model that states what it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, fx

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.engines.network import Network, NotFeedforward, network_of
from pyro_fnbg.graphs.capture import Captured, placeholders_of
from pyro_fnbg.graphs.layers import Inputs, Layer, read_entries, value_on
from pyro_fnbg.graphs.networks import Graph, coordinates_of, read_architecture
from pyro_fnbg.graphs.strided import Strided
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.sites import ModelSites

__all__ = ["recognise"]


def recognise(
    captured: Captured, bound: BoundModel, sites: ModelSites, plan: BatchPlan, rows: Tensor | None
) -> Network:
    """Find the feedforward network that a captured computation is.

    Args:
        captured: The computation.
        bound: The model.
        sites: What set-up found in it.
        plan: The batches.
        rows: Those that the computation was captured on; None for all rows.

    Raises:
        NotFeedforward: If it is none that the fast engines know; says what is in the way.
    """
    if len(captured.observed) != 1:
        raise NotFeedforward(f"its observed sites are {list(captured.observed)}, and must be one")
    ((name, observed),) = captured.observed.items()
    layout = sites.layout
    entries = coordinates_of({site.name: site.shape for site in layout.sites})
    if off := [name for name in entries if name not in captured.latent]:
        raise NotFeedforward(f"the priors of {off} are switched off")
    powers = _powers(captured, entries, rows)
    graph = Graph(captured.graph, entries, rows, powers)
    architecture, chain, takes_all = read_architecture(graph, name, observed, plan.num_rows)
    scale_site = architecture.likelihood.scale_site
    if scale_site is not None and powers[scale_site] != 1:
        raise NotFeedforward("its observation scale is no latent site of positive numbers")
    scales = _prior_scales(captured, entries, powers, rows)
    _check_priors(captured, list(entries), scales)
    others = {*scales.values(), scale_site}
    _check_coverage(chain.layers, others, entries)
    inputs = _inputs(captured.graph, chain.inputs, plan, rows, takes_all)
    if inputs.dtype != layout.dtype or inputs.device != layout.sites[0].device:
        raise NotFeedforward("its inputs are of another dtype or device than its parameters")
    weights = tuple(Strided.of(layer.weights) for layer in chain.layers)
    biases = tuple(
        None if layer.biases is None else Strided.of(layer.biases) for layer in chain.layers
    )
    return network_of(bound, sites, plan, architecture, inputs, weights, biases, scales)


def _powers(
    captured: Captured, entries: Mapping[str, Tensor], rows: Tensor | None
) -> dict[str, float]:
    """Return which power of the exponential of its coordinates each site is; NaN if it is none."""
    powers = dict[str, float]()
    for name, own in entries.items():
        value, found = captured.latent[name].value, None
        if value is not None:
            found = read_entries(captured.graph, value, [*entries.values()], rows)
        is_own = found is not None and torch.equal(found.coordinates, own)
        powers[name] = found.power if found is not None and is_own else math.nan
    return powers


def _check_priors(captured: Captured, names: Sequence[str], scales: Mapping[str, str]) -> None:
    """Check that no prior depends on another site, but for its scale or variance."""
    for name in names:
        inputs = placeholders_of(captured.graph, captured.terms[name])
        more = {(*names, "the batch")[number] for number in inputs} - {name, scales.get(name)}
        if more:
            raise NotFeedforward(f"the prior of {name!r} depends on {sorted(more)}")


def _prior_scales(
    captured: Captured,
    entries: Mapping[str, Tensor],
    powers: Mapping[str, float],
    rows: Tensor | None,
) -> dict[str, str]:
    """Return by site the site that holds the scale, or the variance, of its prior."""
    scales = dict[str, str]()
    for name, site in captured.latent.items():
        if "scale" not in site.parameters:
            continue
        found = read_entries(captured.graph, site.parameters["scale"], [*entries.values()], rows)
        if found is None or found.power not in (1, 0.5):
            continue
        for holder, own in entries.items():
            if powers[holder] == 1 and _is_spread(found.coordinates, own):
                scales[name] = holder
    return scales


def _is_spread(coordinates: Tensor, own: Tensor) -> bool:
    """Whether coordinates are those of a site, broadcast."""
    try:
        return torch.equal(coordinates, own.expand(coordinates.shape))
    except RuntimeError:
        return False


def _check_coverage(
    layers: Sequence[Layer], others: Collection[str | None], entries: Mapping[str, Tensor]
) -> None:
    """Check that each entry of the latent sites is a parameter once, but for scales."""
    used = [layer.weights.reshape(-1) for layer in layers]
    used += [layer.biases for layer in layers if layer.biases is not None]
    used += [own.reshape(-1) for name, own in entries.items() if name in others]
    every = torch.cat([own.reshape(-1) for own in entries.values()])
    if not torch.equal(torch.cat(used).sort().values, every):
        raise NotFeedforward("entries of its latent sites are in no layer, or in several places")


def _inputs(
    graph: fx.GraphModule, inputs: Inputs, plan: BatchPlan, rows: Tensor | None, takes_all: bool
) -> Tensor:
    """Compute the inputs of all rows, batch by batch where a model takes batches."""
    if rows is None or takes_all:
        return inputs.as_rows(value_on(graph, inputs.node, rows)).contiguous()

    def in_batches(order: Tensor) -> Tensor:
        """Compute the inputs in some order, in batches of rows that follow each other in it."""
        size, pieces = len(rows), list[Tensor]()
        for start in range(0, len(order), size):
            first = min(start, len(order) - size)
            batch = order[first : first + size]
            pieces.append(inputs.as_rows(value_on(graph, inputs.node, batch))[start - first :])
        return torch.cat(pieces)

    in_order = torch.arange(plan.num_rows, device=rows.device)
    found = in_batches(in_order)
    other = torch.randperm(plan.num_rows, generator=torch.Generator().manual_seed(0))
    again = in_batches(in_order[other.to(rows.device)])
    if not torch.equal(found[other.to(found.device)].nan_to_num(), again.nan_to_num()):
        raise NotFeedforward("its inputs in a row depend on the other rows of the batch")
    return found
