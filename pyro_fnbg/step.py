"""One Metropolis step per block, one sweep over the blocks: the algorithm of the paper.

These functions are pure: they take a state and return another, and nothing is edited in place.
They know neither Pyro nor the data; a *density* is a function from a position to a state.

A sweep leaves the density of *its batch* invariant, exactly. With the full data that is the
posterior; with a fresh batch every sweep the chain approximates it (see ``pyro_fnbg.batches``).

Reference: Papamarkou (2023), "Approximate blocked Gibbs sampling for Bayesian neural networks",
minibatch Metropolis-within-blocked-Gibbs sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "ChainState",
    "Density",
    "SweepInfo",
    "accept_prob",
    "block_step",
    "increments",
    "log_accept_ratio",
    "sweep",
]

# Sums run over tiles of this length, in order, so that they do not depend on the number of threads
TILE = 16_384


class ChainState(NamedTuple):
    """Hold a position and its log density on the current batch.

    Attributes:
        position: Unconstrained parameters, shape ``(num_params,)``.
        log_terms: Summands of the log density (rows of data and prior coordinates) in double
            precision, shape ``(num_terms,)``.
    """

    position: Tensor
    log_terms: Tensor

    @property
    def log_density(self) -> Tensor:
        """Sum of the terms, shape ``()``, double precision."""
        return _tiled_sum(self.log_terms)


class SweepInfo(NamedTuple):
    """Report the decisions of one sweep.

    Attributes:
        log_ratios: Log acceptance ratio of each block, shape ``(num_blocks,)``: minus infinity for
            a candidate of probability zero, NaN for one whose density is NaN or infinite.
        accepted: Whether each candidate was accepted, shape ``(num_blocks,)``.
    """

    log_ratios: Tensor
    accepted: Tensor


Density = Callable[[Tensor], ChainState]


def increments(
    z: Tensor, scales: Tensor, block_of_coordinate: Tensor, dtype: torch.dtype
) -> Tensor:
    """Scale the noise of a sweep: coordinate i of block q moves by ``scales[q] * z[i]``.

    Multiplied in double precision, then cast to the parameters' type, so that every engine
    proposes the same candidates.
    """
    return (scales[block_of_coordinate] * z).to(dtype)


def log_accept_ratio(candidate: ChainState, current: ChainState) -> Tensor:
    """Compute log p(candidate) - log p(current) as a sum of differences, in double precision.

    A candidate of log density minus infinity gets minus infinity, one of NaN or plus infinity gets
    NaN: neither can be accepted. A finite candidate is always accepted from a current position that
    is impossible on this batch.
    """
    difference = _tiled_sum(candidate.log_terms - current.log_terms)
    if torch.isfinite(difference):
        return difference  # only differences of finite terms have a finite sum
    if torch.isfinite(candidate.log_density):
        is_possible = torch.isfinite(current.log_density)
        return difference if is_possible else difference.new_tensor(math.inf)
    is_impossible = candidate.log_density == -math.inf
    return difference.new_tensor(-math.inf if is_impossible else math.nan)


def accept_prob(log_ratios: Tensor) -> Tensor:
    """Turn log ratios into min(1, ratio), with 0 for refused candidates."""
    return log_ratios.clamp(max=0.0).exp().nan_to_num(nan=0.0)


def block_step(
    state: ChainState, index: Tensor, increment: Tensor, log_u: Tensor, density: Density
) -> tuple[ChainState, Tensor, Tensor]:
    """Propose to move one block, and keep the candidate or the current state.

    Args:
        state: Current state on this sweep's batch.
        index: Flat coordinates of the block, shape ``(block_size,)``.
        increment: Proposed displacement of these coordinates, shape ``(block_size,)``.
        log_u: Logarithm of a uniform draw, shape ``()``.
        density: Log density on this sweep's batch.

    Returns:
        The chosen state, the log acceptance ratio and whether the candidate was accepted.
    """
    proposal = state.position.index_add(0, index, increment)
    candidate = density(proposal)
    log_ratio = log_accept_ratio(candidate, state)
    accepted = log_u < log_ratio
    chosen = candidate if accepted else state
    return chosen, log_ratio, accepted


def sweep(
    position: Tensor,
    blocks: Sequence[Tensor],
    increment: Tensor,
    log_u: Tensor,
    density: Density,
) -> tuple[ChainState, SweepInfo]:
    """Visit every block once on one batch.

    The current position is evaluated on this sweep's batch first: its density on the last batch
    belongs to another target.

    Args:
        position: Current position, shape ``(num_params,)``.
        blocks: Flat coordinates of each block, in sweep order.
        increment: Displacement of every coordinate, shape ``(num_params,)``.
        log_u: Logarithms of uniform draws, shape ``(num_blocks,)``.
        density: Log density on this sweep's batch.

    Returns:
        The state after the last block, and the decisions.

    Example:
        >>> def standard_normal(position):
        ...     return ChainState(position, -0.5 * position.double().square())
        >>> start = torch.zeros(2)
        >>> blocks = [torch.tensor([0]), torch.tensor([1])]
        >>> log_u = torch.tensor([-1.0, -0.01])
        >>> state, info = sweep(start, blocks, torch.ones(2), log_u, standard_normal)
        >>> state.position, info.accepted
        (tensor([1., 0.]), tensor([ True, False]))
    """
    state = density(position)
    log_ratios, accepted = [], []
    for index, log_u_block in zip(blocks, log_u, strict=True):
        state, log_ratio, flag = block_step(state, index, increment[index], log_u_block, density)
        log_ratios.append(log_ratio)
        accepted.append(flag)
    return state, SweepInfo(torch.stack(log_ratios), torch.stack(accepted))


def _tiled_sum(terms: Tensor) -> Tensor:
    if len(terms) <= TILE:
        return terms.sum()
    total = torch.zeros((), dtype=terms.dtype, device=terms.device)
    for tile in terms.split(TILE):
        total = total + tile.sum()
    return total
