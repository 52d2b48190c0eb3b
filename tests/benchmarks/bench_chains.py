"""Whole chains: time a sweep, and how much of it is spent outside the engine."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pyro.infer import MCMC

from benchmarks.lengths import LENGTH
from benchmarks.recording import Label, in_turn, keep, measure, seconds_of
from benchmarks.works import MNIST, XOR, Work, kernel_of, training_data
from pyro_fnbg.engines.fused import FusedEngine

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
    is_driver, thin = OURS[who]

    run = functools.partial(run_chain, work, is_driver, thin)
    # The difference to a run of one draw, or of ten, has no set-up in it
    with engine_seconds() as in_engine:
        short = seconds_of(run, THIN)
    short_engine = sum(in_engine)
    with engine_seconds() as in_engine:
        measure(benchmark, label, functools.partial(run, sweeps), sweeps)
    whole = benchmark.stats.stats.median - short
    inside = sum(in_engine) - short_engine
    keep(
        benchmark,
        engine_seconds=inside / (sweeps - THIN),
        outside_seconds=(whole - inside) / (sweeps - THIN),
        outside=1 - inside / whole,
    )


def run_chain(work: Work, is_driver: bool, thin: int, num_sweeps: int) -> None:
    """Run one chain without warmup, set-up and all."""
    kernel = kernel_of(work, "fused", **({"thin": thin} if thin > 1 else {}))
    options: dict[str, Any] = {
        "num_samples": num_sweeps // thin,
        "warmup_steps": 0,
        "disable_progbar": True,
    }
    if is_driver:
        from pyro_fnbg import MultiChainMCMC

        mcmc = MultiChainMCMC(kernel, num_chains=1, **options)
    else:
        mcmc = MCMC(kernel, **options)
    mcmc.run(*training_data(work))


def time_eeyore(benchmark: BenchmarkFixture, label: Label, work: Work) -> None:
    """Time eeyore's own loop, over an epoch."""
    from benchmarks.eeyore_works import make_sampler

    sampler = make_sampler(work)

    def run() -> None:
        sampler.run(num_epochs=1, num_burnin_epochs=0)

    measure(benchmark, label, run, len(sampler.dataloader))


@contextmanager
def engine_seconds() -> Iterator[list[float]]:
    """Collect the seconds that each call of the fused engine takes, on one thread."""
    seconds: list[float] = []
    sweeps = FusedEngine.sweeps

    @functools.wraps(sweeps)
    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return sweeps(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - started)

    with patch.object(FusedEngine, "sweeps", timed):
        yield seconds
