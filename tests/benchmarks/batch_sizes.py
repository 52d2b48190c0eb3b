"""Compare batch sizes and likelihood scales at equal processor time, on many simulated rows.

    python tests/benchmarks/batch_sizes.py --seeds 1 2

A chain of the network [20, 10, 1] for two classes starts from a draw of the prior, and gets so many
seconds of one thread: as many sweeps as fit by the pace of a short run, the first half of them
warmup. Prints a line of a table for each way and seed: the log score of its mean prediction on rows
held out, beside that of the network that made the labels.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, predict, score_classes

WIDTHS, ROWS, TEST_ROWS, DRAWS = [20, 10, 1], 195_000, 20_000, 200
WAYS: dict[str, dict[str, Any]] = {
    "all rows": {},
    "500": {"batch_size": 500, "likelihood_scale": "batch"},
    "5,000": {"batch_size": 5_000, "likelihood_scale": "batch"},
    "5,000, full scale": {"batch_size": 5_000, "likelihood_scale": "full"},
}


class Data(NamedTuple):
    """Hold rows to learn from, rows to predict, and the log score of what made their labels."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    best_nll: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=60.0, help="of the processor, for a run")
    parser.add_argument("--rows", type=int, default=ROWS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = simulate(given.rows)
    print(f"negative log score a row of the network that made the labels: {data.best_nll:.4f}\n")
    print("| batch | seed | sweeps | seconds | acceptance | temperature | sd of log ratio | NLL |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for seed in given.seeds:
        for way, options in WAYS.items():
            print(f"| {way} | {seed} | {measure(options, data, given.seconds, seed)} |", flush=True)


def simulate(rows: int) -> Data:
    """Make rows whose labels come from a network of the same widths."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(rows + TEST_ROWS, WIDTHS[0], generator=rng)
    hidden = torch.tanh(x @ torch.randn(20, 10, generator=rng) * 0.4)
    p = torch.sigmoid(hidden @ torch.randn(10, generator=rng) * 1.5)
    y = torch.bernoulli(p, generator=rng).long()
    given = torch.where(y == 1, p, 1 - p)[rows:]
    return Data(x[:rows], y[:rows], x[rows:], y[rows:], -float(given.double().log().mean()))


def measure(options: dict[str, Any], data: Data, seconds: float, seed: int) -> str:
    """Run a chain for so many seconds of the processor, and return the rest of its line."""
    model = BayesianMLP(WIDTHS, activation="tanh", likelihood="bernoulli")

    def run(warmup: int, draws: int, thin: int) -> tuple[MultiChainMCMC, float]:
        pyro.set_rng_seed(seed)
        mcmc = MultiChainMCMC(
            FNBG(model, thin=thin, **options), draws, warmup_steps=warmup, disable_progbar=True
        )
        started = time.process_time()
        mcmc.run(data.x, data.y)
        return mcmc, time.process_time() - started

    run(1, 1, 1)  # compiles
    first, pace = run(1, 1, 1)[1], 0.01
    for share in (0.005, 0.05):
        count = max(20, int(share * seconds / pace))
        # What is less comes from the set-up, which takes now longer and now shorter
        pace = max((run(1, 1, count)[1] - first) / count, 5e-5)
    sweeps = int((seconds - first) / pace)
    thin = max(1, sweeps // (2 * DRAWS))
    mcmc, spent = run(DRAWS * thin, DRAWS, thin)
    prediction = predict(model, mcmc.get_samples(), data.x_test, progress=False)
    report = mcmc.reports[0]
    noise = report.get("standard deviation of the log ratio across batches", {"all": 0.0})["all"]
    return (
        f"{2 * DRAWS * thin:,} | {spent:.0f} | {report['acceptance rate']:.2f} | "
        f"{report['nominal likelihood temperature']:g} | {noise:.2f} | "
        f"{score_classes(prediction, data.y_test)['nll']:.4f}"
    )


if __name__ == "__main__":
    main()
