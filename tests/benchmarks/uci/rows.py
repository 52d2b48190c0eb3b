"""One row of the benchmark: a method on a set with a seed, run once, scored and recorded."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.uci import scoring
from benchmarks.uci.exchange import Outcome, Task, read_outcome, write_task
from benchmarks.uci.plans import Plan
from benchmarks.uci.sets import Split, split

__all__ = ["METHODS", "Options", "run_row"]

# In the order in which they run: the peer's time is the budget of ours
MODULES = {
    "linear": "fits",
    "boosting": "fits",
    "bde": "bde_fit",
    "warm": "fits",
    "cold": "fits",
    "ensemble": "fits",
    "nuts": "nuts_fit",
}
METHODS = tuple(MODULES)
OF_PEER = ("bde", "nuts")
BUDGETED = ("warm", "cold", "ensemble")
PACKAGES = ("pyro-fnbg", "torch", "numpy", "numba", "scikit-learn")
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
# Where this package is found, in the peers' environment as well
TESTS = Path(__file__).parents[2]
# Folders of a machine, which no record needs
PATHS = re.compile(r"(/[\w.+@-]+){2,}")


@dataclass(frozen=True)
class Options:
    """Hold what rows are run with.

    Attributes:
        plan: How much is done.
        data: Folder of the data sets.
        peer: Interpreter of the peers' environment.
        budget_seconds: Of the processor, for our chains and the ensemble; None for the peer's.
        results: Folder of the records.
        output: Folder of tasks, predictions and logs.
    """

    plan: Plan
    data: Path | None
    peer: Path | None
    budget_seconds: float | None
    results: Path
    output: Path


def run_row(name: str, seed: int, method: str, options: Options) -> dict[str, Any]:
    """Return a row's record: the one that is there, unless it failed, or of a new run."""
    path = record_path(options.results, name, seed, method)
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if found["status"] == "done":
            return found
    about = {
        "set": name,
        "seed": seed,
        "method": method,
        "plan": options.plan.name,
        "settings": _settings(method, options),
        "date": date.today().isoformat(),
    }
    try:
        record = about | {"status": "done"} | _run(name, seed, method, options)
    except Exception as error:  # the other rows go on
        words = PATHS.sub("PATH", f"{type(error).__name__}: {error}")
        record = about | {"status": "failed", "error": words}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    return record


def record_path(folder: Path, name: str, seed: int, method: str) -> Path:
    """Return where a record is."""
    return folder / f"{name}-{seed}-{method}.json"


def _run(name: str, seed: int, method: str, options: Options) -> dict[str, Any]:
    rows = split(name, options.data, seed, options.plan.max_rows)
    kept = options.output / f"{name}-{seed}-{method}.npz"
    if not kept.exists():
        _fit(rows, name, seed, method, options, kept)
    outcome = read_outcome(kept)
    return {
        "rows": {"train": len(rows.y_train), "test": len(rows.y_test)},
        "inputs": rows.x_train.shape[1],
        "num_classes": rows.num_classes,
        "cores": 1,
        "scores": scoring.scores(outcome, rows.y_test),
        "shape": list(_values(outcome).shape[:2]),
        "course": scoring.course(outcome, rows.y_test),
        "diagnostics": scoring.diagnostics(outcome),
        "about": outcome.about,
        "machine": {"processor": _processor(), "system": platform.platform(terse=True)},
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in PACKAGES},
    }


def _values(outcome: Outcome) -> Any:
    return outcome.log_probabilities if len(outcome.log_probabilities) else outcome.means


def _fit(rows: Split, name: str, seed: int, method: str, options: Options, target: Path) -> None:
    """Run the method in a process of its own.

    Raises:
        RuntimeError: If it fails: with the last line that it wrote.
    """
    interpreter = options.peer if method in OF_PEER else Path(sys.executable)
    if interpreter is None:
        raise RuntimeError("no interpreter of the peers' environment: pass --peer PYTHON")
    about = {
        "method": method,
        "num_classes": rows.num_classes,
        "seed": seed,
        "settings": _settings(method, options),
    }
    if method in BUDGETED:
        about["budget_seconds"] = _budget(name, seed, options)
    source = target.with_suffix(".task.npz")
    write_task(source, Task(rows.x_train, rows.y_train, rows.x_test, about))
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    command = [interpreter, "-m", f"benchmarks.uci.{MODULES[method]}", source, target]
    with target.with_suffix(".log").open("w", encoding="utf-8") as log:
        done = subprocess.run(
            list(map(str, command)),
            env=os.environ | ONE_THREAD | {"PYTHONPATH": path},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        lines = target.with_suffix(".log").read_text("utf-8").strip().splitlines()
        raise RuntimeError(f"exit code {done.returncode}: {lines[-1] if lines else 'no output'}")
    target.with_suffix(".log").unlink()


def _settings(method: str, options: Options) -> dict[str, Any]:
    """Return what the plan says of a method, with the budget if one was asked for."""
    found = options.plan.of(method)
    if method in BUDGETED and options.budget_seconds is not None:
        found["budget_seconds"] = options.budget_seconds
    return found


def _budget(name: str, seed: int, options: Options) -> float:
    """Return the seconds of the processor that ours may take."""
    if options.budget_seconds is not None:
        return options.budget_seconds
    path = record_path(options.results, name, seed, "bde")
    record: Mapping[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if record.get("status") != "done":
        raise RuntimeError("the peer has no time on this set and seed: pass --budget-seconds")
    seconds: float = record["about"]["core_seconds"]
    return seconds


def _processor() -> str:
    """Return the processor's name, where the system tells."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"
