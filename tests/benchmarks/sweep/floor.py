"""The arithmetic of a sweep, alone: over and over on arrays that stay in the first cache."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pyro_fnbg.engines.fused.elementwise import LANES, ROUNDING, activate
from pyro_fnbg.engines.fused.likelihoods import log_likelihood
from pyro_fnbg.engines.fused.memory import Head, Net
from pyro_fnbg.engines.fused.vectors import add_products, add_scaled, find_set, transpose

__all__ = ["least_seconds"]

Array = NDArray[Any]
SECONDS, TURNS = 0.02, 7
AT_ONCE = 256  # rows, as in a tile


def _loop(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = njit(fastmath=ROUNDING, error_model="numpy")(function)
    return compiled


@_loop
def _add(times: int, one: Array, other: Array, target: Array) -> None:
    for _ in range(times):
        for r in range(len(target)):
            target[r] = one[r] + other[r]


@_loop
def _activate(times: int, code: int, source: Array, target: Array) -> None:
    for _ in range(times):
        activate(code, source, target)


@_loop
def _notice(times: int, old: Array, new: Array, least: Array, flags: Array, places: Array) -> None:
    for _ in range(times):
        for r in range(len(flags)):
            flags[r] = 0 if abs(new[r] - old[r]) <= least[r] else 1
        find_set(flags, len(flags), places)


@_loop
def _raise(
    times: int, old: Array, places: Array, outgoing: Array, rows: Array, tile: Array
) -> None:
    for _ in range(times):
        for first in range(0, len(places), len(rows)):
            for k in range(len(rows)):
                row = places[first + k]
                add_scaled(old, row, old[row, 0], outgoing, rows, k, len(outgoing))
            transpose(rows, len(outgoing), tile, first)


@_loop
def _multiply(times: int, weights: Array, inputs: Array, source: Array, target: Array) -> None:
    for _ in range(times):
        for k in range(len(weights)):
            add_products(weights[k, 0 : len(inputs) : 1], inputs, source, 0, 0, target[k])


@_loop
def _score(
    times: int, head: Head, outputs: Array, labels: Array, scratch: Array, target: Array
) -> None:
    for _ in range(times):
        log_likelihood(head, outputs, labels, 0.0, 1.0, scratch, target)


@_loop
def _read(times: int, data: Array, rows: Array, target: Array) -> None:
    for k in range(times):
        row = data[rows[k % len(rows)]]
        for i in range(len(row)):
            target[i] = row[i]


def _seconds(function: Callable[..., Any], *args: Any) -> float:
    """Time one turn of a loop: the least of several timings, each long enough to be one."""
    times = 1
    function(times, *args)  # compiles
    while True:
        started = time.perf_counter()
        function(times, *args)
        if time.perf_counter() - started > SECONDS:
            break
        times *= 2
    found = []
    for _ in range(TURNS):
        started = time.perf_counter()
        function(times, *args)
        found.append((time.perf_counter() - started) / times)
    return min(found)


def least_seconds(
    net: Net, data: Array, rows: int, moved: float, hidden: int, inputs: float
) -> dict[int, float]:
    """Return the least seconds a sweep by part, where the part is arithmetic.

    Args:
        net: The network, of one activation.
        data: Inputs of all rows.
        rows: Rows of a batch.
        moved: Rows that notice, a block of hidden layers.
        hidden: Blocks of hidden layers.
        inputs: Inputs of a block of the first layer.
    """
    rng, kind = np.random.default_rng(0), data.dtype
    widths, length = net.widths, 64 // kind.itemsize

    def numbers(*shape: int) -> Array:
        """Draw numbers that begin at a line of the cache, as those of a sweep do."""
        size = math.prod(shape)
        memory = np.empty(size * kind.itemsize + 64, np.uint8)
        start = -memory.ctypes.data % 64
        found = memory[start : start + size * kind.itemsize].view(kind).reshape(shape)
        found[...] = rng.standard_normal(shape)
        return found

    batch = -(-rows // LANES) * LANES
    least = np.where(rng.random(AT_ONCE) < moved / rows, 0, 9).astype(kind)
    flags, places = np.zeros(AT_ONCE, np.uint8), np.zeros(AT_ONCE, np.int32)
    vector, tile, other = numbers(AT_ONCE), numbers(AT_ONCE), numbers(AT_ONCE)
    wide = -(-int(widths[2:].max(initial=1)) // length) * length
    above = numbers(AT_ONCE, wide), rng.permutation(AT_ONCE).astype(np.int32), numbers(wide)
    outputs, labels = numbers(int(widths[-1]), AT_ONCE), np.zeros((1, AT_ONCE), kind)

    def products(nodes: int, fan_in: int) -> float:
        """Seconds of a product a row."""
        some = min(fan_in, 32)
        arrays = numbers(nodes, some), np.arange(some), numbers(some, AT_ONCE)
        seconds = _seconds(_multiply, *arrays, numbers(nodes, AT_ONCE))
        return seconds / AT_ONCE / some * fan_in

    # Seconds a row
    added = _seconds(_add, vector, tile, other) / AT_ONCE
    activated = _seconds(_activate, int(net.activations[1]), vector, tile) / AT_ONCE
    noticed = _seconds(_notice, vector, tile, least, flags, places) / AT_ONCE
    raised = _seconds(_raise, *above, numbers(length, wide), numbers(wide, AT_ONCE)) / AT_ONCE
    scored = _seconds(_score, net.head, outputs, labels, numbers(2, AT_ONCE), other) / AT_ONCE
    read = _seconds(_read, data, rng.integers(0, len(data), 20_000), numbers(data.shape[1]))
    # Layers above the one above a block's, on the rows that notice
    layers = np.bincount(net.block_layers, minlength=len(widths))[1:-1]
    top = len(widths) - 1
    nodes_above = sum(
        blocks * widths[layer + 1 : top].sum() for layer, blocks in enumerate(layers, 1)
    )
    multiplied = {k: products(int(widths[k]), int(widths[k - 1])) for k in range(3, top + 1)}
    products_above = sum(
        blocks * sum(multiplied[k] for k in range(layer + 2, top + 1))
        for layer, blocks in enumerate(layers, 1)
    )
    return {
        2: read * rows,
        3: products(int(widths[1]), int(widths[0])) * batch,
        4: products(1, round(inputs)) * batch * int(layers[0]),
        7: added * batch * hidden,
        8: activated * batch * hidden,
        9: noticed * batch * hidden,
        10: raised * moved * hidden,
        11: activated * moved * float(nodes_above),
        12: moved * float(products_above),
        13: scored * moved * hidden,
    }
