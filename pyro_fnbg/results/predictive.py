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
from torch.distributions import Bernoulli, Categorical, Independent

from pyro_fnbg.core.checks import shown
from pyro_fnbg.networks.mlp import BayesianMLP

# Numbers held at a time in one layer's activations: 1 MB in float32, which a cache can hold.
_MAX_CHUNK_ELEMENTS = 2**18


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
        model: A `BayesianMLP`, evaluated for many draws at a time, or any Pyro model that can be
            called as `model(x)` and samples one Bernoulli or Categorical response for each row.
        samples: Draws by site name, as from `MCMC.get_samples()`: every latent site of the model
            and no other, each of shape (draws, ...).
        x: Inputs, rows first.

    Returns:
        A tensor of shape (rows, classes); P(0) and P(1) for a Bernoulli response.

    Raises:
        TypeError: `model` cannot be called, `samples` holds something other than tensors, or `x`
            is no tensor.
        ValueError: `samples` does not fit the model, or the response is not one Bernoulli or
            Categorical for each row.

    Examples:
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
    response = _response_site(model, samples, x)
    if not isinstance(model, BayesianMLP):
        for draw in range(num_draws):
            distribution = _trace(model, samples, draw, x).nodes[response]["fn"]
            yield _class_probabilities(response, distribution, len(x)).unsqueeze(0)
        return
    chunk = max(1, _MAX_CHUNK_ELEMENTS // (len(x) * max(model.widths[1:])))
    for first in range(0, num_draws, chunk):
        parameters = {name: site[first : first + chunk] for name, site in samples.items()}
        outputs = model.forward(parameters, x)
        if model.likelihood == "bernoulli":
            yield torch.sigmoid(torch.cat([-outputs, outputs], dim=-1))
        else:
            yield torch.softmax(outputs, dim=-1)


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


def _response_site(model: Callable[..., Any], samples: Mapping[str, Tensor], x: Tensor) -> str:
    """Find the only site that `samples` leaves open, and check the samples on the way."""
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
    _class_probabilities(drawn[0], sites[drawn[0]]["fn"], len(x))
    return drawn[0]


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
    while isinstance(distribution, Independent):
        distribution = distribution.base_dist
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
