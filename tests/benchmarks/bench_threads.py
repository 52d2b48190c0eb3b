"""Many chains through ``MultiChainMCMC``, against the number of chains and of threads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.engine_clock import EngineClock, watched
from benchmarks.lengths import LENGTH
from benchmarks.recording import Label, in_turn, keep, measure
from benchmarks.works import MEDIUM, MNIST, XOR, kernel_of, training_data
from pyro_fnbg import MultiChainMCMC
from pyro_fnbg.core.tasks import torch_threads

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

CHAINS, THREADS = (1, 2, 4, 10), (1, 2)
# What to sample, on which engine, and how many times fewer sweeps than of noisy XOR
SIZES = {
    "MLP(2,2,2,2,2,2,2,1), batch 100, fused": (replace(XOR, scales=()), "fused", 1),
    "MLP(50,10,10,5), batch 500, fused": (MEDIUM, "fused", 10),
}
if LENGTH.wide:
    SIZES |= {
        "MLP(50,10,10,5), batch 500, feedforward": (MEDIUM, "feedforward", 100),
        "MLP(784,10,10,10,10), 810 blocks, batch 3000, fused": (
            replace(MNIST, scales=()),
            "fused",
            400,
        ),
    }
NUMBERS = {f"chains: {c}, threads: {t}": (c, t) for c in CHAINS for t in THREADS}


@in_turn([(case, who) for case in SIZES for who in NUMBERS], LENGTH.few_turns)
def test_many_chains(benchmark: BenchmarkFixture, case: str, who: str, turn: int) -> None:
    (work, engine, share), (chains, threads) = SIZES[case], NUMBERS[who]
    sweeps = max(1, LENGTH.many_sweeps // share)
    mcmc = MultiChainMCMC(
        kernel_of(work, engine),
        num_samples=sweeps,
        warmup_steps=sweeps,
        num_chains=chains,
        disable_progbar=True,
    )

    def run() -> EngineClock:
        with watched(engine) as clock:
            mcmc.run(*training_data(work))
        return clock

    with torch_threads(threads):
        clock = measure(benchmark, Label("threads", case, who, turn), run, 2 * sweeps)
    keep(benchmark, sweep_seconds=clock.without_setup / (2 * sweeps))
