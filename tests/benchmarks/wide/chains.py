"""One chain of a wide network for as long as one likes, which goes on where it was stopped."""

from __future__ import annotations

import pickle
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_fnbg import FNBG, BayesianMLP, predictive_probabilities
from pyro_fnbg.chains.running import start_chains
from pyro_fnbg.chains.statistics import means_by_label
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.data.images import LabelledImages
from pyro_fnbg.engines.base import Problem
from pyro_fnbg.model.bound import BoundModel

__all__ = ["ChainRun", "Plan", "network", "run_chain"]

MINUTE = 60.0  # seconds


@dataclass(frozen=True)
class Plan:
    """Say what a chain is.

    Attributes:
        activation: Of the hidden nodes.
        likelihood_scale: Of the kernel: "full" counts a batch N / n times.
        batch_size: Rows in the batch of a sweep.
        parts: Parts of each node of the first layer.
        prior_scale: Standard deviation of all weights and biases.
        warmup: Sweeps that tune the proposal scales.
        sweeps_a_draw: Sweeps from one prediction to the next.
    """

    activation: str
    likelihood_scale: str
    batch_size: int = 3_000
    parts: int = 78
    prior_scale: float = 1.0
    warmup: int = 10_000
    sweeps_a_draw: int = 50


@dataclass(frozen=True)
class ChainRun:
    """Hold how far a chain is, and what it has predicted.

    Attributes:
        plan: What it is.
        target: What it targets.
        seconds: Of the processor, at the end of each minute: of the sweeps alone.
        sweeps: Sweeps by then.
        acceptance: Rates by layer of the phase that it is in then.
        predictions: Sums of the draws' probabilities in each minute, (minutes, rows, classes).
        draws: Draws in each minute.
        state: The chain itself.
    """

    plan: dict[str, Any]
    target: str
    seconds: tuple[float, ...]
    sweeps: tuple[int, ...]
    acceptance: tuple[tuple[float, ...], ...]
    predictions: tuple[Tensor, ...]
    draws: tuple[int, ...]
    state: ChainState


def network(plan: Plan) -> BayesianMLP:
    """Return the model."""
    return BayesianMLP([784, 100, 10], activation=plan.activation, prior_scale=plan.prior_scale)


def run_chain(plan: Plan, chain: int, data: LabelledImages, minutes: int, path: Path) -> ChainRun:
    """Run a chain, in this thread, until it has had so many minutes of the processor.

    What there is of it is in a file after every minute, and a later call goes on from there.
    """
    torch.set_num_threads(1)
    pyro.set_rng_seed(chain)
    model = network(plan)
    kernel = FNBG(
        model,
        parts={1: plan.parts},
        batch_size=plan.batch_size,
        likelihood_scale=plan.likelihood_scale,
    )
    problem, [state] = start_chains(
        kernel.config,
        plan.warmup,
        BoundModel(model, (data.x_train, data.y_train), {}),
        [None],
        [ChainKey(0, chain)],
    )
    run = ChainRun(asdict(plan), problem.plan.target, (), (), (), (), (), state)
    if path.exists():
        # A file of this script's own
        run = pickle.loads(path.read_bytes())
    while len(run.seconds) < minutes:
        run = _one_more_minute(run, problem, model, data.x_test)
        whole = path.with_suffix(".part")
        whole.write_bytes(pickle.dumps(run))
        whole.replace(path)
        print(chain, len(run.seconds), run.sweeps[-1], run.acceptance[-1], flush=True)
    return run


def _one_more_minute(
    run: ChainRun, problem: Problem, model: BayesianMLP, x_test: Tensor
) -> ChainRun:
    """Sweep for a minute, predictions not counted."""
    spent, state, draws = run.seconds[-1] if run.seconds else 0.0, run.state, 0
    predictions = torch.zeros(len(x_test), model.widths[-1])
    while spent < MINUTE * (len(run.seconds) + 1):
        started = time.process_time()
        [state], _ = problem.engine.sweeps(problem, [state], run.plan["sweeps_a_draw"])
        spent += time.process_time() - started
        place = problem.sites.layout.unflatten(state.position)
        samples = {name: value[None] for name, value in place.items()}
        predictions += predictive_probabilities(model, samples, x_test, progress=False)[0]
        draws += 1
    partition, rates = problem.partition, problem.phase(state).rates.tolist()
    labels = [partition.layer_label(block) for block in partition.blocks]
    return replace(
        run,
        seconds=(*run.seconds, spent),
        sweeps=(*run.sweeps, state.sweeps),
        acceptance=(*run.acceptance, tuple(means_by_label(rates, labels).values())),
        predictions=(*run.predictions, predictions),
        draws=(*run.draws, draws),
        state=state,
    )
