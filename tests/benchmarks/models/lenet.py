"""Sample LeNet on MNIST: fits, and then chains of the engine of choice for as long as one likes.

    PYTHONPATH=tests python -m benchmarks.models.lenet --data FOLDER --seconds 1200

FOLDER holds MNIST/raw. The seconds are of the processor, fits and set-up included, predictions not.
One thread. A draw of each chain is kept whenever a sixtieth of the time is over. The record goes to
the results folder, and the page is written by the next run of benchmarks.models.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from benchmarks.models.layers import put_normal_priors
from benchmarks.models.records import keep, path_of
from pyro_fnbg import FNBG, mnist, predictive_probabilities, warm_start
from pyro_fnbg.chains.running import start_chains
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.engines.base import Problem
from pyro_fnbg.model.bound import BoundModel

# How many times test images are predicted
CHECKS = 60


class LeNet(PyroModule):
    """Two convolutions with pools, and two linear layers."""

    def __init__(self, filters: tuple[int, int] = (6, 16), hidden: int = 84) -> None:
        super().__init__()
        self.conv1 = PyroModule[nn.Conv2d](1, filters[0], kernel_size=5)
        self.conv2 = PyroModule[nn.Conv2d](filters[0], filters[1], kernel_size=5)
        self.pool = nn.MaxPool2d(2)
        self.fc = PyroModule[nn.Linear](filters[1] * 4 * 4, hidden)
        self.out = PyroModule[nn.Linear](hidden, 10)
        put_normal_priors(self, 0.3)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> None:
        plate = pyro.plate("images", len(images))
        with plate as rows:
            batch = images[rows]
            observed = None if labels is None else labels[rows]
        # Outside the plate, or each image would get weights of its own
        hidden = self.pool(torch.relu(self.conv1(batch)))
        hidden = self.pool(torch.relu(self.conv2(hidden)))
        logits = self.out(torch.relu(self.fc(hidden.flatten(1))))
        with plate:
            pyro.sample("labels", dist.Categorical(logits=logits), obs=observed)


def main() -> None:
    """Fit, sample until the time is over, and keep a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--fit-steps", type=int, default=1_000, help="steps of each chain's fit")
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=100, help="sweeps that tune the scales")
    parser.add_argument("--batch-size", type=int, default=1_000)
    parser.add_argument("--likelihood-scale", choices=["batch", "full"], default="full")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--core", type=int, help="run on this core")
    parser.add_argument("--results", type=Path, default=Path("tests/benchmarks/results/models"))
    chosen = parser.parse_args()
    if chosen.core is not None:
        os.sched_setaffinity(0, {chosen.core})
    name = f"lenet {chosen.batch_size} {chosen.likelihood_scale} {chosen.seed}"
    keep(path_of(chosen.results / "lenet", name), run(chosen))


def run(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the record of a run."""
    torch.set_num_threads(1)
    pyro.set_rng_seed(chosen.seed)
    data = mnist(chosen.data)
    x_train, x_test = (x.reshape(-1, 1, 28, 28) for x in (data.x_train, data.x_test))
    model = LeNet()
    started = time.process_time()
    fits = warm_start(
        model,
        x_train,
        data.y_train,
        num_chains=chosen.chains,
        steps=chosen.fit_steps,
        learning_rate=0.005,
        # A hundred looks at a tenth of the images would take longer than the fit
        held_out=0.01,
        disable_progbar=True,
    )
    fit_seconds = time.process_time() - started
    starts = [
        {name: value[chain] if chosen.chains > 1 else value for name, value in fits.items()}
        for chain in range(chosen.chains)
    ]
    fit_scores = scores(_predicted(model, starts, x_test), data.y_test)
    print(f"fits: {fit_seconds:.0f} s, {fit_scores}", flush=True)
    kernel = FNBG(model, batch_size=chosen.batch_size, likelihood_scale=chosen.likelihood_scale)
    started = time.process_time()
    problem, chains = start_chains(
        kernel.config,
        chosen.warmup,
        BoundModel(model, (x_train, data.y_train), {}),
        starts,
        [ChainKey(chosen.seed, chain) for chain in range(chosen.chains)],
    )
    setup_seconds = time.process_time() - started
    print(f"set up: {setup_seconds:.0f} s, {problem.engine.name}", flush=True)
    # Predictions take no time of the budget
    spent = fit_seconds + setup_seconds
    course, pooled, networks, sampling = [], torch.zeros(len(x_test), 10), 0, 0.0
    while spent < chosen.seconds:
        stop = min(spent + chosen.seconds / CHECKS, chosen.seconds)
        while spent < stop:
            started = time.process_time()
            chains, _ = problem.engine.sweeps(problem, chains, 1)
            took = time.process_time() - started
            spent, sampling = spent + took, sampling + took
        sweeps = chains[0].sweeps
        places = [problem.sites.layout.unflatten(chain.position) for chain in chains]
        now = _predicted(model, places, x_test)
        # Networks of the warmup are no draws
        if sweeps > chosen.warmup:
            pooled, networks = pooled + chosen.chains * now, networks + chosen.chains
        best = pooled / networks if networks else now
        course.append(
            {
                "seconds": spent,
                "sweeps": sweeps,
                "networks": networks,
                "last": scores(now, data.y_test),
                **scores(best, data.y_test),
                "acceptance": _acceptance(problem, chains),
            }
        )
        print(course[-1], flush=True)
    return {
        "budget": chosen.seconds,
        "engine": problem.engine.name,
        "reason": problem.engine_reason,
        "target": problem.plan.target,
        "blocks": problem.partition.num_blocks,
        "parameters": problem.partition.num_params,
        "batch_size": chosen.batch_size,
        "likelihood_scale": chosen.likelihood_scale,
        "chains": chosen.chains,
        "warmup": chosen.warmup,
        "fit_steps": chosen.fit_steps,
        "fit_seconds": fit_seconds,
        "fit": fit_scores,
        "setup_seconds": setup_seconds,
        "sampling_seconds": sampling,
        "sweeps": chains[0].sweeps,
        "course": course,
    }


def scores(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Return accuracy and mean negative log likelihood."""
    own = probabilities.gather(1, labels[:, None]).clamp(min=torch.finfo(torch.float32).tiny)
    return {
        "accuracy": float((probabilities.argmax(1) == labels).double().mean()),
        "nll": float(-own.log().mean()),
    }


def _predicted(model: LeNet, places: list[Mapping[str, Tensor]], x: Tensor) -> Tensor:
    """Average the probabilities of some networks."""
    samples = {name: torch.stack([place[name] for place in places]) for name in places[0]}
    return predictive_probabilities(model, samples, x, progress=False).mean(0)


def _acceptance(problem: Problem, chains: list[ChainState]) -> dict[str, float]:
    """Average the rates of the current phase by layer, over blocks and chains."""
    partition = problem.partition
    rates = torch.stack([problem.phase(chain).rates for chain in chains]).mean(0)
    layers = torch.tensor([block.layer or 0 for block in partition.blocks])
    return {
        name: float(rates[layers == layer].mean())
        for layer, name in enumerate(partition.layer_names, 1)
    }


if __name__ == "__main__":
    main()
