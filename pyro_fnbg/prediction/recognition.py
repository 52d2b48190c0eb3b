"""Networks that a model does not state, but computes, for predictions of many draws at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pyro_fnbg.graphs.capture import (
    CapturedSite,
    NotCaptured,
    outputs_of,
    parameters_of,
    written_down,
)
from pyro_fnbg.graphs.layers import value_on
from pyro_fnbg.graphs.networks import Graph, coordinates_of, read_architecture
from pyro_fnbg.graphs.strided import Strided
from pyro_fnbg.networks.architecture import Architecture
from pyro_fnbg.networks.statement import NotFeedforward
from pyro_fnbg.prediction.samples import some_draws, under_draw

__all__ = ["Place", "Recognised", "recognised"]

# What a sampled observation scale is called
SCALE = "observation scale"


class Place(NamedTuple):
    """Say where a parameter of a network is, or its sampled scale, evenly spaced in a site.

    Attributes:
        site: The site.
        start: Number of its first coordinate in the site; None for all of the site, as it is.
        steps: From one coordinate to the next, in each dimension of the parameter.
        shape: Shape of the parameter.
    """

    site: str
    start: int | None = None
    steps: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()

    def of(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Return its draws, ``(draws, *shape)``, as a view of the site's."""
        draws = samples[self.site]
        if self.start is None:
            return draws
        flat = draws.reshape(len(draws), -1)
        between, step = flat.stride()
        strides = between, *(each * step for each in self.steps)
        start = flat.storage_offset() + self.start * step
        return flat.as_strided((len(flat), *self.shape), strides, start)


Places = Mapping[str, Place]


class Recognised(NamedTuple):
    """Hold a network that a model computes.

    Attributes:
        net: The network, with layers named by numbers.
        places: Where its parameters are in the sites.
        inputs: Its inputs, rows first.
    """

    net: Architecture
    places: Places
    inputs: Tensor


def recognised(
    model: Callable[..., Any], samples: Mapping[str, Tensor], x: Tensor, site: str
) -> Recognised | None:
    """Recognise a fully connected network in the operations of a model; None if there is none.

    What is found must still be compared with the model, as a statement that a model makes.

    Args:
        model: The model.
        samples: Draws of its latent sites.
        x: Its inputs.
        site: Name of the response.
    """
    first = {name: values[0] for name, values in some_draws(samples, slice(0, 1)).items()}
    kinds = list[tuple[type, list[str]]]()
    # A value that nobody looks at, so that none is drawn
    response = cast("Tensor", under_draw(model, first, x).nodes[site]["value"])

    def run(*given: Tensor) -> list[Tensor]:
        draw = {name: value.clone() for name, value in zip(first, given, strict=True)}
        nodes = under_draw(model, draw | {site: response}, x).nodes
        kind, parameters = parameters_of(nodes[site]["fn"])
        kinds[:] = [(kind, list(parameters))]
        return list(parameters.values())

    places = coordinates_of({name: tuple(value.shape) for name, value in first.items()})
    values = list(first.values())
    try:
        graph = Graph(written_down(run, values), places, None, dict.fromkeys(first, 0.0))
        ((kind, names),) = kinds
        parameters = dict(zip(names, outputs_of(graph.module), strict=True))
        observed = CapturedSite(kind, parameters, tuple(response.shape))
        found, chain, _ = read_architecture(graph, site, observed, len(x))
    except (NotCaptured, NotFeedforward):
        return None
    likelihood, scale = found.likelihood, found.likelihood.scale_site
    # Names of sites could be those of parameters
    own = {} if scale is None else {SCALE: Place(scale)}
    net = replace(
        found,
        layers=tuple(f"layer{number}" for number in range(1, found.num_layers + 1)),
        likelihood=likelihood if scale is None else replace(likelihood, observation_scale=SCALE),
    )
    try:
        for name, layer in zip(net.layers, chain.layers, strict=True):
            own[f"{name}.weight"] = _place_of(layer.weights, places)
            if layer.biases is not None:
                own[f"{name}.bias"] = _place_of(layer.biases, places)
    except NotFeedforward:
        return None
    inputs = chain.inputs.as_rows(value_on(graph.module, chain.inputs.node, None))
    return Recognised(net, own, inputs)


def _place_of(coordinates: Tensor, places: Mapping[str, Tensor]) -> Place:
    """Find the site of some parameters.

    Raises:
        NotFeedforward: If they are in several sites, or not evenly spaced in one: a copy could be
            as large as the samples.
    """
    found = Strided.of(coordinates)
    name = next(name for name, own in places.items() if found.start in own)
    if not bool(torch.isin(coordinates, places[name]).all()):
        raise NotFeedforward("weights of a layer are in several sites")
    start = found.start - int(places[name].min())
    return Place(name, start, tuple(found.steps), tuple(coordinates.shape))
