"""Many chains through ``MultiChainMCMC``, against the number of chains and of threads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from benchmarks.lengths import LENGTH
from benchmarks.recording import Label, in_turn, keep, measure, seconds_of
from benchmarks.works import MNIST, XOR, Work, kernel_of, training_data

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

CHAINS, THREADS = (1, 2, 4, 10), (1, 2)
BASE = Work("random", (50, 10, 10, 5), batch_size=500, prior_scale=1.0)
# What to sample, on which engine, and how many times fewer sweeps than of noisy XOR
SIZES = {
    "MLP(2,2,2,2,2,2,2,1), batch 100, fused": (replace(XOR, scales=()), "fused", 1),
    "MLP(50,10,10,5), batch 500, fused": (BASE, "fused", 10),
}
if LENGTH.wide:
    SIZES |= {
        "MLP(50,10,10,5), batch 500, feedforward": (BASE, "feedforward", 100),
        "MLP(784,10,10,10,10), 810 blocks, batch 3000, fused": (
            replace(MNIST, scales=()),
            "fused",
            400,
        ),
    }
NUMBERS = {f"chains: {c}, threads: {t}": (c, t) for c in CHAINS for t in THREADS}


@in_turn([(case, who) for case in SIZES for who in NUMBERS], LENGTH.few_turns)
def test_many_chains(
    benchmark: BenchmarkFixture,
    case: str,
    who: str,
    turn: int,
) -> None:
    from pyro_fnbg import MultiChainMCMC

    (work, engine, share), (chains, threads) = SIZES[case], NUMBERS[who]
    data = training_data(work)

    def run(sweeps: int) -> None:
        MultiChainMCMC(
            kernel_of(work, engine),
            num_samples=sweeps,
            warmup_steps=sweeps,
            num_chains=chains,
            disable_progbar=True,
        ).run(*data)

    sweeps = max(2, LENGTH.many_sweeps // share)
    torch.set_num_threads(threads)
    try:
        short = seconds_of(run, 1)
        measure(benchmark, Label("threads", case, who, turn), partial(run, sweeps), 2 * sweeps)
    finally:
        torch.set_num_threads(1)
    # Without set-up
    keep(benchmark, sweep_seconds=(benchmark.stats.stats.median - short) / (2 * sweeps - 2))
