"""Many chains through ``MultiChainMCMC``, against the number of chains and of threads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from benchmarks.lengths import LENGTH
from benchmarks.recording import Label, in_turn, measure
from benchmarks.works import MNIST, XOR, Work, kernel_of, training_data

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

CHAINS, THREADS = (1, 2, 4, 10), (1, 2)
BASE = Work("random", (50, 10, 10, 5), batch_size=500, prior_scale=1.0)
# Sweeps of warmup, and as many draws, of each chain; feedforward takes ten times as long
SIZES = {
    "MLP(2,2,2,2,2,2,2,1), batch 100, fused": (replace(XOR, scales=()), "fused", 1),
    "MLP(50,10,10,5), batch 500, fused": (BASE, "fused", 1),
    "MLP(50,10,10,5), batch 500, feedforward": (BASE, "feedforward", 10),
}
if LENGTH.wide:
    SIZES["MLP(784,10,10,10,10), 810 blocks, batch 3000, fused"] = (
        replace(MNIST, scales=()),
        "fused",
        20,
    )
NUMBERS = {f"chains: {c}, threads: {t}": (c, t) for c in CHAINS for t in THREADS}


@in_turn([(case, who) for case in SIZES for who in NUMBERS], LENGTH.turns)
def test_many_chains(
    benchmark: BenchmarkFixture,
    case: str,
    who: str,
    turn: int,
) -> None:
    from pyro_fnbg import MultiChainMCMC

    (work, engine, share), (chains, threads) = SIZES[case], NUMBERS[who]
    sweeps = LENGTH.driver_sweeps // share
    data = training_data(work)

    def run() -> None:
        MultiChainMCMC(
            kernel_of(work, engine),
            num_samples=sweeps,
            warmup_steps=sweeps,
            num_chains=chains,
            disable_progbar=True,
        ).run(*data)

    torch.set_num_threads(threads)
    try:
        measure(benchmark, Label("threads", case, who, turn), run, 2 * sweeps)
    finally:
        torch.set_num_threads(1)
