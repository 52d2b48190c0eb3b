"""Whole chains: time a sweep, and how much of it is spent outside the engine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pyro.infer import MCMC

from benchmarks.engine_clock import EngineClock, watched
from benchmarks.lengths import LENGTH
from benchmarks.recording import Label, in_turn, keep, measure
from benchmarks.works import MNIST, XOR, Work, kernel_of, training_data
from pyro_fnbg import MultiChainMCMC

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

SIZES = {
    "MLP(2,2,2,2,2,2,2,1), batch 100": (XOR, LENGTH.xor_sweeps),
    "MLP(784,10,10,10,10), 810 blocks, batch 3000": (MNIST, LENGTH.mnist_sweeps),
}
THIN = 10
STOCK, DRIVER, EEYORE = "pyro.infer.MCMC", "MultiChainMCMC", "eeyore, Gibbs.run"
OURS = {
    STOCK: (False, 1),
    f"{STOCK}, thin={THIN}": (False, THIN),
    DRIVER: (True, 1),
    f"{DRIVER}, thin={THIN}": (True, THIN),
}


def pairs() -> list[tuple[str, str]]:
    """List who does what; an epoch of eeyore on images takes half a minute."""
    found = [(case, who) for case in SIZES for who in OURS]
    return [*found, *((case, EEYORE) for case, (work, _) in SIZES.items() if work == XOR)]


@in_turn(pairs(), LENGTH.turns)
def test_chain(benchmark: BenchmarkFixture, case: str, who: str, turn: int) -> None:
    label, (work, sweeps) = Label("chains", case, who, turn), SIZES[case]
    if who == EEYORE:
        time_eeyore(benchmark, label, work)
        return
    clock = measure(benchmark, label, partial(run_chain, work, *OURS[who], sweeps), sweeps)
    keep(
        benchmark,
        engine_seconds=clock.inside / sweeps,
        outside_seconds=(clock.without_setup - clock.inside) / sweeps,
        outside=1 - clock.inside / clock.without_setup,
    )


def run_chain(work: Work, is_driver: bool, thin: int, num_sweeps: int) -> EngineClock:
    """Run one chain without warmup, set-up and all."""
    kernel = kernel_of(work, "fused", thin=thin)
    options: dict[str, Any] = {
        "num_samples": num_sweeps // thin,
        "warmup_steps": 0,
        "disable_progbar": True,
    }
    if is_driver:
        mcmc: Any = MultiChainMCMC(kernel, **options)
    else:
        mcmc = MCMC(kernel, **options)
    with watched("fused") as clock:
        mcmc.run(*training_data(work))
    return clock


def time_eeyore(benchmark: BenchmarkFixture, label: Label, work: Work) -> None:
    """Time eeyore's own loop, over an epoch."""
    from benchmarks.eeyore_works import make_sampler

    sampler = make_sampler(work)

    def run() -> None:
        sampler.run(num_epochs=1, num_burnin_epochs=0)

    measure(benchmark, label, run, len(sampler.dataloader))
