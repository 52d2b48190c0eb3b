"""How long the benchmarks run: ``BENCH_LENGTH`` in the environment says which of three lengths."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["LENGTH", "LENGTHS", "Length"]


@dataclass(frozen=True)
class Length:
    """Hold one length.

    Attributes:
        name: "smoke" (does everything run? its figures mean nothing), "bench" or "full".
        turns: Times that what is compared is timed in turn.
        few_turns: The same, where one takes long.
        rounds: Timings of each in one turn.
        call_seconds: How long one timed call of an engine should at least take.
        warmup: Sweeps that tune the proposal scales before engines are timed.
        xor_sweeps: Sweeps of a whole chain of noisy XOR, a multiple of ten.
        mnist_sweeps: The same, of MNIST's shape.
        many_sweeps: Draws of each of many chains of noisy XOR, and as many sweeps of warmup.
        wide: Whether the largest networks and batches are timed too.
        memory_draws: Draws of each chain where memory is measured.
        ess_chains: Chains of each sampler whose effective sample size is estimated.
        ess_turns: Times that such chains are run, with other seeds.
        ess_seconds: How long the chains of one sampler should take together, roughly.
    """

    name: str
    turns: int
    few_turns: int
    rounds: int
    call_seconds: float
    warmup: int
    xor_sweeps: int
    mnist_sweeps: int
    many_sweeps: int
    wide: bool
    memory_draws: int
    ess_chains: int
    ess_turns: int
    ess_seconds: float


LENGTHS = {
    "smoke": Length(
        name="smoke",
        turns=1,
        few_turns=1,
        rounds=1,
        call_seconds=0.001,
        warmup=5,
        xor_sweeps=200,
        mnist_sweeps=20,
        many_sweeps=20,
        wide=False,
        memory_draws=20,
        ess_chains=2,
        ess_turns=1,
        ess_seconds=0.2,
    ),
    "bench": Length(
        name="bench",
        turns=3,
        few_turns=2,
        rounds=2,
        call_seconds=0.1,
        warmup=200,
        xor_sweeps=50_000,
        mnist_sweeps=400,
        many_sweeps=4_000,
        wide=False,
        memory_draws=500,
        ess_chains=2,
        ess_turns=1,
        ess_seconds=6.0,
    ),
    "full": Length(
        name="full",
        turns=3,
        few_turns=2,
        rounds=3,
        call_seconds=0.2,
        warmup=1_000,
        xor_sweeps=50_000,
        mnist_sweeps=1_000,
        many_sweeps=10_000,
        wide=True,
        memory_draws=5_000,
        ess_chains=4,
        ess_turns=2,
        ess_seconds=20.0,
    ),
}
LENGTH = LENGTHS[os.environ.get("BENCH_LENGTH", "bench")]
