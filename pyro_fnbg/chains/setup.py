"""From a kernel's arguments and a model to a problem, and to chains at their start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.chains.remarks import remarks_on
from pyro_fnbg.config import Config, check_memory, given_scales, targets_of_blocks
from pyro_fnbg.core.batches import Batches
from pyro_fnbg.core.checks import check_count
from pyro_fnbg.core.layout import Layout
from pyro_fnbg.core.moves.choice import AUTO, make_moves
from pyro_fnbg.core.moves.joint import JointMoves
from pyro_fnbg.core.moves.walk import Walk
from pyro_fnbg.core.noise import ChainKey, Stream, generator
from pyro_fnbg.core.partitions import make_partition
from pyro_fnbg.core.priors import ParameterPriors, Variances
from pyro_fnbg.core.state import ChainState, Tally
from pyro_fnbg.core.tuning import FIRST_SHARE, initial_scales
from pyro_fnbg.engines.base import Problem
from pyro_fnbg.engines.choice import choose_engine
from pyro_fnbg.engines.comparison import Places
from pyro_fnbg.engines.fused.engine import FusedEngine
from pyro_fnbg.engines.influence import unused_sites
from pyro_fnbg.engines.structure import Structure
from pyro_fnbg.engines.trace import TraceEngine
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.lint.determinism import check_density
from pyro_fnbg.model.lint.entry import check_rows, checked_sites
from pyro_fnbg.model.planning import make_plan
from pyro_fnbg.model.priors import parameter_priors, sample_sites
from pyro_fnbg.model.rows import observed_labels
from pyro_fnbg.model.sites import PlateRows, prior_draws, seeded
from pyro_fnbg.model.starts import drawn_position, given_position

__all__ = ["Run", "start_chain", "start_run"]

NUM_PRIOR_DRAWS = 100
# Positions besides the start where a fast engine is compared with the model, and where the model is
# evaluated if it runs for every block
NUM_TRIES, NUM_EVALUATED = 5, 50


class _Use(IntEnum):
    """Separate the uses of the model's own randomness, so that none shifts another."""

    INSPECTION = 0
    PRIOR = 1
    START = 2
    ENGINE = 3
    MOVES = 4
    STRUCTURE = 5


class Run(NamedTuple):
    """Hold a problem and one of its chains.

    Attributes:
        problem: What all chains share.
        chain: The chain's state.
    """

    problem: Problem
    chain: ChainState


def start_run(
    config: Config,
    warmup_steps: int,
    bound: BoundModel,
    initial_params: Mapping[str, Tensor] | None,
    key: ChainKey,
) -> Run:
    """Inspect the model, check it, and place the first chain at its start.

    Raises:
        ValueError: If the model or the arguments do not fit; see the checks' own messages.
    """
    check_count("warmup_steps", warmup_steps, 0)
    warmup_steps = int(warmup_steps)
    with _model_seed(key, _Use.INSPECTION), torch.no_grad():
        sites = checked_sites(bound)
        plan = make_plan(
            sites,
            config.batch_size,
            config.batch_order,
            config.batch_plate,
            config.likelihood_scale,
        )
        labels = observed_labels(bound, plan) if plan.order == "stratified" else None
        batches = Batches(plan, labels)
        rows = batches.rows(key, 0)
        check_rows(bound, sites, plan, rows)
        density = ModelDensity(bound, sites, plan)
        tuned_sweeps = config.tuned_sweeps(warmup_steps)
    # All chains of a run have the same first scales, so a chain alone takes those of its run
    first = ChainKey(key.seed, 0)

    @cache
    def read_priors() -> ParameterPriors:
        with _model_seed(first, _Use.MOVES), torch.no_grad():
            runs = sample_sites(bound), sample_sites(bound)
            return parameter_priors(sites.layout, *runs, scale_sites)[0]

    first_rows = batches.rows(first, 0)
    with _model_seed(first, _Use.PRIOR), torch.no_grad():
        prior = prior_draws(bound, sites, PlateRows(plan.plate, first_rows), NUM_PRIOR_DRAWS)
        check_density(density, sites, prior, rows)
    with _model_seed(first, _Use.STRUCTURE), torch.no_grad():
        # On other rows than an engine is compared on, which must not be taken for constants
        others = None if rows is None else (rows + 1) % plan.num_rows
        possible = next((one for one in prior if _is_possible(density, one, rows)), prior[0])
        structure = Structure(bound, sites, plan, density, possible, others)
        scale_sites, layers = structure.prior_scales, structure.shown_layers
    variances = read_priors().variances if scale_sites else None
    partition = make_partition(
        sites.layout,
        config.blocks,
        config.parts,
        config.max_block_size,
        {} if variances is None else _scales_of_priors(sites.layout, scale_sites, variances),
        layers,
    )
    scales = given_scales(config.proposal_scale, partition)
    is_given = ~scales.isnan()
    if not is_given.all():
        share = FIRST_SHARE if tuned_sweeps > 0 else 1.0
        others = share * initial_scales(prior.cpu(), partition, is_given)
        scales = torch.where(is_given, scales, others)
    check_memory(config.thin, partition)
    targets = targets_of_blocks(config.target_accept_prob, partition)

    def moves_as(wanted: str | Mapping[str, str], rescale: bool) -> JointMoves:
        return make_moves(
            partition,
            wanted,
            scales,
            targets,
            lambda: read_priors().normal,
            variances,
            lambda: structure.normal_nodes,
            structure.rescaling if rescale else None,
        )

    is_auto = config.moves == AUTO
    # What "auto" may take is exact on all data alone, or for any data
    wanted = Walk.name if is_auto and not plan.is_full else config.moves
    has_relu = is_auto and config.rescale is None and len(structure.relu_nodes) > 0
    moves = moves_as(wanted, has_relu or bool(config.rescale))
    problem = Problem(
        bound=bound,
        sites=sites,
        partition=partition,
        plan=plan,
        batches=batches,
        density=density,
        moves=moves,
        engine=TraceEngine(density, partition, moves),
        engine_reason="",
        warmup_steps=warmup_steps,
        tuned_sweeps=tuned_sweeps,
        thin=config.thin,
    )
    chain = start_chain(problem, config.init_strategy, initial_params, key)
    with _model_seed(key, _Use.ENGINE), torch.no_grad():
        places = Places(torch.cat([chain.position[None], prior[:NUM_TRIES]]), rows, key)
        problem = choose_engine(config.engine, problem, structure, places)
        if is_auto and problem.engine.name != FusedEngine.name:
            # Measured to pay on the fused engine alone
            moves = moves_as(Walk.name, bool(config.rescale))
            engine = TraceEngine(density, partition, moves)
            problem = replace(problem, moves=moves, engine=engine)
            problem = choose_engine(config.engine, problem, structure, places)
            chain = replace(chain, adaptation=moves.start())
        if problem.engine.name == TraceEngine.name:
            # It runs the model for every block: sites that come and go are found here, not then
            for one in prior[NUM_TRIES:NUM_EVALUATED]:
                density.site_terms(one, rows)
        unused = unused_sites(structure, prior[:NUM_TRIES])
    return Run(replace(problem, remarks=remarks_on(config, problem, unused)), chain)


def start_chain(
    problem: Problem,
    init_strategy: Callable[..., Any],
    initial_params: Mapping[str, Tensor] | None,
    key: ChainKey,
) -> ChainState:
    """Place a chain of a problem, where it would also start in a run of its own.

    Args:
        problem: What the chains share.
        init_strategy: Where it starts without initial values; see ``FNBG``.
        initial_params: The chain's initial values, if any were given.
        key: The chain's random streams.

    Raises:
        ValueError: If the initial values do not fit.
    """
    rows = problem.batches.rows(key, 0)
    sites, density = problem.sites, problem.density
    with _model_seed(key, _Use.START), torch.no_grad():
        if initial_params is not None:
            position = given_position(initial_params, sites, density, rows)
        else:
            plate_rows = PlateRows(problem.plan.plate, rows)
            position = drawn_position(
                problem.bound, init_strategy, sites, density, rows, plate_rows
            )
    nothing = Tally.empty(problem.partition.num_blocks)
    return ChainState(
        key=key,
        sweeps=0,
        position=position,
        adaptation=problem.moves.start(),
        warmup_tally=nothing,
        draw_tally=nothing,
    )


def _is_possible(density: ModelDensity, position: Tensor, rows: Tensor | None) -> bool:
    """Whether a model can be run at a position without an error, or numbers that are none."""
    return not any(bool(term.isnan().any()) for term in density.site_terms(position, rows).values())


def _scales_of_priors(
    layout: Layout, scale_sites: Mapping[str, str], variances: Variances
) -> dict[str, bool]:
    """Name the sites that hold scales of priors; say which are drawn as one, entry by entry."""
    shapes, offsets = {site.name: site.shape for site in layout.sites}, layout.offsets()
    drawn = set(variances.coordinates.tolist())
    return {
        name: drawn.issuperset(range(offsets[name], offsets[name] + math.prod(shapes[name])))
        for name in offsets
        if name in scale_sites.values()
    }


def _model_seed(key: ChainKey, use: _Use) -> AbstractContextManager[None]:
    """Seed the runs of the model for one use in set-up."""
    return seeded(int(generator(key, Stream.MODEL, use).integers(2**63 - 1)))
