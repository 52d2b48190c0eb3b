"""The posterior predictive distribution of each row: its average over draws."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyro_fnbg.core.checks import as_probability, is_list, shown
from pyro_fnbg.prediction.course import CourseSums, checked_lengths, segments
from pyro_fnbg.prediction.evaluation import (
    MEMORY_LIMIT,
    Effort,
    Totals,
    Wanted,
    for_each_draw,
    totals_by_rows,
)
from pyro_fnbg.prediction.labels import as_observed
from pyro_fnbg.prediction.outcomes import Prediction, joined
from pyro_fnbg.prediction.responses import ClassResponse
from pyro_fnbg.prediction.sources import find_source
from pyro_fnbg.prediction.totals import ClassTotals

__all__ = ["marginal_predictive", "predict", "predictive_probabilities"]

# Quantiles of numbers: the median, and the ends of the central 50, 80, 90 and 95 %
LEVELS = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)


@torch.no_grad()
def predict(
    model: Callable[..., Any],
    samples: Mapping[str, Tensor],
    x: Tensor,
    y: Tensor | None = None,
    *,
    quantiles: Sequence[float] = LEVELS,
    num_chains: int = 1,
    lengths: Sequence[int] | None = None,
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = True,
    client: Any = None,
) -> Prediction:
    """Average the predictive distribution of each row over posterior draws.

    This is the Monte Carlo approximation of the posterior predictive distribution, Equation 3.6 of
    the paper (Papamarkou, "Approximate blocked Gibbs sampling for Bayesian neural networks"), with
    the factor 1 / draws that makes it a distribution. It is exact given the draws; its error
    shrinks with their effective number. Sums are in double precision. Of what the draws are, exact
    or tempered, it knows nothing.

    Draws and rows are taken a bounded number at a time: on as many threads as torch uses, if the
    network is stated.

    Args:
        model: Any Pyro model that can be called as `model(x)` and samples one response for each
            row: a class (Bernoulli, Categorical), or a number, count or vector of numbers whose
            distribution has a mean and a variance. One that states its network by a method
            `feedforward`, as `BayesianMLP` does, is evaluated for many draws at a time; its
            statement is compared with the model itself first: at ten draws, or at one of a
            `BayesianMLP`. Any other is run once a draw.
        samples: Draws by site name, as from `MCMC.get_samples()`: every latent site of the model
            and no other, each of shape (draws, ...).
        x: Inputs, rows first.
        y: What was observed, for the log densities of numbers and for `lengths`: classes as whole
            numbers, or numbers, one for each row.
        quantiles: Levels between 0 and 1 of the quantiles of numbers.
        num_chains: Of how many chains, one after the other and equally long, the draws are. Only
            `lengths` make use of it.
        lengths: Numbers of draws of a chain after which `course` has the scores of the predictions
            so far: of every chain alone, and of all together.
        memory_limit: Megabytes of working memory, on top of the result, the draws and what a model
            that is run itself needs: all rows at once, and for quantiles of its response all draws.
        progress: Whether to show a bar, if it takes more than two seconds.
        client: A `distributed.Client`: parts of the draws and rows are then tasks on the workers of
            its cluster. One whose worker died runs again on another.

    Returns:
        A `ClassPrediction` or a `NumberPrediction`.

    Raises:
        TypeError: `model` cannot be called, `samples` holds something other than tensors, or `x`
            or `y` is no tensor.
        ValueError: An argument has a value or shape that is not allowed, `samples` does not fit
            the model, the response is none of the above, or `feedforward` does not state what the
            model computes.

    Examples:
        >>> from pyro_fnbg.networks.mlp import BayesianMLP
        >>> model = BayesianMLP([1, 1], likelihood="normal", observation_scale=3.0)
        >>> weights = torch.tensor([-4.0, 4.0]).view(2, 1, 1)
        >>> samples = {"layer1.weight": weights, "layer1.bias": torch.zeros(2, 1)}
        >>> prediction = predict(model, samples, torch.ones(1, 1))
        >>> prediction.mean, prediction.scale
        (tensor([0.]), tensor([5.]))
        >>> [round(bound.item(), 1) for bound in prediction.interval(0.9)]
        [-7.8, 7.8]
    """
    how = Effort(memory_limit, progress, client)
    levels = _checked_levels(quantiles)
    source = find_source(model, samples, x)
    observed = None if y is None else as_observed(y, source.first, source.num_rows)
    at = checked_lengths(lengths, y, num_chains, source.num_draws)
    is_of_classes = isinstance(source.first, ClassResponse)
    wanted = Wanted(entropies=is_of_classes, quantiles=bool(levels) and not is_of_classes)
    sums, parts = CourseSums(at), []
    for rows, totals in totals_by_rows(
        source, observed, wanted, segments(at, num_chains, source.num_draws), how
    ):
        if observed is not None and at:
            sums.add(totals, observed[rows])
        parts.append(_prediction(totals, source.first.means.dtype, levels, how))
    prediction = joined(parts)
    return replace(prediction, course=sums.course(source.num_rows)) if at else prediction


@torch.no_grad()
def marginal_predictive(
    model: Callable[..., Any],
    samples: Mapping[str, Tensor],
    x: Tensor,
    *,
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = True,
    client: Any = None,
) -> Tensor:
    """Average the class probabilities, or the mean response, of each row over posterior draws.

    The mean of the posterior predictive distribution, without the rest of what `predict` says of
    it; exact given the draws, as there.

    Args:
        model: As in `predict`.
        samples: As in `predict`.
        x: Inputs, rows first.
        memory_limit: As in `predict`.
        progress: As in `predict`.
        client: As in `predict`.

    Returns:
        Probabilities of shape (rows, classes), P(0) and P(1) for a Bernoulli response; or means,
        of shape (rows,), or (rows, outputs) where each row has several numbers.

    Raises:
        TypeError: As in `predict`.
        ValueError: As in `predict`.

    Examples:
        >>> from pyro_fnbg.networks.mlp import BayesianMLP
        >>> model = BayesianMLP([2, 1], likelihood="bernoulli")
        >>> samples = {"layer1.weight": torch.zeros(9, 1, 2), "layer1.bias": torch.zeros(9, 1)}
        >>> marginal_predictive(model, samples, torch.ones(1, 2))
        tensor([[0.5000, 0.5000]])
    """
    how = Effort(memory_limit, progress, client)
    source = find_source(model, samples, x)
    parts = totals_by_rows(source, None, Wanted(), [[slice(0, source.num_draws)]], how)
    return torch.cat([total.mean.to(source.first.means.dtype) for _, [[total]] in parts])


@torch.no_grad()
def predictive_probabilities(
    model: Callable[..., Any],
    samples: Mapping[str, Tensor],
    x: Tensor,
    *,
    progress: bool = True,
) -> Tensor:
    """Compute the class probabilities, or the mean response, of each row under each draw.

    Exact. Meant for the few rows whose predictions are to be diagnosed, by R-hat and effective
    sample size, say: the result has draws x rows x classes numbers.

    Args:
        model: As in `predict`.
        samples: As in `predict`.
        x: Inputs, rows first.
        progress: As in `predict`.

    Returns:
        A tensor of shape (draws, rows, classes), or (draws, rows) or (draws, rows, outputs) where
        the response is a number or several; draws in the order of `samples`.

    Raises:
        TypeError: As in `predict`.
        ValueError: As in `predict`.

    Examples:
        >>> from pyro_fnbg.networks.mlp import BayesianMLP
        >>> model = BayesianMLP([2, 3])
        >>> samples = {"layer1.weight": torch.zeros(9, 3, 2), "layer1.bias": torch.zeros(9, 3)}
        >>> predictive_probabilities(model, samples, torch.ones(1, 2)).shape
        torch.Size([9, 1, 3])
    """
    how = Effort(progress=progress)
    source = find_source(model, samples, x)
    return for_each_draw(source, lambda response, rows: response.means, how)


def _checked_levels(quantiles: object) -> tuple[float, ...]:
    if not is_list(quantiles):
        raise TypeError(f"quantiles must be a list of levels, got {shown(quantiles)}")
    return tuple(sorted({as_probability("quantiles", level) for level in quantiles}))


def _prediction(
    totals: list[list[Totals]], dtype: torch.dtype, levels: tuple[float, ...], how: Effort
) -> Prediction:
    """Add up the totals of chains and segments, in their order."""
    total = functools.reduce(operator.add, itertools.chain.from_iterable(totals))
    if isinstance(total, ClassTotals):
        return total.prediction(dtype)
    return total.prediction(dtype, levels, how.max_numbers)
