"""A sweep of this package and of eeyore, on the same networks, blocks and batch sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from benchmarks.engine_calls import EngineCalls
from benchmarks.lengths import LENGTH
from benchmarks.recording import Label, in_turn, keep, measure
from benchmarks.works import MNIST, SMALL, XOR, Work, kernel_of, training_data

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

SIZES = {
    "MLP(2,2,1), batch 100": SMALL,
    "MLP(2,2,2,2,2,2,2,1), batch 100": XOR,
    "MLP(784,10,10,10,10), 810 blocks, batch 3000": MNIST,
}
ENGINES = {"fused engine": "fused", "feedforward engine": "feedforward", "trace engine": "trace"}
TUNED = "fused engine, tuned scales"
STEP = "FNBG.sample"
EEYORE = "eeyore"


def pairs() -> list[tuple[str, str]]:
    """List who does what; an evaluation of the model for each of 810 blocks takes seconds."""
    found = []
    for case, work in SIZES.items():
        engines = [who for who in ENGINES if work != MNIST or who != "trace engine"]
        found += [(case, who) for who in (EEYORE, STEP, TUNED, *engines)]
    return found


@in_turn(pairs(), LENGTH.turns)
def test_sweep(benchmark: BenchmarkFixture, case: str, who: str, turn: int) -> None:
    label, work = Label("eeyore", case, who, turn), SIZES[case]
    if who == EEYORE:
        sweeps = 1 if work == MNIST else 20
        measure(benchmark, label, partial(eeyore_of(work), sweeps), sweeps, LENGTH.rounds)
    elif who == STEP:
        sweeps = 20 if work == MNIST else 1000
        measure(benchmark, label, partial(steps_of(work, sweeps), sweeps), sweeps, LENGTH.rounds)
    else:
        calls = calls_of(work, who)
        measure(benchmark, label, calls, calls.sweeps, LENGTH.rounds, calls.prepare)
        keep(benchmark, **calls.values())


# What is timed in several turns goes on from where it was


@lru_cache(maxsize=1)
def eeyore_of(work: Work) -> Callable[[int], None]:
    """Set eeyore up, and run its first sweep untimed."""
    from benchmarks.eeyore_works import EeyoreSweeps

    sweeps = EeyoreSweeps(work)
    sweeps(1)
    return sweeps


@lru_cache(maxsize=1)
def steps_of(work: Work, untimed: int) -> Callable[[int], None]:
    """Set the kernel up; a step draws its own noise and batch, and counts its decisions."""
    kernel = kernel_of(work, "fused")
    kernel.setup(0, *training_data(work))
    params = kernel.initial_params

    def step(sweeps: int) -> None:
        nonlocal params
        for _ in range(sweeps):
            params = kernel.sample(params)

    # The kernel learns from the first ones how many sweeps to ask the engine for
    step(untimed)
    return step


@lru_cache(maxsize=4)
def calls_of(work: Work, who: str) -> EngineCalls:
    """Set an engine up, with the paper's scales or with tuned ones."""
    if who == TUNED:
        return EngineCalls(replace(work, scales=()), "fused")
    return EngineCalls(work, ENGINES[who])
