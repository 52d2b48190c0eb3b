"""What exact draws of output weights give and cost, by the width of a hidden layer, on diabetes.

    PYTHONPATH=tests python -m benchmarks.output_draws --widths 8 16 32 64

A line a width, without and with the draws: seconds of the processor of the same sweeps, the largest
R-hat of predictions, and their median and least effective sample sizes a second, warmup included.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import replace

import pyro
import torch

from benchmarks.samplers.problems import PROBLEMS, network
from benchmarks.uci import scoring
from benchmarks.uci.fits import predicted
from benchmarks.uci.sets import Split
from pyro_fnbg import FNBG, MultiChainMCMC

PROBLEM = PROBLEMS["diabetes, MLP(10,8,1)"]
CHAINS, THIN = 4, 20


def run(rows: Split, width: int, moves: str, seed: int, sweeps: int) -> dict[str, float]:
    """Sample; return the seconds, and how predictions were found to mix."""
    pyro.set_rng_seed(seed)
    model = network(replace(PROBLEM, widths=(10, width, 1)).about())
    x, y, x_test = (
        torch.tensor(each).float() for each in (rows.x_train, rows.y_train, rows.x_test)
    )
    mcmc = MultiChainMCMC(
        FNBG(model, moves=moves),
        sweeps // THIN,
        warmup_steps=sweeps // 2,
        num_chains=CHAINS,
        thin=THIN,
        disable_progbar=True,
    )
    started = time.process_time()
    mcmc.run(x, y)
    seconds = time.process_time() - started
    found = predicted(model, mcmc.get_samples(group_by_chain=True), x_test, {})
    return {"seconds": seconds, **scoring.diagnostics(found)}


def main() -> None:
    """Print a line for each width and seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--sweeps", type=int, default=20_000)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = PROBLEM.read(None)
    run(rows, 2, "walk", 0, 200)  # what is compiled or loaded counts for none
    for width in chosen.widths:
        for seed in chosen.seeds:
            for moves in ("walk", "gibbs"):
                found = run(rows, width, moves, seed, chosen.sweeps)
                rates = [found[name] / found["seconds"] for name in ("ess_median", "ess_min")]
                print(
                    f"width {width}, seed {seed}, {moves}: {found['seconds']:.1f} s, largest R-hat "
                    f"{found['r_hat_max']:.3f}, {rates[0]:.3g} and {rates[1]:.3g} a second",
                    flush=True,
                )


if __name__ == "__main__":
    main()
