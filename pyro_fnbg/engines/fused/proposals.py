"""What a block changes, compiled by Numba: candidates of the fused engine, and their acceptance.

Arrays are nodes x rows, so that the inner loops run over rows. Only what a block changes is
computed: its node's pre-activation on all rows, and the layers above on the rows where their sums
notice the change. What an accepted block leaves stale further up is renewed when a block needs it.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from pyro_fnbg.engines.fused.elementwise import (
    INLINE,
    LANES,
    activate,
    compiled,
    rounded_up,
    whole_lanes,
)
from pyro_fnbg.engines.fused.layers import finish, read_inputs, renew, take_tile
from pyro_fnbg.engines.fused.memory import ACT, CHUNK, LEAST, PRE, TILE, Data, Net, Work
from pyro_fnbg.engines.fused.vectors import add_products, add_scaled, find_set, transpose

__all__ = ["evaluate", "keep", "lay_rows_down"]

Array = NDArray[Any]

# Nodes whose values are sooner looked up one by one than all in a vector, of which most are of none
FEW = 4


@compiled(**INLINE)
def evaluate(net: Net, data: Data, work: Work, position: Array, rows: Array, block: int) -> int:
    """Evaluate the candidate of a block, or with -1 the position itself on a new batch.

    Returns:
        The number of rows that moved, which are in ``moved``; their log likelihoods are in
        ``new_log_lik``.
    """
    top = len(net.widths) - 1
    # A scale of observations lies above all layers
    layer = 1 if block < 0 else min(net.block_layers[block], top)
    node = -1 if block < 0 else net.block_nodes[block]
    is_hidden = node >= 0 and layer < top
    count, piece, pieces = work.num_rows, 0, 0
    if block >= 0:
        pieces = net.piece_starts[block + 1] - net.piece_starts[block]
        piece = net.piece_starts[block]
    if block < 0 or (pieces > 0 and piece >= work.chunk_starts[work.state[CHUNK] + 1]):
        work.state[CHUNK] += 1
        read_inputs(net, data, work, position, rows)
    delta = piece - work.chunk_starts[work.state[CHUNK]]
    if not is_hidden or work.state[LEAST] != layer:
        lay_rows_down(net, work)
    if block >= 0:
        renew(net, work, position, net.block_pre[block], net.block_act[block])
    if node >= 0:
        _displace_node(net, work, position, block, delta)
    if is_hidden:
        count = _find_moved(net, work, position, layer, node)
    else:
        for r in range(len(work.moved)):
            work.moved[r] = r
    end = rounded_up(count, LANES)
    for r in range(count, end):
        work.moved[r] = work.moved[count - 1]
    is_recomputed = node < 0 and block >= 0
    if is_recomputed:
        for c in range(net.block_starts[block], net.block_starts[block + 1]):
            position[net.coordinates[c]] = work.candidate[c]
    for start in range(0, end, TILE):
        n = whole_lanes(min(TILE, end - start))
        # Layer whose activations or pre-activations are put down, from which all above follow
        first, is_act = layer, False
        if is_hidden:
            first = layer + 1
            _take_moved(net, work, layer, start, n)
        elif is_recomputed and layer > 1 and net.block_layers[block] <= top:
            first, is_act = layer - 1, True
            take_tile(net, work.act, work.act_tile, layer - 1, start, n)
        else:
            take_tile(net, work.pre, work.pre_tile, layer, start, n)
            if node >= 0:
                for r in range(n):
                    work.pre_tile[node, r] = work.new_pre[start + r]
            for p in range(pieces if node < 0 else 0):
                unit = net.piece_nodes[piece + p]
                for r in range(n):
                    work.pre_tile[unit, r] += work.deltas[delta + p, start + r]
        for k in range(len(work.labels)):
            for r in range(n):
                work.label_tile[k, r] = work.labels[k, work.moved[start + r]]
        finish(net, work, position, first, is_act, start, n)
    if is_recomputed:
        for c in range(net.block_starts[block], net.block_starts[block + 1]):
            position[net.coordinates[c]] = work.kept[c]
    return count


@compiled(**INLINE)
def _displace_node(net: Net, work: Work, position: Array, block: int, delta: int) -> None:
    """Compute the pre-activations of the node of a block after its displacement."""
    layer = net.block_layers[block]
    unit = net.first_units[layer] + net.block_nodes[block]
    num_rows = whole_lanes(len(work.log_lik))
    if layer == 1:
        for r in range(num_rows):
            work.new_pre[r] = work.pre[unit, r] + work.deltas[delta, r]
        return
    first, end = net.block_starts[block], net.block_starts[block + 1]
    constant = position.dtype.type(0.0)
    if net.inputs[end - 1] < 0:  # a bias comes last
        end -= 1
        constant = work.increments[end]
    for r in range(num_rows):
        work.new_pre[r] = work.pre[unit, r] + constant
    # With a step, so that the function is compiled for one kind of arrays alone
    increments, inputs = work.increments[first:end:1], net.inputs[first:end]
    add_products(increments, inputs, work.act, net.first_units[layer - 1], 0, work.new_pre)


@compiled(**INLINE)
def _find_moved(net: Net, work: Work, position: Array, layer: int, node: int) -> int:
    """Find the rows where the layer above would notice the change of a node; return their number.

    A sum a + b rounds to a where abs(b) is less than an eighth of the machine epsilon times abs(a):
    numbers next to a are no closer than four times that.
    """
    num_rows = whole_lanes(len(work.log_lik))
    activate(net.activations[layer], work.new_pre, work.new_act)
    if work.state[LEAST] != layer:
        _stand_rows_up(net, work, layer + 1)
        work.state[LEAST] = layer
    first_weight, to_node, to_input = net.weights[layer + 1]
    first_weight += node * to_input
    largest = position.dtype.type(0.0)
    for k in range(net.widths[layer + 1]):
        weight = position[first_weight + k * to_node]
        work.outgoing[k] = weight
        largest = largest if abs(weight) <= largest else abs(weight)
    act = work.act[net.first_units[layer] + node]
    for r in range(num_rows):
        change = work.new_act[r] - act[r]
        work.change[r] = change
        # Else every sum above is the same after rounding; NaN counts as moved
        work.is_moved[r] = 0 if largest * abs(change) <= work.least[r] else 1
    for r in range(work.num_rows, num_rows):
        work.is_moved[r] = 0
    return int(find_set(work.is_moved, work.num_rows, work.moved))


@compiled(**INLINE)
def _stand_rows_up(net: Net, work: Work, layer: int) -> None:
    """Put the pre-activations of a layer row by row, and find the change that none would notice.

    While nodes below it are visited, they are looked up on few rows, and change on few.
    """
    for k in range(net.widths[layer]):
        pre = work.pre[net.first_units[layer] + k]
        for r in range(whole_lanes(len(work.log_lik))):
            size, least = net.unnoticed * abs(pre[r]), work.least[r]
            work.least[r] = size if k == 0 or size < least else least
        for r in range(len(pre) if net.widths[layer] > FEW else 0):
            work.above[r, k] = pre[r]


@compiled(**INLINE)
def lay_rows_down(net: Net, work: Work) -> None:
    """Put what ``_stand_rows_up`` has put row by row back node by node, if it is there."""
    if work.state[LEAST] > 0:
        layer = work.state[LEAST] + 1
        for k in range(net.widths[layer] if net.widths[layer] > FEW else 0):
            pre = work.pre[net.first_units[layer] + k]
            for r in range(len(pre)):
                pre[r] = work.above[r, k]
        work.state[LEAST] = 0


@compiled(**INLINE)
def _take_moved(net: Net, work: Work, layer: int, start: int, n: int) -> None:
    """Compute the pre-activations of the layer above a node on n of the rows that moved."""
    moved, num_nodes = work.moved[start : start + n], net.widths[layer + 1]
    if num_nodes <= FEW:
        for k in range(num_nodes):
            pre, tile = work.pre[net.first_units[layer + 1] + k], work.pre_tile[k]
            for r in range(n):
                tile[r] = pre[moved[r]] + work.change[moved[r]] * work.outgoing[k]
    else:
        length = len(work.new_above)
        width = rounded_up(num_nodes, length)
        for first in range(0, n, length):
            for k in range(length):
                row = moved[first + k]
                scale = work.change[row]
                add_scaled(work.above, row, scale, work.outgoing, work.new_above, k, width)
            transpose(work.new_above, width, work.pre_tile, first)
    least = work.new_least[start : start + n]
    for k in range(num_nodes):
        tile = work.pre_tile[k]
        for r in range(n):
            size, before = net.unnoticed * abs(tile[r]), least[r]
            least[r] = size if k == 0 or size < before else before


@compiled(**INLINE)
def keep(net: Net, work: Work, block: int, count: int) -> None:
    """Keep the candidate of a block that has been evaluated.

    A node's own values are kept on all rows, moved or not: later increments add to them.
    """
    num_rows, top = whole_lanes(len(work.log_lik)), len(net.widths) - 1
    for r in range(count):
        work.log_lik[work.moved[r]] = work.new_log_lik[r]
    layer, node = net.block_layers[block], net.block_nodes[block]
    if node < 0:
        delta = net.piece_starts[block] - work.chunk_starts[work.state[CHUNK]]
        for piece in range(net.piece_starts[block], net.piece_starts[block + 1]):
            unit, row = net.piece_nodes[piece], delta + piece - net.piece_starts[block]
            for r in range(num_rows):
                work.pre[unit, r] += work.deltas[row, r]
        work.state[PRE] = min(work.state[PRE], max(layer - 1, 1))
        work.state[ACT] = min(work.state[ACT], layer - 1)
        return
    unit = net.first_units[layer] + node
    for r in range(num_rows):
        work.pre[unit, r] = work.new_pre[r]
    if layer == top:
        return
    for r in range(num_rows):
        work.act[unit, r] = work.new_act[r]
    for r in range(count):
        work.least[work.moved[r]] = work.new_least[r]
    num_nodes, length = net.widths[layer + 1], len(work.new_above)
    if num_nodes <= FEW:
        for k in range(num_nodes):
            pre, weight = work.pre[net.first_units[layer + 1] + k], work.outgoing[k]
            for r in range(count):
                row = work.moved[r]
                pre[row] += work.change[row] * weight
    else:
        width = rounded_up(num_nodes, length)
        for r in range(count):
            row = work.moved[r]
            add_scaled(work.above, row, work.change[row], work.outgoing, work.above, row, width)
    work.state[PRE] = min(work.state[PRE], layer + 1)
    work.state[ACT] = min(work.state[ACT], layer)
