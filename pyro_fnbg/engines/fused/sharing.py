"""Sums over the rows of a batch, for the fused engine: the same whether threads share them or not.

The rows of a large batch come in segments. Each thread adds up its own, waits until the others have
done so too, and adds the sums of all segments in their order. So every thread finds the same
number, bit for bit, and takes the same decisions, without being told any.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from pyro_fnbg.engines.fused.elementwise import (
    INLINE,
    compiled,
    sum_of_changes,
    sum_of_products,
    total_of,
)
from pyro_fnbg.engines.fused.memory import TILE, TURN, Work

__all__ = [
    "add_up",
    "count_up",
    "let_others_run",
    "share_candidate",
    "share_change",
    "share_log_likelihood",
    "share_products",
    "shown_by",
]

Array = NDArray[Any]

# How often a thread looks whether the others are there before it lets somebody else have its core
PATIENCE = 2_000

# For what is not compiled: Python's sum is no single step
_COUNTING = threading.Lock()


def count_up(counter: Array) -> None:
    """Add 1 to a number that threads share; what was written before is there for all who see it."""
    with _COUNTING:
        counter[0] += 1


def shown_by(counter: Array) -> int:
    """Read a number that threads share, and with it what was written before it became that."""
    return int(counter[0])


def let_others_run() -> None:
    """Let another thread have this core, if there is one that waits for it."""
    os.sched_yield()


def _type_count_up(typingctx: Any, counter: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        builder.atomic_rmw("add", array.data, ir.IntType(64)(1), "seq_cst")
        return context.get_dummy_value()

    return types.void(counter), codegen


def _type_shown_by(typingctx: Any, counter: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.load_atomic(array.data, "seq_cst", align=8)

    return types.int64(counter), codegen


def _type_let_others_run(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # Of the C library of any system but Windows, where a thread waits without it
        if os.name == "posix":
            kind = ir.FunctionType(ir.IntType(32), ())
            builder.call(get_or_insert_function(builder.module, kind, "sched_yield"), ())
        return context.get_dummy_value()

    return types.void(), codegen


_count_up: Any = intrinsic(_type_count_up)
_shown_by: Any = intrinsic(_type_shown_by)
_let_others_run: Any = intrinsic(_type_let_others_run)


@overload(count_up)
def _compiled_count_up(counter: Any) -> Callable[..., Any]:
    def implementation(counter: Any) -> Any:
        _count_up(counter)

    return implementation


@overload(shown_by)
def _compiled_shown_by(counter: Any) -> Callable[..., Any]:
    def implementation(counter: Any) -> Any:
        return _shown_by(counter)

    return implementation


@overload(let_others_run)
def _compiled_let_others_run() -> Callable[..., Any]:
    def implementation() -> Any:
        _let_others_run()

    return implementation


@compiled(**INLINE)
def share_change(work: Work, count: int) -> None:
    """Add up what the rows that moved change the log likelihood by, segment by segment."""
    turn, first, last = work.state[TURN] & 1, 0, len(work.segment_ends) - 1
    for segment in range(len(work.segment_ends)):
        end = count
        if segment < last:
            end = first + _count_below(work.moved[first:count], work.segment_ends[segment])
        total = 0.0
        for start in range(first, end, TILE):
            stop = min(start + TILE, end)
            total += sum_of_changes(
                work.new_log_lik[start:stop], work.log_lik, work.moved[start:stop]
            )
        work.sums[turn, work.first_segment + segment] = total
        first = end


@compiled(**INLINE)
def share_log_likelihood(work: Work) -> None:
    """Add up the log likelihoods of the current state, segment by segment."""
    turn, first = work.state[TURN] & 1, 0
    for segment in range(len(work.segment_ends)):
        end, total = min(work.segment_ends[segment], work.num_rows), 0.0
        for start in range(first, end, TILE):
            total += total_of(work.log_lik[start : min(start + TILE, end)])
        work.sums[turn, work.first_segment + segment] = total
        first = end


@compiled(**INLINE)
def share_products(work: Work, one: Array, other: Array) -> None:
    """Add up the products of two numbers a row, segment by segment."""
    turn, first = work.state[TURN] & 1, 0
    for segment in range(len(work.segment_ends)):
        end, total = min(work.segment_ends[segment], work.num_rows), 0.0
        for start in range(first, end, TILE):
            stop = min(start + TILE, end)
            total += sum_of_products(one[start:stop], other[start:stop])
        work.sums[turn, work.first_segment + segment] = total
        first = end


@compiled(**INLINE)
def share_candidate(work: Work, count: int, is_difference: bool) -> None:
    """Add up a candidate's log likelihoods of all rows, or what they have above the current ones.

    Of rows that did not move that is 0, unless they are impossible.
    """
    turn, first, seen = work.state[TURN] & 1, 0, 0
    for segment in range(len(work.segment_ends)):
        end, total = min(work.segment_ends[segment], work.num_rows), 0.0
        for r in range(first, end):
            old = np.float64(work.log_lik[r])
            new = old
            if seen < count and work.moved[seen] == r:
                new = np.float64(work.new_log_lik[seen])
                seen += 1
            total += new - old if is_difference else new
        work.sums[turn, work.first_segment + segment] = total
        first = end


@compiled(**INLINE)
def add_up(work: Work) -> float:
    """Add the sums of all segments, once all threads have written theirs."""
    turn = work.state[TURN] & 1
    work.state[TURN] += 1
    if work.num_threads > 1:
        # Where the sums of the last turn are, nobody writes before all have read them
        count_up(work.arrivals)
        looks = 0
        while shown_by(work.arrivals) < work.state[TURN] * work.num_threads:
            looks += 1
            if looks > PATIENCE:
                let_others_run()
    total = 0.0
    for segment in range(work.sums.shape[1]):
        total += work.sums[turn, segment]
    return total


@compiled()
def _count_below(numbers: Array, bound: int) -> int:
    """Count the numbers below a bound, which are the first of them."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < bound:
            low = middle + 1
        else:
            high = middle
    return low
