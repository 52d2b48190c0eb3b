"""The draw of an output node's weights from their Normal conditional, compiled by Numba."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.engines.fused.elementwise import INLINE, compiled, whole_lanes
from pyro_fnbg.engines.fused.layers import observation_scale, renew
from pyro_fnbg.engines.fused.memory import MoveData, Net, Work
from pyro_fnbg.engines.fused.proposals import lay_rows_down
from pyro_fnbg.engines.fused.sharing import add_up, share_products

__all__ = ["draw_normal"]

Array = NDArray[Any]


@compiled(**INLINE)
def draw_normal(net: Net, moves: MoveData, work: Work, position: Array, block: int) -> float:
    """Turn the noise of a block into increments to a draw from its conditional; see ``Gibbs``.

    With the residuals e of the current outputs, the mean lies P^-1 g from the current weights w,
    g = f A'e / s^2 - (w - m) / t^2, where P = L L' is the precision; the draw, L'^-1 z from there.

    Returns:
        log q(current) - log q(draw) of the conditional's density q.
    """
    lay_rows_down(net, work)
    renew(net, work, position, net.block_pre[block], net.block_act[block])
    layer, node, first = net.block_layers[block], net.block_nodes[block], net.block_starts[block]
    size, below = net.block_starts[block + 1] - first, net.first_units[layer - 1]
    scale = observation_scale(net, position)
    power = net.factor / (scale * scale)
    outputs, residuals, ones = work.pre[net.first_units[layer] + node], work.new_pre, work.new_act
    for r in range(whole_lanes(len(outputs))):
        residuals[r] = work.labels[node, r] - outputs[r]
        ones[r] = position.dtype.type(1.0)
    root, shift = work.root, work.shift
    for i in range(size):
        c = moves.order[first + i]
        at, own = net.coordinates[c], net.inputs[c]
        column = work.act[below + own] if own >= 0 else ones
        for j in range(i + 1):
            other = net.inputs[moves.order[first + j]]
            share_products(work, column, work.act[below + other] if other >= 0 else ones)
            root[i, j] = power * add_up(work)
        rate = 2.0 * net.prior_rates[at]
        if net.holders[at] >= 0:
            rate *= math.exp(-2.0 * net.holder_powers[at] * np.float64(position[net.holders[at]]))
        root[i, i] += rate
        share_products(work, column, residuals)
        shift[i] = power * add_up(work) + rate * (net.prior_locs[at] - np.float64(position[at]))
    correction = 0.0
    for i in range(size):
        # Row by row: the Cholesky root, and with it L^-1 g
        for j in range(i + 1):
            total = root[i, j]
            for k in range(j):
                total -= root[i, k] * root[j, k]
            root[i, j] = math.sqrt(total) if i == j else total / root[j, j]
        for k in range(i):
            shift[i] -= root[i, k] * shift[k]
        shift[i] /= root[i, i]
        z = np.float64(work.increments[moves.order[first + i]])
        correction += 0.5 * (z * z - shift[i] * shift[i])
    for i in range(size - 1, -1, -1):
        c = moves.order[first + i]
        total = shift[i] + np.float64(work.increments[c])
        for k in range(i + 1, size):
            total -= root[k, i] * shift[k]
        shift[i] = total / root[i, i]
        work.increments[c] = shift[i]
    return correction
