"""What a move is: how the candidates of its blocks come about, and how it learns in warmup."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.step import Propose, State, block_step

__all__ = ["Displacement", "Move", "MoveState"]

# What a move has learnt: a named tuple of tensors, whose leading dimensions are one entry a chain
MoveState = tuple[Tensor, ...]


class Displacement(NamedTuple):
    """Hold where a sweep would move each coordinate, and what the candidates' ratios lack.

    Attributes:
        increment: Displacement of every coordinate, in the parameters' type,
            shape ``(..., coordinates)``.
        log_corrections: What is added to the log ratio of the densities of each block's candidate,
            log q(current | candidate) - log q(candidate | current), double precision, shape
            ``(..., blocks)``; None where all candidates are symmetric.
    """

    increment: Tensor
    log_corrections: Tensor | None

    def correction_of(self, block: int) -> Tensor | None:
        """Return what is added to the log ratio of a block's candidate, shape ``(...)``."""
        return None if self.log_corrections is None else self.log_corrections[..., block]

    def to(self, device: torch.device) -> Displacement:
        """Return the same on a device."""
        corrections = self.log_corrections
        return Displacement(
            self.increment.to(device), None if corrections is None else corrections.to(device)
        )


class Move(ABC):
    """Propose candidates for some blocks of a partition.

    A move is frozen: what it learns is in its *state*, which belongs to the chain. A sweep gives
    every coordinate one standard normal number and every block the logarithm of one uniform number,
    whatever its move, so the noise of a block does not depend on the moves of others. Each
    coordinate moves in one block only, so where a sweep would move it is known before the sweep's
    first decision: ``displace`` says so for all blocks of the move at once. ``step`` then decides.

    Args:
        partition: All blocks.
        blocks: Numbers of the move's own blocks, in order.

    Attributes:
        name: The move's name in ``Block.move`` and ``FNBG(moves=...)``.
        blocks: Numbers of its blocks.
        coordinates: Flat coordinates of its blocks, ascending.
        owners: For each of them, its block's place among ``blocks``.
        targets: Acceptance probabilities that tuning aims at, shape ``(blocks,)``; NaN where a move
            aims at none.
    """

    name: ClassVar[str]

    def __init__(self, partition: Partition, blocks: Tensor) -> None:
        self.blocks = blocks
        self.targets = torch.full((len(blocks),), torch.nan, dtype=torch.float64)
        is_own = torch.isin(partition.block_of_coordinate, blocks)
        self.coordinates = is_own.nonzero().squeeze(-1)
        # Number among the move's own blocks of the block that each of its coordinates is in
        owners = partition.block_of_coordinate[self.coordinates]
        self.owners = torch.searchsorted(blocks, owners)

    def to(self, device: torch.device) -> Self:
        """Return the same move with its tensors on a device."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device))
        return moved

    @abstractmethod
    def start(self) -> Any:
        """Return the state before a chain's first sweep."""

    @abstractmethod
    def displace(self, state: Any, position: Tensor, z: Tensor) -> Displacement:
        """Say where a sweep from a position would move the coordinates of the move's blocks.

        Args:
            state: The move's state.
            position: Unconstrained parameters at the start of the sweep, of the move's coordinates.
            z: Standard normal numbers, one for each of them, double precision.
        """

    def step(
        self,
        propose: Propose[State],
        state: State,
        block: int,
        known: Displacement,
        log_u: Tensor,
    ) -> tuple[State, Tensor, Tensor]:
        """Take the step of one block: by default one decision, after Metropolis and Hastings.

        Args:
            propose: From a state and a block's number to that block's candidate.
            state: The state on this sweep's batch.
            block: Number of the block in the partition.
            known: What ``displace`` said, of the coordinates and blocks of all moves.
            log_u: Logarithm of a uniform number, shape ``(...)``; plus infinity forbids to accept.

        Returns:
            The next state, the log acceptance ratio, and whether the candidate was accepted.
        """
        return block_step(state, propose(state, block), log_u, known.correction_of(block))

    @abstractmethod
    def adapt(self, state: Any, position: Tensor, accept_probs: Tensor, gain: Tensor) -> Any:
        """Learn from a sweep of the warmup.

        Args:
            state: The move's state.
            position: The move's coordinates after the sweep, shape ``(..., coordinates)``.
            accept_probs: min(1, ratio) of each of the move's blocks in the sweep, 0 for refused
                candidates, never NaN; shape ``(..., blocks)``.
            gain: How much this sweep counts, a scalar.
        """

    @abstractmethod
    def report(self, state: Any) -> Mapping[str, Tensor]:
        """Return what users are told of a state, by name, each of shape ``(..., blocks)``."""
