"""The state of one chain's run: all that set-up makes, and what a sweep changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pyro_fnbg.chains.statistics import Tally
from pyro_fnbg.config import Config, check_memory, check_scales, given_scales, targets_of_blocks
from pyro_fnbg.core.batches import Batches, BatchPlan
from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.checks import check_count
from pyro_fnbg.core.noise import ChainKey, Stream, generator, noise_of_sweeps
from pyro_fnbg.core.partitions import make_partition
from pyro_fnbg.core.tuning import FIRST_SHARE, Tuning, gains, initial_scales
from pyro_fnbg.engines.base import Engine, SweepResults
from pyro_fnbg.engines.choice import Positions, choose_engine
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.lint.determinism import check_density
from pyro_fnbg.model.lint.entry import check_rows, checked_sites
from pyro_fnbg.model.planning import make_plan
from pyro_fnbg.model.rows import observed_labels
from pyro_fnbg.model.sites import ModelSites, PlateRows, prior_draws, seeded
from pyro_fnbg.model.starts import drawn_position, given_position

__all__ = ["RunState", "after", "next_sweeps", "start_chain", "start_run"]

NUM_PRIOR_DRAWS = 100
# Positions besides the start where a fast engine is compared with the model
NUM_TRIES = 5


@dataclass(frozen=True)
class RunState:
    """Hold one chain's run; ``after`` makes the next from it.

    The chains of a run share all but ``key``, ``batches`` and what follows ``thin``.

    Attributes:
        key: The chain's random streams.
        batches: The chain's batches.
        sites: What set-up found in the model.
        partition: The blocks.
        plan: The batches' sizes and what the chain targets.
        labels: Classes of the rows, where batches are stratified.
        density: The model's log density.
        engine: What runs the sweeps.
        engine_reason: Why it is this one.
        targets: Acceptance probabilities aimed at, shape ``(num_blocks,)``.
        warmup_steps: Number of sweeps that are not counted as draws.
        tuned_sweeps: Number of sweeps that adapt the scales.
        thin: Sweeps a draw.
        position: Current unconstrained parameters, shape ``(num_params,)``.
        sweeps: Number of sweeps so far.
        scales: Proposal standard deviation of each block, shape ``(num_blocks,)``.
        warmup: Decisions during warmup.
        draws: Decisions after warmup.
    """

    key: ChainKey
    batches: Batches
    sites: ModelSites
    partition: Partition
    plan: BatchPlan
    labels: Tensor | None
    density: ModelDensity
    engine: Engine
    engine_reason: str
    targets: Tensor
    warmup_steps: int
    tuned_sweeps: int
    thin: int
    position: Tensor
    sweeps: int
    scales: Tensor
    warmup: Tally
    draws: Tally

    @property
    def in_warmup(self) -> bool:
        """Whether the next sweep belongs to the warmup."""
        return self.sweeps < self.warmup_steps

    @property
    def sweeps_a_draw(self) -> int:
        """Sweeps that the next draw takes, or the next step of the warmup."""
        return 1 if self.in_warmup else self.thin

    @property
    def tally(self) -> Tally:
        """Decisions so far of the phase that the next sweep belongs to."""
        return self.warmup if self.in_warmup else self.draws

    @property
    def phase(self) -> Tally:
        """Decisions of the phase that the last sweep belongs to."""
        return self.warmup if self.sweeps <= self.warmup_steps else self.draws


def start_run(
    config: Config,
    warmup_steps: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    initial_params: Mapping[str, Tensor] | None,
    key: ChainKey,
) -> RunState:
    """Inspect the model, check it, and place the first chain at its start.

    Raises:
        ValueError: If the model or the arguments do not fit; see the checks' own messages.
    """
    check_count("warmup_steps", warmup_steps, 0)
    warmup_steps = int(warmup_steps)
    bound = BoundModel(config.model, args, kwargs)
    with _model_seed(key, 0), torch.no_grad():
        sites = checked_sites(bound)
        plan = make_plan(
            sites,
            config.batch_size,
            config.batch_order,
            config.batch_plate,
            config.likelihood_scale,
        )
        is_stratified = plan.order == "stratified"
        labels = observed_labels(bound, plan) if is_stratified else None
        batches = Batches(plan, key, labels)
        rows = batches.rows(0)
        check_rows(bound, sites, plan, rows)
        partition = make_partition(sites.layout, config.blocks, config.parts, config.max_block_size)
        density = ModelDensity(bound, sites, plan)
        tuned_sweeps = config.tuned_sweeps(warmup_steps)
    # All chains of a run have the same first scales, so a chain alone takes those of its run
    first = ChainKey(key.seed, 0)
    first_rows = PlateRows(plan.plate, Batches(plan, first, labels).rows(0))
    with _model_seed(first, 1), torch.no_grad():
        prior = prior_draws(bound, sites, first_rows, NUM_PRIOR_DRAWS)
        check_density(density, sites, prior, rows)
        scales = given_scales(config.proposal_scale, partition)
        if scales is None:
            share = FIRST_SHARE if tuned_sweeps > 0 else 1.0
            scales = share * initial_scales(prior.cpu(), partition)
        else:
            check_scales(scales, partition, sites.layout, prior)
        check_memory(config.thin, partition)
    position = _start_position(config, bound, sites, plan, density, batches, initial_params, key)
    with _model_seed(key, 3), torch.no_grad():
        tries = torch.cat([position[None], prior[:NUM_TRIES]])
        engine, reason = choose_engine(
            config.engine, bound, sites, plan, partition, density,
            Positions(tries, rows, scales, key),
        )  # fmt: skip
    nothing = Tally.empty(partition.num_blocks)
    return RunState(
        key=key,
        batches=batches,
        sites=sites,
        partition=partition,
        plan=plan,
        labels=labels,
        density=density,
        engine=engine,
        engine_reason=reason,
        targets=targets_of_blocks(config.target_accept_prob, partition),
        warmup_steps=warmup_steps,
        tuned_sweeps=tuned_sweeps,
        thin=config.thin,
        position=position,
        sweeps=0,
        scales=scales,
        warmup=nothing,
        draws=nothing,
    )


def start_chain(
    run: RunState,
    config: Config,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    initial_params: Mapping[str, Tensor] | None,
    key: ChainKey,
) -> RunState:
    """Place another chain of a run, where it would also start in a run of its own.

    Args:
        run: The state of the run's first chain at its start.
        config: The arguments of ``FNBG``.
        args: The model's arguments.
        kwargs: The model's keyword arguments.
        initial_params: The chain's initial values, if any were given.
        key: The chain's random streams.

    Raises:
        ValueError: If the initial values do not fit.
    """
    batches = Batches(run.plan, key, run.labels)
    bound = BoundModel(config.model, args, kwargs)
    position = _start_position(
        config, bound, run.sites, run.plan, run.density, batches, initial_params, key
    )
    return replace(run, key=key, batches=batches, position=position)


def _model_seed(key: ChainKey, use: int) -> AbstractContextManager[None]:
    """Seed the runs of the model for one use in set-up."""
    return seeded(int(generator(key, Stream.MODEL, use).integers(2**63 - 1)))


def _start_position(
    config: Config,
    bound: BoundModel,
    sites: ModelSites,
    plan: BatchPlan,
    density: ModelDensity,
    batches: Batches,
    initial_params: Mapping[str, Tensor] | None,
    key: ChainKey,
) -> Tensor:
    """Find where a chain starts."""
    rows = batches.rows(0)
    with _model_seed(key, 2), torch.no_grad():
        if initial_params is not None:
            return given_position(initial_params, sites, density, rows)
        plate_rows = PlateRows(plan.plate, rows)
        return drawn_position(bound, config.init_strategy, sites, density, rows, plate_rows)


def next_sweeps(runs: Sequence[RunState], count: int) -> list[SweepResults]:
    """Run the next ``count`` sweeps of chains that have made as many sweeps so far.

    Returns:
        The results of each chain, without the dimension for chains. ``after`` goes on from there.
    """
    run = runs[0]
    size = run.partition.num_params, run.partition.num_blocks
    noise = [noise_of_sweeps(chain.key, chain.sweeps, count, *size) for chain in runs]
    batches = [chain.batches.rows_of_sweeps(chain.sweeps, count) for chain in runs]
    rows = [batch for batch in batches if batch is not None]
    results = run.engine.sweeps(
        _stack([chain.position for chain in runs]),
        _stack(rows) if rows else None,
        _stack([z for z, _ in noise]),
        _stack([log_u for _, log_u in noise]),
        _stack([chain.scales for chain in runs]),
        Tuning(run.targets, gains(run.sweeps, count, run.tuned_sweeps)),
    )
    return [results.of_chain(chain) for chain in range(len(runs))]


def _stack(values: Sequence[Tensor]) -> Tensor:
    """Put chains side by side; a single one is not copied."""
    return values[0].unsqueeze(0) if len(values) == 1 else torch.stack(list(values))


def after(run: RunState, results: SweepResults) -> RunState:
    """Return the state after some sweeps, all of the warmup or all of the draws."""
    tally = run.tally.add(results.accepted, results.log_ratios)
    return replace(
        run,
        position=results.positions[-1],
        sweeps=run.sweeps + len(results.accepted),
        scales=results.scales[-1],
        warmup=tally if run.in_warmup else run.warmup,
        draws=run.draws if run.in_warmup else tally,
    )
