"""Networks that a model does not state, but computes: layers that follow each other to the data.

Latent sites may have any names and shapes. What the layers, the likelihood and its scale are is
read from the captured operations; priors and labels from the model's sites, as of a model that
states what it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.distributions import Bernoulli, Categorical, Normal, Poisson, StudentT

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.core.layout import Layout
from pyro_fnbg.engines.captured.arrangement import Entries, Values
from pyro_fnbg.engines.captured.capture import Captured, CapturedSite
from pyro_fnbg.engines.captured.layers import (
    Chain,
    Inputs,
    Layer,
    NotAChain,
    read_chain,
    read_entries,
    value_on,
)
from pyro_fnbg.engines.network import Network, NotFeedforward, Strided, network_of
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.sites import ModelSites
from pyro_fnbg.networks.architecture import Architecture
from pyro_fnbg.networks.counts import LogPoisson
from pyro_fnbg.networks.likelihoods import FROM_NETWORK, LEAST_SCALE, Likelihood

__all__ = ["recognise"]


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


KINDS: dict[type, Kind] = {
    Bernoulli: Kind("bernoulli", "logits"),
    Categorical: Kind("categorical", "logits", "log shares"),
    Normal: Kind("normal", "loc"),
    StudentT: Kind("student", "loc"),
    LogPoisson: Kind("poisson", "log_rate"),
    Poisson: Kind("poisson", "rate", "exponentials"),
}
SCALES = ("scale", "df")


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
    try:
        return _recognised(captured, bound, sites, plan, rows)
    except NotAChain as reason:
        raise NotFeedforward(str(reason)) from reason


def _recognised(
    captured: Captured, bound: BoundModel, sites: ModelSites, plan: BatchPlan, rows: Tensor | None
) -> Network:
    if len(captured.observed) != 1:
        raise NotFeedforward(f"its observed sites are {list(captured.observed)}, and must be one")
    ((name, observed),) = captured.observed.items()
    kind = next((KINDS[known] for known in KINDS if issubclass(observed.kind, known)), None)
    if kind is None or (kind.parameter == "logits" and "probs" in observed.parameters):
        how = " of probabilities, not of logits" if kind else ""
        raise NotFeedforward(f"the likelihood {name!r} is a {observed.kind.__name__}{how}")
    layout, keys = sites.layout, [kind.parameter, *(k for k in SCALES if k in observed.parameters)]
    coordinates = zip(
        torch.arange(layout.num_params).split(layout.sizes), layout.sites, strict=True
    )
    entries = {site.name: own.view(site.shape) for own, site in coordinates}
    wanted = [observed.parameters[key] for key in keys]
    chain = read_chain(captured.graph, wanted, list(entries.values()), rows)
    found = dict(zip(keys, chain.found, strict=True))
    for key in keys[1:]:
        if isinstance(found[key], Tensor) and observed.parameters[key].op != "get_attr":
            raise NotFeedforward(f"the {key} of its likelihood is computed from the rows")
    outputs = found[kind.parameter]
    _check_rows(name, observed, outputs)
    # A model may compute all rows, and take those of the batch from the outputs
    takes_all = rows is not None and len(rows) < chain.num_rows == plan.num_rows
    batch = rows if takes_all and rows is not None else torch.arange(chain.num_rows)
    likelihood = _likelihood(kind, chain, batch, outputs, found, layout)
    scales = _prior_scales(captured, entries, rows)
    _check_coverage(chain.layers, {*scales.values(), likelihood.scale_site}, entries)
    architecture = Architecture(
        tuple(_names(chain.layers, layout)),
        (chain.layers[0].weights.shape[1], *(len(layer.weights) for layer in chain.layers)),
        tuple(layer.activation for layer in chain.layers[:-1]),
        tuple(layer.biases is not None for layer in chain.layers),
        likelihood,
    )
    inputs = _inputs(captured.graph, chain.inputs, plan, rows, takes_all)
    if inputs.dtype != layout.dtype or inputs.device != layout.sites[0].device:
        raise NotFeedforward("its inputs are of another dtype or device than its parameters")
    weights = tuple(_strided(layer.weights) for layer in chain.layers)
    biases = tuple(
        None if layer.biases is None else _strided(layer.biases) for layer in chain.layers
    )
    return network_of(bound, sites, plan, architecture, inputs, weights, biases, scales)


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
    layout: Layout,
) -> Likelihood:
    """Find out what the outputs and the observation scale are, in the rows of a batch."""
    width = len(chain.layers[-1].weights)
    codes = width * batch.cpu().unsqueeze(-1) + torch.arange(width)
    if outputs.form != kind.form or outputs.activation:
        raise NotFeedforward("its outputs are those of an activation")
    scale, degrees = found.get("scale"), found.get("df")
    keywords: dict[str, Any] = {}
    if isinstance(degrees, Entries | Values):
        raise NotFeedforward("its degrees of freedom are sampled")
    if degrees is not None:
        keywords["degrees_of_freedom"] = _only(degrees, "degrees of freedom")
    if isinstance(scale, Values):
        half = width // 2
        is_ours = scale.form == "softplus" and scale.added == LEAST_SCALE
        fits = torch.equal(scale.codes.reshape(-1), codes[:, half:].reshape(-1))
        if not is_ours or not fits:
            raise NotFeedforward(
                f"its scales are no softplus of the last outputs, plus {LEAST_SCALE}"
            )
        keywords["observation_scale"], codes = FROM_NETWORK, codes[:, :half]
    elif isinstance(scale, Entries):
        keywords["observation_scale"] = _scale_site(scale, layout)
    elif scale is not None:
        keywords["observation_scale"] = _only(scale, "observation scale")
    if not torch.equal(outputs.codes.reshape(-1), codes.reshape(-1)):
        raise NotFeedforward("its outputs are in another order than its last layer")
    if kind.likelihood == "bernoulli" and width > 1:
        raise NotFeedforward("its likelihood has several labels a row")
    return Likelihood(kind.likelihood, width, **keywords)


def _only(numbers: Tensor, what: str) -> float:
    """Return the number that all of some numbers are."""
    first = numbers.reshape(-1)[0]
    if not bool((numbers == first).all()):
        raise NotFeedforward(f"its {what} differs from row to row")
    return float(first)


def _scale_site(scale: Entries, layout: Layout) -> str:
    """Name the site of one number whose exponential a scale is."""
    coordinate = int(scale.coordinates.reshape(-1)[0])
    is_one = bool((scale.coordinates == coordinate).all()) and scale.power == 1
    name = next((name for name, at in layout.offsets().items() if at == coordinate), "")
    site = next((site for site in layout.sites if site.name == name), None)
    if not is_one or site is None or site.shape != ():
        raise NotFeedforward("its observation scale is no latent site of one number")
    return name


def _prior_scales(
    captured: Captured, entries: Mapping[str, Tensor], rows: Tensor | None
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
            if _is_spread(found.coordinates, own):
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


def _names(layers: Sequence[Layer], layout: Layout) -> Iterator[str]:
    """Name each layer by the site of its first weight."""
    ends = torch.tensor(layout.sizes).cumsum(0)
    for layer in layers:
        site = int(torch.searchsorted(ends, layer.weights.reshape(-1)[0], right=True))
        yield layout.sites[site].name.removesuffix(".weight")


def _strided(coordinates: Tensor) -> Strided:
    """Return where evenly spaced coordinates are."""
    steps = tuple(
        int(coordinates.select(dim, 1).min() - coordinates.min()) if length > 1 else 1
        for dim, length in enumerate(coordinates.shape)
    )
    found = Strided(int(coordinates.reshape(-1)[0]), steps)
    if min(steps) < 1 or not torch.equal(found.coordinates(*coordinates.shape), coordinates):
        raise NotFeedforward("weights of a layer are not evenly spaced in their site")
    return found


def _inputs(
    graph: fx.GraphModule, inputs: Inputs, plan: BatchPlan, rows: Tensor | None, takes_all: bool
) -> Tensor:
    """Compute the inputs of all rows, batch by batch where a model takes batches."""
    if rows is None or takes_all:
        return inputs.as_rows(value_on(graph, inputs.node, rows)).contiguous()
    size, total, pieces = len(rows), plan.num_rows, list[Tensor]()
    for start in range(0, total, size):
        first = min(start, total - size)
        batch = torch.arange(first, first + size, device=rows.device)
        pieces.append(inputs.as_rows(value_on(graph, inputs.node, batch))[start - first :])
    return torch.cat(pieces)
