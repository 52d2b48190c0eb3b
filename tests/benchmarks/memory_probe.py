"""Run chains in this process, and print how far its memory rose; Linux only.

    python -m benchmarks.memory_probe driver|stock CHAINS DRAWS

The last line is a JSON object. What is read is the peak of the resident memory over what was
resident just before ``run``, first at the end of ``run`` and then once ``get_samples`` has returned
too. A run of two draws comes first, so that code which is loaded or compiled at first use is not
counted.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyro.infer.mcmc.api as api
import torch

from benchmarks.works import Work, kernel_of, training_data
from pyro_fnbg import FNBG, MultiChainMCMC

# 8,180 parameters in float32, and cheap sweeps
WORK = Work("random", (784, 10, 10, 10, 10), batch_size=100, num_rows=1000)


def main() -> None:
    """Run, and print what was measured."""
    who, chains, draws = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    data = training_data(WORK)
    make(who, chains, 2).run(*data)
    mcmc = make(who, chains, draws)
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is resident now
    before = resident("VmRSS")
    mcmc.run(*data)
    after_run = resident("VmHWM")
    samples = mcmc.get_samples(group_by_chain=True)
    size = sum(values.numel() * values.element_size() for values in samples.values())
    report = {"draws": size, "run": after_run - before, "samples": resident("VmHWM") - before}
    print(json.dumps(report))


def make(who: str, chains: int, draws: int) -> Any:
    """Return a driver for chains that run one after the other in this process."""
    kernel: FNBG = kernel_of(WORK, "fused")
    options: dict[str, Any] = {
        "num_samples": draws,
        "warmup_steps": 0,
        "num_chains": chains,
        "disable_progbar": True,
    }
    if who == "driver":
        return MultiChainMCMC(kernel, **options)
    # With more cores than chains, Pyro would start a process for each
    with patch.object(api.mp, "cpu_count", lambda: 1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return api.MCMC(kernel, **options)


def resident(field: str) -> int:
    """Read resident memory now (VmRSS) or its peak (VmHWM), in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    assert found is not None
    return 1024 * int(found.group(1))


if __name__ == "__main__":
    main()
