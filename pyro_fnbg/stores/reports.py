"""What is told of the chains of a store, as of those of a run that has just ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pyro_fnbg.chains.report import ChainReport
from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.engines.base import Problem
from pyro_fnbg.stores.archive import Archive
from pyro_fnbg.stores.checkpoint import Saved

__all__ = ["keep_noise", "reports_of", "told_of_all"]

# What is told of all chains, and kept as it is
TOLD = ("engine_reason", "blocks", "nodes", "layers", "moves")
# The noise of decisions, by its names in a report
NOISE = ("log_ratio_sd", "reversed_share")


def told_of_all(problem: Problem) -> dict[str, Any]:
    """Return what reports tell of all chains, by its names there, in values that JSON can hold."""
    partition = problem.partition
    return {
        "plan": asdict(problem.plan),
        "engine_reason": problem.engine_reason,
        "blocks": [block.name for block in partition.blocks],
        "nodes": [partition.node_label(block) for block in partition.blocks],
        "layers": [partition.layer_label(block) for block in partition.blocks],
        "moves": [move.name for move in problem.moves.of_block],
        "num_rescaled": problem.moves.num_rescaled,
        "target_rates": problem.moves.targets.tolist(),
    }


def keep_noise(archive: Archive, reports: Sequence[ChainReport]) -> None:
    """Keep how noisy decisions were found to be, with the states of chains that it was found at."""
    known = {
        (report.key, report.num_sweeps): {name: getattr(report, name) for name in NOISE}
        for report in reports
        if report.log_ratio_sd is not None
    }

    def with_noise(one: Saved) -> Saved | None:
        noise = known.get((one.state.key, one.state.draw_tally.sweeps))
        return None if noise is None else one._replace(noise=noise)

    if known:
        archive.amend(with_noise)


def reports_of(
    archive: Archive, saved: Sequence[Saved], statistics: Sequence[Mapping[str, Any]]
) -> list[ChainReport]:
    """Describe chains as their last checkpoint has them.

    Args:
        archive: The store.
        saved: The chains.
        statistics: The statistics of every draw by name, chain by chain.
    """
    told, identity = archive.constants["report"], archive.constants["identity"]
    # Of a run under way, some chains may have ended, and others not
    unknown = np.full(len(told["blocks"]), np.nan) if any(one.noise for one in saved) else None
    return [
        ChainReport(
            **{name: told[name] for name in TOLD},
            # Stores of before there were rescalings say nothing of them
            num_rescaled=told.get("num_rescaled", 0),
            # JSON has lists alone
            plan=BatchPlan(**{**told["plan"], "others": tuple(told["plan"]["others"])}),
            target_rates=np.array(told["target_rates"]),
            key=one.state.key,
            plates={},
            engine=identity["engine"],
            warmup_steps=int(identity["warmup_steps"]),
            tuned_sweeps=int(identity["sweeps that tune"]),
            thin=int(identity["thin"]),
            acceptance_rates=one.state.draw_tally.rates.numpy(),
            learnt=one.learnt,
            non_finite=one.state.draw_tally.non_finite.numpy(),
            log_ratio_sd=one.noise.get("log_ratio_sd", unknown),
            reversed_share=one.noise.get("reversed_share", unknown),
            num_draws=len(own["batch_log_density"]),
            statistics=own,
        )
        for one, own in zip(saved, statistics, strict=True)
    ]
