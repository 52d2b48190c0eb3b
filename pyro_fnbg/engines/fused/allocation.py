"""The memory of a chain's sweeps in the fused engine: how much of it, and where."""

from __future__ import annotations

import math
from itertools import count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.engines.fused.elementwise import LANES, rounded_up
from pyro_fnbg.engines.fused.memory import INPUT_TILE, TILE, TURN, Data, Net, Work
from pyro_fnbg.engines.fused.vectors import WIDTH

__all__ = ["make_works", "threads_that_pay"]

Array = NDArray[Any]

# Bytes of first-layer increments times inputs held at a time, of one thread: as many as stay in the
# last cache, and more where rows would have to be read anew for fewer pieces than they have inputs
DELTA_BYTES, MOST_DELTA_BYTES = 2**24, 2**27

PAGE = 4096  # bytes

# Rows that a thread has at least: with fewer, to wait for others at every block takes too much of
# what they save. And segments of a batch at most, whose log likelihoods are added up apart
FEWEST_ROWS, MOST_SEGMENTS = 512, 16


def threads_that_pay(num_rows: int, available: int) -> int:
    """Return how many threads share the rows of a batch, of those that are available."""
    return max(1, min(available, num_rows // FEWEST_ROWS, MOST_SEGMENTS // 2))


def make_works(
    net: Net, data: Data, num_rows: int, num_threads: int = 1, most_drawn: int = 1
) -> tuple[Work, ...]:
    """Allocate the memory of one chain, for each of the threads that share its rows.

    The segments do not depend on the number of threads. There is room for a draw of ``most_drawn``
    parameters from a Normal conditional.
    """
    # Two for each thread, so that three threads on eight have about as much to do
    num_segments = max(1, min(2 * (num_rows // FEWEST_ROWS), MOST_SEGMENTS))
    lanes = rounded_up(num_rows, LANES) // LANES
    bounds = [LANES * (lanes * segment // num_segments) for segment in range(num_segments + 1)]
    shares = [num_segments * thread // num_threads for thread in range(num_threads + 1)]
    # Each in lines of its own, or one thread's writing would slow down another's reading
    sums = _aligned((2, num_segments), np.dtype(np.float64), 0)
    arrivals = _zeros(_aligned((WIDTH // 8,), np.dtype(np.int64), 0))
    return tuple(
        _make_work(
            net,
            data,
            most_drawn,
            {
                "num_rows": min(bounds[end], num_rows) - bounds[first],
                "first_row": bounds[first],
                "num_threads": num_threads,
                "first_segment": first,
                "segment_ends": np.array(bounds[first + 1 : end + 1]) - bounds[first],
                "sums": sums,
                "arrivals": arrivals,
            },
        )
        for first, end in pairwise(shares)
    )


def _make_work(net: Net, data: Data, most_drawn: int, share: dict[str, Any]) -> Work:
    """Allocate the memory of one thread."""
    dtype, columns = data.inputs.dtype, data.labels.shape[1]
    rows = rounded_up(share["num_rows"], LANES)
    nodes, widest, num_params = net.widths[1:].sum(), net.widths[1:].max(), len(net.prior_locs)
    length = WIDTH // dtype.itemsize
    wide = rounded_up(int(widest), length)
    starts, at_once = _chunks(net, rows * dtype.itemsize)
    # Lines of a page, far apart: the first cache holds but few that begin alike
    lines = count(0, 13)

    def empty(*shape: int, kind: Any = dtype) -> NDArray[Any]:
        return _aligned(shape, np.dtype(kind), next(lines) % (PAGE // WIDTH - 1))

    return Work(
        **share,
        chunk_starts=starts,
        input_rows=empty(length, net.widths[0]),
        input_tile=empty(net.widths[0], INPUT_TILE),
        labels=empty(columns, rows),
        pre=empty(nodes, rows),
        act=empty(nodes, rows),
        deltas=empty(at_once, rows),
        log_lik=empty(rows),
        new_log_lik=empty(rows),
        new_pre=empty(rows),
        new_act=empty(rows),
        change=empty(rows),
        outgoing=empty(wide),
        above=empty(rows, wide),
        new_above=empty(length, wide),
        is_moved=empty(rows, kind=np.uint8),
        moved=empty(rows, kind=np.int32),
        least=empty(rows),
        new_least=empty(rows),
        label_tile=empty(columns, TILE),
        scratch=empty(2, TILE),
        pre_tile=empty(wide, TILE),
        act_tile=empty(widest, TILE),
        increments=empty(num_params),
        candidate=empty(num_params),
        kept=empty(num_params),
        root=empty(most_drawn, most_drawn, kind=np.float64),
        shift=empty(most_drawn, kind=np.float64),
        state=_zeros(empty(TURN + 1, kind=np.int64)),
    )


def _chunks(net: Net, bytes_of_piece: int) -> tuple[Array, int]:
    """Divide the pieces into those whose deltas are held at a time; return starts and the most."""
    wanted = min(int(net.widths[0]), MOST_DELTA_BYTES // bytes_of_piece)
    room = max(wanted, DELTA_BYTES // bytes_of_piece)
    starts, most = [0], 0
    for first, end in pairwise(net.piece_starts.tolist()):
        if end - starts[-1] > room and first > starts[-1]:
            starts.append(first)
        most = max(most, end - starts[-1])
    return np.array([*starts, len(net.piece_nodes)]), most


def _zeros(array: NDArray[Any]) -> NDArray[Any]:
    array[:] = 0
    return array


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any], line: int) -> NDArray[Any]:
    """Allocate an array at the start of a line of the cache, where vectors do not straddle two."""
    size = math.prod(map(int, shape)) * dtype.itemsize
    memory = np.empty(size + PAGE, np.uint8)
    start = WIDTH * line + -memory.ctypes.data % WIDTH
    return memory[start : start + size].view(dtype).reshape(shape)
