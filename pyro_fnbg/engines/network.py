"""A feedforward network in numbers: what the fast engines need to know of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.core.checks import shown
from pyro_fnbg.core.priors import Family, ParameterPriors
from pyro_fnbg.core.rescaling import RescaledNodes
from pyro_fnbg.graphs.strided import Strided
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.priors import is_one, parameter_priors, sample_sites, stated_scales
from pyro_fnbg.model.rows import observed_values
from pyro_fnbg.model.sites import ModelSites
from pyro_fnbg.networks.architecture import Architecture
from pyro_fnbg.networks.counts import with_count_columns
from pyro_fnbg.networks.likelihoods import Likelihood
from pyro_fnbg.networks.statement import ACTIVATIONS, Feedforward, NotFeedforward

__all__ = ["Network", "NetworkData", "NotFeedforward", "network_of", "read_network"]


class NetworkData(NamedTuple):
    """Hold the data of all rows.

    Attributes:
        inputs: Shape ``(rows, widths[0])``.
        labels: "bernoulli" ``(rows,)`` in the parameters' dtype, "categorical" ``(rows,)`` long,
            the others ``(rows, responses)``; "poisson" with the columns of
            ``counts.with_count_columns``.
    """

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Network:
    """Describe a network that is to be sampled, and where its parameters are.

    Attributes:
        architecture: What it computes, with activations known by name.
        priors: The priors of its parameters; ``OTHER`` for a sampled observation scale.
        data: Inputs and labels of all rows.
        factor: Power of the likelihood.
        weights: Where each layer's weights are, by node and input.
        biases: Where its biases are, by node; None without biases.
        scale_coordinate: Flat coordinate of the sampled observation scale, if it is sampled.
        scale_prior: Its prior, over positive numbers.
        prior_scales: By site, the site that holds the scale or the variance of its prior.
    """

    architecture: Architecture
    priors: ParameterPriors
    data: NetworkData
    factor: float
    weights: tuple[Strided, ...]
    biases: tuple[Strided | None, ...]
    scale_coordinate: int | None
    scale_prior: Distribution | None
    prior_scales: Mapping[str, str]

    @property
    def activations(self) -> tuple[str, ...]:
        """Name of each hidden layer's activation."""
        return tuple(map(str, self.architecture.activations))

    def node_of(self, coordinates: Tensor) -> tuple[int, int | None]:
        """Return the lowest layer of some coordinates, and the node that has them all, if one."""
        layers, nodes, _ = self.places[coordinates].unbind(-1)
        layer, node = int(layers.min()), int(nodes[0])
        is_one = bool((layers == layer).all() and (nodes == node).all())
        return layer, node if is_one and layer <= self.architecture.num_layers else None

    @property
    def normal_nodes(self) -> Tensor:
        """Output node whose weights, given all else, are Normal, by coordinate; -1 for others.

        Its likelihood is "normal", with one scale for all rows, and the priors are Normal as well.
        """
        likelihood, (layers, nodes, _) = self.architecture.likelihood, self.places.unbind(-1)
        is_normal = (layers == self.architecture.num_layers) & (
            self.priors.families == Family.NORMAL
        )
        if likelihood.name != "normal" or likelihood.has_network_scale:
            is_normal = torch.zeros_like(is_normal)
        return torch.where(is_normal, nodes, -1)

    @property
    def relu_nodes(self) -> list[RescaledNodes]:
        """Where the parameters of hidden relu nodes are, layer by layer."""
        of_layers, found = [own for _, own in self.nodes], []
        for layer, activation in enumerate(self.activations, 1):
            if activation == "relu":
                outgoing = of_layers[layer][:, : self.architecture.widths[layer]].mT
                found.append(RescaledNodes(layer, of_layers[layer - 1], outgoing))
        return found

    @property
    def nodes(self) -> tuple[tuple[str, Tensor], ...]:
        """Name of each layer, and flat coordinates of its nodes, each its weights and its bias."""
        sizes = pairwise(self.architecture.widths)
        found = []
        for weights, biases, (fan_in, fan_out) in zip(
            self.weights, self.biases, sizes, strict=True
        ):
            own = weights.coordinates(fan_out, fan_in)
            if biases is not None:
                own = torch.cat([own, biases.coordinates(fan_out).unsqueeze(-1)], -1)
            found.append(own)
        return tuple(zip(self.architecture.layers, found, strict=True))

    @cached_property
    def places(self) -> Tensor:
        """Layer, node and input of each flat coordinate, shape ``(num_params, 3)``.

        Nodes and inputs count from 0; the input of a bias is -1; the observation scale is in layer
        rho + 1, and scales of priors in layer rho + 2.
        """
        places = torch.tensor([self.architecture.num_layers + 2, 0, -1])
        places = places.repeat(len(self.priors.locs), 1)
        for layer, (fan_in, fan_out) in enumerate(pairwise(self.architecture.widths), 1):
            nodes, inputs = torch.arange(fan_out), torch.arange(fan_in)
            own = [torch.full((fan_out, fan_in), layer), nodes.unsqueeze(-1), inputs]
            weights = self.weights[layer - 1].coordinates(fan_out, fan_in)
            places[weights] = torch.stack(torch.broadcast_tensors(*own), -1)
            if (bias := self.biases[layer - 1]) is not None:
                places[bias.coordinates(fan_out), 0] = layer
                places[bias.coordinates(fan_out), 1] = nodes
        if self.scale_coordinate is not None:
            places[self.scale_coordinate] = torch.tensor([self.architecture.num_layers + 1, 0, -1])
        return places


def read_network(bound: BoundModel, sites: ModelSites, plan: BatchPlan) -> Network:
    """Read what a model states of its structure, and its priors and labels from its sites.

    Raises:
        NotFeedforward: If the model states nothing, or has what the fast engines do not know.
        ValueError: If what it states contradicts its sites; names both.
    """
    state = getattr(bound.model, "feedforward", None)
    if state is None:
        raise NotFeedforward("the model has no method feedforward() that states its structure")
    net = state(*bound.args, **bound.kwargs)
    if not isinstance(net, Feedforward):
        raise ValueError(f"feedforward() must return a Feedforward, got {type(net).__name__}")
    layout = sites.layout
    if not layout.is_uniform:
        raise NotFeedforward("its latent sites have several dtypes")
    shapes = {site.name: site.shape for site in layout.sites}
    architecture = Architecture.from_statement(net, shapes)
    if unknown := [name for name in architecture.activations if not isinstance(name, str)]:
        raise NotFeedforward(f"activations {shown(unknown)} are none of {list(ACTIVATIONS)}")
    architecture.check_inputs(net.inputs, layout.dtype, layout.sites[0].device)
    scale_site = architecture.likelihood.scale_site
    scales = stated_scales(bound, layout)
    known = {*architecture.parameter_shapes, *scales.values(), scale_site}
    others = sorted(set(shapes) - known)
    if others:
        raise NotFeedforward(f"latent sites {others} are no weights or biases of its layers")
    offsets = layout.offsets()
    weights = tuple(
        Strided(offsets[f"{layer}.weight"], (fan_in, 1))
        for layer, fan_in in zip(net.layers, architecture.widths[:-1], strict=True)
    )
    biases = tuple(
        Strided(offsets[f"{layer}.bias"], (1,)) if f"{layer}.bias" in offsets else None
        for layer in net.layers
    )
    where = bound, sites, plan
    return network_of(*where, architecture, net.inputs, weights, biases, scales)


def network_of(
    bound: BoundModel,
    sites: ModelSites,
    plan: BatchPlan,
    architecture: Architecture,
    inputs: Tensor,
    weights: tuple[Strided, ...],
    biases: tuple[Strided | None, ...],
    scales: Mapping[str, str],
) -> Network:
    """Add to an architecture the priors and labels of a model's sites, which it has all.

    Args:
        bound: The model.
        sites: What set-up found in it.
        plan: The batches.
        architecture: What it computes.
        inputs: Inputs of all rows.
        weights: Where each layer's weights are.
        biases: Where its biases are.
        scales: By site, the site that holds the scale or the variance of its prior.

    Raises:
        NotFeedforward: If priors or observations are such as the fast engines do not know.
        ValueError: If there are not as many labels as rows.
    """
    layout, scale_site = sites.layout, architecture.likelihood.scale_site
    if scale_site in scales.values():
        raise NotFeedforward(f"site {scale_site!r} holds the scale of observations and of priors")
    messages, again = sample_sites(bound), sample_sites(bound)
    priors, reasons = parameter_priors(layout, messages, again, scales)
    for name, reason in reasons.items():
        if name != scale_site:
            raise NotFeedforward(str(reason)) from reason
    name = _observed_site(messages, sites, plan)
    plate = sites.plates.get(plan.plate or "")
    labels = messages[name]["value"]
    if plate is not None and plate.is_subsampled:
        labels = observed_values(bound, sites.plates)[name]
    return Network(
        architecture,
        priors,
        NetworkData(inputs.detach(), _labels(inputs, architecture.likelihood, name, labels, plan)),
        factor=plan.factor,
        weights=weights,
        biases=biases,
        scale_coordinate=layout.offsets()[scale_site] if scale_site else None,
        scale_prior=_scale_prior(messages[scale_site], again[scale_site]) if scale_site else None,
        prior_scales=scales,
    )


def _scale_prior(site: Any, again: Any) -> Distribution:
    """Return the prior of the observation scale."""
    fn: Distribution = site["fn"]
    values = [torch.tensor(value) for value in (0.3, 1.7)]
    same = all(torch.equal(fn.log_prob(v), again["fn"].log_prob(v)) for v in values)
    if not same or site["mask"] is not None or not is_one(site["scale"]):
        raise NotFeedforward(f"the prior of {site['name']!r} is masked, scaled or depends on sites")
    return fn


def _observed_site(messages: dict[str, Any], sites: ModelSites, plan: BatchPlan) -> str:
    """Name the one observed site, which may be scaled by its plate alone."""
    if len(sites.observed) != 1:
        raise NotFeedforward(f"its observed sites are {list(sites.observed)}, and must be one")
    (name,) = sites.observed
    plate = sites.plates.get(plan.plate or "")
    stated = 1.0 if plate is None else plate.size / plate.num_rows
    if messages[name]["mask"] is not None or not is_one(messages[name]["scale"] / stated):
        raise NotFeedforward(f"its observed site {name!r} is masked or scaled")
    return name


def _labels(
    inputs: Tensor, likelihood: Likelihood, name: str, labels: Tensor, plan: BatchPlan
) -> Tensor:
    """Bring the observed values of all rows into the form that the likelihood wants."""
    rows, columns = len(inputs), likelihood.num_responses
    if plan.plate is not None and rows != plan.num_rows:
        raise ValueError(
            f"feedforward() must give the inputs of all {plan.num_rows} rows of plate "
            f"{plan.plate!r}, got {rows}"
        )
    if labels.numel() != rows * columns:
        raise ValueError(
            f"observed site {name!r} must have {columns} value(s) for each of the {rows} rows of "
            f"inputs that feedforward() gives, got shape {tuple(labels.shape)}"
        )
    labels = labels.reshape((rows,) if likelihood.is_of_classes else (rows, columns))
    if likelihood.name == "categorical":
        return labels.long()
    labels = labels.to(inputs.dtype)
    return with_count_columns(labels) if likelihood.name == "poisson" else labels
