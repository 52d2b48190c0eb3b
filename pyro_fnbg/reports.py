"""What a kernel says of a finished chain."""

from __future__ import annotations

from typing import Any

from pyro_fnbg.diagnostics import (
    DrawStatistics,
    acceptance_rates,
    batch_noise_report,
    measure_batch_noise,
    warn_of_stuck_blocks,
    warn_of_unbounded_blocks,
)
from pyro_fnbg.run import RunState

__all__ = ["first_draws", "report"]

# Candidates judged to measure the noise of minibatch decisions, and batches at least
PROBED_CANDIDATES, MIN_PROBED_BATCHES = 200, 4


def report(run: RunState, draws: DrawStatistics) -> dict[str, Any]:
    """Describe a chain's draws: target, acceptance, scales, and the noise of its batches.

    Warns of blocks that hardly moved, and of those that nothing bounds.

    Args:
        run: The chain's state after its last sweep.
        draws: Its statistics by draw.
    """
    partition, rates = run.partition, run.draws.rates
    warn_of_stuck_blocks(partition, run.draws)
    warn_of_unbounded_blocks(partition, run.draws, run.tuned_sweeps)
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
