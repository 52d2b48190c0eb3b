"""Many chains in one process: where they start, and who runs the next sweeps of which."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.chains.setup import RunState, after, next_sweeps, start_chain, start_run
from pyro_fnbg.config import Config
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.engines.base import SweepResults

__all__ = ["Piece", "run_chains", "start_chains"]

# A piece is doubled until it takes so many seconds, within a bound on the numbers it holds
ENOUGH_SECONDS, MAX_NUMBERS = 0.1, 2**20


class Piece(NamedTuple):
    """Report some sweeps of one chain, all of the warmup or all of the draws.

    Attributes:
        chain: The chain's number.
        before: Its state before them.
        results: What the engine said of them, without a dimension for chains.
    """

    chain: int
    before: RunState
    results: SweepResults


@dataclass
class _Group:
    """Hold chains that go through the engine together.

    Attributes:
        chains: Their numbers.
        runs: Their states.
        count: Number of sweeps of the next piece, at most.
    """

    chains: Sequence[int]
    runs: list[RunState]
    count: int = field(default=1)


def start_chains(
    config: Config,
    warmup_steps: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    initial_params: Sequence[Mapping[str, Tensor] | None],
    keys: Sequence[ChainKey],
) -> list[RunState]:
    """Inspect the model once, and place every chain where it would start by itself.

    Raises:
        ValueError: If the model, its data or the initial values do not fit.
    """
    first = start_run(config, warmup_steps, args, kwargs, initial_params[0], keys[0])
    return [first] + [
        start_chain(first, config, args, kwargs, params, key)
        for params, key in zip(initial_params[1:], keys[1:], strict=True)
    ]


def run_chains(runs: Sequence[RunState], num_sweeps: int) -> Generator[Piece]:
    """Run sweeps of all chains, piece by piece: what each chain does depends on nothing else.

    Chains go through the feedforward engine together; those of the fused engine run on threads, up
    to ``torch.get_num_threads()``; others take turns.

    Args:
        runs: The chains at their start.
        num_sweeps: Number of sweeps of each, warmup included.
    """
    engine, everything = runs[0].engine, range(len(runs))
    numbers = [everything] if engine.joins_chains else [[chain] for chain in everything]
    groups = [_Group(chains, [runs[chain] for chain in chains]) for chains in numbers]
    if num_sweeps == 0:
        return
    if engine.is_compiled:
        yield from _on_threads(groups, num_sweeps)
    else:
        while groups:
            for group in groups:
                yield from _pieces(group, _advance(group, num_sweeps))
            groups = [group for group in groups if group.runs[0].sweeps < num_sweeps]


def _on_threads(groups: Sequence[_Group], num_sweeps: int) -> Generator[Piece]:
    """Run the groups side by side, each piece on the next thread that is free."""
    with ThreadPoolExecutor(min(len(groups), torch.get_num_threads())) as pool:

        def submit(group: _Group) -> Future[list[SweepResults]]:
            return pool.submit(_advance, group, num_sweeps)

        pending = {submit(group): group for group in groups}
        try:
            while pending:
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    group = pending.pop(future)
                    pieces = _pieces(group, future.result())
                    if group.runs[0].sweeps < num_sweeps:
                        pending[submit(group)] = group
                    yield from pieces
        finally:
            pool.shutdown(cancel_futures=True)


def _advance(group: _Group, num_sweeps: int) -> list[SweepResults]:
    """Run the next sweeps of a group, and learn from the time they take how many to run next."""
    run = group.runs[0]
    if run.in_warmup:
        count = min(group.count, run.warmup_steps - run.sweeps)
    else:
        draws = max(1, group.count // run.thin)
        count = min(draws * run.thin, num_sweeps - run.sweeps)
    started = time.perf_counter()
    results = next_sweeps(group.runs, count)
    if time.perf_counter() - started < ENOUGH_SECONDS:
        numbers = len(group.chains) * len(run.position)
        group.count = max(1, min(2 * group.count, MAX_NUMBERS // numbers))
    else:
        group.count = max(1, group.count // 2)
    return results


def _pieces(group: _Group, results: Sequence[SweepResults]) -> list[Piece]:
    """Take a group's chains on to where the engine left them."""
    befores = group.runs
    group.runs = [after(run, result) for run, result in zip(befores, results, strict=True)]
    return list(map(Piece, group.chains, befores, results))
