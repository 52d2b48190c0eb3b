"""Many chains in one process: where they start, and who runs the next sweeps of which."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.chains.pace import Pace
from pyro_fnbg.chains.setup import start_chain, start_run
from pyro_fnbg.config import Config
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.core.tasks import as_they_end, on_threads
from pyro_fnbg.engines.base import Problem, Record
from pyro_fnbg.model.bound import BoundModel

__all__ = ["Piece", "equally_far", "run_chain", "run_chains", "start_chains"]

# A call of the engine is made longer until it takes so many seconds, within a bound on the numbers
# that its record holds
ENOUGH_SECONDS, MAX_NUMBERS = 0.1, 2**20


class Piece(NamedTuple):
    """Report some sweeps of one chain, all of the warmup or all of the draws.

    Attributes:
        number: The chain's number.
        before: Its state before them.
        after: Its state after them.
        record: What happened in them, without a dimension for chains.
    """

    number: int
    before: ChainState
    after: ChainState
    record: Record


@dataclass
class _Group:
    """Hold chains that go through the engine together.

    Attributes:
        numbers: Their numbers.
        chains: Their states.
        pace: How many sweeps the next call makes.
    """

    numbers: Sequence[int]
    chains: Sequence[ChainState]
    pace: Pace


def start_chains(
    config: Config,
    warmup_steps: int,
    bound: BoundModel,
    initial_params: Sequence[Mapping[str, Tensor] | None],
    keys: Sequence[ChainKey],
) -> tuple[Problem, list[ChainState]]:
    """Inspect the model once, and place every chain where it would start by itself.

    Raises:
        ValueError: If the model, its data or the initial values do not fit.
    """
    problem, first = start_run(config, warmup_steps, bound, initial_params[0], keys[0])
    others = [
        start_chain(problem, config.init_strategy, params, key)
        for params, key in zip(initial_params[1:], keys[1:], strict=True)
    ]
    return problem, [first, *others]


def run_chains(
    problem: Problem,
    chains: Sequence[ChainState],
    num_sweeps: int,
    stops: Callable[[], bool] = lambda: False,
) -> Generator[Piece]:
    """Run sweeps of all chains, piece by piece: what each chain does depends on nothing else.

    Chains go through the feedforward engine together; those of the fused engine run on threads, up
    to ``torch.get_num_threads()``, which few chains share out; others take turns.

    Args:
        problem: What the chains share.
        chains: The chains at their start.
        num_sweeps: Number of sweeps of each, warmup and those made included.
        stops: Whether to end early, once the sweeps that are being made are done: a few in any
            case, so that runs which are stopped again and again get somewhere.
    """

    def unfinished(groups: Iterable[_Group]) -> list[_Group]:
        return [] if stops() else [one for one in groups if one.chains[0].sweeps < num_sweeps]

    groups = [
        _new_group(own, [chains[number] for number in own], num_sweeps)
        for own in _together(problem, chains)
        if chains[own[0]].sweeps < num_sweeps
    ]
    if problem.engine.is_compiled:
        if groups:
            yield from _on_threads(problem, groups, num_sweeps, unfinished)
        return
    while groups:
        for group in groups:
            yield from _advance(problem, group, num_sweeps)
        groups = unfinished(groups)


def _together(problem: Problem, chains: Sequence[ChainState]) -> list[list[int]]:
    """Say which chains go through the engine together: those that are equally far, if any."""
    if not problem.engine.joins_chains:
        return [[number] for number in range(len(chains))]
    return equally_far(dict(enumerate(chains)))


def equally_far(chains: Mapping[int, ChainState]) -> list[list[int]]:
    """Group the numbers of chains that have made as many sweeps."""
    found: dict[int, list[int]] = {}
    for number, chain in chains.items():
        found.setdefault(chain.sweeps, []).append(number)
    return list(found.values())


def run_chain(
    problem: Problem, number: int, chain: ChainState, num_sweeps: int
) -> Generator[Piece]:
    """Run what is left of one chain's sweeps, piece by piece, in this thread.

    Args:
        problem: What it shares with others.
        number: Its number.
        chain: Where it is.
        num_sweeps: Number of its sweeps, those made and those of the warmup included.
    """
    group = _new_group([number], [chain], num_sweeps)
    while group.chains[0].sweeps < num_sweeps:
        yield from _advance(problem, group, num_sweeps)


def _new_group(numbers: Sequence[int], chains: Sequence[ChainState], num_sweeps: int) -> _Group:
    return _Group(numbers, chains, Pace(ENOUGH_SECONDS, num_sweeps, MAX_NUMBERS))


def _on_threads(
    problem: Problem,
    groups: Sequence[_Group],
    num_sweeps: int,
    unfinished: Callable[[Iterable[_Group]], list[_Group]],
) -> Generator[Piece]:
    """Run the groups side by side, each piece on the next thread that is free."""

    def run(_: None, group: _Group) -> tuple[_Group, list[Piece]]:
        return group, _advance(problem, group, num_sweeps)

    def following(done: tuple[_Group, list[Piece]]) -> _Group | None:
        return next(iter(unfinished(done[:1])), None)

    available = torch.get_num_threads()
    count = min(len(groups), available)
    with on_threads(count, None, each=available // count) as workers:
        for _, pieces in as_they_end(workers, run, groups, following):
            yield from pieces


def _advance(problem: Problem, group: _Group, num_sweeps: int) -> list[Piece]:
    """Run the next sweeps of a group, and learn from the time they take how many to run next."""
    befores = group.chains
    first = befores[0]
    count = group.pace.next_sweeps(problem, first, len(befores))
    count = min(count, num_sweeps - first.sweeps)
    started = time.perf_counter()
    group.chains, record = problem.engine.sweeps(problem, befores, count)
    group.pace.learn(time.perf_counter() - started)
    records = [record.of_chain(place) for place in range(len(befores))]
    return list(map(Piece, group.numbers, befores, group.chains, records))
