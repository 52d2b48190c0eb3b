"""A sweep inside each engine, against width, depth, size of the batch, parts and chains."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from benchmarks.engine_calls import EngineCalls
from benchmarks.lengths import LENGTH
from benchmarks.recording import Label, in_turn, keep, measure
from benchmarks.works import MEDIUM, Work

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

ENGINES = ("fused", "feedforward", "trace")


def grid() -> dict[str, tuple[Work, int]]:
    """Change one thing at a time; each case is what to sample and in how many chains."""
    cases = {}
    for width in (5, 10, 20, 40, *([80] if LENGTH.wide else [])):
        cases[f"width {width}"] = replace(MEDIUM, widths=(50, width, width, 5))
    for depth in (1, 2, 4, 8):
        cases[f"depth {depth}"] = replace(MEDIUM, widths=(50, *[10] * depth, 5))
    for size in (100, 500, 2000, *([10_000] if LENGTH.wide else [])):
        cases[f"batch {size}"] = replace(MEDIUM, batch_size=size)
    for parts in (1, 5, 25):
        cases[f"parts {parts}"] = replace(MEDIUM, parts=parts)
    found = {case: (work, 1) for case, work in cases.items()}
    return found | {f"chains {chains}": (MEDIUM, chains) for chains in (1, 2, 4, 10)}


GRID = grid()


@in_turn([(case, who) for case in GRID for who in ENGINES], LENGTH.turns)
def test_sweep(benchmark: BenchmarkFixture, case: str, who: str, turn: int) -> None:
    calls = calls_of(case, who)
    label = Label("sweeps", case, who, turn)
    measure(benchmark, label, calls, calls.sweeps, LENGTH.rounds, calls.prepare)
    keep(benchmark, **calls.values())


@lru_cache(maxsize=len(ENGINES))
def calls_of(case: str, who: str) -> EngineCalls:
    """Set an engine up once for all its turns."""
    work, chains = GRID[case]
    return EngineCalls(work, who, chains)
