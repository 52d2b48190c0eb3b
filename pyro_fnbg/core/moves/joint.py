"""The moves of all blocks of a partition, side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.moves.base import Displacement, Move, MoveState
from pyro_fnbg.core.rescaling import Rescaling
from pyro_fnbg.core.step import Propose, State

__all__ = ["JointMoves", "at", "beside", "copied", "stacked"]


class JointMoves:
    """Join moves so that every block of a partition has one; engines see no other.

    Args:
        partition: The blocks.
        moves: The moves, none without a block.
        rescaling: What is done with relu nodes after the last block of every sweep, if anything.

    Attributes:
        moves: The moves, in the order of their states.
        of_block: The move of each block.
        rescaling: As given.
    """

    def __init__(
        self, partition: Partition, moves: Sequence[Move], rescaling: Rescaling | None = None
    ) -> None:
        self.moves, self.rescaling = tuple(moves), rescaling
        owners = {block: move for move in moves for block in move.blocks.tolist()}
        self.of_block = tuple(owners[block] for block in range(partition.num_blocks))

    @property
    def targets(self) -> Tensor:
        """Acceptance probabilities that tuning aims at, shape ``(num_blocks,)``, or NaN."""
        targets = torch.empty(len(self.of_block), dtype=torch.float64)
        for move in self.moves:
            targets[move.blocks] = move.targets
        return targets

    @property
    def num_rescaled(self) -> int:
        """How many relu nodes are rescaled after every sweep."""
        return 0 if self.rescaling is None else len(self.rescaling.spreads)

    def to(self, device: torch.device) -> JointMoves:
        """Return the same moves with their tensors on a device."""
        joint = copy.copy(self)
        moved = {move: move.to(device) for move in self.moves}
        joint.moves = tuple(moved.values())
        joint.of_block = tuple(moved[move] for move in self.of_block)
        joint.rescaling = None if self.rescaling is None else self.rescaling.to(device)
        return joint

    def start(self) -> tuple[MoveState, ...]:
        """Return the moves' states before a chain's first sweep."""
        return tuple(move.start() for move in self.moves)

    def displace(self, states: Sequence[MoveState], position: Tensor, z: Tensor) -> Displacement:
        """Say where a sweep from a position would move every coordinate; see ``Move.displace``.

        Args:
            states: The moves' states.
            position: Unconstrained parameters at the start of the sweep, ``(..., num_params)``.
            z: Standard normal numbers of the same shape, double precision.
        """
        if len(self.moves) == 1:
            return self.moves[0].displace(states[0], position, z)
        increment = position.new_empty(z.shape)
        corrections = z.new_zeros(*z.shape[:-1], len(self.of_block))
        is_symmetric = True
        for move, state in zip(self.moves, states, strict=True):
            own = move.coordinates
            part = move.displace(state, position[..., own], z[..., own])
            increment[..., own] = part.increment
            if part.log_corrections is not None:
                corrections[..., move.blocks] = part.log_corrections
                is_symmetric = False
        return Displacement(increment, None if is_symmetric else corrections)

    def steps(
        self, propose: Propose[State], known: Displacement, log_u: Tensor
    ) -> Callable[[State, int], tuple[State, Tensor, Tensor]]:
        """Return the step of each block in a sweep; see ``Move.step``.

        Args:
            propose: From a state and a block's number to that block's candidate.
            known: What ``displace`` said.
            log_u: Logarithms of uniforms, shape ``(..., num_blocks)``.
        """

        def step(state: State, block: int) -> tuple[State, Tensor, Tensor]:
            return self.of_block[block].step(propose, state, block, known, log_u[..., block])

        return step

    def adapt(
        self, states: Sequence[MoveState], position: Tensor, accept_probs: Tensor, gain: Tensor
    ) -> tuple[MoveState, ...]:
        """Let each move learn from a sweep of the warmup; see ``Move.adapt``."""
        return tuple(
            move.adapt(state, position[..., move.coordinates], accept_probs[..., move.blocks], gain)
            for move, state in zip(self.moves, states, strict=True)
        )

    def report(self, states: Sequence[MoveState]) -> dict[str, Tensor]:
        """Return what users are told, by name, ``(num_blocks,)``; NaN for blocks of other moves."""
        found: dict[str, Tensor] = {}
        for move, state in zip(self.moves, states, strict=True):
            for name, values in move.report(state).items():
                of_all = found.setdefault(name, values.new_full((len(self.of_block),), torch.nan))
                of_all[move.blocks] = values
        return found


def at(states: Sequence[MoveState], index: int | slice) -> tuple[MoveState, ...]:
    """Take an entry of every tensor of some states, by their first dimension."""
    return tuple(type(state)(*(values[index] for values in state)) for state in states)


def copied(states: Sequence[MoveState]) -> tuple[MoveState, ...]:
    """Return the same states in memory of their own."""
    return tuple(type(state)(*(values.clone() for values in state)) for state in states)


def stacked(states: Sequence[tuple[MoveState, ...]], dim: int = 0) -> tuple[MoveState, ...]:
    """Put several states of the same moves side by side; a single one is not copied."""
    return tuple(
        type(own[0])(*(beside(values, dim) for values in zip(*own, strict=True)))
        for own in zip(*states, strict=True)
    )


def beside(values: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Put tensors side by side in a new dimension; a single one is not copied."""
    return values[0].unsqueeze(dim) if len(values) == 1 else torch.stack(list(values), dim)
