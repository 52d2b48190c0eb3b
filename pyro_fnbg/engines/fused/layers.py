"""Layers of a network on a batch, compiled by Numba, for the fused engine.

Arrays are nodes x rows, so that the inner loops run over rows, a tile of them at a time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.engines.fused.elementwise import INLINE, activate, compiled
from pyro_fnbg.engines.fused.likelihoods import log_likelihood
from pyro_fnbg.engines.fused.memory import ACT, CHUNK, INPUT_TILE, PRE, TILE, Data, Net, Work
from pyro_fnbg.engines.fused.vectors import add_products, transpose

__all__ = [
    "finish",
    "observation_scale",
    "read_inputs",
    "renew",
    "take_tile",
]

Array = NDArray[Any]

# Rows of a tile that the first cache holds, besides what is computed from them
INPUTS_AT_ONCE = 32


@compiled(**INLINE)
def _pre_activations(
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
        bias = net.biases[layer, 0] + k * net.biases[layer, 1]
        row = target[first + k, start : start + n]
        row[:] = position[bias] if has_bias else position.dtype.type(0.0)
    # A few activations at a time, which stay in the first cache for all nodes
    for i in range(0, fan_in, INPUTS_AT_ONCE):
        end = min(i + INPUTS_AT_ONCE, fan_in)
        for k in range(net.widths[layer]):
            weight = first_weight + k * to_node + i * to_input
            weights = position[weight : weight + (end - i - 1) * to_input + 1 : to_input]
            row = target[first + k, start : start + n]
            add_products(weights, net.counting[i:end], source, below, source_start, row)


@compiled(**INLINE)
def read_inputs(net: Net, data: Data, work: Work, position: Array, rows: Array) -> None:
    """Fill the deltas of a chunk of pieces, and with the first chunk the first layer.

    The batch's rows are transposed a few at a time, and serve all pieces while they are in cache.
    """
    chunk = work.state[CHUNK]
    first, last = work.chunk_starts[chunk], work.chunk_starts[chunk + 1]
    for start in range(0, len(work.log_lik), INPUT_TILE):
        n = min(INPUT_TILE, len(work.log_lik) - start)
        for r in range(0, n, len(work.input_rows)):
            for k in range(len(work.input_rows)):
                row = data.inputs[rows[min(start + r + k, work.num_rows - 1)]]
                copy = work.input_rows[k]
                for i in range(len(copy)):
                    copy[i] = row[i]
            transpose(work.input_rows, net.widths[0], work.input_tile, r)
        if chunk == 0:
            _pre_activations(net, position, 1, work.input_tile, 0, 0, work.pre, 0, start, n)
        for piece in range(first, last):
            c, bias = net.piece_firsts[piece], net.piece_biases[piece]
            end = c + net.piece_sizes[piece]
            # In the first cache, and then once to where it belongs
            delta = work.scratch[0, :n]
            delta[:] = work.increments[bias] if bias >= 0 else position.dtype.type(0.0)
            # With a step, so that the function is compiled for one kind of arrays alone
            add_products(work.increments[c:end:1], net.inputs[c:end], work.input_tile, 0, 0, delta)
            target = work.deltas[piece - first, start : start + n]
            for r in range(n):
                target[r] = delta[r]


@compiled(**INLINE)
def observation_scale(net: Net, position: Array) -> float:
    """Return the standard deviation of the observations; 0 where the network gives it."""
    if net.scale_coordinate < 0:
        return net.fixed_scale
    return math.exp(np.float64(position[net.scale_coordinate]))


@compiled(**INLINE)
def take_tile(net: Net, source: Array, target: Array, layer: int, start: int, n: int) -> None:
    """Copy the rows of a layer's nodes, as many columns of them as n, from a start on."""
    for k in range(net.widths[layer]):
        row, tile = source[net.first_units[layer] + k, start : start + n], target[k]
        for r in range(n):
            tile[r] = row[r]


@compiled(**INLINE)
def finish(
    net: Net, work: Work, position: Array, first: int, is_act: bool, start: int, n: int
) -> None:
    """Take a tile from a layer to its log likelihoods, which go where ``start`` says.

    It begins with the pre-activations in ``pre_tile``, or with the activations in ``act_tile``;
    labels are in ``label_tile``.
    """
    for below in range(first, len(net.widths) - 1):
        # Into another array and back, because loops that work in place do not vectorise
        if below > first or not is_act:
            for k in range(net.widths[below]):
                activate(net.activations[below], work.pre_tile[k, :n], work.act_tile[k, :n])
        _pre_activations(net, position, below + 1, work.act_tile, 0, 0, work.pre_tile, 0, 0, n)
    log_likelihood(
        net.head,
        work.pre_tile[: net.widths[-1]],
        work.label_tile,
        observation_scale(net, position),
        net.factor,
        work.scratch,
        work.new_log_lik[start : start + n],
    )


@compiled(**INLINE)
def renew(net: Net, work: Work, position: Array, pre: int, act: int) -> None:
    """Bring pre-activations and activations up to the given layers to the current state."""
    num_rows = work.pre.shape[1]
    for layer in range(1, pre + 1):
        units = net.first_units[layer]
        if layer > work.state[PRE]:
            below = net.first_units[layer - 1]
            for start in range(0, num_rows, TILE):
                n = min(TILE, num_rows - start)
                _pre_activations(
                    net, position, layer, work.act, below, start, work.pre, units, start, n
                )
            work.state[PRE] = layer
        if layer > work.state[ACT] and layer <= act:
            for k in range(units, units + net.widths[layer]):
                activate(net.activations[layer], work.pre[k], work.act[k])
            work.state[ACT] = layer
