"""What is said of draws beside them, in values that every file format can hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import pyro
import torch

from pyro_fnbg.chains.report import ChainReport
from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.core.noise import ChainKey

__all__ = ["BATCH_NOISE", "measured_attributes", "origin", "run_attributes", "streams"]

# The noise of minibatch decisions by its names in ArviZ
BATCH_NOISE = {
    "standard deviation of the log ratio across batches": "log_ratio_sd_across_batches",
    "share of decisions that another batch would reverse": "share_reversed_by_another_batch",
}


def run_attributes(plan: BatchPlan, warmup_steps: int, thin: int) -> dict[str, Any]:
    """Say what the chains target."""
    return {
        "target": plan.target,
        "batch_size": plan.batch_size,
        "num_rows": plan.num_rows,
        "likelihood_factor": plan.factor,
        "nominal_likelihood_temperature": plan.temperature,
        "warmup_steps": warmup_steps,
        "thin": thin,
    }


def streams(keys: Sequence[ChainKey]) -> dict[str, Any]:
    """Say where the chains' random numbers come from."""
    return {
        # As text, since it may exceed a file's integers. There are several where a hook drew random
        # numbers between chains.
        "seed": ", ".join(dict.fromkeys(str(key.seed) for key in keys)),
        "random_streams": ", ".join(str(key.chain) for key in keys),
    }


def measured_attributes(reports: Sequence[ChainReport]) -> dict[str, Any]:
    """Say how noisy the decisions were, and which blocks hardly moved in some chain."""
    first = reports[0]
    noise = {
        BATCH_NOISE[name]: float(
            np.mean([float(torch.from_numpy(one.batch_noise[name]).nanmean()) for one in reports])
        )
        for name in first.batch_noise
    }
    is_stuck = np.any([one.is_stuck for one in reports], axis=0)
    blocks = [block for block, found in zip(first.blocks, is_stuck, strict=True) if found]
    return noise | ({"stuck_blocks": ", ".join(blocks)} if blocks else {})


def origin() -> dict[str, str]:
    """Say when and with what the draws were made, under ArviZ's names."""
    own = version("pyro-fnbg")
    return {
        "created_at": datetime.now(UTC).isoformat(),
        "creation_library": "pyro_fnbg",
        "creation_library_version": own,
        "inference_library": "pyro_fnbg",
        "inference_library_version": own,
        "pyro_version": str(pyro.__version__),
        "torch_version": str(torch.__version__),
    }
