"""Nested R-hat, for many short chains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.core.checks import is_count, is_list, shown
from pyro_fnbg.results.estimates import has_arviz_1, import_arviz

__all__ = ["check_superchains", "nested_r_hat"]


def check_superchains(superchain_ids: Sequence[int], num_chains: int) -> None:
    """Check that chains are in two or more groups of one size.

    Raises:
        ValueError: If they are not.
    """
    is_one_a_chain = is_list(superchain_ids) and len(superchain_ids) == num_chains
    numbers = superchain_ids if is_one_a_chain else []
    sizes = np.unique(list(numbers), return_counts=True)[1]
    if not all(is_count(number, 0) for number in numbers) or len(sizes) < 2 or np.ptp(sizes):
        raise ValueError(
            f"superchain_ids must give each of the {num_chains} chains the number of its "
            "superchain, of two or more superchains with as many chains each; got "
            f"{shown(superchain_ids)}"
        )


def nested_r_hat(
    data: Mapping[str, NDArray[Any]], superchain_ids: Sequence[int]
) -> dict[str, NDArray[Any]]:
    """Estimate nested R-hat as ArviZ 1 does, which ArviZ 0.23 cannot do yet.

    It is rank-normalised and split, the larger of that of the draws and that of their distances
    from the median, and no less than 1 (Margossian and others, 2024, "Nested R-hat: assessing the
    convergence of Markov chain Monte Carlo when running many short chains"). NaN where there are
    fewer than 4 draws, or draws that are no numbers.

    Args:
        data: By variable, draws of shape ``(chains, draws, columns)``.
        superchain_ids: The number of the superchain of each chain.

    Returns:
        By variable, shape ``(columns,)``.

    Example:
        >>> draws = np.random.default_rng(0).normal(size=(8, 10, 1))
        >>> ids = [0, 0, 0, 0, 1, 1, 1, 1]
        >>> float(nested_r_hat({"x": draws}, ids)["x"][0]) < 1.1
        True
    """
    if has_arviz_1():
        # ArviZ wants every number from 0 to the largest
        ids = np.unique(superchain_ids, return_inverse=True)[1]
        function = import_arviz().rhat_nested
        return {name: function(draws, superchain_ids=ids) for name, draws in data.items()}
    return {name: own_nested_r_hat(draws, superchain_ids) for name, draws in data.items()}


def own_nested_r_hat(draws: NDArray[Any], superchain_ids: Sequence[int]) -> NDArray[Any]:
    """Estimate it without ArviZ 1; shapes as in `nested_r_hat`."""
    num_draws, num_columns = draws.shape[1:]
    if num_draws < 4:
        return np.full(num_columns, np.nan)
    half = num_draws // 2
    halves = np.concatenate([draws[:, :half], draws[:, -half:]]).astype(np.float64)
    # Chains of a superchain side by side: (superchains, chains of each, draws, columns)
    order = np.argsort([*superchain_ids, *superchain_ids], kind="stable")
    grouped = halves[order].reshape(len(set(superchain_ids)), -1, half, num_columns)
    folded = np.abs(grouped - np.median(grouped, axis=(0, 1, 2)))
    of_draws, of_distances = (_nested_ratio(_normal_scores(part)) for part in (grouped, folded))
    larger: NDArray[Any] = np.maximum(of_draws, of_distances)
    return larger


def _normal_scores(values: NDArray[Any]) -> NDArray[Any]:
    """Replace each column's numbers by Normal quantiles of their ranks."""
    from scipy.stats import norm, rankdata

    ranks = rankdata(values.reshape(-1, values.shape[-1]), axis=0)
    # Blom's offset
    scores: NDArray[Any] = norm.ppf((ranks - 3 / 8) / (len(ranks) + 1 / 4))
    return scores.reshape(values.shape)


def _nested_ratio(values: NDArray[Any]) -> NDArray[Any]:
    """Compare superchains with what is inside them, Equations 6 to 8 of the paper."""
    means = values.mean(2)
    within_chains = values.var(2, ddof=1).mean(1)
    within = (within_chains + means.var(1, ddof=1)).mean(0)
    between = means.mean(1).var(0, ddof=1)
    ratio: NDArray[Any] = np.sqrt(1 + between / within)
    return ratio
