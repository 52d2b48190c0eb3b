"""Layers of a network on a batch, compiled by Numba, for the fused engine.

Arrays are nodes x rows, so that the inner loops run over rows, a tile of them at a time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.engines.fused.elementwise import activate, add_products, compiled
from pyro_fnbg.engines.fused.likelihoods import log_likelihood
from pyro_fnbg.engines.fused.memory import ACT, FIRST_PIECE, PRE, TILE, Data, Net, Work

__all__ = [
    "find_deltas",
    "finish",
    "observation_scale",
    "pre_activations",
    "read_inputs",
    "renew",
    "take_tile",
]

Array = NDArray[Any]


@compiled()
def pre_activations(
    net: Net,
    position: Array,
    layer: int,
    source: Array,
    below: int,
    source_start: int,
    target: Array,
    first: int,
    start: int,
    n: int,
) -> None:
    """Compute the pre-activations of a layer on n rows from the activations below.

    These lie in ``source`` from row ``below`` and column ``source_start`` on; the results go to
    ``target`` from row ``first`` and column ``start`` on.
    """
    fan_in, has_bias = net.widths[layer - 1], net.biases[layer, 0] >= 0
    first_weight, to_node, to_input = net.weights[layer]
    for k in range(net.widths[layer]):
        bias, weight = net.biases[layer, 0] + k * net.biases[layer, 1], first_weight + k * to_node
        row = target[first + k, start : start + n]
        row[:] = position[bias] if has_bias else position.dtype.type(0.0)
        weights = position[weight : weight + (fan_in - 1) * to_input + 1 : to_input]
        add_products(weights, net.counting[:fan_in], source, below, source_start, row)


@compiled()
def read_inputs(net: Net, data: Data, work: Work, position: Array, rows: Array) -> None:
    """Fill deltas from the first piece wanted on, as far as they hold, and once the first layer.

    The batch's rows are transposed a few at a time, and serve all pieces while they are in cache.
    """
    first = work.state[FIRST_PIECE]
    last = min(first + len(work.deltas), len(net.piece_nodes))
    for start in range(0, len(rows), TILE):
        n = min(TILE, len(rows) - start)
        for r in range(n):
            row, copy = data.inputs[rows[start + r]], work.input_rows[r]
            for i in range(len(copy)):
                copy[i] = row[i]
        for i in range(net.widths[0]):
            for r in range(n):
                work.input_tile[i, r] = work.input_rows[r, i]
        if first == 0:
            pre_activations(net, position, 1, work.input_tile, 0, 0, work.pre, 0, start, n)
        for piece in range(first, last):
            c, bias = net.piece_firsts[piece], net.piece_biases[piece]
            end = c + net.piece_sizes[piece]
            # In the first cache, and then once to where it belongs
            delta = work.scratch[:n]
            delta[:] = work.increments[bias] if bias >= 0 else position.dtype.type(0.0)
            # With a step, so that the function is compiled for one kind of arrays alone
            add_products(work.increments[c:end:1], net.inputs[c:end], work.input_tile, 0, 0, delta)
            target = work.deltas[piece - first, start : start + n]
            for r in range(n):
                target[r] = delta[r]


@compiled()
def find_deltas(net: Net, data: Data, work: Work, position: Array, rows: Array, block: int) -> int:
    """Return where a block's deltas begin, after filling the memory anew if they are not there."""
    piece = net.piece_starts[block]
    if net.piece_starts[block + 1] > work.state[FIRST_PIECE] + len(work.deltas):
        work.state[FIRST_PIECE] = piece
        read_inputs(net, data, work, position, rows)
    return int(piece - work.state[FIRST_PIECE])


@compiled()
def observation_scale(net: Net, position: Array) -> float:
    """Return the standard deviation of the observations; 0 where the network gives it."""
    if net.scale_coordinate < 0:
        return net.fixed_scale
    return math.exp(np.float64(position[net.scale_coordinate]))


@compiled()
def take_tile(net: Net, work: Work, layer: int, start: int, n: int) -> None:
    """Copy a layer's current pre-activations on n rows into ``pre_tile``."""
    for k in range(net.widths[layer]):
        row, tile = work.pre[net.first_units[layer] + k, start : start + n], work.pre_tile[k]
        for r in range(n):
            tile[r] = row[r]


@compiled()
def finish(
    net: Net, work: Work, position: Array, layer: int, labels: Array, at: int, start: int, n: int
) -> None:
    """Take a tile from the pre-activations of a layer, in ``pre_tile``, to its log likelihoods."""
    for below in range(layer, len(net.widths) - 1):
        # Into another array and back, because loops that work in place do not vectorise
        for k in range(net.widths[below]):
            activate(net.activations[below], work.pre_tile[k, :n], work.act_tile[k, :n])
        pre_activations(net, position, below + 1, work.act_tile, 0, 0, work.pre_tile, 0, 0, n)
    log_likelihood(
        net.head,
        work.pre_tile[: net.widths[-1]],
        0,
        0,
        labels,
        at,
        observation_scale(net, position),
        net.factor,
        work.scratch[:n],
        work.new_log_lik[start : start + n],
    )


@compiled()
def renew(net: Net, work: Work, position: Array, pre: int, act: int) -> None:
    """Bring pre-activations and activations up to the given layers to the current state."""
    num_rows = work.pre.shape[1]
    for layer in range(1, pre + 1):
        units = net.first_units[layer]
        if layer > work.state[PRE]:
            below = net.first_units[layer - 1]
            for start in range(0, num_rows, TILE):
                n = min(TILE, num_rows - start)
                pre_activations(
                    net, position, layer, work.act, below, start, work.pre, units, start, n
                )
            work.state[PRE] = layer
        if layer > work.state[ACT] and layer <= act:
            for k in range(units, units + net.widths[layer]):
                activate(net.activations[layer], work.pre[k], work.act[k])
            work.state[ACT] = layer
