"""How fast a model is sampled: by itself, by the engine of choice, and as a ``BayesianMLP``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pyro
import torch
from torch import _inductor

from benchmarks.models.case import Case
from benchmarks.models.cases import CASES
from pyro_fnbg import FNBG, Block, Partition
from pyro_fnbg.chains.setup import Run
from pyro_fnbg.core.layout import Layout

__all__ = ["Length", "blocks_of_network", "run_speed"]

TRANSPOSED = " transposed"


class Length(NamedTuple):
    """Say how long a model is timed.

    Attributes:
        warmup: Sweeps that tune the proposal scales before anything is timed.
        turns: How often each is timed, in turn.
        seconds: About how long each time.
    """

    warmup: int = 200
    turns: int = 7
    seconds: float = 0.4


def run_speed(name: str, length: Length) -> dict[str, Any]:
    """Time a model's sweeps, and return what is told of it.

    Trace, the engine of choice and, where that is "captured", the compiled engine start at the same
    state of the same chain, after warmup, and take the same decisions. The ``BayesianMLP`` has a
    chain of its own, in the same blocks.
    """
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)
    case = CASES[name]()
    before, before_seconds = _set_up(case.model, case, "trace", length.warmup)
    after, after_seconds = _set_up(case.model, case, "auto", length.warmup)
    chosen, layout = after.problem, after.problem.sites.layout
    if before.problem.partition.blocks != chosen.partition.blocks:
        raise RuntimeError(f"{name}: the engines have other blocks, and cannot be compared")
    runs = {"auto": _warmed_up(after)}
    runs = {"trace": Run(before.problem, runs["auto"].chain), **runs}
    compiled_seconds = None
    if chosen.engine.name == "captured":
        with _inductor.config.patch(force_disable_caches=True):
            compiled, compiled_seconds = _set_up(case.model, case, "compiled", length.warmup)
        runs["compiled"] = Run(compiled.problem, runs["auto"].chain)
    if case.network is not None:
        blocks = blocks_of_network(case, chosen.partition, layout)
        network, _ = _set_up(case.network, case, "auto", length.warmup, blocks)
        runs["network"] = _warmed_up(network)
    counts = {who: _count(run, length.seconds) for who, run in runs.items()}
    speeds: dict[str, list[float]] = {who: [] for who in runs}
    for _ in range(length.turns):
        for who, run in runs.items():
            speeds[who].append(counts[who] / _seconds(run, counts[who]))
    return {
        "name": name,
        "engine": chosen.engine.name,
        "reason": chosen.engine_reason,
        "network_engine": runs["network"].problem.engine.name if "network" in runs else None,
        "blocks": chosen.partition.num_blocks,
        "parameters": layout.num_params,
        "rows": case.num_rows,
        "setup_seconds": {
            "trace": before_seconds,
            "auto": after_seconds,
            "compiled": compiled_seconds,
        },
        "sweeps_a_second": speeds,
        "length": length._asdict(),
    }


def blocks_of_network(
    case: Case, partition: Partition, layout: Layout
) -> Callable[[Layout], Partition]:
    """Return what cuts the ``BayesianMLP`` of a case into the blocks of its model."""

    def blocks(other: Layout) -> Partition:
        sites, places = {site.name: site for site in other.sites}, []
        for site in layout.sites:
            theirs = case.same[site.name]
            target = sites[theirs.removesuffix(TRANSPOSED)]
            first = other.offsets()[target.name]
            own = torch.arange(first, first + target.size).reshape(target.shape)
            places.append((own.T if theirs.endswith(TRANSPOSED) else own).flatten())
        moved = torch.cat(places)
        return Partition(
            tuple(
                Block(block.name, tuple(moved[list(block.index)].tolist()))
                for block in partition.blocks
            ),
            other.num_params,
        )

    return blocks


def _set_up(
    model: Callable[..., Any], case: Case, engine: str, warmup: int, blocks: Any = "node"
) -> tuple[Run, float]:
    """Set a kernel up; return its run, and the seconds that it took."""
    kernel = FNBG(model, engine=engine, blocks=blocks)
    pyro.set_rng_seed(0)
    started = time.perf_counter()
    with pyro.validation_enabled(False):
        kernel.setup(warmup, *case.args)
    return Run(kernel.problem, kernel.state), time.perf_counter() - started


def _warmed_up(run: Run) -> Run:
    (chain,), _ = run.problem.engine.sweeps(run.problem, [run.chain], run.problem.warmup_steps)
    return Run(run.problem, chain)


def _count(run: Run, seconds: float) -> int:
    """Find how many sweeps take some seconds; what is run first compiles, and does not count."""
    count = 1
    _seconds(run, count)
    while (taken := _seconds(run, count)) < seconds / 4:
        count *= 2
    return max(1, round(count * seconds / taken))


def _seconds(run: Run, count: int) -> float:
    started = time.perf_counter()
    run.problem.engine.sweeps(run.problem, [run.chain], count)
    return time.perf_counter() - started
