"""Run a case, and condense each part of what came out to a hash."""

import hashlib
import json
import math
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pyro
import pyro.infer.mcmc.api as api
import torch
from pyro.infer import MCMC

from frozen.cases import Case
from frozen.models import PROBLEMS, Problem
from frozen.tap import tapped
from pyro_fnbg import FNBG, MultiChainMCMC, marginal_predictive, to_arviz
from support.remarks import REMARKS

__all__ = ["DRIVERS", "parts_of"]

# Attributes that say when and with what a run was made
PASSING = {
    "created_at",
    "creation_library_version",
    "inference_library_version",
    "pyro_version",
    "torch_version",
}
GROUPS = ("posterior", "sample_stats", "chain_stats", "observed_data")
# What Pyro says of the machine's cores, and not of the run
MACHINE_WARNING = "available_cpu"
# Kept in single precision when they were frozen; now no digit of a draw's log density is lost
FROZEN_IN_SINGLE = ("batch_log_density", "lp")
PREDICTED_ROWS = 4
# Steps between two looks of a hook at the kernel; the step where a chain is moved by hand; and the
# draw of the second chain where a run is stopped
LOOK_EVERY, MOVED_AT, STOPPED_AT = 10, 47, 29


class Outcome(NamedTuple):
    """Hold what a driver leaves.

    Attributes:
        draws: Draws by site, chains first.
        reports: What the chains report.
        said: What else can be asked for.
        mcmc: The driver, where there is one.
    """

    draws: Mapping[str, torch.Tensor]
    reports: Sequence[Mapping[str, Any]]
    said: Any
    mcmc: Any = None


def parts_of(case: Case) -> dict[str, dict[str, Any]]:
    """Run a case, and return of each part its hash, its length and three of its numbers."""
    problem = PROBLEMS[case.problem](getattr(torch, case.dtype))
    threads = torch.get_num_threads()
    torch.set_num_threads(case.threads)
    pyro.clear_param_store()
    try:
        with warnings.catch_warnings(record=True) as told, tapped() as tap:
            warnings.simplefilter("always")
            pyro.set_rng_seed(case.seed)
            kernel = FNBG(problem.model, **case.kernel)
            outcome = DRIVERS[case.driver](case, problem, kernel)
            values = {"draws": outcome.draws} | _frozen(case, problem, outcome)
        if case.driver not in UNHEARD:
            values |= tap.by_chain(case.num_sweeps)
        values["report"] = {
            "chains": outcome.reports,
            "said": outcome.said,
            "target": kernel.target,
            "engine": kernel.engine,
            "blocks": [[b.name, b.index, b.layer, b.node] for b in kernel.partition.blocks],
            "warnings": [
                str(one.message)
                for one in told
                if one.category is UserWarning
                and MACHINE_WARNING not in str(one.message)
                # What is said beforehand is no result: see tests/chains/test_remarks.py
                and not REMARKS.match(str(one.message))
            ],
        }
    finally:
        torch.set_num_threads(threads)
    return {name: _condensed(value) for name, value in values.items()}


def _frozen(case: Case, problem: Problem, outcome: Outcome) -> dict[str, Any]:
    """Return what is made of a finished run: ArviZ's groups and the predictions."""
    if outcome.mcmc is None:
        return {}
    found: dict[str, Any] = {"arviz": _groups(to_arviz(outcome.mcmc))}
    if problem.predicts and "save_params" not in case.options:
        rows = problem.args[0][:PREDICTED_ROWS]
        found["predictive"] = marginal_predictive(problem.model, outcome.mcmc.get_samples(), rows)
    return found


def _groups(idata: Any) -> dict[str, Any]:
    """Take ArviZ's groups apart: values with their dimensions, labels, and what stays the same."""

    def lasting(attrs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in attrs.items() if name not in PASSING}

    found: dict[str, Any] = {"attrs": lasting(idata.attrs)}
    for group in GROUPS:
        if group in idata:
            held = idata[group]
            found[group] = {
                "attrs": lasting(held.attrs),
                "values": {n: [list(v.dims), v.values] for n, v in held.data_vars.items()},
                "labels": {n: v.values for n, v in held.coords.items()},
            }
    return found


# --- Drivers --------------------------------------------------------------------------------------


def _starts(case: Case, problem: Problem) -> dict[str, torch.Tensor] | None:
    """Make start values from the shapes that another kernel of the same model finds."""
    if case.starts is None:
        return None
    with torch.random.fork_rng([]):
        scout = FNBG(problem.model, **case.kernel)
        scout.setup(0, *problem.args)
        own = scout.initial_params
    if case.chains > 1:
        own = {name: torch.stack([value] * case.chains) for name, value in own.items()}
    return {name: case.starts(value) for name, value in own.items()}


def _stock(case: Case, problem: Problem, kernel: FNBG, cores: int = 1, **more: Any) -> Outcome:
    """Run Pyro's driver: one chain after the other, or in workers where it believes in cores."""
    options = {"disable_progbar": True, "initial_params": _starts(case, problem)}
    with patch.object(api.mp, "cpu_count", lambda: cores):
        mcmc = MCMC(
            kernel,
            num_samples=case.draws,
            warmup_steps=case.warmup,
            num_chains=case.chains,
            **options | case.options | more,
        )
        mcmc.run(*problem.args)
    return Outcome(mcmc.get_samples(group_by_chain=True), mcmc._diagnostics, None, mcmc)


def _forked_stock(case: Case, problem: Problem, kernel: FNBG) -> Outcome:
    return _stock(case, problem, kernel, cores=8, mp_context="fork")


def _ours(method: str) -> Any:
    def run(case: Case, problem: Problem, kernel: FNBG, **more: Any) -> Outcome:
        options = {"disable_progbar": True, "initial_params": _starts(case, problem)}
        mcmc = MultiChainMCMC(
            kernel,
            num_samples=case.draws,
            warmup_steps=case.warmup,
            num_chains=case.chains,
            chain_method=method,
            **options | case.options | more,
        )
        mcmc.run(*problem.args)
        draws = mcmc.get_samples(group_by_chain=True)
        return Outcome(draws, mcmc._diagnostics, mcmc.diagnostics(), mcmc)

    return run


def _hooked(driver: Any) -> Any:
    """Run a driver with a hook that keeps, stage by stage, what it is called with.

    How the stages of several chains alternate depends on the time that they take.
    """

    def run(case: Case, problem: Problem, kernel: FNBG) -> Outcome:
        seen = defaultdict(list)

        def hook(kernel: FNBG, params: Mapping[str, torch.Tensor], stage: str, i: int) -> None:
            now = {name: value.clone() for name, value in params.items()}
            rates = kernel.logging() if i % LOOK_EVERY == 0 else None
            late = stage.startswith("Sample") and i % LOOK_EVERY == LOOK_EVERY - 1
            seen[stage].append([i, now, rates, kernel.diagnostics() if late else None])

        outcome = driver(case, problem, kernel, hook_fn=hook)
        return outcome._replace(said=[outcome.said, seen])

    return run


def _stopped(case: Case, problem: Problem, kernel: FNBG) -> Outcome:
    """Run chains one after the other, and stop the second in its draws, as Ctrl-C does."""

    def hook(kernel: FNBG, params: Mapping[str, torch.Tensor], stage: str, i: int) -> None:
        if stage == "Sample [1]" and i == STOPPED_AT:
            raise KeyboardInterrupt

    return DRIVERS["sequential"](case, problem, kernel, hook_fn=hook)


def _by_hand(is_moved: bool) -> Any:
    """Call the kernel step by step; if moved, once with other values than it returned last."""

    def run(case: Case, problem: Problem, kernel: FNBG) -> Outcome:
        kernel.setup(case.warmup, *problem.args)
        params, steps, shown = kernel.initial_params, [], []
        for step in range(case.warmup + case.draws):
            if is_moved and step == MOVED_AT:
                params = {name: value + 0.01 for name, value in params.items()}
            params = kernel.sample(params)
            shown.append(dict(kernel.logging()))
            steps.append(params)
        draws = {name: torch.stack([step[name] for step in steps])[None] for name in params}
        return Outcome(draws, [kernel.diagnostics()], [shown, kernel.initial_params])

    return run


DRIVERS = {
    "stock": _stock,
    "forked stock": _forked_stock,
    "vectorized": _ours("vectorized"),
    "sequential": _ours("sequential"),
    "processes": _ours("processes"),
    "hooked": _hooked(_ours("vectorized")),
    "hooked stock": _hooked(_stock),
    "stopped": _stopped,
    "by hand": _by_hand(False),
    "by hand, moved": _by_hand(True),
}
# Sweeps that other processes make cannot be listened to; how many a run has made ahead when it is
# stopped depends on the time that they took
UNHEARD = ("forked stock", "processes", "stopped")


# --- Hashes ---------------------------------------------------------------------------------------


def _condensed(value: Any) -> dict[str, Any]:
    """Hash a part by the types, shapes and bytes in it; keep its length and three numbers."""
    numbers: list[float] = []
    plain = _plain(value, numbers)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    last = len(numbers) - 1
    return {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "length": len(numbers),
        "first, middle, last": ", ".join(repr(numbers[i]) for i in (0, last // 2, last) if numbers),
    }


def _plain(value: Any, numbers: list[float]) -> Any:
    """Turn a value into one that JSON writes in one way, every bit of its numbers included."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, Mapping):
        return {name: _plain(_single(name, value[name]), numbers) for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [_plain(item, numbers) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain_array(np.asarray(value), numbers)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        numbers.append(value)
        return "nan" if math.isnan(value) else value.hex()
    raise TypeError(f"a frozen part holds {type(value).__name__}, which has no plain form here")


def _single(name: str, value: Any) -> Any:
    """Round what was kept in single precision when it was frozen."""
    if name not in FROZEN_IN_SINGLE:
        return value
    if isinstance(value, list):  # with its dimensions in front
        return [*value[:-1], value[-1].astype(np.float32)]
    return value.astype(np.float32)


def _plain_array(array: np.ndarray, numbers: list[float]) -> Any:
    if array.dtype.kind not in "fiub":
        return [str(array.dtype.kind), list(array.shape), array.astype(str).ravel().tolist()]
    # In native order of bytes, rows first, and with one NaN for all
    array = np.array(array, order="C")
    if array.dtype.kind == "f":
        array[np.isnan(array)] = np.nan
    numbers += map(float, array.ravel())
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    return [str(array.dtype), list(array.shape), digest]
