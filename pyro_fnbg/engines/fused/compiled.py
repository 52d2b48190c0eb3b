"""The fused engine's sweep, compiled by Numba: every block of a network once, in place.

Everything is computed afresh at the start of a sweep, so rounding never adds up over sweeps, and a
sweep does not depend on how many of them a call makes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.core.compiling import kept_on_disk
from pyro_fnbg.engines.fused.elementwise import INLINE, compiled
from pyro_fnbg.engines.fused.memory import (
    ACT,
    CHUNK,
    IS_FINITE,
    LEAST,
    PRE,
    Data,
    Kind,
    MoveData,
    Net,
    Noise,
    Results,
    Work,
)
from pyro_fnbg.engines.fused.moves import displace, learn
from pyro_fnbg.engines.fused.normal import draw_normal
from pyro_fnbg.engines.fused.priors import log_prior_at
from pyro_fnbg.engines.fused.proposals import evaluate, keep
from pyro_fnbg.engines.fused.rescaling import rescale
from pyro_fnbg.engines.fused.sharing import (
    add_up,
    share_candidate,
    share_change,
    share_log_likelihood,
)

__all__ = ["run_sweeps"]

Array = NDArray[Any]


@compiled(**INLINE)
def _unusual_ratio(work: Work, new_log_prior: float, log_prior: float, count: int) -> float:
    """Compute the log ratio where a log density is not finite; see ``step.log_accept_ratio``."""
    share_candidate(work, count, True)
    difference = (new_log_prior - log_prior) + add_up(work)
    share_log_likelihood(work)
    current = log_prior + add_up(work)
    share_candidate(work, count, False)
    candidate = new_log_prior + add_up(work)
    if math.isfinite(difference):
        return difference
    if math.isfinite(candidate):
        return difference if math.isfinite(current) else math.inf
    return candidate if candidate == -math.inf else math.nan


@compiled(**INLINE)
def _shared_log_prior(net: Net, position: Array, block: int) -> float:
    """Score the coordinates whose priors change with a block that shares them with scales."""
    total = 0.0
    for term in range(net.term_starts[block], net.term_starts[block + 1]):
        at = net.terms[term]
        total += log_prior_at(net, position, at, np.float64(position[at]))
    return total


@compiled(**INLINE)
def _drawn(net: Net, moves: MoveData, position: Array, at: int, minus_log_gamma: float) -> float:
    """Draw a log variance from its conditional; see ``Conjugate.draw``."""
    squares = 0.0
    for m in range(moves.member_starts[at], moves.member_starts[at + 1]):
        error = np.float64(position[moves.members[m]]) - net.prior_locs[moves.members[m]]
        squares += error * error
    return math.log(moves.rates[at] + 0.5 * squares) + minus_log_gamma


@compiled(**INLINE)
def _propose(
    net: Net, moves: MoveData, work: Work, position: Array, block: int
) -> tuple[float, float]:
    """Write down a block's candidate; return the log prior before and after, up to a constant."""
    coordinates = range(net.block_starts[block], net.block_starts[block + 1])
    is_shared = net.term_starts[block] < net.term_starts[block + 1]
    kind, log_prior, new_log_prior = moves.kinds[block], 0.0, 0.0
    for c in coordinates:
        at = net.coordinates[c]
        work.kept[c] = position[at]
        if kind == Kind.CONJUGATE:
            work.candidate[c] = _drawn(net, moves, position, at, np.float64(work.increments[c]))
        else:
            work.candidate[c] = position[at] + work.increments[c]
        # What PCN would take out of the ratio does not enter it
        if not (kind == Kind.PCN or is_shared):
            log_prior += log_prior_at(net, position, at, np.float64(work.kept[c]))
            new_log_prior += log_prior_at(net, position, at, np.float64(work.candidate[c]))
    # The ratio of a draw from a conditional is 1
    if is_shared and kind != Kind.CONJUGATE:
        log_prior = _shared_log_prior(net, position, block)
        for c in coordinates:
            position[net.coordinates[c]] = work.candidate[c]
        new_log_prior = _shared_log_prior(net, position, block)
        for c in coordinates:
            position[net.coordinates[c]] = work.kept[c]
    return log_prior, new_log_prior


@compiled(**INLINE)
def _step(
    net: Net,
    moves: MoveData,
    data: Data,
    work: Work,
    position: Array,
    rows: Array,
    block: int,
    log_u: float,
) -> tuple[float, bool, int]:
    """Propose to move one block, and keep the candidate or leave everything as it was.

    With block -1, evaluate the position on a new batch. That is a step like others so that what
    they have in common is compiled once.
    """
    log_prior, new_log_prior, correction, count = 0.0, 0.0, 0.0, 0
    if block >= 0:
        if moves.kinds[block] == Kind.GIBBS:
            correction = draw_normal(net, moves, work, position, block)
        log_prior, new_log_prior = _propose(net, moves, work, position, block)
    # Scales of priors lie above the observation scale, and no row sees them
    is_seen = block < 0 or net.block_layers[block] <= len(net.widths)
    if is_seen:
        count = evaluate(net, data, work, position, rows, block)
    if block < 0:
        for r in range(work.num_rows):
            work.log_lik[r] = work.new_log_lik[r]
        work.state[IS_FINITE] = math.isfinite(_log_likelihood(work))
        return 0.0, True, count
    log_ratio = new_log_prior - log_prior
    if is_seen:
        share_change(work, count)
        log_ratio += add_up(work)
    is_usual = math.isfinite(log_ratio) and work.state[IS_FINITE]
    if not (is_usual or moves.kinds[block] == Kind.CONJUGATE):
        log_ratio = _unusual_ratio(work, new_log_prior, log_prior, count)
    if moves.kinds[block] == Kind.GIBBS:
        log_ratio += correction
    accepted = log_u < log_ratio
    if accepted:
        for c in range(net.block_starts[block], net.block_starts[block + 1]):
            position[net.coordinates[c]] = work.candidate[c]
        if is_seen:
            keep(net, work, block, count)
        if not work.state[IS_FINITE]:
            work.state[IS_FINITE] = math.isfinite(_log_likelihood(work))
    return log_ratio, accepted, count


@compiled(**INLINE)
def _log_likelihood(work: Work) -> float:
    """Sum the log likelihoods of the current state."""
    share_log_likelihood(work)
    return add_up(work)


@compiled(**INLINE)
def _begin(data: Data, work: Work, rows: Array) -> None:
    """Take up a new batch; what is known of the last is of no use."""
    for r in range(len(work.log_lik)):
        for k in range(len(work.labels)):
            work.labels[k, r] = data.labels[rows[min(r, work.num_rows - 1)], k]
    work.state[PRE], work.state[ACT], work.state[CHUNK], work.state[LEAST] = 1, 0, -1, 0


def _cached_by(sources: str) -> Callable[..., None]:
    """Compile the sweeps with a cache on disk that follows all the sources.

    Numba's cache looks at this file's date and size and at this function's closure alone; so the
    sources of all that is compiled enter by the closure.
    """

    @kept_on_disk
    @compiled(nogil=True, no_cpython_wrapper=False)
    def run_sweeps(
        net: Net,
        moves: MoveData,
        data: Data,
        work: Work,
        position: Array,
        noise: Noise,
        results: Results,
    ) -> None:
        sources  # noqa: B018
        num_blocks = len(net.block_layers)
        for k in range(len(noise.z)):
            rows = noise.rows[k % len(noise.rows)][work.first_row : work.first_row + work.num_rows]
            displace(net, moves, work, position, noise, k)
            _begin(data, work, rows)
            for block in range(-1, num_blocks):
                log_u = noise.log_u[k, max(block, 0)]
                log_ratio, accepted, count = _step(
                    net, moves, data, work, position, rows, block, log_u
                )
                if block < 0:
                    continue
                results.log_ratios[k, block] = log_ratio
                results.accepted[k, block] = accepted
                results.moved_rows[k, block] = count
                if len(noise.gains) > 0:
                    learn(noise, block, log_ratio, noise.gains[k])
                    results.scales[k, block] = noise.scales[block]
            rescale(net, moves, work, position, noise, k)
            log_density = net.log_constant + _log_likelihood(work)
            for at in range(len(position)):
                log_density += log_prior_at(net, position, at, np.float64(position[at]))
                results.positions[k, at] = position[at]
            results.log_densities[k] = log_density

    return run_sweeps


_SOURCES = (
    "compiled.py", "elementwise.py", "layers.py", "likelihoods.py", "memory.py", "moves.py",
    "normal.py", "priors.py", "proposals.py", "rescaling.py", "sharing.py", "vectors.py",
)  # fmt: skip
run_sweeps = _cached_by(
    hashlib.sha256(
        b"".join(Path(__file__).with_name(name).read_bytes() for name in _SOURCES)
    ).hexdigest()
)
