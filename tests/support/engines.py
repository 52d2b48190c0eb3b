"""Runs of real engines with noise that a test chooses."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_fnbg import FNBG
from pyro_fnbg.engines.base import SweepResults
from pyro_fnbg.noise import ChainKey, sweep_noise
from pyro_fnbg.run import RunState

# Every exactness test runs on each of these
ENGINES = ("trace", "feedforward", "fused")


def start(engine: str, model: Any, *args: Any, **options: Any) -> RunState:
    """Set a kernel up and return its run: engine, sites, partition, plan and position."""
    assert engine in ENGINES
    kernel = FNBG(model, engine=engine, **options)
    kernel.setup(0, *args)
    assert kernel._run is not None
    return kernel._run


def run_sweeps(
    run: RunState,
    position: Tensor,
    rows: Sequence[Tensor | None],
    z: Tensor,
    log_u: Tensor,
    scales: Tensor,
) -> SweepResults:
    """Run K sweeps of one chain; arguments and results have no dimension for chains."""
    batches = (
        torch.stack([row for row in rows if row is not None])[None] if rows[0] is not None else None
    )
    results = run.engine.sweeps(position[None], batches, z[None], log_u[None], scales[None])
    return SweepResults(*(values[0] for values in results))


def one_sweep(
    run: RunState,
    position: Tensor,
    increments: Tensor,
    log_u: Sequence[float] | Tensor,
    rows: Tensor | None = None,
) -> SweepResults:
    """Run one sweep with the given increments (scale 1) and thresholds."""
    return run_sweeps(
        run,
        position,
        [rows],
        increments.double().unsqueeze(0),
        torch.as_tensor(log_u, dtype=torch.float64).unsqueeze(0),
        torch.ones(run.partition.num_blocks, dtype=torch.float64),
    )


def run_chain(
    run: RunState,
    position: Tensor,
    scales: Tensor,
    num_sweeps: int,
    key: ChainKey,
    rows: Tensor | None = None,
    chunk: int = 250,
) -> Tensor:
    """Run sweeps on one frozen batch and return the positions, (num_sweeps, num_params)."""
    positions = []
    size = len(position), run.partition.num_blocks
    for first in range(0, num_sweeps, chunk):
        noise = [sweep_noise(key, first + k, *size) for k in range(chunk)]
        z, log_u = torch.stack([n.z for n in noise]), torch.stack([n.log_u for n in noise])
        results = run_sweeps(run, position, [rows] * chunk, z, log_u, scales)
        position = results.positions[-1]
        positions.append(results.positions)
    return torch.cat(positions)
