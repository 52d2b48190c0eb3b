"""What is told of a chain: its target, and the acceptance, scales and noise of its draws."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_fnbg.chains.batch_noise import measure_batch_noise
from pyro_fnbg.chains.statistics import DrawStatistics, means_by_label
from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.core.moves.walk import Walk
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.engines.base import Problem
from pyro_fnbg.model.sites import DataPlate

__all__ = ["ChainReport", "Diagnostics", "report", "warn_of_blocks"]

# A block is reported as stuck when fewer than this share of at least so many candidates got through
STUCK_RATE, STUCK_SWEEPS = 0.01, 100
# In so many sweeps tuning lengthens steps a hundred thousand times where all are accepted
TUNED_SWEEPS = 200
# A run is warned of where more than this share of its blocks accepted far from what tuning aimed
# at, over at least so many sweeps. A network's chain moves slowly between places where its steps
# fit and where they do not: rates of one tuned to its aim (the demo's) over 1,000, 3,000 and 10,000
# sweeps had standard deviations of 0.12, 0.08 and 0.05, and in 40, 5 and 0 % of such pieces a
# larger share of blocks was that far off
OFF_SHARE, AIMED_SWEEPS = 0.1, 5000
# So many blocks are named in a warning
MAX_NAMED = 5

Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class ChainReport:
    """Describe a chain's draws, warmup left out. NumPy's arrays are pickled as they are.

    Attributes:
        key: The chain's random streams.
        plan: The batches' sizes and what the chain targets.
        plates: The plates that hold the data.
        engine: Name of the engine.
        engine_reason: Why it is this one.
        warmup_steps: Sweeps of warmup.
        tuned_sweeps: Sweeps in which the moves learnt.
        thin: Sweeps a draw.
        blocks: Name of each block.
        nodes: Label of each block's node.
        layers: Label of each block's layer.
        moves: Name of each block's move.
        num_rescaled: How many relu nodes are rescaled after every sweep.
        acceptance_rates: Share of accepted candidates, shape ``(num_blocks,)``.
        target_rates: Acceptance probability that tuning aimed at, NaN for blocks of a move without
            one, shape ``(num_blocks,)``.
        learnt: What the moves tell of their states, by name, each of shape ``(num_blocks,)``.
        non_finite: Candidates whose log density was NaN or plus infinity, or at which the model
            raised a linear-algebra error, shape ``(num_blocks,)``.
        log_ratio_sd: Standard deviation of the log ratio across batches, shape ``(num_blocks,)``;
            None for chains on the full data.
        reversed_share: Share of decisions that another batch would reverse, likewise.
        num_draws: Number of draws.
        statistics: Statistics of every draw by name; see ``DrawStatistics.arrays``. Those that are
            on disk are read each time that they are asked for.
    """

    key: ChainKey
    plan: BatchPlan
    plates: Mapping[str, DataPlate]
    engine: str
    engine_reason: str
    warmup_steps: int
    tuned_sweeps: int
    thin: int
    blocks: Sequence[str]
    nodes: Sequence[str]
    layers: Sequence[str]
    moves: Sequence[str]
    num_rescaled: int
    acceptance_rates: Numbers
    target_rates: Numbers
    learnt: Mapping[str, Numbers]
    non_finite: NDArray[np.integer[Any]]
    log_ratio_sd: Numbers | None
    reversed_share: Numbers | None
    num_draws: int
    statistics: Mapping[str, Numbers]

    @property
    def num_sweeps(self) -> int:
        """Number of sweeps that the rates are over."""
        return self.thin * self.num_draws

    @property
    def layer_names(self) -> list[str]:
        """Label of each layer, once."""
        return list(dict.fromkeys(self.layers))

    @property
    def is_stuck(self) -> NDArray[np.bool_]:
        """Which blocks accepted (almost) nothing, shape ``(num_blocks,)``."""
        found: NDArray[np.bool_] = self.acceptance_rates < STUCK_RATE
        return found & (self.num_sweeps >= STUCK_SWEEPS)

    @property
    def is_off_its_aim(self) -> NDArray[np.bool_]:
        """Which blocks accepted far from what tuning aimed at, shape ``(num_blocks,)``.

        Rates more than half-way from the aim to 0, or to 1, where any tuning was done. A move that
        leaves the prior as it is may rightly accept more, where the data say nothing of a block.
        """
        rates, aims = self.acceptance_rates, self.target_rates
        is_walk = np.array(self.moves) == Walk.name
        found: NDArray[np.bool_] = (rates < aims / 2) | (is_walk & (rates > (1 + aims) / 2))
        return found & (self.tuned_sweeps > 0) & (self.num_sweeps >= AIMED_SWEEPS)

    @property
    def batch_noise(self) -> dict[str, Numbers]:
        """The noise of minibatch decisions by the names that users see; empty on the full data."""
        if self.log_ratio_sd is None or self.reversed_share is None:
            return {}
        return {
            "standard deviation of the log ratio across batches": self.log_ratio_sd,
            "share of decisions that another batch would reverse": self.reversed_share,
        }

    def first_draws(self, num_draws: int) -> ChainReport:
        """Cut the statistics of every draw to the first draws."""
        if num_draws == self.num_draws:
            return self
        found = {name: values[:num_draws] for name, values in self.statistics.items()}
        return replace(self, num_draws=num_draws, statistics=found)

    def by_layer(self, values: Numbers) -> dict[str, float]:
        """Average the blocks' values over the blocks of each layer."""
        return means_by_label(values.tolist(), self.layers)


class Diagnostics(dict[str, Any]):
    """Show a report as Pyro shows diagnostics: a dict whose keys are words.

    Args:
        report: The report.

    Attributes:
        report: The report that it was made from.
    """

    def __init__(self, report: ChainReport) -> None:
        super().__init__(_in_words(report))
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        return Diagnostics, (self.report,)


def _in_words(report: ChainReport) -> Iterator[tuple[str, Any]]:
    def by_block(values: NDArray[Any]) -> dict[str, Any]:
        return dict(zip(report.blocks, values.tolist(), strict=True))

    rates = report.acceptance_rates
    yield "divergences", []
    yield "acceptance rate", float(torch.from_numpy(rates).mean())
    yield "acceptance rate by layer", report.by_layer(rates)
    yield "acceptance rate by node", means_by_label(rates.tolist(), report.nodes)
    yield "acceptance rate by block", by_block(rates)
    yield "target acceptance rate by block", by_block(report.target_rates)
    for name, values in report.learnt.items():
        known = {block: v for block, v in by_block(values).items() if v == v}
        yield f"{name} by block", known
    yield "move by block", dict(zip(report.blocks, report.moves, strict=True))
    yield "relu nodes rescaled", report.num_rescaled
    counts = by_block(report.non_finite)
    yield "non-finite candidates", {name: count for name, count in counts.items() if count}
    yield "batch size", report.plan.batch_size
    yield "number of rows", report.plan.num_rows
    yield "likelihood factor", report.plan.factor
    yield "target", report.plan.target
    yield "thin", report.thin
    yield "engine", report.engine
    yield "reason for the engine", report.engine_reason
    yield "nominal likelihood temperature", report.plan.temperature
    for name, values in report.batch_noise.items():
        yield name, {"all": float(torch.from_numpy(values).nanmean()), **report.by_layer(values)}
    yield "seed", report.key.seed
    yield "chain", report.key.chain
    yield "layers", report.layer_names
    yield "sample_stats", report.statistics


def report(
    problem: Problem, chain: ChainState, statistics: DrawStatistics, measure_noise: bool = True
) -> ChainReport:
    """Describe a chain's draws so far.

    Args:
        problem: What the chains share.
        chain: The chain's state.
        measure_noise: Whether to judge some candidates on several batches, where there are batches.
        statistics: Its statistics by draw; those of later draws are left out.
    """
    partition = problem.partition
    is_noisy = measure_noise and not problem.plan.is_full
    noise = measure_batch_noise(problem, chain) if is_noisy else None
    learnt = problem.moves.report(chain.adaptation)
    return ChainReport(
        key=chain.key,
        plan=problem.plan,
        plates=problem.sites.plates,
        engine=problem.engine.name,
        engine_reason=problem.engine_reason,
        warmup_steps=problem.warmup_steps,
        tuned_sweeps=problem.tuned_sweeps,
        thin=problem.thin,
        blocks=[block.name for block in partition.blocks],
        nodes=[partition.node_label(block) for block in partition.blocks],
        layers=[partition.layer_label(block) for block in partition.blocks],
        moves=[move.name for move in problem.moves.of_block],
        num_rescaled=problem.moves.num_rescaled,
        acceptance_rates=chain.draw_tally.rates.numpy(),
        target_rates=problem.moves.targets.numpy(),
        learnt={name: values.numpy() for name, values in learnt.items()},
        non_finite=chain.draw_tally.non_finite.numpy(),
        log_ratio_sd=None if noise is None else noise.log_ratio_sd.numpy(),
        reversed_share=None if noise is None else noise.reversed_share.numpy(),
        num_draws=problem.num_draws(chain),
        statistics=statistics.arrays(problem.num_draws(chain)),
    )


def warn_of_blocks(reports: Sequence[ChainReport], stacklevel: int = 2) -> None:
    """Warn, once for all chains of a run, of blocks whose rates say that they were sampled badly.

    They hardly moved, or nothing bounds them, or they left the acceptance that tuning aimed at.
    Warnings point where ``warnings.warn`` would, called in place of this with the same level.
    """
    level = stacklevel + 2
    _warn_of_stuck_blocks(reports, level)
    first = reports[0]
    if first.tuned_sweeps >= TUNED_SWEEPS and first.num_sweeps >= STUCK_SWEEPS:
        _warn_of_unbounded_blocks(reports, level)
    _warn_of_blocks_off_their_aim(reports, level)


def _warn_of_stuck_blocks(reports: Sequence[ChainReport], level: int) -> None:
    """Say of blocks that hardly moved why, if it is known."""
    stuck = [
        (block, report)
        for block in range(len(reports[0].blocks))
        for report in reports
        if report.is_stuck[block]
    ]
    if not stuck:
        return
    named = [
        f"{report.blocks[block]} ({report.acceptance_rates[block]:.2%}"
        + (f" in chain {report.key.chain})" if len(reports) > 1 else ")")
        for block, report in stuck
    ]
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    broken = [
        f"{report.non_finite[block]} of {report.blocks[block]}"
        for block, report in stuck
        if report.non_finite[block]
    ]
    why = (
        f"; the log density of many candidates was NaN or plus infinity, or the model raised a "
        f"linear-algebra error there ({broken[0]}), so look at the model and its data"
        if broken
        else ""
    )
    warnings.warn(
        f"{len({block for block, _ in stuck})} of {len(reports[0].blocks)} blocks hardly moved in "
        f"{stuck[0][1].num_sweeps} sweeps; acceptance rate of {', '.join(named[:MAX_NAMED])}"
        f"{more}: use more warmup_steps, in which FNBG tunes with adapt=True, its default, or an "
        f"FNBG of smaller proposal_scale{why}",
        UserWarning,
        stacklevel=level,
    )


def _warn_of_unbounded_blocks(reports: Sequence[ChainReport], level: int) -> None:
    """Name blocks that accepted all candidates however far they were tuned to walk.

    Moves that leave the prior as it is may do so rightly, where the data say nothing of a block.
    """
    accepted_all = np.any([report.acceptance_rates == 1.0 for report in reports], axis=0)
    blocks, moves = reports[0].blocks, reports[0].moves
    unbounded = [
        block
        for block, move, is_so in zip(blocks, moves, accepted_all, strict=True)
        if is_so and move == Walk.name
    ]
    if unbounded:
        warnings.warn(
            f"{len(unbounded)} of {len(blocks)} blocks accepted every candidate in "
            f"{reports[0].num_sweeps} sweeps after tuning, {unbounded[:MAX_NAMED]} among them: "
            "neither prior nor data bound them (a prior that a mask switches off?), so there is no "
            "posterior and they wander; or proposal_scale was far too small to start from",
            UserWarning,
            stacklevel=level,
        )


def _warn_of_blocks_off_their_aim(reports: Sequence[ChainReport], level: int) -> None:
    """Name blocks whose tuned steps were far too long or too short, those of lowest rates first.

    Blocks that hardly moved or that accepted all have warnings of their own.
    """
    off = [
        (report.acceptance_rates[block], block, report)
        for report in reports
        for block in np.flatnonzero(report.is_off_its_aim & ~report.is_stuck).tolist()
        if report.acceptance_rates[block] < 1
    ]
    num_blocks = sum(len(report.blocks) for report in reports)
    if len(off) <= OFF_SHARE * num_blocks:
        return
    off.sort(key=lambda one: one[:2])
    first, is_one = reports[0], len(reports) == 1
    named = [
        f"{report.blocks[block]} ({rate:.1%} for {report.target_rates[block]:.0%}"
        + (")" if is_one else f" in chain {report.key.chain})")
        for rate, block, report in off[:MAX_NAMED]
    ]
    more = f" and {len(off) - MAX_NAMED} more" if len(off) > MAX_NAMED else ""
    warnings.warn(
        f"{len(off)} of {num_blocks} blocks{'' if is_one else f' of {len(reports)} chains'} "
        f"accepted far from what tuning aimed at, over {off[0][2].num_sweeps} sweeps: "
        f"{', '.join(named)}{more}; their scales, tuned in {first.tuned_sweeps} sweeps, do not fit "
        "where the chain went afterwards, and it moves slowly there: use more warmup_steps",
        UserWarning,
        stacklevel=level,
    )
