"""A feedforward network in numbers: what the fast engines need to know of a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.core.checks import shown
from pyro_fnbg.core.priors import ParameterPriors
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.priors import is_one, parameter_priors, sample_sites, stated_scales
from pyro_fnbg.model.rows import observed_values
from pyro_fnbg.model.sites import ModelSites
from pyro_fnbg.networks.architecture import Architecture
from pyro_fnbg.networks.counts import with_count_columns
from pyro_fnbg.networks.likelihoods import Likelihood
from pyro_fnbg.networks.statement import ACTIVATIONS, Feedforward, NotFeedforward

__all__ = ["Network", "NetworkData", "NotFeedforward", "read_network"]


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
        weight_starts: Flat coordinate of each layer's first weight; they are row-major.
        bias_starts: Flat coordinate of each layer's first bias; None without biases.
        scale_coordinate: Flat coordinate of the sampled observation scale, if it is sampled.
        scale_prior: Its prior, over positive numbers.
    """

    architecture: Architecture
    priors: ParameterPriors
    data: NetworkData
    factor: float
    weight_starts: tuple[int, ...]
    bias_starts: tuple[int | None, ...]
    scale_coordinate: int | None
    scale_prior: Distribution | None

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

    @cached_property
    def places(self) -> Tensor:
        """Layer, node and input of each flat coordinate, shape ``(num_params, 3)``.

        Nodes and inputs count from 0; the input of a bias is -1; the observation scale is in layer
        rho + 1, and scales of priors in layer rho + 2.
        """
        places = torch.tensor([self.architecture.num_layers + 2, 0, -1])
        places = places.repeat(len(self.priors.locs), 1)
        for layer, (fan_in, fan_out) in enumerate(pairwise(self.architecture.widths), 1):
            weight, bias = self.weight_starts[layer - 1], self.bias_starts[layer - 1]
            at = places[weight : weight + fan_in * fan_out].view(fan_out, fan_in, 3)
            at[..., 0] = layer
            at[..., 1] = torch.arange(fan_out).unsqueeze(-1)
            at[..., 2] = torch.arange(fan_in)
            if bias is not None:
                places[bias : bias + fan_out, 0] = layer
                places[bias : bias + fan_out, 1] = torch.arange(fan_out)
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
    if scale_site in scales.values():
        raise NotFeedforward(f"site {scale_site!r} holds the scale of observations and of priors")
    known = {*architecture.parameter_shapes, *scales.values(), scale_site}
    others = sorted(set(shapes) - known)
    if others:
        raise NotFeedforward(f"latent sites {others} are no weights or biases of its layers")
    messages, again = sample_sites(bound), sample_sites(bound)
    priors, reasons = parameter_priors(layout, messages, again, scales)
    for name in [*architecture.parameter_shapes, *scales.values()]:
        if name in reasons:
            raise NotFeedforward(str(reasons[name])) from reasons[name]
    name = _observed_site(messages, sites, plan)
    plate = sites.plates.get(plan.plate or "")
    labels = messages[name]["value"]
    if plate is not None and plate.is_subsampled:
        labels = observed_values(bound, sites.plates)[name]
    offsets = layout.offsets()
    return Network(
        architecture,
        priors,
        NetworkData(
            net.inputs.detach(), _labels(net.inputs, architecture.likelihood, name, labels, plan)
        ),
        factor=plan.factor,
        weight_starts=tuple(offsets[f"{layer}.weight"] for layer in net.layers),
        bias_starts=tuple(offsets.get(f"{layer}.bias") for layer in net.layers),
        scale_coordinate=offsets[scale_site] if scale_site else None,
        scale_prior=_scale_prior(messages[scale_site], again[scale_site]) if scale_site else None,
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
    if messages[name]["mask"] is not None or messages[name]["scale"] != stated:
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
