"""Log likelihoods and responses of every row under every draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_fnbg.core.checks import check_count
from pyro_fnbg.prediction.evaluation import Effort, for_each_draw
from pyro_fnbg.prediction.labels import as_observed
from pyro_fnbg.prediction.sources import find_source

__all__ = ["log_likelihood", "sample_responses"]


@torch.no_grad()
def log_likelihood(
    model: Callable[..., Any],
    samples: Mapping[str, Tensor],
    x: Tensor,
    y: Tensor,
    *,
    progress: bool = True,
) -> Tensor:
    """Compute the log likelihood of each row under each draw.

    Exact, and of single rows: no factor of a batch or temperature is in it.

    Args:
        model: As in `predict`.
        samples: As in `predict`.
        x: Inputs, rows first.
        y: What was observed: classes as whole numbers, or numbers, one for each row.
        progress: Whether to show a bar, if it takes more than two seconds.

    Returns:
        A tensor of shape (draws, rows).

    Raises:
        TypeError: As in `predict`.
        ValueError: As in `predict`.

    Examples:
        >>> from pyro_fnbg.networks.mlp import BayesianMLP
        >>> model = BayesianMLP([2, 1], likelihood="bernoulli")
        >>> samples = {"layer1.weight": torch.zeros(9, 1, 2), "layer1.bias": torch.zeros(9, 1)}
        >>> log_likelihood(model, samples, torch.ones(4, 2), torch.ones(4)).exp().unique()
        tensor([0.5000])
    """
    how = Effort(progress=progress)
    source = find_source(model, samples, x)
    observed = as_observed(y, source.first, source.num_rows)
    return for_each_draw(
        source, lambda response, rows: response.log_likelihood(observed[rows]), how
    )


@torch.no_grad()
def sample_responses(
    model: Callable[..., Any],
    samples: Mapping[str, Tensor],
    x: Tensor,
    *,
    seed: int = 0,
    progress: bool = True,
) -> Tensor:
    """Draw a response of each row under each draw: from the posterior predictive distribution.

    What Pyro's `Predictive` draws, many draws at a time. The global random state is left alone.

    Args:
        model: As in `predict`.
        samples: As in `predict`.
        x: Inputs, rows first.
        seed: Of the responses.
        progress: Whether to show a bar, if it takes more than two seconds.

    Returns:
        Classes of shape (draws, rows); or numbers, of shape (draws, rows), or (draws, rows,
        outputs) where each row has several.

    Raises:
        TypeError: As in `predict`.
        ValueError: As in `predict`.

    Examples:
        >>> from pyro_fnbg.networks.mlp import BayesianMLP
        >>> model = BayesianMLP([2, 3])
        >>> samples = {"layer1.weight": torch.zeros(9, 3, 2), "layer1.bias": torch.zeros(9, 3)}
        >>> sample_responses(model, samples, torch.ones(4, 2)).shape
        torch.Size([9, 4])
    """
    how = Effort(progress=progress)
    check_count("seed", seed, 0, 2**64 - 1)
    source = find_source(model, samples, x)
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        torch.manual_seed(seed)
        return for_each_draw(source, lambda response, rows: response.sample(), how)
