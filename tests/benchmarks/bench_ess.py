"""Effective sample size of predictions a second: FNBG, a random walk and NUTS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import arviz as az
import numpy as np
import pyro
import pytest
import torch
from pyro.infer import MCMC, NUTS, RandomWalkKernel
from torch import Tensor

from benchmarks.lengths import LENGTH
from benchmarks.problems import PROBLEMS, Problem, starts
from benchmarks.recording import Label, in_turn, keep, measure, seconds_of
from pyro_fnbg import FNBG, MultiChainMCMC

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

THIN = 10
# Draws of a chain, at most: what memory and ArviZ can take
MAX_DRAWS = 50_000


class Steps(NamedTuple):
    """Hold how long chains run."""

    warmup: int
    draws: int


Draws = list[Mapping[str, Tensor]]


def run_stock(kernel: Callable[..., Any], problem: Problem, turn: int, steps: Steps) -> Draws:
    """Run chains one after the other through Pyro's ``MCMC``."""
    found = []
    for chain, start in enumerate(starts_of(problem, turn)):
        pyro.set_rng_seed(100 * turn + chain)
        mcmc = MCMC(
            kernel(problem.model),
            num_samples=steps.draws,
            warmup_steps=steps.warmup,
            initial_params=start,
            disable_progbar=True,
        )
        mcmc.run(*problem.data)
        found.append(mcmc.get_samples())
    return found


def run_driver(problem: Problem, turn: int, steps: Steps) -> Draws:
    """Run all chains at once, on one thread."""
    chains = starts_of(problem, turn)
    pyro.set_rng_seed(100 * turn)
    mcmc = MultiChainMCMC(
        FNBG(problem.model, thin=THIN),
        num_samples=steps.draws,
        warmup_steps=THIN * steps.warmup,
        initial_params={name: torch.stack([c[name] for c in chains]) for name in chains[0]},
        num_chains=len(chains),
        disable_progbar=True,
    )
    mcmc.run(*problem.data)
    samples = mcmc.get_samples(group_by_chain=True)
    return [{name: v[chain] for name, v in samples.items()} for chain in range(len(chains))]


def starts_of(problem: Problem, turn: int) -> list[dict[str, Tensor]]:
    """Draw the same starts for every sampler."""
    pyro.set_rng_seed(100 * turn + 99)
    return starts(problem, LENGTH.ess_chains)


SAMPLERS: dict[str, Callable[[Problem, int, Steps], Draws]] = {
    "FNBG": partial(run_stock, FNBG),
    "RandomWalkKernel": partial(run_stock, RandomWalkKernel),
    "NUTS": partial(run_stock, NUTS),
    f"FNBG(thin={THIN}) in MultiChainMCMC": run_driver,
}


# A pilot, which finds out how many draws are worth their time, is too short to be tuned well
@pytest.mark.filterwarnings("ignore:.* accepted far from what tuning aimed at:UserWarning")
@in_turn([(case, who) for case in PROBLEMS for who in SAMPLERS], LENGTH.ess_turns)
def test_ess(benchmark: BenchmarkFixture, case: str, who: str, turn: int) -> None:
    problem, steps = problem_of(case), steps_for_budget(case, who)
    run = partial(SAMPLERS[who], problem, turn, steps)
    draws = measure(benchmark, Label("ess", case, who, turn), run, 1)
    seconds = benchmark.stats.stats.median
    by_chain = [problem.predict(chain).double().numpy() for chain in draws]
    points = np.moveaxis(np.stack(by_chain), -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):  # chains that never moved
        r_hat = np.max([az.rhat(point) for point in points])
    ess = np.array([az.ess(point, method="bulk") for point in points])
    keep(
        benchmark,
        draws=len(draws) * steps.draws,
        r_hat=float(r_hat),
        least_ess=float(ess.min()) / seconds,
        median_ess=float(np.median(ess)) / seconds,
    )


@lru_cache
def problem_of(case: str) -> Problem:
    """Make a problem once."""
    return PROBLEMS[case]()


@lru_cache
def steps_for_budget(case: str, who: str) -> Steps:
    """Find by short runs how long chains can be within the budget; a third of each is warmup."""
    run = partial(SAMPLERS[who], problem_of(case), 0)
    steps = Steps(5, 10)
    while True:
        factor = LENGTH.ess_seconds / seconds_of(run, steps)
        draws = min(MAX_DRAWS, int(factor * steps.draws))
        if factor < 4 or draws == MAX_DRAWS:
            draws = max(draws, 4)  # fewer have no R-hat
            return Steps(draws // 2, draws)
        # Set-up weighs too much in a short run to go from it to the budget at once
        steps = Steps(draws // 6, draws // 3)
