"""Posterior predictive probabilities of classifiers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from pyro_fnbg.core.checks import shown
from pyro_fnbg.model.supports import without_events
from pyro_fnbg.networks.architecture import Architecture
from pyro_fnbg.networks.mlp import BayesianMLP
from pyro_fnbg.networks.statement import Feedforward, NotFeedforward

# Draws at which a network that a model states is compared with the model, at most: where outputs
# are large, probabilities of one draw hardly tell
_CHECKED_DRAWS = 10
# Numbers held at a time in one layer's activations: 1 MB in float32, which a cache can hold.
_MAX_CHUNK_ELEMENTS = 2**18
# Activations whose small changes stay small
_CONTINUOUS = ("sigmoid", "tanh", "relu", "identity")


@torch.no_grad()
def marginal_predictive(
    model: Callable[..., Any], samples: Mapping[str, Tensor], x: Tensor
) -> Tensor:
    """Average the class probabilities of each row over posterior draws.

    This is the Monte Carlo approximation of the posterior predictive distribution, Equation 3.6 of
    the paper, with the factor 1 / draws that makes it a distribution. It is exact given the draws;
    its error shrinks with their effective number. Sums are in double precision, so the result does
    not depend on how the draws are split. Memory grows with rows x classes, not with the draws.

    Args:
        model: Any Pyro model that can be called as `model(x)` and samples one Bernoulli or
            Categorical response for each row. One that states its network by a method
            `feedforward`, as `BayesianMLP` does, is evaluated for many draws at a time; its
            statement is compared with the model itself first: at ten draws, or at one of a
            `BayesianMLP`.
        samples: Draws by site name, as from `MCMC.get_samples()`: every latent site of the model
            and no other, each of shape (draws, ...).
        x: Inputs, rows first.

    Returns:
        A tensor of shape (rows, classes); P(0) and P(1) for a Bernoulli response.

    Raises:
        TypeError: `model` cannot be called, `samples` holds something other than tensors, or `x`
            is no tensor.
        ValueError: `samples` does not fit the model, the response is not one Bernoulli or
            Categorical for each row, or `feedforward` does not state what the model computes.

    Examples:
        >>> from pyro_fnbg.networks.mlp import BayesianMLP
        >>> model = BayesianMLP([2, 1], likelihood="bernoulli")
        >>> samples = {"layer1.weight": torch.zeros(9, 1, 2), "layer1.bias": torch.zeros(9, 1)}
        >>> marginal_predictive(model, samples, torch.ones(1, 2))
        tensor([[0.5000, 0.5000]])
    """
    total, num_draws = torch.zeros((), dtype=torch.float64), 0
    for chunk in _probability_chunks(model, samples, x):
        total = total + chunk.sum(0, dtype=torch.float64)
        num_draws += len(chunk)
    return (total / num_draws).to(chunk.dtype)


@torch.no_grad()
def predictive_probabilities(
    model: Callable[..., Any], samples: Mapping[str, Tensor], x: Tensor
) -> Tensor:
    """Compute the class probabilities of each row under each posterior draw.

    Exact. Meant for the few rows whose predictions are to be diagnosed, by R-hat and effective
    sample size, say: the result has draws x rows x classes numbers.

    Args:
        model: As in `marginal_predictive`.
        samples: As in `marginal_predictive`.
        x: As in `marginal_predictive`.

    Returns:
        A tensor of shape (draws, rows, classes), draws in the order of `samples`.

    Raises:
        TypeError: As in `marginal_predictive`.
        ValueError: As in `marginal_predictive`.

    Examples:
        >>> from pyro_fnbg.networks.mlp import BayesianMLP
        >>> model = BayesianMLP([2, 3])
        >>> samples = {"layer1.weight": torch.zeros(9, 3, 2), "layer1.bias": torch.zeros(9, 3)}
        >>> predictive_probabilities(model, samples, torch.ones(1, 2)).shape
        torch.Size([9, 1, 3])
    """
    return torch.cat(list(_probability_chunks(model, samples, x)))


def _probability_chunks(
    model: Callable[..., Any], samples: Mapping[str, Tensor], x: Tensor
) -> Iterator[Tensor]:
    """Yield probabilities of shape (some draws, rows, classes) until every draw is used."""
    if not callable(model) or isinstance(model, MCMCKernel):
        raise TypeError(f"model must be a callable with Pyro sample statements, got {shown(model)}")
    num_draws = _num_draws(samples)
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch tensor, rows first; got {type(x).__name__}")
    if x.dim() == 0 or len(x) == 0:
        raise ValueError(f"x must have one or more rows, got shape {tuple(x.shape)}")
    response, first = _response(model, samples, x)
    stated = _stated_network(model, samples, x)
    if stated is None:
        for draw in range(num_draws):
            yield _by_the_model(model, samples, draw, x, response).unsqueeze(0)
        return
    net, inputs = stated
    # Rounding may move a unit that steps in a few rows, and in no draw in many
    steps = not all(activation in _CONTINUOUS for activation in net.activations)
    allowed = len(x) // 100 if steps else 0
    wrong: list[int] = []
    num_missed = 0
    # The statement of the package's own model is tested; a subclass may compute something else
    checked = 1 if type(model) is BayesianMLP else _CHECKED_DRAWS
    for draw in sorted({num_draws * place // checked for place in range(checked)}):
        expected = first if draw == 0 else _by_the_model(model, samples, draw, x, response)
        found = _differing_rows(net, samples, draw, inputs, expected)
        num_missed += len(found) > allowed
        wrong = wrong or found
    if num_missed > steps:
        raise ValueError(
            "the model's feedforward() does not state what the model computes: the class "
            f"probabilities of {len(wrong)} of the {len(x)} rows of x differ, first in row "
            f"{wrong[0]}"
        )
    chunk = max(1, _MAX_CHUNK_ELEMENTS // (len(inputs) * max(net.widths[1:])))
    for start in range(0, num_draws, chunk):
        parameters = {name: site[start : start + chunk] for name, site in samples.items()}
        yield _by_the_statement(net, net.forward(parameters, inputs))


def _num_draws(samples: Mapping[str, Tensor]) -> int:
    if not isinstance(samples, Mapping):
        raise TypeError(f"samples must map site names to tensors, got {type(samples).__name__}")
    for name, value in samples.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"samples[{name!r}] must be a torch tensor, got {type(value).__name__}")
    counts = {name: len(value) if value.dim() else 0 for name, value in samples.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise ValueError(
            f"samples must hold the same number of draws, one or more, of each site; got {counts}"
        )
    return next(iter(counts.values()))


def _trace(
    model: Callable[..., Any], samples: Mapping[str, Tensor], draw: int, x: Tensor
) -> poutine.Trace:
    conditioned = poutine.condition(model, {name: value[draw] for name, value in samples.items()})
    # The response is sampled and not looked at: leave the caller's random state as it was.
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        return poutine.trace(conditioned).get_trace(x)


def _by_the_model(
    model: Callable[..., Any], samples: Mapping[str, Tensor], draw: int, x: Tensor, response: str
) -> Tensor:
    """Run the model for the class probabilities under one draw, shape (rows, classes)."""
    distribution = _trace(model, samples, draw, x).nodes[response]["fn"]
    return _class_probabilities(response, distribution, len(x))


def _by_the_statement(net: Architecture, outputs: Tensor) -> Tensor:
    """Turn a stated network's outputs into class probabilities, shape (..., rows, classes)."""
    if net.likelihood == "bernoulli":
        return torch.sigmoid(torch.cat([-outputs, outputs], dim=-1))
    return torch.softmax(outputs, dim=-1)


def _stated_network(
    model: Callable[..., Any], samples: Mapping[str, Tensor], x: Tensor
) -> tuple[Architecture, Tensor] | None:
    """Read the network and the inputs that the model states, if its statement can be used."""
    state = getattr(model, "feedforward", None)
    try:
        statement = None if state is None else state(x)
    except Exception:
        # What a run is given besides x, such as labels, is not known here
        return None
    if not isinstance(statement, Feedforward):
        return None
    shapes = {name: tuple(value.shape[1:]) for name, value in samples.items()}
    try:
        net = Architecture.from_statement(statement, shapes)
    except NotFeedforward:
        return None
    weights = [samples[name] for name in net.parameter_shapes]
    if len({weight.dtype for weight in weights}) > 1:
        return None
    net.check_inputs(statement.inputs, weights[0].dtype, weights[0].device)
    return net, statement.inputs


def _differing_rows(
    net: Architecture, samples: Mapping[str, Tensor], draw: int, inputs: Tensor, expected: Tensor
) -> list[int]:
    """Return the rows in which a stated network differs from the model by more than rounding."""
    outputs = net.forward({name: value[draw] for name, value in samples.items()}, inputs)
    found = _by_the_statement(net, outputs)
    if found.shape != expected.shape:
        return list(range(len(expected)))
    precision = max(torch.finfo(values.dtype).eps for values in (found, expected)) ** 0.5
    allowed = precision * (1 + outputs.abs().amax(-1, keepdim=True))
    is_same = (found - expected).abs() <= allowed
    is_same |= found.isnan() & expected.isnan()
    rows: list[int] = (~is_same.all(-1)).nonzero().flatten().tolist()
    return rows


def _response(
    model: Callable[..., Any], samples: Mapping[str, Tensor], x: Tensor
) -> tuple[str, Tensor]:
    """Find the only site that `samples` leaves open, and its class probabilities at the first draw.

    The samples are checked on the way.
    """
    try:
        sites = _sites(_trace(model, samples, 0, x))
    except Exception as error:
        # A model that cannot run with these samples may run from its prior, which says why
        try:
            sites = _sites(_trace(model, {}, 0, x))
        except Exception:
            raise error from None
        _check_samples(samples, sites)
        _check_dtypes(samples, sites)
        raise
    _check_samples(samples, sites)
    # Conditioning observes the latent sites too, so what was drawn here is what samples lacks.
    drawn = [name for name, site in sites.items() if not site["is_observed"]]
    if len(drawn) != 1:
        raise ValueError(
            "samples must hold every latent site of the model and not its response, one site of "
            f"the model called without labels; left open are {drawn}"
        )
    return drawn[0], _class_probabilities(drawn[0], sites[drawn[0]]["fn"], len(x))


def _sites(trace: poutine.Trace) -> dict[str, Any]:
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not site_is_subsample(site)
    }


def _check_samples(samples: Mapping[str, Tensor], sites: Mapping[str, Any]) -> None:
    """Check that each entry of the samples is draws of a site of the model."""
    if unknown := [name for name in samples if name not in sites]:
        raise ValueError(
            f"samples holds {shown(unknown)}, which the model does not sample: {list(sites)}"
        )
    for name, value in samples.items():
        expected = tuple(cast("TorchDistributionMixin", sites[name]["fn"]).shape())
        if value.shape[1:] != expected:
            is_grouped = value.shape[2:] == expected
            advice = ": put the draws of all chains in one dimension" if is_grouped else ""
            raise ValueError(
                f"samples[{name!r}] must have shape (draws, ...), with {expected} after the "
                f"draws; got {tuple(value.shape)}{advice}"
            )


def _check_dtypes(samples: Mapping[str, Tensor], sites: Mapping[str, Any]) -> None:
    """Check that the samples have the types of the model's own draws."""
    for name, value in samples.items():
        dtype = sites[name]["value"].dtype
        if value.dtype != dtype:
            raise ValueError(
                f"samples[{name!r}] must be of {dtype}, as the model's own on this x; got "
                f"{value.dtype}"
            )


def _class_probabilities(name: str, distribution: object, num_rows: int) -> Tensor:
    distribution = without_events(distribution)
    if not isinstance(distribution, (Bernoulli, Categorical)):
        raise ValueError(
            f"the response must be Bernoulli or Categorical; site {name!r} is {distribution}"
        )
    probabilities: Tensor = distribution.probs
    if isinstance(distribution, Bernoulli):
        probabilities = torch.stack([1 - probabilities, probabilities], dim=-1)
    if probabilities.dim() != 2 or len(probabilities) != num_rows:
        raise ValueError(
            f"the response must have one value for each of the {num_rows} rows of x; site {name!r} "
            f"has shape {tuple(distribution.batch_shape)}"
        )
    return probabilities
