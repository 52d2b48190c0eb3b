"""All draws and rows, a bounded number at a time."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyro_fnbg.core.bars import progress_bar
from pyro_fnbg.core.checks import as_finite, check_flag, shown
from pyro_fnbg.core.tasks import Workers, check_client, in_place, on_cluster, on_threads, ordered
from pyro_fnbg.prediction.labels import first_place
from pyro_fnbg.prediction.responses import ClassResponse, NumberResponse, Response
from pyro_fnbg.prediction.sources import Source
from pyro_fnbg.prediction.totals import ClassTotals, NumberTotals

__all__ = ["MEMORY_LIMIT", "Effort", "Totals", "Wanted", "for_each_draw", "totals_by_rows"]

Totals = ClassTotals | NumberTotals

# Of the working memory, in megabytes: results and what a model itself holds come on top
MEMORY_LIMIT = 256.0
# A thousand terabytes
MAX_MEMORY_LIMIT = 1e9
# Evaluation takes so small a share of it: operations make a few copies of what they are given
SHARE = 4
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
        client: A Dask client on whose workers the tasks run; None for threads of this process.
    """

    memory_limit: float = MEMORY_LIMIT
    progress: bool = True
    client: Any = None

    def __post_init__(self) -> None:
        limit = as_finite(self.memory_limit)
        if limit is None or not 1 <= limit <= MAX_MEMORY_LIMIT:
            raise ValueError(
                f"memory_limit must be a number of megabytes, 1 or more and at most "
                f"{MAX_MEMORY_LIMIT:g}; got {shown(self.memory_limit)}"
            )
        check_flag("progress", self.progress)
        if self.client is not None:
            check_client(self.client)

    @property
    def max_numbers(self) -> int:
        """How many numbers in double precision may be held."""
        return int(self.memory_limit * 1e6 / 8)

    def num_workers(self, source: Source) -> int:
        """Return how many tasks run at once."""
        if self.client is not None:
            threads: dict[str, int] = self.client.nthreads()
            return sum(threads.values())
        num_threads: int = torch.get_num_threads()
        return num_threads if source.is_divisible else 1

    def max_numbers_of_one(self, source: Source) -> int:
        """Return how many numbers one task may hold while it evaluates."""
        num_here = 1 if self.client is not None else self.num_workers(source)
        return self.max_numbers // (SHARE * num_here)

    def workers(self, source: Source, job: Job) -> AbstractContextManager[Workers]:
        """Have what runs the tasks."""
        if self.client is not None:
            known = {"model": getattr(source, "model", None), "samples": source.samples}
            return on_cluster(self.client, job, known)
        count = self.num_workers(source)
        return on_threads(count, job) if count > 1 else in_place(job)

    def bar(self, source: Source) -> tqdm:
        """Return a bar that counts rows under draws."""
        return progress_bar(
            source.num_rows * source.num_draws,
            self.progress,
            desc="predict",
            unit=" rows",
            unit_scale=True,
            delay=PATIENCE,
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


class Job(NamedTuple):
    """Hold what all tasks share.

    Attributes:
        source: What gives the responses.
        y: What was observed, if anything.
        wanted: What is wanted of them.
        draws_at_a_time: How many draws to evaluate together.
    """

    source: Source
    y: Tensor | None
    wanted: Wanted
    draws_at_a_time: int


class Task(NamedTuple):
    """Say which rows and draws a task is about."""

    rows: slice
    draws: slice

    @property
    def size(self) -> int:
        """Rows times draws."""
        num_rows: int = self.rows.stop - self.rows.start
        num_draws: int = self.draws.stop - self.draws.start
        return num_rows * num_draws


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
    draws_at_a_time, rows_at_a_time = source.chunk(how.max_numbers_of_one(source))
    if wanted.quantiles and source.is_divisible:
        # The parameters of all draws stay until the rows are done, such as means and standard
        # deviations, then a copy in double precision
        numbers = 2 * _num_parameters(source.first) * source.num_draws
        numbers *= source.first.means[0, 0].numel()
        rows_at_a_time = min(rows_at_a_time, max(1, how.max_numbers // numbers))
    draws_a_task = max(draws_at_a_time, -(-source.num_draws // MIN_TASKS))
    parts = list(_pieces(slice(0, source.num_rows), rows_at_a_time))
    tasks = (
        Task(rows, draws)
        for rows in parts
        for chain in chains
        for segment in chain
        for draws in _pieces(segment, draws_a_task)
    )
    job = Job(source, y, wanted, draws_at_a_time)
    with how.bar(source) as bar, how.workers(source, job) as workers:
        found = ordered(workers, _total, tasks, how.num_workers(source))

        def segment_total(rows: slice, segment: slice) -> Totals:
            totals = []
            for draws in _pieces(segment, draws_a_task):
                totals.append(next(found))
                bar.update(Task(rows, draws).size)
            return functools.reduce(operator.add, totals)

        for rows in parts:
            yield rows, [[segment_total(rows, segment) for segment in chain] for chain in chains]


def for_each_draw(
    source: Source, function: Callable[[Response, slice], Tensor], how: Effort
) -> Tensor:
    """Evaluate something of every row under every draw, one part after the other.

    Args:
        source: What gives the responses.
        function: From a response and which rows it is of to a tensor ``(draws, rows, ...)``.
        how: How the work is done.

    Returns:
        A tensor of shape ``(draws, rows, ...)``.
    """
    draws_at_a_time, rows_at_a_time = source.chunk(how.max_numbers // SHARE)
    result: Tensor | None = None
    with how.bar(source) as bar:
        for rows in _pieces(slice(0, source.num_rows), rows_at_a_time):
            for draws in _pieces(slice(0, source.num_draws), draws_at_a_time):
                found = function(source.response(draws, rows), rows)
                if result is None:
                    shape = (source.num_draws, source.num_rows, *found.shape[2:])
                    result = found.new_empty(shape)
                result[draws, rows] = found
                bar.update(Task(rows, draws).size)
    assert result is not None
    return result


@torch.no_grad()
def _total(job: Job, task: Task) -> Totals:
    """Sum over the draws of a task.

    Where responses are drawn, they are the same each time.
    """
    observed = None if job.y is None else job.y[task.rows]
    # Random numbers are those of the process, so that threads would be in each other's way
    is_random = job.wanted.quantiles and not job.source.is_divisible
    with torch.random.fork_rng(enabled=is_random):
        if is_random:
            torch.manual_seed(task.rows.start + job.source.num_rows * task.draws.start)
        parts = (
            _total_of(job.source.response(few, task.rows), observed, job.wanted)
            for few in _pieces(task.draws, job.draws_at_a_time)
        )
        total = functools.reduce(operator.add, parts)
    _check_finite(total, task)
    return total


def _num_parameters(response: Response) -> int:
    """Return how many numbers a draw of one number's distribution takes, 2 at least."""
    parts = response.parts if isinstance(response, NumberResponse) else None
    return 2 if parts is None else max(2, len(parts.parameters))


def _check_finite(total: Totals, task: Task) -> None:
    """Refuse what would make a row's prediction no number, or the first of the classes."""
    if place := first_place(~total.mean.isfinite()):
        raise ValueError(
            f"the response of row {task.rows.start + place[0]} of x is not finite under one "
            f"of the draws {task.draws.start} to {task.draws.stop - 1}: samples or x hold numbers "
            "that are too large, or none"
        )


def _total_of(response: Response, y: Tensor | None, wanted: Wanted) -> Totals:
    if isinstance(response, ClassResponse):
        return ClassTotals.of(response, wanted.entropies)
    return NumberTotals.of(response, y, wanted.quantiles)


def _pieces(whole: slice, size: int) -> Iterator[slice]:
    for start in range(whole.start, whole.stop, size):
        yield slice(start, min(start + size, whole.stop))
