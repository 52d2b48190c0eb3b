"""Measure what a store costs: time, memory and bytes on disk, beside draws in memory.

    PYTHONPATH=tests python -m benchmarks.store_cost xor|mnist DRAWS [--data FOLDER]

FOLDER holds MNIST/raw. One chain, seed 0, warmup of a tenth of the draws, one of torch's threads.
Each run is in a process of its own, after a run of two draws; what is printed is a JSON object for
each: seconds of ``run``, the processor's seconds, and by how many megabytes the peak of resident
memory rose. "stock" is Pyro's ``MCMC``, which has no store.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer import MCMC

from benchmarks.memory_probe import resident
from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, mnist, noisy_xor

WHO = ("memory", "store", "stock")


def main() -> None:
    """Start each run in a process, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem", choices=("xor", "mnist"))
    parser.add_argument("draws", type=int)
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--who", nargs="+", choices=WHO, default=list(WHO))
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.here:
        print(json.dumps(measure(chosen.problem, chosen.draws, chosen.data, chosen.who[0])))
        return
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.store_cost", *sys.argv[1:]]
    for turn in range(chosen.turns):
        for who in chosen.who:
            done = subprocess.run([*command, "--here", "--who", who], stdout=subprocess.PIPE)
            print(turn, done.stdout.decode().strip().splitlines()[-1], flush=True)


def measure(problem: str, draws: int, data: Path | None, who: str) -> dict[str, Any]:
    """Run one chain after a short one."""
    torch.set_num_threads(1)
    if problem == "xor":
        points = noisy_xor(num_train=500, num_test=8)
        x, y = points.x_train, points.y_train
        widths = [2, 2, 2, 2, 2, 2, 2, 1]
        model = BayesianMLP(widths, prior_scale=10**0.5, likelihood="bernoulli")
        kernel = FNBG(model, batch_size=100)
    else:
        assert data is not None, "--data is needed for MNIST"
        images = mnist(data)
        x, y = images.x_train, images.y_train
        model = BayesianMLP([784, 10, 10, 10, 10], prior_scale=10**0.5)
        kernel = FNBG(model, parts={1: 78}, batch_size=3_000)
    with tempfile.TemporaryDirectory() as folder:
        _driver(kernel, 2, who, Path(folder) / "short").run(x, y)
        pyro.set_rng_seed(0)
        mcmc = _driver(kernel, draws, who, Path(folder) / "long")
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is resident now
        before, started, spent = resident("VmRSS"), time.perf_counter(), time.process_time()
        mcmc.run(x, y)
        return {
            "who": who,
            "seconds": time.perf_counter() - started,
            "processor": time.process_time() - spent,
            "peak_mb": (resident("VmHWM") - before) / 1e6,
            "disk_mb": sum(path.stat().st_size for path in Path(folder, "long").rglob("*")) / 1e6,
        }


def _driver(kernel: FNBG, draws: int, who: str, path: Path) -> Any:
    options: dict[str, Any] = {"warmup_steps": draws // 10, "disable_progbar": True}
    if who == "stock":
        return MCMC(kernel, draws, **options)
    return MultiChainMCMC(kernel, draws, store=path if who == "store" else None, **options)


if __name__ == "__main__":
    main()
