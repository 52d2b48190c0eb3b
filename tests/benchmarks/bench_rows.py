"""One chain on one thread and on two, against the rows of its batches and the network's width."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from benchmarks.engine_calls import EngineCalls
from benchmarks.lengths import LENGTH
from benchmarks.recording import Label, in_turn, keep, measure
from benchmarks.works import MNIST, WIDE, WIDE_THROUGHOUT, Work
from pyro_fnbg.core.tasks import torch_threads

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

EEYORE = "eeyore"
THREADS = {"one thread": 1, "two threads": 2}
# As long as the drivers' calls: a thread is started anew for each
CALL_SECONDS = 0.1
WIDEST = "MLP(784,100,10), 7,810 blocks, batch 3000"
CASES: dict[str, Work] = {
    f"MLP(784,10,10,10,10), 810 blocks, batch {rows}": replace(MNIST, batch_size=rows, scales=())
    for rows in (600, 1500, 3000, 10_000)
}
if LENGTH.name != "smoke":
    CASES |= {
        WIDEST: replace(WIDE, scales=()),
        "MLP(784,400,10), 31,210 blocks, batch 3000": replace(
            WIDE, widths=(784, 400, 10), scales=()
        ),
        "MLP(64,256,256,10), 522 blocks, all 3000 rows": WIDE_THROUGHOUT,
    }


@in_turn([(case, who) for case in CASES for who in THREADS], LENGTH.turns)
def test_threads_of_a_chain(benchmark: BenchmarkFixture, case: str, who: str, turn: int) -> None:
    calls, label = calls_of(case), Label("rows", case, who, turn)
    with torch_threads(THREADS[who]):
        # Memory of its own for every number of threads
        calls(*calls.prepare()[0])
        measure(benchmark, label, calls, calls.sweeps, LENGTH.rounds, calls.prepare)
    keep(benchmark, **calls.values())


@in_turn([(case, EEYORE) for case in CASES if case == WIDEST], turns=1)
def test_the_papers_code(benchmark: BenchmarkFixture, case: str, who: str, turn: int) -> None:
    """One sweep, which takes a minute."""
    from benchmarks.eeyore_works import EeyoreSweeps

    measure(benchmark, Label("rows", case, who, turn), partial(EeyoreSweeps(WIDE), 1), 1)


@lru_cache(maxsize=1)
def calls_of(case: str) -> EngineCalls:
    """Set the engine up once for all turns of a case."""
    return EngineCalls(CASES[case], "fused", seconds=CALL_SECONDS)
