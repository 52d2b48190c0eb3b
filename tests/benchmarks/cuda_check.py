"""Check the feedforward engine on a CUDA device against the CPU, and time it on MNIST.

    python tests/benchmarks/cuda_check.py --data FOLDER

FOLDER holds MNIST/raw; without ``--data`` random inputs of MNIST's shape are used, which cost the
same. First, float64: the same noise must give the same decisions on both devices over some
sweeps, save where a threshold lies within rounding. Then, float32: milliseconds a sweep for 1, 10
and 100 chains. The last line is a JSON object;
the exit code is 1 if the devices disagree. ``--device cpu`` tries the script out without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import pyro
import torch
from torch import Tensor

from pyro_fnbg import FNBG, BayesianMLP, mnist
from pyro_fnbg.chains.setup import Run
from pyro_fnbg.core.noise import ChainKey, sweep_noise
from pyro_fnbg.engines.base import SweepInputs

WIDTHS = [784, 10, 10, 10, 10]
# Decisions are compared where the threshold is further than this from the log ratio
ROUNDING = 1e-7


def main() -> None:
    """Compare and time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-size", type=int, default=3000)
    parser.add_argument("--sweeps", type=int, default=5, help="sweeps compared, and timed")
    parser.add_argument("--chains", type=int, nargs="+", default=[1, 10, 100])
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device is available; --device cpu tries the script out")
    x, y = read_data(options.data)
    compared = compare(x, y, options)
    timed = {chains: measure(x, y, chains, options) for chains in options.chains}
    report = {
        "device": describe(options.device),
        "torch": torch.__version__,
        "decisions that differ, float64": compared["differ"],
        "largest difference of a log ratio, float64": compared["ratio"],
        "median milliseconds a sweep of all chains, float32": timed,
    }
    print(json.dumps(report))
    sys.exit(int(compared["differ"] > 0))


def read_data(folder: Path | None) -> tuple[Tensor, Tensor]:
    """Read MNIST, or draw data of its shape."""
    if folder is not None:
        data = mnist(folder)
        return data.x_train, data.y_train
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60_000, WIDTHS[0], generator=generator)
    return x, torch.randint(0, WIDTHS[-1], (60_000,), generator=generator)


def start(x: Tensor, y: Tensor, device: str, batch_size: int) -> Run:
    """Set a run up on a device, from the same seed on every device."""
    pyro.set_rng_seed(1)
    model = BayesianMLP(WIDTHS, prior_scale=10**0.5)
    batches = {"batch_size": batch_size, "likelihood_scale": "batch"}
    kernel = FNBG(model, parts={1: 78}, engine="feedforward", **batches)
    kernel.setup(0, x.to(device), y.to(device))
    return Run(kernel.problem, kernel.state)


def prepare(run: Run, positions: Tensor, number: int) -> SweepInputs:
    """Draw batches and noise of one sweep of every chain, and take smaller steps than at first."""
    problem, chains = run.problem, len(positions)
    size = problem.partition.num_params, problem.partition.num_blocks
    keys = [ChainKey(5, chain) for chain in range(chains)]
    noise = [sweep_noise(key, number, *size) for key in keys]
    rows = [problem.batches.independent_rows(key, number) for key in keys]
    (state,) = run.chain.adaptation
    return SweepInputs(
        positions,
        torch.stack(rows)[:, None],
        torch.stack([n.z for n in noise])[:, None],
        torch.stack([n.log_u for n in noise])[:, None],
        (type(state)(*((0.1 * values).expand(chains, -1) for values in state)),),
    )


def compare(x: Tensor, y: Tensor, options: argparse.Namespace) -> dict[str, float]:
    """Run the same sweeps on both devices, from the CPU's position at the start of each."""
    runs = [start(x.double(), y, device, options.batch_size) for device in ("cpu", options.device)]
    engines = [run.problem.engine for run in runs]
    positions, differ, ratio = runs[0].chain.position[None], 0, 0.0
    for number in range(options.sweeps):
        inputs = prepare(runs[0], positions, number)
        here = engines[0].run(inputs)
        there = engines[1].run(inputs._replace(positions=positions.to(options.device)))
        is_tie = (here.log_ratios - inputs.log_u).abs()[0, 0] < ROUNDING
        disagree = here.accepted[0, 0] != there.accepted[0, 0].cpu()
        differ += int((disagree & ~is_tie).sum())
        if bool(disagree.any()):
            break  # after a tie the two go different ways
        gaps = (here.log_ratios - there.log_ratios.cpu()).abs()
        ratio = max(ratio, float(gaps[here.log_ratios.isfinite()].max()))
        positions = here.positions[:, 0]
    return {"differ": differ, "ratio": ratio}


def measure(x: Tensor, y: Tensor, chains: int, options: argparse.Namespace) -> float | str:
    """Time sweeps of many chains, or say that memory does not hold them."""
    run = start(x, y, options.device, options.batch_size)
    positions, seconds = run.chain.position.expand(chains, -1), []
    try:
        for number in range(options.sweeps + 1):
            inputs = prepare(run, positions, number)
            synchronize(options.device)
            started = time.perf_counter()
            positions = run.problem.engine.run(inputs).positions[:, 0]
            synchronize(options.device)
            seconds.append(time.perf_counter() - started)
    except torch.cuda.OutOfMemoryError as error:
        return str(error).splitlines()[0]
    return 1e3 * float(np.median(seconds[1:]))  # the first one sets up


def synchronize(device: str) -> None:
    """Wait for the device, where there is one to wait for."""
    if device == "cuda":
        torch.cuda.synchronize()


def describe(device: str) -> str:
    """Name the device."""
    return torch.cuda.get_device_name() if device == "cuda" else device


if __name__ == "__main__":
    main()
