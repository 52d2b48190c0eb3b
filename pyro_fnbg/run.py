"""The state of one chain's run: all that set-up makes, and what a sweep changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from pyro_fnbg.adaptation import (
    FIRST_SHARE,
    Adaptation,
    adapt,
    initial_scales,
    target_accept_probs,
)
from pyro_fnbg.batches import Batches, BatchPlan
from pyro_fnbg.blocks import Partition
from pyro_fnbg.density import ModelDensity
from pyro_fnbg.diagnostics import Tally
from pyro_fnbg.engines.base import Engine, SweepResults
from pyro_fnbg.engines.choice import ENGINE_NAMES, Positions, choose_engine
from pyro_fnbg.initial import check_density, drawn_position, given_position
from pyro_fnbg.layout import Layout
from pyro_fnbg.nodes import make_partition
from pyro_fnbg.noise import ChainKey, Stream, generator, sweep_noise
from pyro_fnbg.planning import make_plan
from pyro_fnbg.rows import check_no_broken_rows, check_rows_followed, observed_labels
from pyro_fnbg.sites import Model, ModelSites, PlateRows, inspect_model, prior_draws, seeded
from pyro_fnbg.step import accept_prob

__all__ = ["Config", "RunState", "advance", "start_run"]

NUM_PRIOR_DRAWS = 100
# Positions besides the start where a fast engine is compared with the model
NUM_TRIES = 5


@dataclass(frozen=True)
class Config:
    """Hold the arguments of ``FNBG``, as given."""

    model: Model
    blocks: str | Partition | Callable[[Layout], Partition]
    parts: int | Mapping[int, int] | None
    max_block_size: int | None
    batch_size: int | None
    batch_order: str
    batch_plate: str | None
    likelihood_scale: str | float | None
    proposal_scale: float | Sequence[float] | None
    adapt: bool
    target_accept_prob: float | None
    engine: str
    init_strategy: Callable[..., Any]


@dataclass(frozen=True)
class RunState:
    """Hold one chain's run; ``advance`` makes the next from it.

    Attributes:
        key: The chain's random streams.
        sites: What set-up found in the model.
        partition: The blocks.
        plan: The batches' sizes and what the chain targets.
        batches: The chain's batches.
        engine: What runs the sweeps.
        engine_reason: Why it is this one.
        targets: Acceptance probabilities aimed at, shape ``(num_blocks,)``.
        warmup_steps: Number of sweeps that adapt the scales and are not counted as draws.
        position: Current unconstrained parameters, shape ``(num_params,)``.
        sweeps: Number of sweeps so far.
        adaptation: The tuner's state; frozen after warmup.
        warmup: Decisions during warmup.
        draws: Decisions after warmup.
    """

    key: ChainKey
    sites: ModelSites
    partition: Partition
    plan: BatchPlan
    batches: Batches
    engine: Engine
    engine_reason: str
    targets: Tensor
    warmup_steps: int
    position: Tensor
    sweeps: int
    adaptation: Adaptation
    warmup: Tally
    draws: Tally

    @property
    def scales(self) -> Tensor:
        """Proposal standard deviation of each block, shape ``(num_blocks,)``."""
        return self.adaptation.log_scales.exp()


def start_run(
    config: Config,
    warmup_steps: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    initial_params: Mapping[str, Tensor] | None,
    key: ChainKey,
) -> RunState:
    """Inspect the model, check it, and place the chain at its start.

    Raises:
        ValueError: If the model or the arguments do not fit; see the checks' own messages.
    """
    model = config.model
    with seeded(int(generator(key, Stream.MODEL, 0).integers(2**63 - 1))), torch.no_grad():
        sites = inspect_model(model, args, kwargs)
        plan = make_plan(
            sites,
            config.batch_size,
            config.batch_order,
            config.batch_plate,
            config.likelihood_scale,
        )
        is_stratified = plan.order == "stratified"
        labels = observed_labels(model, args, kwargs, plan) if is_stratified else None
        batches = Batches(plan, key, labels)
        rows = batches.rows(0)
        if rows is not None:
            check_rows_followed(model, args, kwargs, plan, rows)
            is_own = sites.plates[plan.plate or ""].is_subsampled
            at_a_time = plan.batch_size if is_own else plan.num_rows
            check_no_broken_rows(model, args, kwargs, plan, at_a_time)
        partition = make_partition(sites.layout, config.blocks, config.parts, config.max_block_size)
        plate_rows = PlateRows(plan.plate, rows)
        prior = prior_draws(model, args, kwargs, sites, plate_rows, NUM_PRIOR_DRAWS)
        density = ModelDensity(model, args, kwargs, sites, plan)
        check_density(density, sites, prior[0], rows)
        if initial_params is not None:
            position = given_position(initial_params, sites, density, rows)
        else:
            position = drawn_position(
                model, args, kwargs, config.init_strategy, sites, density, rows, plate_rows
            )
        scales = _given_scales(config.proposal_scale, partition)
        if scales is None:
            scales = initial_scales(prior.cpu(), partition)
            if config.adapt and warmup_steps > 0:
                scales = FIRST_SHARE * scales
        tries = torch.cat([position[None], prior[:NUM_TRIES]])
        engine, reason = choose_engine(
            config.engine, model, args, kwargs, sites, plan, partition, density,
            Positions(tries, rows, scales, key),
        )  # fmt: skip
    return RunState(
        key=key,
        sites=sites,
        partition=partition,
        plan=plan,
        batches=batches,
        engine=engine,
        engine_reason=reason,
        targets=_targets(config.target_accept_prob, partition),
        warmup_steps=warmup_steps,
        position=position,
        sweeps=0,
        adaptation=Adaptation(scales.log(), updates=0),
        warmup=Tally.empty(partition.num_blocks),
        draws=Tally.empty(partition.num_blocks),
    )


def advance(run: RunState, position: Tensor, adapting: bool) -> tuple[RunState, SweepResults]:
    """Run the next sweep from a position.

    The scales move after a sweep of the warmup and never after it.
    """
    noise = sweep_noise(run.key, run.sweeps, len(position), run.partition.num_blocks)
    rows = run.batches.rows(run.sweeps)
    results = run.engine.sweeps(
        position[None],
        None if rows is None else rows[None, None],
        noise.z[None, None],
        noise.log_u[None, None],
        run.scales[None],
    )
    in_warmup = run.sweeps < run.warmup_steps
    adaptation = run.adaptation
    if adapting and in_warmup:
        adaptation = adapt(adaptation, accept_prob(results.log_ratios[0, 0]).cpu(), run.targets)
    tally = run.warmup if in_warmup else run.draws
    tally = tally.add(results.accepted[0], results.log_ratios[0])
    run = replace(
        run,
        position=results.positions[0, 0],
        sweeps=run.sweeps + 1,
        adaptation=adaptation,
        warmup=tally if in_warmup else run.warmup,
        draws=run.draws if in_warmup else tally,
    )
    return run, results


def _given_scales(
    proposal_scale: float | Sequence[float] | None, partition: Partition
) -> Tensor | None:
    """Spread a number, or one number a layer, over the blocks."""
    if proposal_scale is None:
        return None
    scales = torch.as_tensor(proposal_scale, dtype=torch.float64)
    if scales.dim() == 0:
        return scales.repeat(partition.num_blocks)
    names = partition.layer_names
    layers = [block.layer for block in partition.blocks if block.layer is not None]
    if len(scales) != len(names) or len(layers) < partition.num_blocks:
        raise ValueError(
            f"proposal_scale must be one number or one per layer {list(names)}, "
            f"got {len(scales)} numbers"
        )
    return scales[torch.tensor(layers) - 1]


def _targets(target_accept_prob: float | None, partition: Partition) -> Tensor:
    if target_accept_prob is None:
        return target_accept_probs(partition)
    return torch.full((partition.num_blocks,), target_accept_prob, dtype=torch.float64)


def check_arguments(config: Config) -> None:
    """Check the arguments that need no model.

    Raises:
        TypeError: If the strategy is not callable.
        ValueError: Naming the argument, its value and what is allowed.
    """
    scale = config.proposal_scale
    if scale is not None and not _are_positive(scale):
        raise ValueError(
            f"proposal_scale must be a positive standard deviation or one per layer, got {scale!r}"
        )
    if not callable(config.init_strategy):
        raise TypeError(
            "init_strategy must be one of pyro.infer.autoguide.initialization, "
            f"got {config.init_strategy!r}"
        )
    if config.engine not in ENGINE_NAMES:
        raise ValueError(f"engine must be one of {ENGINE_NAMES}, got {config.engine!r}")
    target = config.target_accept_prob
    is_number = isinstance(target, Real) and not isinstance(target, bool)
    if target is not None and not (is_number and 0 < target < 1):
        raise ValueError(f"target_accept_prob must be between 0 and 1, got {target!r}")


def _are_positive(scale: float | Sequence[float]) -> bool:
    """Whether something is one finite positive number, or a row of them."""
    try:
        numbers = torch.as_tensor(scale, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return False
    is_right_shape = numbers.dim() <= 1 and not isinstance(scale, bool)
    return is_right_shape and bool(((numbers > 0) & numbers.isfinite()).all())
