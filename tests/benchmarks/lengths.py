"""How long the benchmarks run: ``BENCH_LENGTH`` in the environment says which of three lengths."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["LENGTH", "Length"]


@dataclass(frozen=True)
class Length:
    """Hold one length.

    Attributes:
        name: "smoke" (does everything run? its figures mean nothing), "bench" or "full".
        turns: Times that what is compared is timed in turn.
        rounds: Timings of each in one turn.
        call_seconds: How long one timed call of an engine should at least take.
        warmup: Sweeps that tune the proposal scales before engines are timed.
        xor_sweeps: Sweeps of a whole chain of noisy XOR, a multiple of ten.
        mnist_sweeps: Sweeps of a whole chain of MNIST's shape, a multiple of ten.
        driver_sweeps: Draws of each chain, and as many sweeps of warmup, in runs of many chains.
        wide: Whether the largest networks and batches are timed too.
        memory_draws: Draws of each chain where memory is measured.
        ess_chains: Chains of each sampler whose effective sample size is estimated.
        ess_turns: Times that such chains are run, with other seeds.
        ess_seconds: How long the chains of one sampler should take together, roughly.
    """

    name: str
    turns: int
    rounds: int
    call_seconds: float
    warmup: int
    xor_sweeps: int
    mnist_sweeps: int
    driver_sweeps: int
    wide: bool
    memory_draws: int
    ess_chains: int
    ess_turns: int
    ess_seconds: float


LENGTHS = {
    length.name: length
    for length in (
        Length("smoke", 1, 1, 0.001, 5, 200, 20, 20, False, 20, 2, 1, 0.2),
        Length("bench", 3, 3, 0.02, 200, 10_000, 150, 1_000, False, 500, 4, 2, 5.0),
        Length("full", 5, 5, 0.1, 1_000, 50_000, 1_000, 5_000, True, 5_000, 4, 3, 40.0),
    )
}
LENGTH = LENGTHS[os.environ.get("BENCH_LENGTH", "bench")]
