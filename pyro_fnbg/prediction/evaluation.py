"""All draws and rows, a bounded number at a time."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyro_fnbg.core.checks import as_finite, check_flag, shown
from pyro_fnbg.prediction.responses import ClassResponse, Response
from pyro_fnbg.prediction.sources import Source
from pyro_fnbg.prediction.totals import ClassTotals, NumberTotals

__all__ = ["MEMORY_LIMIT", "Effort", "Totals", "Wanted", "for_each_draw", "totals_by_rows"]

Totals = ClassTotals | NumberTotals

# Of the working memory, in megabytes: results and what a model itself holds come on top
MEMORY_LIMIT = 256.0
# Seconds before a bar is shown
PATIENCE = 2.0
# The draws are cut into so many tasks at least, so that a bar moves
MIN_TASKS = 16


@dataclass(frozen=True)
class Effort:
    """Say how the work is done, which changes no result.

    Attributes:
        memory_limit: Megabytes of working memory.
        progress: Whether to show a bar on long work.
    """

    memory_limit: float = MEMORY_LIMIT
    progress: bool = True

    def __post_init__(self) -> None:
        limit = as_finite(self.memory_limit)
        if limit is None or limit < 1:
            raise ValueError(
                f"memory_limit must be a number of megabytes, 1 or more; got "
                f"{shown(self.memory_limit)}"
            )
        check_flag("progress", self.progress)

    @property
    def max_numbers(self) -> int:
        """How many numbers in double precision may be held."""
        return int(self.memory_limit * 1e6 / 8)

    def bar(self, total: int) -> tqdm:
        """Return a bar that counts rows under draws."""
        return tqdm(
            total=total,
            desc="predict",
            unit=" rows",
            unit_scale=True,
            delay=PATIENCE,
            disable=not self.progress,
        )


@dataclass(frozen=True)
class Wanted:
    """Say what is wanted of responses beside their means.

    Attributes:
        entropies: Whether entropies of classes are.
        quantiles: Whether quantiles of numbers are.
    """

    entropies: bool = False
    quantiles: bool = False


def totals_by_rows(
    source: Source, y: Tensor | None, wanted: Wanted, chains: Sequence[Sequence[slice]], how: Effort
) -> Iterator[tuple[slice, list[list[Totals]]]]:
    """Evaluate all rows, a part of them after the other.

    Args:
        source: What gives the responses.
        y: What was observed, if anything.
        wanted: What is wanted of them.
        chains: The draws of each chain, in segments.
        how: How the work is done.

    Yields:
        The rows, and for each chain the totals of its segments.
    """
    # Evaluation takes a quarter: operations make a few copies of what they are given
    draws_at_a_time, rows_at_a_time = source.chunk(how.max_numbers // 4)
    if wanted.quantiles:
        # Means and standard deviations of all draws stay until the rows are done, then a copy of
        # both in double precision
        numbers = 4 * source.num_draws * source.first.means[0, 0].numel()
        rows_at_a_time = min(rows_at_a_time, max(1, how.max_numbers // numbers))
    draws_a_task = max(draws_at_a_time, -(-source.num_draws // MIN_TASKS))
    with how.bar(source.num_rows * source.num_draws) as bar:
        for rows in _pieces(slice(0, source.num_rows), rows_at_a_time):
            totals: list[list[Totals]] = []
            for chain in chains:
                totals.append([])
                for segment in chain:
                    parts = []
                    for draws in _pieces(segment, draws_a_task):
                        parts.append(_total(source, y, wanted, rows, draws, draws_at_a_time))
                        bar.update((rows.stop - rows.start) * (draws.stop - draws.start))
                    totals[-1].append(functools.reduce(operator.add, parts))
            yield rows, totals


def for_each_draw(
    source: Source, function: Callable[[Response, slice], Tensor], how: Effort
) -> Tensor:
    """Evaluate something of every row under every draw.

    Args:
        source: What gives the responses.
        function: From a response and which rows it is of to a tensor ``(draws, rows, ...)``.
        how: How the work is done.

    Returns:
        A tensor of shape ``(draws, rows, ...)``.
    """
    draws_at_a_time, rows_at_a_time = source.chunk(how.max_numbers // 4)
    result: Tensor | None = None
    with how.bar(source.num_rows * source.num_draws) as bar:
        for rows in _pieces(slice(0, source.num_rows), rows_at_a_time):
            for draws in _pieces(slice(0, source.num_draws), draws_at_a_time):
                found = function(source.response(draws, rows), rows)
                if result is None:
                    shape = (source.num_draws, source.num_rows, *found.shape[2:])
                    result = found.new_empty(shape)
                result[draws, rows] = found
                bar.update(found.shape[0] * found.shape[1])
    assert result is not None
    return result


def _total(
    source: Source,
    y: Tensor | None,
    wanted: Wanted,
    rows: slice,
    draws: slice,
    draws_at_a_time: int,
) -> Totals:
    """Sum over some draws for some rows.

    Where responses are drawn, they are the same each time.
    """
    observed = None if y is None else y[rows]
    with torch.random.fork_rng(enabled=wanted.quantiles):
        if wanted.quantiles:
            torch.manual_seed(rows.start + source.num_rows * draws.start)
        parts = (
            _total_of(source.response(few, rows), observed, wanted)
            for few in _pieces(draws, draws_at_a_time)
        )
        return functools.reduce(operator.add, parts)


def _total_of(response: Response, y: Tensor | None, wanted: Wanted) -> Totals:
    if isinstance(response, ClassResponse):
        return ClassTotals.of(response, wanted.entropies)
    return NumberTotals.of(response, y, wanted.quantiles)


def _pieces(whole: slice, size: int) -> Iterator[slice]:
    for start in range(whole.start, whole.stop, size):
        yield slice(start, min(start + size, whole.stop))
