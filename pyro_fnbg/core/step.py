"""One Metropolis step per block, one sweep over the blocks: the algorithm of the paper.

These functions are pure: they take a state and return another, and nothing is edited in place.
They know neither Pyro nor the data. A *state* is a tuple of tensors, the position first; an engine
may keep more in it, such as the activations of a network. Every tensor may have leading
dimensions, one entry a chain: the decisions stay on the device, so no step waits for it.

A sweep leaves the density of *its batch* invariant, exactly. With the full data that is the
posterior; with a fresh batch every sweep the chain approximates it (see ``core.batches``).

Reference: Papamarkou (2023), "Approximate blocked Gibbs sampling for Bayesian neural networks",
minibatch Metropolis-within-blocked-Gibbs sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

__all__ = [
    "BatchState",
    "Density",
    "Proposal",
    "Propose",
    "State",
    "SweepInfo",
    "accept_prob",
    "block_step",
    "displaced",
    "log_accept_ratio",
    "decide",
    "proposals",
    "sweep",
    "tiled_sum",
]

# Sums run over tiles of this length, in order, so that they do not depend on the number of threads
TILE = 16_384

State = TypeVar("State", bound=tuple[Any, ...])


class BatchState(NamedTuple):
    """Hold a position and its log density on the current batch: the smallest state of a sweep.

    Attributes:
        position: Unconstrained parameters, shape ``(..., num_params)``.
        log_terms: Summands of the log density (rows of data and prior coordinates) in double
            precision, shape ``(..., num_terms)``.
    """

    position: Tensor
    log_terms: Tensor

    @property
    def log_density(self) -> Tensor:
        """Sum of the terms, shape ``(...)``, double precision."""
        return tiled_sum(self.log_terms)


class Proposal(NamedTuple, Generic[State]):
    """Hold what a block step decides upon.

    Attributes:
        candidate: The state with one block displaced.
        log_terms: Summands of the candidate's log density, at least all that differ from the
            current state's, in double precision, shape ``(..., num_terms)``.
        current_log_terms: The same summands in the current state.
    """

    candidate: State
    log_terms: Tensor
    current_log_terms: Tensor


class SweepInfo(NamedTuple):
    """Report the decisions of one sweep.

    Attributes:
        log_ratios: Log acceptance ratio of each block, shape ``(..., num_blocks)``: minus infinity
            for a candidate of probability zero, NaN for one whose density is NaN or infinite.
        accepted: Whether each candidate was accepted, shape ``(..., num_blocks)``.
    """

    log_ratios: Tensor
    accepted: Tensor


class Propose(Protocol[State]):
    """From a state and a block's number to that block's candidate.

    It lies where the sweep's displacement says, or where the values do that are given for the
    block's coordinates, shape ``(..., block_size)``.
    """

    def __call__(self, state: State, block: int, values: Tensor | None = None) -> Proposal[State]:
        """Return the candidate, with what its log density is made of."""


Density = Callable[[Tensor], BatchState]


def log_accept_ratio(log_terms: Tensor, current_log_terms: Tensor) -> Tensor:
    """Compute log p(candidate) - log p(current) as a sum of differences, in double precision.

    A candidate of log density minus infinity gets minus infinity, one of NaN or plus infinity gets
    NaN: neither can be accepted. A finite candidate is always accepted from a current position that
    is impossible on this batch.

    Args:
        log_terms: Summands of the candidate's log density, shape ``(..., num_terms)``.
        current_log_terms: Those of the current state, in the same order.
    """
    difference = tiled_sum(log_terms - current_log_terms)
    if _is_single(difference) and math.isfinite(difference):
        return difference
    candidate, current = tiled_sum(log_terms), tiled_sum(current_log_terms)
    from_possible = torch.where(torch.isfinite(current), difference, math.inf)
    refused = torch.where(candidate == -math.inf, candidate, math.nan)
    otherwise = torch.where(torch.isfinite(candidate), from_possible, refused)
    # Only differences of finite terms have a finite sum
    return torch.where(torch.isfinite(difference), difference, otherwise)


def accept_prob(log_ratios: Tensor) -> Tensor:
    """Turn log ratios into min(1, ratio), with 0 for refused candidates."""
    return log_ratios.clamp(max=0.0).exp().nan_to_num(nan=0.0)


def block_step(
    state: State, proposal: Proposal[State], log_u: Tensor, log_correction: Tensor | None = None
) -> tuple[State, Tensor, Tensor]:
    """Decide on a proposal, and keep the candidate or the current state.

    Args:
        state: Current state on this sweep's batch.
        proposal: The candidate, with what its log density is made of.
        log_u: Logarithm of a uniform draw, shape ``(...)``.
        log_correction: log q(current | candidate) - log q(candidate | current) of a proposal that
            is not symmetric (Hastings), shape ``(...)``.

    Returns:
        The chosen state, the log acceptance ratio and whether the candidate was accepted.
    """
    log_ratio = log_accept_ratio(proposal.log_terms, proposal.current_log_terms)
    if log_correction is not None:
        log_ratio = log_ratio + log_correction
    return decide(state, proposal.candidate, log_ratio, log_u)


def decide(
    state: State, candidate: State, log_ratio: Tensor, log_u: Tensor
) -> tuple[State, Tensor, Tensor]:
    """Keep a candidate or the current state by a log ratio; return what ``block_step`` does."""
    accepted = log_u < log_ratio
    if _is_single(accepted):
        return candidate if accepted else state, log_ratio, accepted
    chosen: State = _select(accepted, candidate, state)
    return chosen, log_ratio, accepted


def proposals(density: Density, blocks: Sequence[Tensor], increment: Tensor) -> Propose[BatchState]:
    """Propose by the full log density: displace one block, evaluate all.

    Args:
        density: Log density on this sweep's batch.
        blocks: Flat coordinates of each block, in sweep order.
        increment: Displacement of every coordinate, shape ``(..., num_params)``.

    Returns:
        A function from a state and a block's number to the proposal.
    """

    def propose(
        state: BatchState, block: int, values: Tensor | None = None
    ) -> Proposal[BatchState]:
        candidate = density(displaced(state.position, blocks[block], increment, values))
        return Proposal(candidate, candidate.log_terms, state.log_terms)

    return propose


def displaced(position: Tensor, index: Tensor, increment: Tensor, values: Tensor | None) -> Tensor:
    """Move the coordinates of a block: by their increments, or to the values where these are given.

    Args:
        position: Current position, shape ``(..., num_params)``.
        index: Flat coordinates of the block.
        increment: Displacement of every coordinate, shape ``(..., num_params)``.
        values: Where the block's coordinates go instead, shape ``(..., block_size)``.
    """
    if values is None:
        return position.index_add(-1, index, increment[..., index])
    return position.index_copy(-1, index, values)


def sweep(
    position: Tensor,
    evaluate: Callable[[Tensor], State],
    step: Callable[[State, int], tuple[State, Tensor, Tensor]],
    num_blocks: int,
) -> tuple[State, SweepInfo]:
    """Visit every block once on one batch.

    The current position is evaluated on this sweep's batch first: its density on the last batch
    belongs to another target.

    Args:
        position: Current position, shape ``(..., num_params)``.
        evaluate: From a position to its state on this sweep's batch.
        step: From a state and a block's number to the state after that block's step, its log
            acceptance ratio and whether it was accepted: ``block_step`` on the block's proposal, or
            what the block's move does instead.
        num_blocks: Number of blocks; they are visited in their order.

    Returns:
        The state after the last block, and the decisions.

    Example:
        >>> def standard_normal(position):
        ...     return BatchState(position, -0.5 * position.double().square())
        >>> blocks = [torch.tensor([0]), torch.tensor([1])]
        >>> propose = proposals(standard_normal, blocks, torch.ones(2))
        >>> log_u = torch.tensor([-1.0, -0.01])
        >>> def step(state, block):
        ...     return block_step(state, propose(state, block), log_u[block])
        >>> state, info = sweep(torch.zeros(2), standard_normal, step, num_blocks=2)
        >>> state.position, info.accepted
        (tensor([1., 0.]), tensor([ True, False]))
    """
    state = evaluate(position)
    log_ratios, accepted = [], []
    for block in range(num_blocks):
        state, log_ratio, flag = step(state, block)
        log_ratios.append(log_ratio)
        accepted.append(flag)
    return state, SweepInfo(torch.stack(log_ratios, -1), torch.stack(accepted, -1))


def tiled_sum(terms: Tensor) -> Tensor:
    """Sum the last dimension in a fixed order, whatever the number of threads."""
    if terms.shape[-1] <= TILE:
        return terms.sum(-1)
    total = torch.zeros_like(terms[..., 0])
    for tile in terms.split(TILE, -1):
        total = total + tile.sum(-1)
    return total


def _is_single(value: Tensor) -> bool:
    """Whether a value is of a single chain, and at hand without waiting for a device."""
    return not value.dim() and not value.is_cuda


def _select(accepted: Tensor, candidate: Any, current: Any) -> Any:
    """Take each chain's tensors from the candidate where accepted, from the current state else."""
    if candidate is current:
        return current
    if isinstance(candidate, Tensor):
        mask = accepted.reshape(accepted.shape + (1,) * (candidate.dim() - accepted.dim()))
        return torch.where(mask, candidate, current)
    chosen = [_select(accepted, new, old) for new, old in zip(candidate, current, strict=True)]
    return type(candidate)(*chosen) if hasattr(candidate, "_fields") else tuple(chosen)
