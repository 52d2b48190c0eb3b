"""What a kernel says of a finished chain."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from pyro_fnbg.chains.setup import RunState
from pyro_fnbg.chains.statistics import (
    DrawStatistics,
    acceptance_rates,
    batch_noise_report,
    measure_batch_noise,
)

__all__ = ["first_draws", "report", "stuck_blocks", "warn_of_blocks"]

# A block is reported as stuck when fewer than this share of at least so many candidates got through
STUCK_RATE, STUCK_SWEEPS = 0.01, 100
# In so many sweeps tuning lengthens steps a hundred thousand times where all are accepted
TUNED_SWEEPS = 200
# So many blocks are named in a warning
MAX_NAMED = 5

# Candidates judged to measure the noise of minibatch decisions, and batches at least
PROBED_CANDIDATES, MIN_PROBED_BATCHES = 200, 4


def report(run: RunState, draws: DrawStatistics) -> dict[str, Any]:
    """Describe a chain's draws: target, acceptance, scales, and the noise of its batches.

    Args:
        run: The chain's state after its last sweep.
        draws: Its statistics by draw.
    """
    partition, rates = run.partition, run.draws.rates
    names = [block.name for block in partition.blocks]
    non_finite = dict(zip(names, run.draws.non_finite.tolist(), strict=True))
    found = {
        "divergences": [],
        "acceptance rate": float(rates.mean()),
        "acceptance rate by layer": acceptance_rates(partition, rates, partition.layer_label),
        "acceptance rate by node": acceptance_rates(partition, rates, partition.node_label),
        "acceptance rate by block": dict(zip(names, rates.tolist(), strict=True)),
        "target acceptance rate by block": dict(zip(names, run.targets.tolist(), strict=True)),
        "proposal scale by block": dict(zip(names, run.scales.tolist(), strict=True)),
        "non-finite candidates": {name: count for name, count in non_finite.items() if count},
        "batch size": run.plan.batch_size,
        "number of rows": run.plan.num_rows,
        "likelihood factor": run.plan.factor,
        "target": run.plan.target,
        "thin": run.thin,
        "engine": run.engine.name,
        "reason for the engine": run.engine_reason,
        "nominal likelihood temperature": run.plan.temperature,
    }
    if not run.plan.is_full:
        num_batches = max(MIN_PROBED_BATCHES, PROBED_CANDIDATES // partition.num_blocks)
        noise = measure_batch_noise(
            run.engine, run.position, run.batches, run.key, run.scales, num_batches
        )
        found |= batch_noise_report(partition, noise)
    return found | {
        "seed": run.key.seed,
        "chain": run.key.chain,
        "layers": draws.layers,
        "sample_stats": draws.arrays(),
    }


def first_draws(report: dict[str, Any], num_draws: int) -> dict[str, Any]:
    """Cut a report's numbers of every draw to the first draws."""
    kept = {name: values[:num_draws] for name, values in report["sample_stats"].items()}
    return report | {"sample_stats": kept}


def stuck_blocks(reports: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Find the blocks that accepted (almost) nothing over the draws of a chain, with its report."""
    rates = "acceptance rate by block"
    return [
        (block, report)
        for block in reports[0][rates]
        for report in reports
        if _num_sweeps(report) >= STUCK_SWEEPS and report[rates][block] < STUCK_RATE
    ]


def warn_of_blocks(reports: Sequence[Mapping[str, Any]], tuned_sweeps: int) -> None:
    """Warn, once for all chains of a run, of blocks that hardly moved or that nothing bounds.

    Args:
        reports: The chains' reports.
        tuned_sweeps: Number of sweeps of each chain that adapted the scales.
    """
    _warn_of_stuck_blocks(reports)
    if tuned_sweeps >= TUNED_SWEEPS and _num_sweeps(reports[0]) >= STUCK_SWEEPS:
        _warn_of_unbounded_blocks(reports)


def _warn_of_stuck_blocks(reports: Sequence[Mapping[str, Any]]) -> None:
    """Say of blocks that hardly moved why, if it is known."""
    stuck = stuck_blocks(reports)
    if not stuck:
        return
    blocks = list(dict.fromkeys(block for block, _ in stuck))
    named = [
        f"{block} ({report['acceptance rate by block'][block]:.2%}"
        + (f" in chain {report['chain']})" if len(reports) > 1 else ")")
        for block, report in stuck
    ]
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    broken = [
        f"{report['non-finite candidates'][block]} of {block}"
        for block, report in stuck
        if block in report["non-finite candidates"]
    ]
    why = (
        f"; the log density of many candidates was NaN or plus infinity ({broken[0]}), "
        "so look at the model and its data there"
        if broken
        else ""
    )
    warnings.warn(
        f"{len(blocks)} of {len(reports[0]['acceptance rate by block'])} blocks hardly moved in "
        f"{_num_sweeps(stuck[0][1])} sweeps; acceptance rate of {', '.join(named[:MAX_NAMED])}"
        f"{more}: use more warmup_steps with adapt=True, or a smaller proposal_scale{why}",
        UserWarning,
        stacklevel=4,
    )


def _warn_of_unbounded_blocks(reports: Sequence[Mapping[str, Any]]) -> None:
    """Name blocks that accepted all candidates however far they were tuned to go."""
    rates = [report["acceptance rate by block"] for report in reports]
    unbounded = [block for block in rates[0] if any(found[block] == 1.0 for found in rates)]
    if unbounded:
        warnings.warn(
            f"{len(unbounded)} of {len(rates[0])} blocks accepted every candidate in "
            f"{_num_sweeps(reports[0])} sweeps after tuning, {unbounded[:MAX_NAMED]} among them: "
            "neither prior nor data bound them (a prior that a mask switches off?), so there is no "
            "posterior and they wander; or proposal_scale was far too small to start from",
            UserWarning,
            stacklevel=4,
        )


def _num_sweeps(report: Mapping[str, Any]) -> int:
    """Return the number of sweeps that a report's rates are over."""
    return int(report["thin"] * len(report["sample_stats"]["acceptance_rate"]))
