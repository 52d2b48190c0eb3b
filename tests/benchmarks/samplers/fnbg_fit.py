"""Sample a network by FNBG, in a process of its own.

python -m benchmarks.samplers.fnbg_fit TASK OUTCOME
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from benchmarks.samplers.problems import network
from benchmarks.uci.exchange import Outcome, Task, read_task, timed, write_outcome
from benchmarks.uci.fits import pace, run_chains
from pyro_fnbg import BayesianMLP
from pyro_fnbg.networks.likelihoods import scales_of

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
    settings = {"num_chains": about["num_chains"], "kernel": about["kernel"]}
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


def predicted(
    model: BayesianMLP, samples: Mapping[str, Tensor], x: Tensor, about: dict[str, Any]
) -> Outcome:
    """Predict by every draw of every chain."""
    with torch.no_grad():
        chains = range(len(samples["layer1.bias"]))
        parameters = [{name: draws[chain] for name, draws in samples.items()} for chain in chains]
        outputs = torch.stack([model.forward(one, x) for one in parameters])
    if model.likelihood == "categorical":
        return Outcome(log_probabilities=outputs.log_softmax(-1).numpy(), about=about)
    if model.likelihood == "bernoulli":
        both = torch.cat([logsigmoid(-outputs), logsigmoid(outputs)], -1)
        return Outcome(log_probabilities=both.numpy(), about=about)
    if "obs_scale" in samples:
        means = outputs.squeeze(-1)
        scales = samples["obs_scale"].unsqueeze(-1).expand_as(means)
    else:
        means, scales = outputs[..., 0], scales_of(outputs[..., 1])
    return Outcome(means.numpy(), scales.numpy(), about=about)


if __name__ == "__main__":
    main()
