"""Runs of real engines with noise that a test chooses."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_fnbg import FNBG
from pyro_fnbg.engines.base import SweepResults
from pyro_fnbg.run import RunState

# Every exactness test runs on each of these
ENGINES = ("trace",)


def start(engine: str, model: Any, *args: Any, **options: Any) -> RunState:
    """Set a kernel up and return its run: engine, sites, partition, plan and position."""
    assert engine in ENGINES
    kernel = FNBG(model, **options)
    kernel.setup(0, *args)
    assert kernel._run is not None
    return kernel._run


def one_sweep(
    run: RunState,
    position: Tensor,
    increments: Tensor,
    log_u: Sequence[float] | Tensor,
    rows: Tensor | None = None,
) -> SweepResults:
    """Run one sweep with the given increments (scale 1) and thresholds."""
    return run.engine.sweeps(
        position,
        [rows],
        increments.double().unsqueeze(0),
        torch.as_tensor(log_u, dtype=torch.float64).unsqueeze(0),
        torch.ones(run.partition.num_blocks, dtype=torch.float64),
    )
