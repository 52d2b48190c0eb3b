"""Which move each block of a partition gets."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition, first_few
from pyro_fnbg.core.moves.base import Move
from pyro_fnbg.core.moves.joint import JointMoves
from pyro_fnbg.core.moves.walk import Walk

__all__ = ["MOVE_NAMES", "make_moves"]

MOVES: dict[str, Callable[..., Move]] = {move.name: move for move in (Walk,)}
MOVE_NAMES = tuple(MOVES)


def make_moves(partition: Partition, default: str, scales: Tensor, targets: Tensor) -> JointMoves:
    """Give each block the move that it names, or the default.

    Args:
        partition: The blocks.
        default: Name of the move of blocks that name none.
        scales: Proposal scale of each block before the first sweep, shape ``(num_blocks,)``.
        targets: Acceptance probabilities that tuning aims at, shape ``(num_blocks,)``.

    Raises:
        ValueError: If a block names a move that does not exist.
    """
    names = [block.move or default for block in partition.blocks]
    unknown = [
        f"{name} of {block.name}"
        for name, block in zip(names, partition.blocks, strict=True)
        if name not in MOVES
    ]
    if unknown:
        raise ValueError(
            f"the move of a block must be one of {MOVE_NAMES}, got {first_few(unknown)}"
        )
    own = {
        name: torch.tensor([block for block, other in enumerate(names) if other == name])
        for name in dict.fromkeys(names)
    }
    return JointMoves(
        partition,
        [
            MOVES[name](partition, blocks, scales[blocks], targets[blocks])
            for name, blocks in own.items()
        ],
    )
