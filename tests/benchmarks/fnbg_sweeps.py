"""Time sweeps of FNBG at the paper's two network sizes, and the trace engine on a small network.

FOLDER is the one the examples take: it holds MNIST/raw for ``mnist`` and training/, test/ for
``xor`` and ``small``::

    python tests/benchmarks/fnbg_sweeps.py mnist --data FOLDER
    python tests/benchmarks/fnbg_sweeps.py xor --data FOLDER
    python tests/benchmarks/fnbg_sweeps.py small --data FOLDER --engine trace

The last line printed is a JSON object. "engine" is the time inside the engine for given noise and
batches; "kernel" is that of ``FNBG.sample``, which draws both and counts decisions.
``tests/benchmarks/eeyore_sweeps.py`` times the paper's own code on the same networks, blocks
and batches.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyro
import torch

from pyro_fnbg import FNBG, BayesianMLP, mnist, read_noisy_xor
from pyro_fnbg.noise import sweep_noise
from pyro_fnbg.run import RunState

XOR = {"activation": "sigmoid", "likelihood": "bernoulli"}
WORKS = {
    "mnist": ([784, 10, 10, 10, 10], {}, {"parts": {1: 78}, "batch_size": 3000}),
    "xor": ([2] * 7 + [1], XOR, {"batch_size": 100, "proposal_scale": 0.2, "adapt": False}),
    "small": ([2, 2, 1], XOR, {"batch_size": 100, "proposal_scale": 0.2, "adapt": False}),
}


def main() -> None:
    """Time the sweeps and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--warmup", type=int, default=1000, help="sweeps before, which adapt")
    parser.add_argument("--calls", type=int, default=30, help="timed calls of the engine")
    parser.add_argument("--sweeps", type=int, default=1, help="sweeps a call")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pyro.set_rng_seed(options.seed)
    data = (mnist if options.work == "mnist" else read_noisy_xor)(options.data)
    widths, structure, sampling = WORKS[options.work]
    model = BayesianMLP(widths, prior_scale=10**0.5, **structure)
    kernel = FNBG(model, engine=options.engine, **sampling)
    kernel.setup(options.warmup, data.x_train, data.y_train)
    params = kernel.initial_params
    for _ in range(options.warmup):
        params = kernel.sample(params)
    kernel_seconds = []
    for _ in range(options.calls):
        started = time.perf_counter()
        params = kernel.sample(params)
        kernel_seconds.append(time.perf_counter() - started)
    run = kernel._running()
    assert run is not None
    seconds, moved = time_engine(run, options.calls, options.sweeps)
    report = {
        "work": options.work,
        "engine": kernel.engine,
        "threads": options.threads,
        "warmup": options.warmup,
        "sweeps a call": options.sweeps,
        "num_blocks": run.partition.num_blocks,
        "median milliseconds a sweep, engine": 1e3 * float(np.median(seconds)),
        "fastest and slowest": [1e3 * min(seconds), 1e3 * max(seconds)],
        "median milliseconds a sweep, kernel": 1e3 * float(np.median(kernel_seconds)),
        "share of rows that moved": moved,
        "versions": {name: version(name) for name in ("pyro-fnbg", "torch", "numpy", "numba")},
    }
    print(json.dumps(report))


def time_engine(run: RunState, calls: int, num_sweeps: int) -> tuple[list[float], float | None]:
    """Time calls of the engine, each from where the last one ended.

    Returns:
        Seconds a sweep in each call, and the mean share of rows that a block moved, where the
        engine tells.
    """
    position, seconds, shares = run.position, [], []
    for call in range(calls):
        sweeps = range(run.sweeps + call * num_sweeps, run.sweeps + (call + 1) * num_sweeps)
        noise = [sweep_noise(run.key, s, len(position), run.partition.num_blocks) for s in sweeps]
        rows = torch.stack([run.batches.rows(s) for s in sweeps])[None]
        z = torch.stack([n.z for n in noise])[None]
        log_u = torch.stack([n.log_u for n in noise])[None]
        started = time.perf_counter()
        results = run.engine.sweeps(position[None], rows, z, log_u, run.scales[None])
        seconds.append((time.perf_counter() - started) / num_sweeps)
        position = results.positions[0, -1]
        moved = getattr(run.engine, "moved_rows", None)
        if moved is not None:
            shares.append(float(moved.double().mean()) / rows.shape[-1])
    return seconds, float(np.mean(shares)) if shares else None


if __name__ == "__main__":
    main()
