"""Time FNBG from a draw of the prior to 90 % test accuracy on MNIST, adaptation included.

    python tests/benchmarks/time_to_accuracy.py --data FOLDER --seeds 1 2 3

FOLDER holds MNIST/raw. Blocks and batches are the paper's, no scale is given. After every 25 sweeps
the test images are predicted by the mean over the second half of the sweeps so far; the time is
that of the first such point from which on the accuracy stays at the aim or above. Predictions are
made afterwards and not timed; set-up and compilation are timed apart. The last line is a JSON
object.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pyro
import torch

from pyro_fnbg import FNBG, BayesianMLP, mnist, predictive_probabilities
from pyro_fnbg.data.images import LabelledImages

STEP = 25


def main() -> None:
    """Run the seeds and print the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--aim", type=float, default=0.9)
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument("--sweeps", type=int, default=3000, help="in all, warmup included")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = mnist(options.data)
    runs = {seed: run(data, seed, options) for seed in options.seeds}
    seconds = [found["seconds"] for found in runs.values()]
    median = float(np.median([np.inf if s is None else s for s in seconds]))
    print(json.dumps({"aim": options.aim, "median seconds": median, "by seed": runs}))


def run(data: LabelledImages, seed: int, options: argparse.Namespace) -> dict[str, float | None]:
    """Run one chain, and find when its predictions reached the aim for good."""
    model = BayesianMLP([784, 10, 10, 10, 10], prior_scale=10**0.5)
    pyro.set_rng_seed(seed)
    started = time.perf_counter()
    kernel = FNBG(model, parts={1: 78}, batch_size=3000, likelihood_scale="batch")
    kernel.setup(options.warmup, data.x_train, data.y_train)
    set_up = time.perf_counter() - started
    params, draws, clock = kernel.initial_params, [], [0.0]
    for _ in range(options.sweeps):
        started = time.perf_counter()
        params = kernel.sample(params)
        clock.append(clock[-1] + time.perf_counter() - started)
        draws.append(params)
    total = torch.zeros(len(data.y_test), 10, dtype=torch.float64)
    totals = [total.float()]
    for draw in draws:
        one = {name: value[None] for name, value in draw.items()}
        total = total + predictive_probabilities(model, one, data.x_test)[0]
        totals.append(total.float())
    reached: int | None = None
    accuracy = 0.0
    for sweeps in range(STEP, options.sweeps + 1, STEP):
        half = totals[sweeps] - totals[sweeps // 2]
        accuracy = float((half.argmax(-1) == data.y_test).double().mean())
        if accuracy < options.aim:
            reached = None
        elif reached is None:
            reached = sweeps
    return {
        "seconds": None if reached is None else clock[reached],
        "sweeps": reached,
        "set-up seconds": set_up,
        "accuracy at the end": accuracy,
    }


if __name__ == "__main__":
    main()
