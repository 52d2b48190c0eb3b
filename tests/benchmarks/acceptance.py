"""How near to their aims blocks accept after warmup, on the demo's network and on diabetes.

    PYTHONPATH=tests python -m benchmarks.acceptance demo --seeds 1 2 3 --warmup 10000
    PYTHONPATH=tests python -m benchmarks.acceptance diabetes --activation tanh

A line a seed: of all blocks of all chains, the lowest acceptance rate over the draws, how many are
below 15 %, and the share within 0.10 of the aim; then that share chain by chain.
"""

from __future__ import annotations

import argparse
import warnings
from typing import NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes
from torch import Tensor

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, noisy_xor

THIN = 20


class Problem(NamedTuple):
    """Hold what is sampled, and for how long unless told otherwise."""

    kernel: FNBG
    data: tuple[Tensor, Tensor]
    chains: int
    warmup: int
    sweeps: int


def demo(seed: int) -> Problem:
    """Set up what ``examples/demo.py`` samples."""
    data = noisy_xor(5000, 1200, seed)
    widths = (2, 2, 2, 2, 2, 2, 2, 1)
    model = BayesianMLP(widths, prior_scale=10**0.5, activation="sigmoid", likelihood="bernoulli")
    kernel = FNBG(model, batch_size=100, likelihood_scale="batch")
    return Problem(kernel, (data.x_train, data.y_train), 10, 10_000, 100_000)


def diabetes(activation: str) -> Problem:
    """Set up a network of two layers of sixteen nodes on standardised data."""
    x, y = (torch.tensor(values).float() for values in load_diabetes(return_X_y=True))
    x, y = ((values - values.mean(0)) / values.std(0, correction=0) for values in (x, y))
    model = BayesianMLP(
        (10, 16, 16, 1),
        activation=activation,
        likelihood="normal",
        observation_scale=dist.HalfNormal(1.0),
    )
    return Problem(FNBG(model), (x, y), 2, 20_000, 20_000)


def rates_and_aims(
    problem: Problem, seed: int, chains: int, warmup: int, sweeps: int
) -> NDArray[np.float64]:
    """Run, and return acceptance over the draws and its aims, shape ``(2, chains, blocks)``."""
    pyro.set_rng_seed(seed)
    mcmc = MultiChainMCMC(
        problem.kernel,
        sweeps // THIN,
        warmup_steps=warmup,
        num_chains=chains,
        thin=THIN,
        disable_progbar=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        mcmc.run(*problem.data)
    reports = [chain.report for chain in mcmc._diagnostics]
    return np.array(
        [[one.acceptance_rates for one in reports], [one.target_rates for one in reports]]
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("problem", choices=["demo", "diabetes"])
    parser.add_argument("--activation", default="tanh", help="of diabetes (tanh)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    for name in ("chains", "warmup", "sweeps"):
        parser.add_argument(f"--{name}", type=int)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("seed  lowest (%)  below 15 %   within 0.10 (%)  by chain (%)")
    for seed in given.seeds:
        problem = demo(seed) if given.problem == "demo" else diabetes(given.activation)
        rates, aims = rates_and_aims(
            problem,
            seed,
            given.chains or problem.chains,
            given.warmup or problem.warmup,
            given.sweeps or problem.sweeps,
        )
        is_near = np.abs(rates - aims) <= 0.10
        by_chain = " ".join(f"{100 * share:.0f}" for share in is_near.mean(1))
        print(
            f"{seed:4}  {100 * rates.min():10.1f}  {np.sum(rates < 0.15):4} of {rates.size:<4}"
            f" {100 * is_near.mean():13.1f}    {by_chain}",
            flush=True,
        )


if __name__ == "__main__":
    main()
