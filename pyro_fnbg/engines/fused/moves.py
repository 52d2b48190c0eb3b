"""The moves that the fused engine knows, compiled: where they go, and what they learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pyro_fnbg.core.moves.base import MoveState
from pyro_fnbg.core.moves.conjugate import Conjugate
from pyro_fnbg.core.moves.draws import ExactDraw, NoState
from pyro_fnbg.core.moves.gibbs import Gibbs
from pyro_fnbg.core.moves.joint import JointMoves
from pyro_fnbg.core.moves.pcn import PCN
from pyro_fnbg.core.moves.walk import ScaleState, Walk
from pyro_fnbg.engines.fused.elementwise import INLINE, compiled
from pyro_fnbg.engines.fused.memory import Kind, MoveData, Net, Noise, Work

__all__ = ["COMPILED_MOVES", "displace", "learn", "noise_of", "pack", "unpack"]

# Those that learn learn one scale a block
COMPILED_MOVES = (Walk, PCN, Conjugate, Gibbs)

Array = NDArray[Any]


# Without fused multiply-adds, so that every engine proposes the same candidates, bit for bit
@compiled(fastmath=False, **INLINE)
def displace(net: Net, moves: MoveData, work: Work, position: Array, noise: Noise, k: int) -> None:
    """Find where sweep ``k`` would move each coordinate; see ``PCN.displace``.

    For a draw from a conditional, the noise is the displacement already: see ``noise_of``, and
    ``draw_normal`` for what becomes of it.
    """
    for block in range(len(net.block_layers)):
        kind, scale, pull = moves.kinds[block], noise.scales[block], 0.0
        if kind == Kind.CONJUGATE or kind == Kind.GIBBS:
            scale = 1.0
        if kind == Kind.PCN:
            odds = min(scale / moves.block_spreads[block], moves.max_odds)
            rho = 1.0 / math.sqrt(1.0 + odds * odds)
            scale, pull = odds * rho, (odds * rho) * (odds * rho) / (1.0 + rho)
        for c in range(net.block_starts[block], net.block_starts[block + 1]):
            at = net.coordinates[c]
            step = scale * noise.z[k, at]
            if kind == Kind.PCN:
                away = np.float64(position[at]) - net.prior_locs[at]
                step = scale * moves.prior_scales[at] * noise.z[k, at] - pull * away
            work.increments[c] = step


@compiled(**INLINE)
def learn(noise: Noise, block: int, log_ratio: float, gain: float) -> None:
    """Move a block's log scale by the gain times (acceptance probability - target)."""
    prob = 0.0 if math.isnan(log_ratio) else math.exp(min(0.0, log_ratio))
    noise.scales[block] *= math.exp(gain * (prob - noise.targets[block]))


def noise_of(moves: JointMoves, z: Tensor) -> Tensor:
    """Turn the noise of coordinates that are drawn from conditionals into what a sweep adds."""
    drawn = [move for move in moves.moves if isinstance(move, Conjugate)]
    z = z.clone() if drawn else z
    for move in drawn:
        z[..., move.coordinates] = move.minus_log_gammas(z[..., move.coordinates])
    return z


def pack(moves: JointMoves, chains: int, adaptation: Sequence[MoveState]) -> NDArray[np.float64]:
    """Write the scales of C chains by block, shape ``(C, B)``; they may be written to."""
    scales = np.ones((chains, len(moves.of_block)))
    for move, state in zip(moves.moves, adaptation, strict=True):
        if isinstance(state, ScaleState):
            # As an array: NumPy takes a tensor of one number for that number
            scales[:, move.blocks.numpy()] = state.scales.numpy()
    return scales


def unpack(moves: JointMoves, scales: Tensor) -> tuple[MoveState, ...]:
    """Split scales by block, shape ``(C, K, B)``, into the states of the moves."""
    if len(moves.moves) == 1 and isinstance(moves.moves[0], Walk):
        return (ScaleState(scales),)
    return tuple(
        NoState() if isinstance(move, ExactDraw) else ScaleState(scales[..., move.blocks])
        for move in moves.moves
    )
