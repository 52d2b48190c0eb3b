"""Fit by sklearn-contrib-bde, in an environment that has it.

python -m benchmarks.uci.bde_fit TASK OUTCOME
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from bde import BdeClassifier, BdeRegressor
from bde.loss.loss import GaussianNLL

from benchmarks.uci.exchange import Outcome, Task, read_task, timed, write_outcome


def main() -> None:
    """Read the task, fit, and write what is predicted."""
    source, target = map(Path, sys.argv[1:])
    write_outcome(target, fit(read_task(source)))


def fit(task: Task) -> Outcome:
    """Fit with the plan's arguments, and keep the draws of each member apart."""
    plan = task.about["settings"]
    settings: dict[str, Any] = {
        "n_members": plan["num_chains"],
        "hidden_layers": list(plan["hidden"]),
        "seed": task.about["seed"],
        **plan["peer"],
    }
    about: dict[str, Any] = {
        "versions": {name: version(name) for name in ("sklearn-contrib-bde", "blackjax", "jax")}
    }
    is_numbers = not task.num_classes
    model = (
        BdeRegressor(**settings, loss=GaussianNLL()) if is_numbers else BdeClassifier(**settings)
    )
    with timed(about):
        model.fit(task.x_train, task.y_train)
        jax.block_until_ready(model.positions_eT_)
    about["epochs"] = [int(member["stop_epoch"]) for member in model.history().values()]
    # Shape (members, draws, rows, outputs)
    outputs = np.asarray(model.predict(task.x_test, raw=True), np.float64)
    if is_numbers:
        # As its own predictions have it
        scales = np.logaddexp(0.0, outputs[..., 1]) + 1e-6
        return Outcome(outputs[..., 0], scales, about=about)
    log_sums = np.logaddexp.reduce(outputs, -1, keepdims=True)
    return Outcome(log_probabilities=outputs - log_sums, about=about)


if __name__ == "__main__":
    main()
