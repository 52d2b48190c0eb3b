"""Sample a network by FNBG, in a process of its own.

python -m benchmarks.samplers.fnbg_fit TASK OUTCOME
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch

from benchmarks.samplers.problems import network
from benchmarks.uci.exchange import Outcome, Task, read_task, timed, write_outcome
from benchmarks.uci.fits import pace, predicted, run_chains

# Share of the time that the last pilot takes at least, and share of the sweeps that is warmup
PILOT_SHARE, WARMUP_SHARE = 0.05, 1 / 3


def main() -> None:
    """Read the task, sample, and write what is predicted."""
    source, target = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    write_outcome(target, fit(read_task(source)))


def fit(task: Task) -> Outcome:
    """Run as many sweeps as the time allows; compiling and pilots are not in it."""
    about = task.about
    model = network(about["problem"])
    x, x_test = (torch.tensor(each, dtype=torch.float32) for each in (task.x_train, task.x_test))
    is_categorical = model.likelihood == "categorical"
    y = torch.tensor(task.y_train, dtype=torch.int64 if is_categorical else torch.float32)
    with np.load(about["starts"]) as found:
        starts = {name: torch.tensor(values) for name, values in found.items()}
    kernel = dict(about["kernel"])
    if "parts" in kernel:
        # A file of JSON has names alone
        kernel["parts"] = {int(layer): parts for layer, parts in kernel["parts"].items()}
    settings = {"num_chains": about["num_chains"], "kernel": kernel}
    pyro.set_rng_seed(about["seed"])
    run = partial(run_chains, model, x, y, starts, settings)
    _, per_sweep = pace(run, PILOT_SHARE * about["budget_seconds"])
    sweeps = max(3 * about["num_draws"], int(about["budget_seconds"] / per_sweep))
    thin = max(1, int((1 - WARMUP_SHARE) * sweeps / about["num_draws"]))
    told: dict[str, Any] = {"steps": sweeps}
    with timed(told):
        mcmc = run(sweeps - thin * about["num_draws"], about["num_draws"], thin)
    report = mcmc.reports[0]
    told |= {"target": report["target"], "engine": report["engine"]}
    return predicted(model, mcmc.get_samples(group_by_chain=True), x_test, told)


if __name__ == "__main__":
    main()
