"""One row: a plan's rounds, run one after the other and scored where a budget ends."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor

from benchmarks.images.plans import PLANS, Plan, widths
from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, predict, score_classes, warm_start
from pyro_fnbg.data.images import LabelledImages

__all__ = ["Row", "run_row"]

Networks = Mapping[str, Tensor]

BY_LAYER = "acceptance rate by layer"
# Rows that everything is compiled on before the clock starts
FEW = 50
PACKAGES = ("pyro-fnbg", "torch", "numpy", "numba")
SCORES = ("accuracy", "nll", "calibration_error")


class Row(NamedTuple):
    """Name a row: a set, a network, a method and a seed."""

    images: str
    network: str
    method: str
    seed: int


def run_row(
    row: Row, folder: Path, data: LabelledImages, budgets: Sequence[float]
) -> dict[str, Any]:
    """Return a row's record: the one that is there, or of a new run of one thread.

    A round that would end after a budget, if it took as long as those before it on average, is not
    of that budget; the first one always is. Predictions and scores take no time of the budgets.
    """
    path = folder / f"{'-'.join(map(str, row))}.json"
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return found
    plan = PLANS[row.network][row.method]
    torch.set_num_threads(1)
    model = BayesianMLP(widths(row.network), prior_scale=plan.prior_scale)
    few = LabelledImages(data.x_train[:FEW], data.y_train[:FEW], data.x_test, data.y_test)
    _round(model, few, Plan("compiles", 1, plan.learning_rate, warmup=1, draws=1, at_a_time=1))
    pyro.set_rng_seed(row.seed)
    at_budgets: list[dict[str, Any]] = []
    rounds: list[Networks] = []
    spent, waiting = 0.0, sorted(budgets)
    while waiting:
        started = time.process_time()
        networks, last_round = _round(model, data, plan)
        spent += time.process_time() - started
        rounds.append(networks)
        one_more = spent * (len(rounds) + 1) / len(rounds)
        while waiting and one_more > waiting[0]:
            pooled = {name: torch.cat([each[name] for each in rounds]) for name in networks}
            scores = score_classes(predict(model, pooled, data.x_test, progress=False), data.y_test)
            at_budgets.append(
                {
                    "budget": waiting.pop(0),
                    "seconds": spent,
                    "chains": len(rounds) * plan.at_a_time,
                    "networks": len(pooled["layer1.bias"]),
                    **{name: scores[name] for name in SCORES},
                }
            )
    record = {
        **row._asdict(),
        "plan": asdict(plan),
        "at_budgets": at_budgets,
        "last_round": last_round,
        "machine": f"{platform.machine()}, {platform.system()}",
        "versions": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    return record


def _round(model: BayesianMLP, data: LabelledImages, plan: Plan) -> tuple[Networks, dict[str, Any]]:
    """Fit networks, run chains from them if there are any, and tell about the chains."""
    fits = warm_start(
        model,
        data.x_train,
        data.y_train,
        num_chains=plan.at_a_time,
        steps=plan.steps,
        learning_rate=plan.learning_rate,
        held_out=plan.held_out,
        disable_progbar=True,
    )
    if not plan.draws:
        return dict(fits) if plan.at_a_time > 1 else {n: v[None] for n, v in fits.items()}, {}
    kernel = FNBG(
        model, thin=plan.thin, batch_size=plan.batch_size, likelihood_scale=plan.likelihood_scale
    )
    mcmc = MultiChainMCMC(
        kernel,
        num_samples=plan.draws,
        warmup_steps=plan.warmup,
        initial_params=fits,
        num_chains=plan.at_a_time,
        disable_progbar=True,
    )
    mcmc.run(data.x_train, data.y_train)
    by_chain = [list(rates.values()) for rates in mcmc.diagnostics()[BY_LAYER].values()]
    acceptance = [fmean(rates) for rates in zip(*by_chain, strict=True)]
    return mcmc.get_samples(), {"target": kernel.target, "acceptance": acceptance}
