"""What a block changes, compiled by Numba: candidates of the fused engine, and their acceptance.

Arrays are nodes x rows, so that the inner loops run over rows. Only what a block changes is
computed: its node's pre-activation on all rows, and the layers above on the rows where their sums
notice the change. What an accepted block leaves stale further up is renewed when a block needs it.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from pyro_fnbg.engines.fused.elementwise import activate, add_products, compiled
from pyro_fnbg.engines.fused.layers import find_deltas, finish, pre_activations, renew, take_tile
from pyro_fnbg.engines.fused.memory import ACT, FIRST_PIECE, LEAST, PRE, TILE, Data, Net, Work

__all__ = ["accept_node", "accept_nodes", "propose_node", "propose_nodes"]

Array = NDArray[Any]


@compiled()
def _find_least(net: Net, work: Work, layer: int) -> None:
    """Find for each row the change that no pre-activation of a layer would notice.

    A sum a + b rounds to a where abs(b) is less than an eighth of the machine epsilon times abs(a):
    numbers next to a are no closer than four times that.
    """
    share = net.unnoticed
    for k in range(net.widths[layer]):
        pre = work.pre[net.first_units[layer] + k]
        for r in range(len(pre)):
            size = share * abs(pre[r])
            work.least[r] = size if k == 0 or size < work.least[r] else work.least[r]


@compiled()
def propose_node(net: Net, data: Data, work: Work, position: Array, rows: Array, block: int) -> int:
    """Evaluate a candidate that differs in one node; return the number of rows that moved."""
    layer, node, num_rows = net.block_layers[block], net.block_nodes[block], len(rows)
    is_output = layer == len(net.widths) - 1
    unit = net.first_units[layer] + node
    if is_output:
        renew(net, work, position, layer, layer - 1)
    else:
        renew(net, work, position, layer + 1, layer)
    if layer == 1:
        at = find_deltas(net, data, work, position, rows, block)
        for r in range(num_rows):
            work.new_pre[r] = work.pre[unit, r] + work.deltas[at, r]
    else:
        below = net.first_units[layer - 1]
        first, end = net.block_starts[block], net.block_starts[block + 1]
        constant = position.dtype.type(0.0)
        if net.inputs[end - 1] < 0:  # a bias comes last
            end -= 1
            constant = work.increments[end]
        for r in range(num_rows):
            work.new_pre[r] = work.pre[unit, r] + constant
        increments, inputs = work.increments[first:end:1], net.inputs[first:end]
        add_products(increments, inputs, work.act, below, 0, work.new_pre)
    if is_output:
        for start in range(0, num_rows, TILE):
            n = min(TILE, num_rows - start)
            take_tile(net, work, layer, start, n)
            for r in range(n):
                work.pre_tile[node, r] = work.new_pre[start + r]
                work.moved[start + r] = start + r
            finish(net, work, position, layer, work.labels, start, start, n)
        return num_rows
    activate(net.activations[layer], work.new_pre, work.new_act)
    above = net.first_units[layer + 1]
    if work.state[LEAST] != layer:
        _find_least(net, work, layer + 1)
        work.state[LEAST] = layer
    first_weight, to_node, to_input = net.weights[layer + 1]
    first_weight += node * to_input
    largest = position.dtype.type(0.0)
    for k in range(net.widths[layer + 1]):
        weight = abs(position[first_weight + k * to_node])
        largest = largest if weight <= largest else weight
    act, count = work.act[unit], 0
    for r in range(num_rows):
        work.moved[count] = r
        # Else every sum above is the same after rounding; NaN counts as moved
        count += 0 if largest * abs(work.new_act[r] - act[r]) <= work.least[r] else 1
    for start in range(0, count, TILE):
        n = min(TILE, count - start)
        moved = work.moved[start : start + n]
        for r in range(n):
            work.scratch[r] = work.new_act[moved[r]] - act[moved[r]]
        for k in range(net.widths[layer + 1]):
            weight = position[first_weight + k * to_node]
            old, new, tile = (
                work.pre[above + k],
                work.next_pre[k, start : start + n],
                work.pre_tile[k],
            )
            for r in range(n):
                value = old[moved[r]] + weight * work.scratch[r]
                new[r] = value
                tile[r] = value
        for k in range(len(work.labels)):
            for r in range(n):
                work.label_tile[k, r] = work.labels[k, moved[r]]
        finish(net, work, position, layer + 1, work.label_tile, 0, start, n)
    return count


@compiled()
def accept_node(net: Net, work: Work, block: int, count: int) -> None:
    """Keep a candidate that differs in one node.

    The node's own values are kept on all rows, moved or not: later increments add to them.
    """
    layer = net.block_layers[block]
    unit = net.first_units[layer] + net.block_nodes[block]
    for r in range(work.pre.shape[1]):
        work.pre[unit, r] = work.new_pre[r]
    for r in range(count):
        work.log_lik[work.moved[r]] = work.new_log_lik[r]
    if layer == len(net.widths) - 1:
        work.state[LEAST] = 0
        return
    for r in range(work.pre.shape[1]):
        work.act[unit, r] = work.new_act[r]
    above, share = net.first_units[layer + 1], net.unnoticed
    for k in range(net.widths[layer + 1]):
        new, old = work.next_pre[k], work.pre[above + k]
        for r in range(count):
            old[work.moved[r]] = new[r]
    for r in range(count):
        least = abs(work.next_pre[0, r])
        for k in range(1, net.widths[layer + 1]):
            size = abs(work.next_pre[k, r])
            least = size if size < least else least
        work.least[work.moved[r]] = share * least
    work.state[PRE] = min(work.state[PRE], layer + 1)
    work.state[ACT] = min(work.state[ACT], layer)


@compiled()
def propose_nodes(
    net: Net, data: Data, work: Work, position: Array, rows: Array, block: int
) -> int:
    """Evaluate a candidate that differs in several nodes, from the lowest layer up, on all rows."""
    layer, num_rows, top = net.block_layers[block], len(rows), len(net.widths) - 1
    at = 0
    if layer == 1:
        at = find_deltas(net, data, work, position, rows, block)
    elif layer <= top:
        renew(net, work, position, layer - 1, layer - 1)
    else:
        renew(net, work, position, top, top - 1)
    coordinates = range(net.block_starts[block], net.block_starts[block + 1])
    for c in coordinates:
        position[net.coordinates[c]] = work.candidate[c]
    for start in range(0, num_rows, TILE):
        n = min(TILE, num_rows - start)
        if 1 < layer <= top:
            below = net.first_units[layer - 1]
            pre_activations(net, position, layer, work.act, below, start, work.pre_tile, 0, 0, n)
        else:
            take_tile(net, work, min(layer, top), start, n)
        for piece in range(net.piece_starts[block], net.piece_starts[block + 1]):
            node, delta = net.piece_nodes[piece], at + piece - net.piece_starts[block]
            for r in range(n):
                work.pre_tile[node, r] += work.deltas[delta, start + r]
        for r in range(start, start + n):
            work.moved[r] = r
        finish(net, work, position, min(layer, top), work.labels, start, start, n)
    for c in coordinates:
        position[net.coordinates[c]] = work.kept[c]
    return num_rows


@compiled()
def accept_nodes(net: Net, work: Work, block: int) -> None:
    """Keep a candidate that differs in several nodes."""
    layer = net.block_layers[block]
    for r in range(len(work.log_lik)):
        work.log_lik[r] = work.new_log_lik[r]
    at = net.piece_starts[block] - work.state[FIRST_PIECE]
    for piece in range(net.piece_starts[block], net.piece_starts[block + 1]):
        node, delta = net.piece_nodes[piece], at + piece - net.piece_starts[block]
        for r in range(len(work.log_lik)):
            work.pre[node, r] += work.deltas[delta, r]
    work.state[LEAST] = 0
    work.state[PRE] = min(work.state[PRE], max(layer - 1, 1))
    work.state[ACT] = min(work.state[ACT], layer - 1)
