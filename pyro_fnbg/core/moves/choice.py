"""Which move each block of a partition gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition, first_few
from pyro_fnbg.core.moves.base import Move
from pyro_fnbg.core.moves.conjugate import Conjugate
from pyro_fnbg.core.moves.gibbs import Gibbs
from pyro_fnbg.core.moves.joint import JointMoves
from pyro_fnbg.core.moves.pcn import PCN
from pyro_fnbg.core.moves.walk import Walk
from pyro_fnbg.core.priors import NormalPriors, Variances
from pyro_fnbg.core.rescaling import Rescaling

__all__ = ["AUTO", "MOVE_NAMES", "make_moves"]

# Each block gets what was measured to do best there
AUTO = "auto"
# Those that a kernel can have for all blocks
MOVE_NAMES = (Walk.name, PCN.name, Gibbs.name)
NAMES_OF_BLOCKS = (*MOVE_NAMES, Conjugate.name)

# Parameters of the largest block that was measured to gain by an exact draw in the same time
MOST_DRAWN = 129

# What blocks must be for a move, in words
OF_PCN = "whose priors are independent Normal distributions that depend on no other site"
OF_GIBBS = (
    "inside one output node of a network whose likelihood is 'normal', with an observation scale "
    "that does not come from the network, and whose priors there are Normal"
)


def make_moves(
    partition: Partition,
    wanted: str | Mapping[str, str],
    scales: Tensor,
    targets: Tensor,
    read_priors: Callable[[], NormalPriors],
    variances: Variances | None = None,
    read_normal_nodes: Callable[[], Tensor] | None = None,
    rescaling: Rescaling | None = None,
) -> JointMoves:
    """Give each block the move that it names, or that is wanted for it, or for all.

    A block for which no move is named, and that is not such as the one for all is for, gets the
    walk; one of variances that can be drawn from their conditionals is. For ``AUTO``, those with a
    Normal conditional are drawn from it, up to some size, and all others walk.

    Args:
        partition: The blocks.
        wanted: Name of the move of blocks that name none, or by name of a block or of a layer,
            where a block's own comes first; blocks without a name there walk.
        scales: Proposal scale of each block before the first sweep, shape ``(num_blocks,)``.
        targets: Acceptance probabilities that tuning aims at, shape ``(num_blocks,)``.
        read_priors: Reads the priors of all coordinates; called if a move makes use of them.
        variances: The conditionals of sampled variances, if the model has some.
        read_normal_nodes: Says which coordinates have Normal conditionals, see
            ``Network.normal_nodes``; called if a move makes use of it. Left out, none has.
        rescaling: What follows the blocks of every sweep, if anything.

    Raises:
        ValueError: If a block names a move that does not exist, or one that needs a Normal prior
            and has another; or if the one for all needs one and no block has it; or if one is to be
            drawn from a conditional that is not known, or the one for all draws none; or if a name
            is that of no block and no layer.
    """
    named, default = _named(partition, wanted)
    can_be_drawn = [
        variances is not None and bool(torch.isin(index, variances.coordinates).all())
        for index in partition.indices
    ]
    names = [
        (Conjugate.name if is_drawn else default) if own is None else own
        for own, is_drawn in zip(named, can_be_drawn, strict=True)
    ]
    unknown = [
        f"{name} of {block.name}"
        for name, block in zip(names, partition.blocks, strict=True)
        if name not in (*NAMES_OF_BLOCKS, default)
    ]
    if unknown:
        raise ValueError(
            f"the move of a block must be one of {NAMES_OF_BLOCKS}, got {first_few(unknown)}"
        )
    wrong = [
        block.name
        for block, own, is_drawn in zip(partition.blocks, named, can_be_drawn, strict=True)
        if own == Conjugate.name and not is_drawn
    ]
    if wrong:
        raise ValueError(
            f"the move {Conjugate.name!r} needs blocks of variances of Normal priors whose own "
            f"priors are InverseGamma, stated by feedforward(), got others for {first_few(wrong)}: "
            f"use {Walk.name!r} there"
        )
    priors = read_priors() if PCN.name in names else None
    if priors is not None:
        fits = [bool(torch.isfinite(priors.scales[index]).all()) for index in partition.indices]
        names = _where_it_fits(partition, names, named, PCN.name, fits, OF_PCN)
    if Gibbs.name in names or AUTO in names:
        nodes = torch.full((partition.num_params,), -1)
        if read_normal_nodes is not None:
            nodes = read_normal_nodes()
        of_blocks = [nodes[index] for index in partition.indices]
        fits = [bool((own >= 0).all() and (own == own[0]).all()) for own in of_blocks]
        picked = [
            Gibbs.name if is_fit and block.size <= MOST_DRAWN else Walk.name
            for is_fit, block in zip(fits, partition.blocks, strict=True)
        ]
        names = [own if name == AUTO else name for name, own in zip(names, picked, strict=True)]
    if Gibbs.name in names:
        names = _where_it_fits(partition, names, named, Gibbs.name, fits, OF_GIBBS)
    moves: list[Move] = []
    for name in dict.fromkeys(names):
        blocks = torch.tensor([block for block, other in enumerate(names) if other == name])
        own = partition, blocks, scales[blocks], targets[blocks]
        if name == Walk.name:
            moves.append(Walk(*own))
        elif name == PCN.name and priors is not None:
            moves.append(PCN(*own, priors))
        elif name == Gibbs.name:
            moves.append(Gibbs(partition, blocks))
        elif variances is not None:
            moves.append(Conjugate(partition, blocks, variances))
    return JointMoves(partition, moves, rescaling)


def _named(partition: Partition, wanted: str | Mapping[str, str]) -> tuple[list[str | None], str]:
    """Say which move is named for each block, if any, and what all others get."""
    own = [block.move for block in partition.blocks]
    if isinstance(wanted, str):
        return own, wanted
    given = partition.by_name("moves", wanted, f"one of {MOVE_NAMES}")
    return [b if a is None else a for a, b in zip(own, given, strict=True)], Walk.name


def _where_it_fits(
    partition: Partition,
    names: Sequence[str],
    named: Sequence[str | None],
    move: str,
    fits: Sequence[bool],
    needs: str,
) -> list[str]:
    """Give the walk to blocks that a move is not for, unless it is named for them.

    Args:
        partition: The blocks.
        names: The move of each.
        named: The move named for each, if any.
        move: Name of the move.
        fits: Whether each block is one that the move is for.
        needs: What such blocks are, for the error.
    """
    wrong = [
        block.name
        for block, own, is_fit in zip(partition.blocks, named, fits, strict=True)
        if own == move and not is_fit
    ]
    if wrong or not any(is_fit and name == move for is_fit, name in zip(fits, names, strict=True)):
        named = first_few(wrong or [block.name for block in partition.blocks])
        raise ValueError(
            f"the move {move!r} needs blocks {needs}, got others for {named}: use {Walk.name!r} "
            "there"
        )
    return [
        Walk.name if name == move and not is_fit else name
        for name, is_fit in zip(names, fits, strict=True)
    ]
