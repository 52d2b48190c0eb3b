"""Run samplers on the same networks for the same time, and write the page.

    make bench-samplers DATA=FOLDER

FOLDER holds ``uci/airfoil.data``, ``uci/ionosphere.data`` and ``MNIST/raw``. Each sampler has a
process of its own, on one thread, those of others in an environment with NumPyro and BlackJAX, and
all chains of a problem start at the same places. A row whose record is there is not run again,
unless it failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch

from benchmarks.models.records import keep, path_of
from benchmarks.problems import Problem as Start
from benchmarks.problems import starts
from benchmarks.report import read_records
from benchmarks.samplers.page import OURS, SAMPLERS, page
from benchmarks.samplers.problems import PROBLEMS, Problem, network
from benchmarks.uci import scoring
from benchmarks.uci.exchange import Task, read_outcome, write_task
from benchmarks.uci.rows import ONE_THREAD
from benchmarks.uci.sets import Split
from pyro_fnbg import warm_start

CHAINS, DRAWS, SEED = 4, 5_000, 1
# Draws of ours that are kept, of a network with many parameters
DRAWS_OF_IMAGES = 200
TESTS = Path(__file__).parents[2]


def main() -> None:
    """Run the rows that are asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--peer", type=Path, metavar="PYTHON", help="with NumPyro and BlackJAX")
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--seconds", type=float, help="for each; a problem's own if left out")
    parser.add_argument("--core", type=int, help="run on this core")
    parser.add_argument("--results", type=Path, default=Path("tests/benchmarks/results/samplers"))
    parser.add_argument("--output", type=Path, default=Path("bench-output/samplers"))
    parser.add_argument("--page", type=Path, default=Path("docs/samplers.md"))
    chosen = parser.parse_args()
    if chosen.core is not None:
        os.sched_setaffinity(0, {chosen.core})
    chosen.output.mkdir(parents=True, exist_ok=True)
    for name in chosen.problems:
        wanted = [sampler for sampler in chosen.samplers if can_run(sampler, PROBLEMS[name])]
        paths = {s: path_of(chosen.results, f"{name} {s}") for s in wanted}
        missing = [s for s, path in paths.items() if not is_done(path)]
        if not missing:
            continue
        rows = PROBLEMS[name].read(chosen.data)
        places = start_at(PROBLEMS[name], rows, path_of(chosen.output, name).with_suffix(".npz"))
        for sampler in missing:
            record = run(name, sampler, rows, places, chosen)
            keep(paths[sampler], record)
            print(f"{name}, {sampler}: {record.get('diagnostics', record['status'])}", flush=True)
    chosen.page.write_text(page(read_records(chosen.results)), "utf-8")


def can_run(sampler: str, problem: Problem) -> bool:
    """Say whether a sampler has a chance: NUTS needs a gradient, and all rows in every step.

    Of ours, those are left out that would be the walk.
    """
    if sampler in OURS:
        moves = OURS[sampler]["moves"]
        has_one = {"gibbs": problem.has_normal_outputs, "auto": problem.has_moves_to_pick}
        has_nodes = problem.can_be_rescaled or not OURS[sampler].get("rescale")
        return has_one.get(moves, True) and has_nodes
    return problem.has_peers and (sampler != "NUTS" or problem.has_gradient)


def is_done(path: Path) -> bool:
    """Say whether a row need not be run."""
    return path.exists() and json.loads(path.read_text("utf-8"))["status"] == "done"


def start_at(problem: Problem, rows: Split, path: Path) -> Path:
    """Write where chains start, unconstrained: at draws of the prior, or at fits."""
    if path.exists():
        return path
    torch.set_num_threads(1)
    pyro.set_rng_seed(SEED)
    model = network(problem.about())
    x = torch.tensor(rows.x_train, dtype=torch.float32)
    is_categorical = problem.likelihood == "categorical"
    y = torch.tensor(rows.y_train, dtype=torch.int64 if is_categorical else torch.float32)
    if problem.is_warm:
        found: Any = warm_start(model, x, y, num_chains=CHAINS, disable_progbar=True)
    else:
        drawn = starts(Start(model, (x, y), predict=lambda _: x), CHAINS)
        found = {site: torch.stack([one[site] for one in drawn]) for site in drawn[0]}
    np.savez(path, **{site: values.numpy() for site, values in found.items()})
    return path


def run(
    name: str, sampler: str, rows: Split, places: Path, chosen: argparse.Namespace
) -> dict[str, Any]:
    """Return the record of a row: of its failure, if that is what came."""
    problem = PROBLEMS[name]
    is_ours = sampler in OURS
    seconds = problem.seconds if chosen.seconds is None else chosen.seconds
    about = {
        "method": sampler,
        "num_classes": rows.num_classes,
        "seed": SEED,
        "problem": problem.about(),
        "kernel": {**OURS[sampler], **dict(problem.kernel)} if is_ours else {},
        "starts": str(places),
        "budget_seconds": seconds,
        "num_chains": CHAINS,
        "num_draws": DRAWS if problem.has_peers else DRAWS_OF_IMAGES,
    }
    source, target = (
        path_of(chosen.output, f"{name} {sampler}").with_suffix(end)
        for end in (".task.npz", ".npz")
    )
    record = {"problem": name, "sampler": sampler, "seconds": seconds, "chains": CHAINS}
    record |= {"is_warm": problem.is_warm, "rows": len(rows.x_train), "test": len(rows.x_test)}
    write_task(source, Task(rows.x_train, rows.y_train, rows.x_test, about))
    interpreter = Path(sys.executable) if is_ours else chosen.peer
    if interpreter is None:
        raise SystemExit("no interpreter of the peers' environment: pass --peer PYTHON")
    done = subprocess.run(
        [str(interpreter), "-m", f"benchmarks.samplers.{'fnbg_fit' if is_ours else 'jax_fit'}"]
        + [str(source), str(target)],
        env=os.environ
        | ONE_THREAD
        | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    source.unlink()
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return record | {"status": lines[-1] if lines else f"exit code {done.returncode}"}
    outcome = read_outcome(target)
    target.unlink()
    return record | {
        "status": "done",
        "draws": outcome_draws(outcome),
        "scores": scoring.scores(outcome, rows.y_test),
        "diagnostics": scoring.diagnostics(outcome),
        "about": outcome.about,
    }


def outcome_draws(outcome: Any) -> int:
    """Return how many draws of each chain are predicted from."""
    values = outcome.log_probabilities if len(outcome.log_probabilities) else outcome.means
    return int(values.shape[1])


if __name__ == "__main__":
    main()
