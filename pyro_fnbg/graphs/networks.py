"""Networks that a model computes: what the layers, the likelihood and its scale are.

Latent sites may have any names and shapes; all is read from the operations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor, fx
from torch.distributions import Categorical

from pyro_fnbg.graphs.arrangement import Entries, Values
from pyro_fnbg.graphs.capture import CapturedSite, placeholders_of
from pyro_fnbg.graphs.layers import SCALES, Chain, NotAChain, read_chain
from pyro_fnbg.networks.architecture import Architecture
from pyro_fnbg.networks.counts import LogPoisson
from pyro_fnbg.networks.likelihoods import FROM_NETWORK, Likelihood
from pyro_fnbg.networks.statement import NotFeedforward

__all__ = ["Graph", "coordinates_of", "read_architecture"]


class Kind(NamedTuple):
    """Say which likelihood a distribution is.

    Attributes:
        likelihood: Its name.
        parameter: The distribution's parameter that is made of the outputs.
        form: What is made of them, as `Values` says.
    """

    likelihood: str
    parameter: str
    form: str = "values"


# These types and no others: a class of one's own may score otherwise
KINDS: dict[type, Kind] = {
    LogPoisson: Kind("poisson", "log_rate"),
    **{
        getattr(module, name): kind
        for module in (torch.distributions, pyro.distributions)
        for name, kind in {
            "Bernoulli": Kind("bernoulli", "logits"),
            "Categorical": Kind("categorical", "logits", "log shares"),
            "Normal": Kind("normal", "loc"),
            "StudentT": Kind("student", "loc"),
            "Poisson": Kind("poisson", "rate", "exponentials"),
        }.items()
    },
}
# Others, which may be made of outputs or sites as well
OTHERS = ("scale", "df")


class Graph(NamedTuple):
    """Hold a computation from latent sites to a likelihood.

    Attributes:
        module: The operations. Placeholders are the values of the sites in order, and then the rows
            of a batch, if there are batches.
        sites: Flat coordinates of each latent site, in its shape, by name.
        rows: Those that it was written down on; None for all rows.
        powers: Which power of the exponential of its placeholder the value of each site is: 1 of
            positive numbers where placeholders are unconstrained, else 0.
    """

    module: fx.GraphModule
    sites: Mapping[str, Tensor]
    rows: Tensor | None
    powers: Mapping[str, float]


def coordinates_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Number the entries of all sites, one after the other; in each site's shape."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    pieces = torch.arange(sum(sizes)).split(sizes)
    return {name: own.view(shapes[name]) for name, own in zip(shapes, pieces, strict=True)}


def read_architecture(
    graph: Graph, name: str, observed: CapturedSite, num_rows: int
) -> tuple[Architecture, Chain, bool]:
    """Find the feedforward network that leads to a likelihood.

    Args:
        graph: The computation.
        name: Name of the observed site.
        observed: That site.
        num_rows: Number of all rows.

    Returns:
        The network, whose layers are named by the sites of their first weights; where its
        parameters and inputs are; and whether all rows are computed for each batch.

    Raises:
        NotFeedforward: If it is none that is known; says what is in the way.
    """
    try:
        return _architecture(graph, name, observed, num_rows)
    except NotAChain as reason:
        raise NotFeedforward(str(reason)) from reason


def _architecture(
    graph: Graph, name: str, observed: CapturedSite, num_rows: int
) -> tuple[Architecture, Chain, bool]:
    kind = KINDS.get(observed.kind)
    if kind is None or (kind.parameter == "logits" and "probs" in observed.parameters):
        how = " of probabilities, not of logits" if kind else ""
        raise NotFeedforward(f"the likelihood {name!r} is a {observed.kind.__name__}{how}")
    latent = set(range(len(graph.sites)))
    if observed.value is not None and placeholders_of(graph.module, observed.value) & latent:
        raise NotFeedforward(f"what {name!r} observes depends on latent sites")
    keys = [kind.parameter, *(key for key in OTHERS if key in observed.parameters)]
    wanted = [observed.parameters[key] for key in keys]
    chain = read_chain(graph.module, wanted, list(graph.sites.values()), graph.rows)
    found = dict(zip(keys, chain.found, strict=True))
    for key in keys[1:]:
        if isinstance(found[key], Tensor) and observed.parameters[key].op != "get_attr":
            raise NotFeedforward(f"the {key} of its likelihood is computed from the rows")
    outputs = found[kind.parameter]
    _check_rows(name, observed, outputs)
    # A model may compute all rows, and take those of the batch from the outputs
    rows = graph.rows
    takes_all = rows is not None and len(rows) < chain.num_rows == num_rows
    batch = rows if takes_all and rows is not None else torch.arange(chain.num_rows)
    likelihood = _likelihood(kind, chain, batch, outputs, found, graph)
    layers = chain.layers
    architecture = Architecture(
        tuple(_name(layer.weights, graph.sites) for layer in layers),
        (layers[0].weights.shape[1], *(len(layer.weights) for layer in layers)),
        tuple(layer.activation for layer in layers[:-1]),
        tuple(layer.biases is not None for layer in layers),
        likelihood,
    )
    return architecture, chain, takes_all


def _name(coordinates: Tensor, sites: Mapping[str, Tensor]) -> str:
    """Name a layer by the site of its first weight."""
    first = coordinates.reshape(-1)[0]
    return next(name.removesuffix(".weight") for name, own in sites.items() if first in own)


def _check_rows(name: str, observed: CapturedSite, outputs: Any) -> None:
    """Check that there is one distribution a row, or one a row and output, in their order."""
    if not isinstance(outputs, Values):
        raise NotFeedforward(f"the likelihood {name!r} does not depend on layers")
    shape = tuple(outputs.codes.shape)
    if issubclass(observed.kind, Categorical):
        shape = shape[:-1]
    if shape != observed.shape:
        raise NotFeedforward(
            f"the likelihood {name!r} is of shape {shape}, and what it observes of {observed.shape}"
        )


def _likelihood(
    kind: Kind,
    chain: Chain,
    batch: Tensor,
    outputs: Values,
    found: dict[str, Any],
    graph: Graph,
) -> Likelihood:
    """Find out what the outputs and the observation scale are, in the rows of a batch."""
    width = len(chain.layers[-1].weights)
    codes = width * batch.cpu().unsqueeze(-1) + torch.arange(width)
    if outputs.form != kind.form or outputs.added or outputs.activation:
        raise NotFeedforward("its outputs are those of an activation")
    scale, degrees = found.get("scale"), found.get("df")
    keywords: dict[str, Any] = {}
    if isinstance(degrees, Entries | Values):
        raise NotFeedforward("its degrees of freedom are sampled")
    if degrees is not None:
        keywords["degrees_of_freedom"] = _only(degrees, "degrees of freedom")
    if isinstance(scale, Values):
        half = width // 2
        is_known = scale.form in SCALES and scale.added >= 0
        fits = torch.equal(scale.codes.reshape(-1), codes[:, half:].reshape(-1))
        if not is_known or not fits:
            raise NotFeedforward("its scales are no softplus or exponential of the last outputs")
        keywords["has_exponential_scale"] = scale.form == "exponentials"
        keywords["least_scale"] = scale.added
        keywords["observation_scale"], codes = FROM_NETWORK, codes[:, :half]
    elif isinstance(scale, Entries):
        keywords["observation_scale"] = _scale_site(scale, graph)
    elif scale is not None:
        keywords["observation_scale"] = _only(scale, "observation scale")
    if not torch.equal(outputs.codes.reshape(-1), codes.reshape(-1)):
        raise NotFeedforward(
            "its likelihood does not see all nodes of the last layer, each once and in their order"
        )
    if kind.likelihood == "bernoulli" and width > 1:
        raise NotFeedforward("its likelihood has several labels a row")
    return Likelihood(kind.likelihood, width, **keywords)


def _only(numbers: Tensor, what: str) -> float:
    """Return the number that all of some numbers are."""
    first = numbers.reshape(-1)[0]
    if not bool((numbers == first).all()):
        raise NotFeedforward(f"its {what} differs from row to row")
    return float(first)


def _scale_site(scale: Entries, graph: Graph) -> str:
    """Name the site of one number that a scale is."""
    coordinate = int(scale.coordinates.reshape(-1)[0])
    of_one = {int(own): name for name, own in graph.sites.items() if own.shape == ()}
    name = of_one.get(coordinate, FROM_NETWORK)
    is_one = bool((scale.coordinates == coordinate).all())
    # A site of that name would be taken for what it says
    if not is_one or name == FROM_NETWORK or scale.power != graph.powers[name]:
        raise NotFeedforward("its observation scale is no latent site of one number")
    return name
