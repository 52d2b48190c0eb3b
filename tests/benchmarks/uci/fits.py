"""Fit by a method of this environment, in a process of its own.

python -m benchmarks.uci.fits TASK OUTCOME
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from benchmarks.uci.baselines import fit_boosting, fit_linear
from benchmarks.uci.exchange import Outcome, Task, read_task, timed, write_outcome
from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from pyro_fnbg.fitting.warm_start import warm_start
from pyro_fnbg.networks.likelihoods import scales_of

__all__ = ["fit_chains", "fit_ensemble", "network", "predicted"]

# Share of the budget that the last pilot takes at least
PILOT_SHARE = 0.03
# Sweeps of the first pilots
SHORT_PILOT = 10
# Steps of the pilots of a warm start
PILOT_STEPS = 100
BY_LAYER = "acceptance rate by layer"

Params = Mapping[str, Tensor]


def main() -> None:
    """Read the task, fit, and write what is predicted."""
    source, target = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    task = read_task(source)
    write_outcome(target, METHODS[task.about["method"]](task))


def network(task: Task) -> BayesianMLP:
    """Return the network: for numbers with a mean and a scale as outputs, else with logits."""
    if task.num_classes:
        return BayesianMLP(task.widths, activation="relu", likelihood="categorical")
    return BayesianMLP(
        task.widths, activation="relu", likelihood="normal", observation_scale="network"
    )


def data(task: Task) -> tuple[Tensor, Tensor, Tensor]:
    """Return the task's arrays as tensors."""
    x, x_test = (torch.tensor(each, dtype=torch.float32) for each in (task.x_train, task.x_test))
    return x, torch.tensor(task.y_train, dtype=torch.int64 if task.num_classes else x.dtype), x_test


def fit_chains(task: Task, is_warm: bool) -> Outcome:
    """Run chains that start from fits, or from draws of the prior, within the budget.

    The budget pays for everything: warm start, compiling, and the pilots whose pace tells how many
    sweeps are left.
    """
    settings, budget = task.about["settings"], task.about["budget_seconds"]
    model, (x, y, x_test) = network(task), data(task)
    num_draws = settings["num_draws"]
    about: dict[str, Any] = {"budget_seconds": budget}
    pyro.set_rng_seed(task.about["seed"])
    with timed(about):
        started = time.process_time()
        starts = None
        if is_warm:
            known = partial(warm_start, model, x, y, num_chains=settings["num_chains"])
            steps = annealing_steps(known, settings, settings["annealing_share"] * budget)
            starts = fitted(model, x, y, settings["num_chains"], settings, steps)
            about["annealing_steps"] = steps
        about["warm_start_core_seconds"] = time.process_time() - started
        run = partial(run_chains, model, x, y, starts, settings)
        set_up, per_sweep = pace(run, PILOT_SHARE * budget)
        left = budget - (time.process_time() - started) - set_up
        num_sweeps = max(2 * num_draws, int(left / per_sweep))
        thin = max(1, int((1 - settings["warmup_share"]) * num_sweeps / num_draws))
        mcmc = run(num_sweeps - thin * num_draws, num_draws, thin)
    found = mcmc.diagnostics()
    about |= {
        "warmup": mcmc.warmup_steps,
        "thin": thin,
        "target": found["target"]["chain 0"],
        "engine": found["engine"]["chain 0"],
        "acceptance_by_layer": [list(rates.values()) for rates in found[BY_LAYER].values()],
    }
    return predicted(model, mcmc.get_samples(group_by_chain=True), x_test, about)


def annealing_steps(fit: Callable[..., Any], settings: Mapping[str, Any], seconds: float) -> int:
    """Return how many steps of annealing end that many seconds after a warm start begins.

    Two pilots tell what a step of the fit and one of annealing take.
    """

    def seconds_of(steps: int, annealing: int) -> float:
        began = time.process_time()
        fit(steps=steps, annealing_steps=annealing, disable_progbar=True)
        return time.process_time() - began

    began = time.process_time()
    seconds_of(1, 1)  # what is done once
    least = seconds_of(1, 1)
    per_step = (seconds_of(1 + PILOT_STEPS, 1) - least) / PILOT_STEPS
    per_annealing = (seconds_of(1, 1 + PILOT_STEPS) - least) / PILOT_STEPS
    spent = time.process_time() - began + least + settings["warm_start"]["steps"] * per_step
    return max(0, int((seconds - spent) / per_annealing))


def run_chains(
    model: BayesianMLP,
    x: Tensor,
    y: Tensor,
    starts: Params | None,
    settings: Mapping[str, Any],
    warmup: int,
    num_draws: int,
    thin: int,
) -> MultiChainMCMC:
    """Run all chains at once."""
    mcmc = MultiChainMCMC(
        FNBG(model, thin=thin, **settings["kernel"]),
        num_samples=num_draws,
        warmup_steps=warmup,
        initial_params=starts,
        num_chains=settings["num_chains"],
        disable_progbar=True,
    )
    mcmc.run(x, y)
    return mcmc


def pace(run: Callable[[int, int, int], Any], seconds: float) -> tuple[float, float]:
    """Return the seconds of the processor that set-up and each sweep take, by pilot runs.

    The last of these takes so many seconds at least.
    """

    def seconds_of(sweeps: int) -> float:
        began = time.process_time()
        run(sweeps, 1, 1)
        return time.process_time() - began

    seconds_of(SHORT_PILOT)  # compiles
    short, sweeps, took = seconds_of(SHORT_PILOT), SHORT_PILOT, 0.0
    while took <= short + seconds:
        sweeps *= 4
        took = seconds_of(sweeps)
    per_sweep = (took - short) / (sweeps - SHORT_PILOT)
    return max(0.0, short - SHORT_PILOT * per_sweep), per_sweep


def fit_ensemble(task: Task) -> Outcome:
    """Fit as many networks as the budget allows, by what starts the warm chains."""
    settings, budget = task.about["settings"], task.about["budget_seconds"]
    model, (x, y, x_test) = network(task), data(task)
    about: dict[str, Any] = {"budget_seconds": budget}
    rounds: list[Params] = []
    pyro.set_rng_seed(task.about["seed"])
    with timed(about):
        started = time.process_time()
        spent = 0.0
        # The next round takes about as long as those before
        while not rounds or spent * (len(rounds) + 1) / len(rounds) <= budget:
            rounds.append(fitted(model, x, y, settings["members_at_a_time"], settings))
            spent = time.process_time() - started
    # Sites have no constraints, so starts are values as well. A member is a chain of one draw
    members = {name: torch.cat([one[name] for one in rounds])[:, None] for name in rounds[0]}
    return predicted(model, members, x_test, about)


def fitted(
    model: BayesianMLP,
    x: Tensor,
    y: Tensor,
    count: int,
    settings: Mapping[str, Any],
    annealing_steps: int = 0,
) -> Params:
    """Fit some networks, each from a start of its own."""
    return warm_start(
        model,
        x,
        y,
        num_chains=count,
        annealing_steps=annealing_steps,
        disable_progbar=True,
        **settings["warm_start"],
    )


def predicted(model: BayesianMLP, samples: Params, x: Tensor, about: dict[str, Any]) -> Outcome:
    """Predict by every draw of every chain."""
    with torch.no_grad():
        by_chain = [
            model.forward({name: draws[chain] for name, draws in samples.items()}, x)
            for chain in range(len(samples["layer1.bias"]))
        ]
    outputs = torch.stack(by_chain)
    if model.likelihood == "categorical":
        return Outcome(log_probabilities=outputs.log_softmax(-1).numpy(), about=about)
    if model.likelihood == "bernoulli":
        both = torch.cat([logsigmoid(-outputs), logsigmoid(outputs)], -1)
        return Outcome(log_probabilities=both.numpy(), about=about)
    means = outputs[..., 0]
    if "obs_scale" in samples:
        scales = samples["obs_scale"].unsqueeze(-1).expand_as(means)
    else:
        scales = scales_of(outputs[..., 1])
    return Outcome(means.numpy(), scales.numpy(), about=about)


METHODS: dict[str, Callable[[Task], Outcome]] = {
    "cold": partial(fit_chains, is_warm=False),
    "warm": partial(fit_chains, is_warm=True),
    "ensemble": fit_ensemble,
    "linear": fit_linear,
    "boosting": fit_boosting,
}


if __name__ == "__main__":
    main()
