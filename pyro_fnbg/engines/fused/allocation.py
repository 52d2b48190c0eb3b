"""The memory of a chain's sweeps in the fused engine: how much of it, and where."""

from __future__ import annotations

import math
from itertools import count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.engines.fused.elementwise import LANES
from pyro_fnbg.engines.fused.memory import INPUT_TILE, TILE, Data, Net, Work

__all__ = ["make_work"]

Array = NDArray[Any]

# Bytes of first-layer increments times inputs held at a time, of one chain: as many as stay in the
# last cache, and more where rows would have to be read anew for fewer pieces than they have inputs
DELTA_BYTES, MOST_DELTA_BYTES = 2**24, 2**27

CACHE_LINE, PAGE = 64, 4096  # bytes


def make_work(net: Net, data: Data, num_rows: int) -> Work:
    """Allocate the memory of one chain."""
    dtype, columns, rows = data.inputs.dtype, data.labels.shape[1], -(-num_rows // LANES) * LANES
    nodes, widest, num_params = net.widths[1:].sum(), net.widths[1:].max(), len(net.prior_locs)
    length = CACHE_LINE // dtype.itemsize
    wide = -(-int(widest) // length) * length
    starts, at_once = _chunks(net, rows * dtype.itemsize)
    # Lines of a page, far apart: the first cache holds but few that begin alike
    lines = count(0, 13)

    def empty(*shape: int, kind: Any = dtype) -> NDArray[Any]:
        return _aligned(shape, np.dtype(kind), next(lines) % (PAGE // CACHE_LINE - 1))

    return Work(
        num_rows=num_rows,
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
        state=np.zeros(5, np.int64),
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


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any], line: int) -> NDArray[Any]:
    """Allocate an array at the start of a line of the cache, where vectors do not straddle two."""
    size = math.prod(map(int, shape)) * dtype.itemsize
    memory = np.empty(size + PAGE, np.uint8)
    start = CACHE_LINE * line + -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)
