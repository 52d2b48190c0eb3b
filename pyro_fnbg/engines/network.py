"""A feedforward network in numbers: what the fast engines need to know of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.core.checks import as_finite, is_list, shown
from pyro_fnbg.core.layout import Layout
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.rows import observed_values
from pyro_fnbg.model.sites import ModelSites
from pyro_fnbg.networks.statement import ACTIVATIONS, LIKELIHOODS, Feedforward

__all__ = ["Network", "NotFeedforward", "read_network"]


class NotFeedforward(ValueError):
    """Say why a model is none that the fast engines know, though nothing is wrong with it."""


@dataclass(frozen=True, eq=False)
class Network:
    """Describe a network, its priors and its data. Layers count from 1, as in the paper.

    Attributes:
        inputs: Shape ``(rows, widths[0])``.
        labels: "bernoulli" ``(rows,)`` in the parameters' dtype, "categorical" ``(rows,)`` long,
            "normal" ``(rows, widths[-1])``.
        widths: Number of inputs, then of nodes of each layer.
        activations: One a hidden layer.
        likelihood: "bernoulli", "categorical" or "normal".
        factor: Power of the likelihood.
        weight_starts: Flat coordinate of each layer's first weight; they are row-major.
        bias_starts: Flat coordinate of each layer's first bias; None without biases.
        prior_locs: Mean of each coordinate, shape ``(num_params,)``, double precision.
        prior_scales: Standard deviation of each coordinate; infinite for the observation scale,
            whose prior is another.
        observation_scale: Standard deviation of the "normal" likelihood, where it is fixed.
        scale_coordinate: Flat coordinate of the sampled observation scale, if it is sampled.
        scale_prior: Its distribution over positive numbers.
    """

    inputs: Tensor
    labels: Tensor
    widths: tuple[int, ...]
    activations: tuple[str, ...]
    likelihood: str
    factor: float
    weight_starts: tuple[int, ...]
    bias_starts: tuple[int | None, ...]
    prior_locs: Tensor
    prior_scales: Tensor
    observation_scale: float
    scale_coordinate: int | None
    scale_prior: Distribution | None

    @property
    def num_layers(self) -> int:
        """Number of layers of nodes, the output layer included: rho."""
        return len(self.widths) - 1

    @property
    def log_normalizers(self) -> Tensor:
        """What normalises each Normal prior, shape ``(num_params,)``; 0 where there is none."""
        values = -(self.prior_scales.log() + 0.5 * math.log(2 * math.pi))
        return torch.where(torch.isfinite(values), values, 0.0)

    @property
    def log_prior_constant(self) -> Tensor:
        """What normalises the Normal priors together, shape ``()``."""
        return self.log_normalizers.sum()

    def node_of(self, coordinates: Tensor) -> tuple[int, int | None]:
        """Return the lowest layer of some coordinates, and the node that has them all, if one."""
        layers, nodes, _ = self.places[coordinates].unbind(-1)
        layer, node = int(layers.min()), int(nodes[0])
        is_one = bool((layers == layer).all() and (nodes == node).all())
        return layer, node if is_one and layer <= self.num_layers else None

    @cached_property
    def places(self) -> Tensor:
        """Layer, node and input of each flat coordinate, shape ``(num_params, 3)``.

        Nodes and inputs count from 0; the input of a bias is -1; the observation scale is in layer
        rho + 1.
        """
        places = torch.full((len(self.prior_locs), 3), -1)
        for layer, (fan_in, fan_out) in enumerate(pairwise(self.widths), 1):
            weight, bias = self.weight_starts[layer - 1], self.bias_starts[layer - 1]
            at = places[weight : weight + fan_in * fan_out].view(fan_out, fan_in, 3)
            at[..., 0] = layer
            at[..., 1] = torch.arange(fan_out).unsqueeze(-1)
            at[..., 2] = torch.arange(fan_in)
            if bias is not None:
                places[bias : bias + fan_out, 0] = layer
                places[bias : bias + fan_out, 1] = torch.arange(fan_out)
        if self.scale_coordinate is not None:
            places[self.scale_coordinate] = torch.tensor([self.num_layers + 1, 0, -1])
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
    _check_statement(net, layout)
    names = [f"{layer}.{kind}" for layer in net.layers for kind in ("weight", "bias")]
    shapes = {site.name: site.shape for site in layout.sites}
    widths = (shapes[names[0]][1], *(shapes[name][0] for name in names[::2]))
    scale_site = net.observation_scale if isinstance(net.observation_scale, str) else None
    others = sorted(set(shapes) - set(names) - {scale_site})
    if others:
        raise NotFeedforward(f"latent sites {others} are no weights or biases of its layers")
    messages, again = _messages(bound), _messages(bound)
    locs, scales = [], []
    for site in layout.sites:
        if site.name == scale_site:
            locs.append(torch.zeros(1))
            scales.append(torch.full((1,), torch.inf))
            continue
        loc, scale = _normal_prior(messages[site.name], site.name)
        other_loc, other_scale = _normal_prior(again[site.name], site.name)
        if not (torch.equal(loc, other_loc) and torch.equal(scale, other_scale)):
            raise NotFeedforward(f"the prior of {site.name!r} depends on other sites")
        locs.append(loc.expand(site.shape).reshape(-1))
        scales.append(scale.expand(site.shape).reshape(-1))
    name = _observed_site(messages, sites, plan)
    plate = sites.plates.get(plan.plate or "")
    labels = messages[name]["value"]
    if plate is not None and plate.is_subsampled:
        labels = observed_values(bound, sites.plates)[name]
    offsets = layout.offsets()
    return Network(
        inputs=net.inputs.detach(),
        labels=_labels(net, widths, name, labels, plan),
        widths=widths,
        activations=tuple(map(str, net.activations)),
        likelihood=net.likelihood,
        factor=plan.factor,
        weight_starts=tuple(offsets[name] for name in names[::2]),
        bias_starts=tuple(offsets.get(name) for name in names[1::2]),
        prior_locs=torch.cat([values.double().cpu() for values in locs]),
        prior_scales=torch.cat([values.double().cpu() for values in scales]),
        observation_scale=1.0 if scale_site else float(net.observation_scale),
        scale_coordinate=offsets[scale_site] if scale_site else None,
        scale_prior=_scale_prior(messages[scale_site], again[scale_site]) if scale_site else None,
    )


def _check_statement(net: Feedforward, layout: Layout) -> None:
    """Check what the model states against the shapes of its sites."""
    shapes = {site.name: site.shape for site in layout.sites}
    found = f"the latent sites are {shapes}"
    if not is_list(net.layers) or not net.layers or not all(isinstance(n, str) for n in net.layers):
        raise ValueError(f"feedforward() must name its layers, got layers={shown(net.layers)}")
    below = None
    for layer in net.layers:
        weight, bias = shapes.get(f"{layer}.weight"), shapes.get(f"{layer}.bias")
        if weight is None or len(weight) != 2 or (below is not None and weight[1] != below):
            after = "" if below is None else f", with {below} columns for the layer below"
            raise ValueError(
                f"feedforward() names layer {layer!r}, so there must be a site "
                f"'{layer}.weight' of two dimensions{after}: {found}"
            )
        below = weight[0]
        if bias is not None and bias != (below,):
            raise ValueError(f"site '{layer}.bias' must have shape ({below},): {found}")
    _check_names(net)
    inputs = net.inputs
    fan_in = shapes[f"{net.layers[0]}.weight"][1]
    if not isinstance(inputs, Tensor) or inputs.dim() != 2 or inputs.shape[1] != fan_in:
        got = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(f"feedforward() must give inputs of shape (rows, {fan_in}), got {got}")
    if inputs.dtype != layout.dtype or inputs.device != layout.sites[0].device:
        raise ValueError(
            f"feedforward() must give inputs of the parameters' dtype and device, {layout.dtype} "
            f"on {layout.sites[0].device}, got {inputs.dtype} on {inputs.device}"
        )
    scale = net.observation_scale
    if not isinstance(scale, str) and (as_finite(scale) or 0.0) <= 0:
        raise ValueError(
            "feedforward() must give observation_scale as a positive number or the name of a site, "
            f"got {shown(scale)}"
        )
    if isinstance(scale, str) and shapes.get(scale) != ():
        raise ValueError(
            f"feedforward() names the scalar site {scale!r} as its scale, which must be one of its "
            f"sites: {found}"
        )


def _check_names(net: Feedforward) -> None:
    if not is_list(net.activations) or len(net.activations) != len(net.layers) - 1:
        raise ValueError(
            f"feedforward() must give one activation a hidden layer, {len(net.layers) - 1}, "
            f"got {shown(net.activations)}"
        )
    unknown = [n for n in net.activations if not isinstance(n, str) or n not in ACTIVATIONS]
    if unknown:
        raise NotFeedforward(f"activations {shown(unknown)} are none of {list(ACTIVATIONS)}")
    if not isinstance(net.likelihood, str) or net.likelihood not in LIKELIHOODS:
        raise ValueError(
            f"feedforward() must give a likelihood of {LIKELIHOODS}, got {shown(net.likelihood)}"
        )


def _messages(bound: BoundModel) -> dict[str, Any]:
    """Trace the model and return the messages of its sample sites."""
    nodes = bound.prior_trace().nodes
    return {name: site for name, site in nodes.items() if site["type"] == "sample"}


def _normal_prior(site: Any, name: str) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of a site's coordinates."""
    fn = site["fn"]
    while isinstance(fn, Independent):
        fn = fn.base_dist
    if not isinstance(fn, Normal):
        raise NotFeedforward(f"the prior of {name!r} is no independent Normal: {fn}")
    if site["mask"] is not None or not _is_one(site["scale"]):
        raise NotFeedforward(f"the prior of {name!r} is masked or scaled")
    return fn.loc.detach(), fn.scale.detach()


def _is_one(scale: Any) -> bool:
    return not isinstance(scale, Tensor) and scale == 1.0


def _scale_prior(site: Any, again: Any) -> Distribution:
    """Return the prior of the observation scale."""
    fn: Distribution = site["fn"]
    values = [torch.tensor(value) for value in (0.3, 1.7)]
    same = all(torch.equal(fn.log_prob(v), again["fn"].log_prob(v)) for v in values)
    if not same or site["mask"] is not None or not _is_one(site["scale"]):
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
    net: Feedforward, widths: tuple[int, ...], name: str, labels: Tensor, plan: BatchPlan
) -> Tensor:
    """Bring the observed values of all rows into the form that the likelihood wants."""
    rows = len(net.inputs)
    columns = widths[-1] if net.likelihood == "normal" else 1
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
    labels = labels.reshape((rows, columns) if net.likelihood == "normal" else (rows,))
    return labels.long() if net.likelihood == "categorical" else labels.to(net.inputs.dtype)
