"""The fused engine's sweep, compiled by Numba: every block of a network once, in place.

Arrays are nodes x rows, so that the inner loops run over rows. Only what a block changes is
computed: its node's pre-activation on all rows, and the layers above on the rows whose activation
moved at all. What an accepted block leaves stale further up is renewed when a block needs it, and
everything is computed afresh at the start of every sweep.

``pyro_fnbg.engines.fused`` prepares the arguments.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pyro_fnbg.engines.elementwise import (
    ROUNDING,
    activate,
    add_products,
    log_likelihood,
    sum_of_changes,
    total_of,
)

__all__ = ["TILE", "Data", "Noise", "Plan", "Results", "Work", "run_sweeps"]

TILE = 256  # rows that move up the layers together; their values stay in the first cache

Array = NDArray[Any]


class Plan(NamedTuple):
    """Describe network and blocks; layers count from 1, and coordinates follow the blocks."""

    widths: Array  # (rho + 1,)
    first_units: Array  # (rho + 1,) row of a layer's first node in the arrays of all nodes
    weights: Array  # (rho + 1,) flat coordinate of a layer's first weight
    biases: Array  # (rho + 1,) that of its first bias, or -1
    activations: Array  # (rho + 1,) codes
    likelihood: int
    factor: float
    fixed_scale: float
    scale_coordinate: int  # -1 where the observation scale is fixed
    scale_prior: Array  # coefficients, see _scale_log_prior
    prior_locs: Array  # (P,)
    half_precisions: Array  # (P,) 1 / (2 variance)
    log_constant: float  # what the log density has besides
    unnoticed: float  # share of a number whose addition to it is lost in rounding
    block_starts: Array  # (B + 1,) into coordinates
    block_layers: Array  # (B,) lowest layer of a block; rho + 1 for the observation scale alone
    block_nodes: Array  # (B,) its node, or -1 for a block of several
    coordinates: Array  # (P,) flat coordinates
    inputs: Array  # (P,) input of each, or -1 for a bias
    piece_starts: Array  # (B + 1,) a piece is what a block has in one node of the first layer
    piece_nodes: Array  # (pieces,)
    piece_firsts: Array  # (pieces,) first weight, into coordinates
    piece_sizes: Array  # (pieces,) number of weights
    piece_biases: Array  # (pieces,) the bias, into coordinates, or -1
    counting: Array  # (widest,) 0, 1, 2, ...


class Data(NamedTuple):
    """Hold the data in the parameters' dtype."""

    inputs: Array  # (N, widths[0])
    labels: Array  # (N, columns)


class Noise(NamedTuple):
    """Hold batches and noise of K sweeps."""

    rows: Array  # (K, n); (1, n) where all sweeps see the same rows
    z: Array  # (K, P)
    log_u: Array  # (K, B)
    scales: Array  # (B,)


class Work(NamedTuple):
    """Hold the memory of one chain's sweeps over n rows; everything is overwritten."""

    input_rows: Array  # (TILE, widths[0])
    input_tile: Array  # (widths[0], TILE)
    labels: Array  # (columns, n)
    pre: Array  # (nodes, n) pre-activations
    act: Array  # (nodes, n) activations
    deltas: Array  # (pieces at a time, n) first-layer increments times inputs
    log_lik: Array  # (n,)
    new_log_lik: Array  # (n,) the candidate's, of the rows that moved
    new_pre: Array  # (n,) the candidate's pre-activations of the block's node
    new_act: Array  # (n,) the candidate's activations of it
    next_pre: Array  # (widest, n) the candidate's next layer, of the rows that moved
    moved: Array  # (n,) their numbers
    least: Array  # (n,) change that the layer above would not notice
    label_tile: Array  # (columns, TILE)
    scratch: Array  # (TILE,)
    pre_tile: Array  # (widest, TILE)
    act_tile: Array  # (widest, TILE)
    increments: Array  # (P,) in the order of the blocks
    candidate: Array  # (P,) the same, for these three
    kept: Array  # (P,)
    state: Array  # (4,) layers up to which pre and act are current; first piece in deltas; whether
    # the log likelihood is finite


class Results(NamedTuple):
    """Take the results of K sweeps."""

    positions: Array  # (K, P)
    log_ratios: Array  # (K, B)
    accepted: Array  # (K, B)
    log_densities: Array  # (K,)
    moved_rows: Array  # (K, B) rows on which a block changed its node's activation


@njit(fastmath=ROUNDING, _nrt=False)  # type: ignore[untyped-decorator]
def _layer(
    plan: Plan,
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
    fan_in = plan.widths[layer - 1]
    for k in range(plan.widths[layer]):
        bias, weight = plan.biases[layer] + k, plan.weights[layer] + k * fan_in
        row = target[first + k, start : start + n]
        row[:] = position[bias] if plan.biases[layer] >= 0 else position.dtype.type(0.0)
        weights = position[weight : weight + fan_in]
        add_products(weights, plan.counting[:fan_in], source, below, source_start, row)


@njit(fastmath=ROUNDING, _nrt=False)  # type: ignore[untyped-decorator]
def _read_inputs(plan: Plan, data: Data, work: Work, position: Array, rows: Array) -> None:
    """Fill deltas from the first piece wanted on, as far as they hold, and once the first layer.

    The batch's rows are transposed a few at a time, and serve all pieces while they are in cache.
    """
    first = work.state[2]
    last = min(first + len(work.deltas), len(plan.piece_nodes))
    for start in range(0, len(rows), TILE):
        n = min(TILE, len(rows) - start)
        for r in range(n):
            row, copy = data.inputs[rows[start + r]], work.input_rows[r]
            for i in range(len(copy)):
                copy[i] = row[i]
        for i in range(plan.widths[0]):
            for r in range(n):
                work.input_tile[i, r] = work.input_rows[r, i]
        if first == 0:
            _layer(plan, position, 1, work.input_tile, 0, 0, work.pre, 0, start, n)
        for piece in range(first, last):
            c, bias = plan.piece_firsts[piece], plan.piece_biases[piece]
            end = c + plan.piece_sizes[piece]
            # In the first cache, and then once to where it belongs
            delta = work.scratch[:n]
            delta[:] = work.increments[bias] if bias >= 0 else position.dtype.type(0.0)
            add_products(
                work.increments[c:end], plan.inputs[c:end], work.input_tile, 0, 0, delta
            )
            target = work.deltas[piece - first, start : start + n]
            for r in range(n):
                target[r] = delta[r]


@njit(_nrt=False)  # type: ignore[untyped-decorator]
def _find_deltas(
    plan: Plan, data: Data, work: Work, position: Array, rows: Array, block: int
) -> int:
    """Return where a block's deltas begin, after filling the memory anew if they are not there."""
    piece = plan.piece_starts[block]
    if plan.piece_starts[block + 1] > work.state[2] + len(work.deltas):
        work.state[2] = piece
        _read_inputs(plan, data, work, position, rows)
    return piece - work.state[2]


@njit(_nrt=False)  # type: ignore[untyped-decorator]
def _scale(plan: Plan, position: Array) -> float:
    """Return the standard deviation of the observations."""
    if plan.scale_coordinate < 0:
        return plan.fixed_scale
    return math.exp(np.float64(position[plan.scale_coordinate]))


@njit(_nrt=False)  # type: ignore[untyped-decorator]
def _scale_log_prior(plan: Plan, value: float) -> float:
    """Score the unconstrained observation scale, Jacobian included, up to a constant."""
    c, scale = plan.scale_prior, math.exp(value)
    power = c[0] * value + c[1] * value * value + c[2] * scale + c[3] * scale * scale
    return power + c[4] / scale + c[5] * math.log1p(c[6] * scale * scale)


@njit(_nrt=False)  # type: ignore[untyped-decorator]
def _finish(
    plan: Plan, work: Work, position: Array, layer: int, labels: Array, at: int, start: int, n: int
) -> None:
    """Take a tile from the pre-activations of a layer, in ``pre_tile``, to its log likelihoods."""
    for below in range(layer, len(plan.widths) - 1):
        # Into another array and back, because loops that work in place do not vectorise
        for k in range(plan.widths[below]):
            activate(plan.activations[below], work.pre_tile[k, :n], work.act_tile[k, :n])
        _layer(plan, position, below + 1, work.act_tile, 0, 0, work.pre_tile, 0, 0, n)
    log_likelihood(
        plan.likelihood, work.pre_tile[: plan.widths[-1]], 0, 0, labels, at,
        _scale(plan, position), plan.factor, work.scratch[:n], work.new_log_lik[start : start + n],
    )  # fmt: skip


@njit(_nrt=False)  # type: ignore[untyped-decorator]
def _renew(plan: Plan, work: Work, position: Array, pre: int, act: int) -> None:
    """Bring pre-activations and activations up to the given layers to the current state."""
    num_rows = work.pre.shape[1]
    for layer in range(1, pre + 1):
        units = plan.first_units[layer]
        if layer > work.state[0]:
            below = plan.first_units[layer - 1]
            for start in range(0, num_rows, TILE):
                n = min(TILE, num_rows - start)
                _layer(plan, position, layer, work.act, below, start, work.pre, units, start, n)
            work.state[0] = layer
        if layer > work.state[1] and layer <= act:
            for k in range(units, units + plan.widths[layer]):
                activate(plan.activations[layer], work.pre[k], work.act[k])
            work.state[1] = layer


@njit(_nrt=False)  # type: ignore[untyped-decorator]
def _find_least(plan: Plan, work: Work, layer: int) -> None:
    """Find for each row the change that no pre-activation of a layer would notice.

    A sum a + b rounds to a where abs(b) is less than an eighth of the machine epsilon times abs(a):
    numbers next to a are no closer than four times that.
    """
    share = plan.unnoticed
    for k in range(plan.widths[layer]):
        pre = work.pre[plan.first_units[layer] + k]
        for r in range(len(pre)):
            size = share * abs(pre[r])
            work.least[r] = size if k == 0 or size < work.least[r] else work.least[r]


@njit(fastmath=ROUNDING, _nrt=False)  # type: ignore[untyped-decorator]
def _propose_node(
    plan: Plan, data: Data, work: Work, position: Array, rows: Array, block: int
) -> int:
    """Evaluate a candidate that differs in one node; return the number of rows that moved."""
    layer, node, num_rows = plan.block_layers[block], plan.block_nodes[block], len(rows)
    is_output = layer == len(plan.widths) - 1
    unit = plan.first_units[layer] + node
    if is_output:
        _renew(plan, work, position, layer, layer - 1)
    else:
        _renew(plan, work, position, layer + 1, layer)
    if layer == 1:
        at = _find_deltas(plan, data, work, position, rows, block)
        for r in range(num_rows):
            work.new_pre[r] = work.pre[unit, r] + work.deltas[at, r]
    else:
        below = plan.first_units[layer - 1]
        first, end = plan.block_starts[block], plan.block_starts[block + 1]
        constant = position.dtype.type(0.0)
        if plan.inputs[end - 1] < 0:  # a bias comes last
            end -= 1
            constant = work.increments[end]
        for r in range(num_rows):
            work.new_pre[r] = work.pre[unit, r] + constant
        increments, inputs = work.increments[first:end], plan.inputs[first:end]
        add_products(increments, inputs, work.act, below, 0, work.new_pre)
    if is_output:
        outputs = plan.first_units[layer]
        for start in range(0, num_rows, TILE):
            n = min(TILE, num_rows - start)
            for k in range(plan.widths[layer]):
                for r in range(n):
                    work.pre_tile[k, r] = work.pre[outputs + k, start + r]
            for r in range(n):
                work.pre_tile[node, r] = work.new_pre[start + r]
                work.moved[start + r] = start + r
            _finish(plan, work, position, layer, work.labels, start, start, n)
        return num_rows
    activate(plan.activations[layer], work.new_pre, work.new_act)
    above = plan.first_units[layer + 1]
    if work.state[4] != layer:
        _find_least(plan, work, layer + 1)
        work.state[4] = layer
    largest = position.dtype.type(0.0)
    for k in range(plan.widths[layer + 1]):
        weight = abs(position[plan.weights[layer + 1] + k * plan.widths[layer] + node])
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
        for k in range(plan.widths[layer + 1]):
            weight = position[plan.weights[layer + 1] + k * plan.widths[layer] + node]
            old, new, tile = work.pre[above + k], work.next_pre[k, start : start + n], work.pre_tile[k]
            for r in range(n):
                value = old[moved[r]] + weight * work.scratch[r]
                new[r] = value
                tile[r] = value
        for k in range(len(work.labels)):
            for r in range(n):
                work.label_tile[k, r] = work.labels[k, moved[r]]
        _finish(plan, work, position, layer + 1, work.label_tile, 0, start, n)
    return count


@njit(_nrt=False)  # type: ignore[untyped-decorator]
def _accept_node(plan: Plan, work: Work, block: int, count: int) -> None:
    """Keep a candidate that differs in one node.

    The node's own values are kept on all rows, moved or not: later increments add to them.
    """
    layer = plan.block_layers[block]
    unit = plan.first_units[layer] + plan.block_nodes[block]
    for r in range(work.pre.shape[1]):
        work.pre[unit, r] = work.new_pre[r]
    for r in range(count):
        work.log_lik[work.moved[r]] = work.new_log_lik[r]
    if layer == len(plan.widths) - 1:
        work.state[4] = 0
        return
    for r in range(work.pre.shape[1]):
        work.act[unit, r] = work.new_act[r]
    above, share = plan.first_units[layer + 1], plan.unnoticed
    for k in range(plan.widths[layer + 1]):
        new, old = work.next_pre[k], work.pre[above + k]
        for r in range(count):
            old[work.moved[r]] = new[r]
    for r in range(count):
        least = abs(work.next_pre[0, r])
        for k in range(1, plan.widths[layer + 1]):
            size = abs(work.next_pre[k, r])
            least = size if size < least else least
        work.least[work.moved[r]] = share * least
    work.state[0] = min(work.state[0], layer + 1)
    work.state[1] = min(work.state[1], layer)


@njit(_nrt=False)  # type: ignore[untyped-decorator]
def _propose_nodes(
    plan: Plan, data: Data, work: Work, position: Array, rows: Array, block: int
) -> int:
    """Evaluate a candidate that differs in several nodes, from the lowest layer up, on all rows."""
    layer, num_rows, top = plan.block_layers[block], len(rows), len(plan.widths) - 1
    at = 0
    if layer == 1:
        at = _find_deltas(plan, data, work, position, rows, block)
    elif layer <= top:
        _renew(plan, work, position, layer - 1, layer - 1)
    else:
        _renew(plan, work, position, top, top - 1)
    coordinates = range(plan.block_starts[block], plan.block_starts[block + 1])
    for c in coordinates:
        position[plan.coordinates[c]] = work.candidate[c]
    for start in range(0, num_rows, TILE):
        n = min(TILE, num_rows - start)
        if 1 < layer <= top:
            below = plan.first_units[layer - 1]
            _layer(plan, position, layer, work.act, below, start, work.pre_tile, 0, 0, n)
        else:
            units = plan.first_units[min(layer, top)]
            for k in range(plan.widths[min(layer, top)]):
                for r in range(n):
                    work.pre_tile[k, r] = work.pre[units + k, start + r]
        for piece in range(plan.piece_starts[block], plan.piece_starts[block + 1]):
            node, delta = plan.piece_nodes[piece], at + piece - plan.piece_starts[block]
            for r in range(n):
                work.pre_tile[node, r] += work.deltas[delta, start + r]
        for r in range(start, start + n):
            work.moved[r] = r
        _finish(plan, work, position, min(layer, top), work.labels, start, start, n)
    for c in coordinates:
        position[plan.coordinates[c]] = work.kept[c]
    return num_rows


@njit(_nrt=False)  # type: ignore[untyped-decorator]
def _accept_nodes(plan: Plan, work: Work, block: int) -> None:
    """Keep a candidate that differs in several nodes."""
    layer = plan.block_layers[block]
    for r in range(len(work.log_lik)):
        work.log_lik[r] = work.new_log_lik[r]
    at = plan.piece_starts[block] - work.state[2]
    for piece in range(plan.piece_starts[block], plan.piece_starts[block + 1]):
        node, delta = plan.piece_nodes[piece], at + piece - plan.piece_starts[block]
        for r in range(len(work.log_lik)):
            work.pre[node, r] += work.deltas[delta, r]
    work.state[4] = 0
    work.state[0] = min(work.state[0], max(layer - 1, 1))
    work.state[1] = min(work.state[1], layer - 1)


@njit(_nrt=False)  # type: ignore[untyped-decorator]
def _unusual_ratio(work: Work, new_log_prior: float, log_prior: float, count: int) -> float:
    """Compute the log ratio where a log density is not finite; see ``step.log_accept_ratio``."""
    difference, candidate, current = new_log_prior - log_prior, new_log_prior, log_prior
    seen = 0
    for r in range(len(work.log_lik)):
        old = np.float64(work.log_lik[r])
        new = old
        if seen < count and work.moved[seen] == r:
            new = np.float64(work.new_log_lik[seen])
            seen += 1
        difference, candidate, current = difference + (new - old), candidate + new, current + old
    if math.isfinite(difference):
        return difference
    if math.isfinite(candidate):
        return difference if math.isfinite(current) else math.inf
    return candidate if candidate == -math.inf else math.nan


@njit(_nrt=False)  # type: ignore[untyped-decorator]
def _log_prior(plan: Plan, at: int, value: float) -> float:
    """Score one coordinate, up to a constant."""
    if at == plan.scale_coordinate:
        return _scale_log_prior(plan, value)
    return -plan.half_precisions[at] * (value - plan.prior_locs[at]) ** 2


@njit(_nrt=False)  # type: ignore[untyped-decorator]
def _block_step(
    plan: Plan, data: Data, work: Work, position: Array, rows: Array, block: int, log_u: float
) -> tuple[float, bool, int]:
    """Propose to move one block, and keep the candidate or leave everything as it was."""
    coordinates = range(plan.block_starts[block], plan.block_starts[block + 1])
    log_prior, new_log_prior = 0.0, 0.0
    for c in coordinates:
        at = plan.coordinates[c]
        work.kept[c] = position[at]
        work.candidate[c] = position[at] + work.increments[c]
        log_prior += _log_prior(plan, at, np.float64(work.kept[c]))
        new_log_prior += _log_prior(plan, at, np.float64(work.candidate[c]))
    is_one_node = plan.block_nodes[block] >= 0
    if is_one_node:
        count = _propose_node(plan, data, work, position, rows, block)
    else:
        count = _propose_nodes(plan, data, work, position, rows, block)
    log_ratio = new_log_prior - log_prior
    for start in range(0, count, TILE):
        n = min(TILE, count - start)
        log_ratio += sum_of_changes(
            work.new_log_lik[start : start + n], work.log_lik, work.moved[start : start + n]
        )
    if not (math.isfinite(log_ratio) and work.state[3]):
        log_ratio = _unusual_ratio(work, new_log_prior, log_prior, count)
    accepted = log_u < log_ratio
    if accepted:
        for c in coordinates:
            position[plan.coordinates[c]] = work.candidate[c]
        if is_one_node:
            _accept_node(plan, work, block, count)
        else:
            _accept_nodes(plan, work, block)
        if not work.state[3]:
            work.state[3] = math.isfinite(_log_likelihood(work))
    return log_ratio, accepted, count


@njit(_nrt=False)  # type: ignore[untyped-decorator]
def _log_likelihood(work: Work) -> float:
    """Sum the log likelihoods of the current state, tile by tile."""
    total = 0.0
    for start in range(0, len(work.log_lik), TILE):
        total += total_of(work.log_lik[start : start + TILE])
    return total


@njit(_nrt=False)  # type: ignore[untyped-decorator]
def _begin(plan: Plan, data: Data, work: Work, position: Array, rows: Array) -> None:
    """Evaluate the current position on a new batch; its values on the last are of no use."""
    for r in range(len(rows)):
        for k in range(len(work.labels)):
            work.labels[k, r] = data.labels[rows[r], k]
    work.state[0], work.state[1], work.state[2], work.state[4] = 1, 0, 0, 0
    _read_inputs(plan, data, work, position, rows)
    top = len(plan.widths) - 1
    _renew(plan, work, position, top, top - 1)
    outputs, scale = plan.first_units[top], _scale(plan, position)
    for start in range(0, len(rows), TILE):
        n = min(TILE, len(rows) - start)
        log_likelihood(
            plan.likelihood, work.pre, outputs, start, work.labels, start, scale,
            plan.factor, work.scratch[:n], work.log_lik[start : start + n],
        )  # fmt: skip
    work.state[3] = math.isfinite(_log_likelihood(work))


def _cached_by(sources: str) -> Callable[..., None]:
    """Compile the sweeps with a cache on disk that follows all the sources.

    Numba's cache looks at this file's date and size and at this function's closure alone; so the
    sources of all that is compiled enter by the closure.
    """

    @njit(cache=True, nogil=True, _nrt=False)  # type: ignore[untyped-decorator]
    def run_sweeps(
        plan: Plan, data: Data, work: Work, position: Array, noise: Noise, results: Results
    ) -> None:
        sources  # noqa: B018
        num_blocks = len(plan.block_layers)
        for k in range(len(noise.z)):
            rows = noise.rows[k % len(noise.rows)]
            for block in range(num_blocks):
                for c in range(plan.block_starts[block], plan.block_starts[block + 1]):
                    work.increments[c] = noise.scales[block] * noise.z[k, plan.coordinates[c]]
            _begin(plan, data, work, position, rows)
            for block in range(num_blocks):
                log_ratio, accepted, count = _block_step(
                    plan, data, work, position, rows, block, noise.log_u[k, block]
                )
                results.log_ratios[k, block] = log_ratio
                results.accepted[k, block] = accepted
                results.moved_rows[k, block] = count
            log_density = plan.log_constant + _log_likelihood(work)
            for at in range(len(position)):
                log_density += _log_prior(plan, at, np.float64(position[at]))
                results.positions[k, at] = position[at]
            results.log_densities[k] = log_density

    compiled: Callable[..., None] = run_sweeps
    return compiled


FILES = [Path(__file__), Path(__file__).with_name("elementwise.py")]
run_sweeps = _cached_by(hashlib.sha256(b"".join(f.read_bytes() for f in FILES)).hexdigest())
