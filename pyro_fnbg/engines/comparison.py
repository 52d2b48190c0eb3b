"""The proof at set-up that an engine computes what the model does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.moves.base import Displacement
from pyro_fnbg.core.moves.conjugate import Conjugate
from pyro_fnbg.core.moves.gibbs import Gibbs
from pyro_fnbg.core.moves.joint import stacked
from pyro_fnbg.core.noise import ChainKey, Stream, sweep_noise
from pyro_fnbg.engines.agreement import (
    ROUNDINGS,
    TOLERANCES,
    Terms,
    agree,
    sensitivity,
    terms_at,
    tolerance,
)
from pyro_fnbg.engines.base import Engine, Problem, SweepInputs
from pyro_fnbg.engines.network import Network, NotFeedforward

__all__ = [
    "Disagreement",
    "Places",
    "blocks_by_layer",
    "blocks_by_site",
    "check_conditionals",
    "check_rescaling",
    "compare",
]

# Blocks of a layer, or of a site, that are compared; and factors on the proposal scale in attempts
# to find candidates that move the likelihood
BLOCKS_PER_LAYER, STRETCHES = 3, (1.0, 1.0, 1.0, 10.0, 10.0, 100.0)


class Disagreement(Exception):
    """Say where an engine's log ratio is not the model's."""


class Places(NamedTuple):
    """Hold where an engine is compared with the model.

    Attributes:
        positions: The first of them the chain's start, shape ``(positions, num_params)``.
        rows: A batch, or None for all rows.
        key: The chain's random streams.
    """

    positions: Tensor
    rows: Tensor | None
    key: ChainKey


def compare(
    engine: Engine,
    groups: Mapping[int, Sequence[int]],
    movers: set[int],
    problem: Problem,
    at: Places,
    turns: int = 1,
) -> None:
    """Compare an engine's log ratios with the model's, for some blocks of every group.

    A disagreement has to come twice: in single precision a unit that steps may once do so within
    rounding.

    Args:
        engine: The engine.
        groups: Blocks by layer, or by site.
        movers: Groups of which one candidate at least has to move the likelihood.
        problem: What is sampled.
        at: Where.
        turns: Number of positions to compare at, at least.

    Raises:
        Disagreement: Naming the block and the terms.
        NotFeedforward: If no candidate of a layer moves the likelihood.
    """
    partition, moves, observed = problem.partition, problem.moves, problem.sites.observed
    doubted, unproven = set[int](), set(movers)
    never = torch.full((1, 1, partition.num_blocks), math.inf, dtype=torch.float64)
    rows = None if at.rows is None else at.rows[None, None]
    for number, stretch in enumerate(STRETCHES):
        position = at.positions[number % len(at.positions)]
        size = len(position), partition.num_blocks
        z = stretch * sweep_noise(at.key, number, *size, stream=Stream.CHECK).z
        start = moves.start()
        found = engine.run(
            SweepInputs(position[None], rows, z[None, None], never, stacked([start]))
        )
        known = moves.displace(start, position.cpu(), z)
        before = terms_at(problem.density, position, at.rows, observed)
        for group, blocks in groups.items():
            for block in blocks:
                if isinstance(moves.of_block[block], Conjugate):
                    continue
                if isinstance(moves.of_block[block], Gibbs):
                    if _is_normal_draw(engine, problem, position, rows, z, block):
                        unproven.discard(group)
                    continue
                index = partition.indices[block].to(position.device)
                increment = known.increment.to(position.device)[index]
                moved = position.index_add(0, index, increment)
                after = terms_at(problem.density, moved, at.rows, observed)
                ratio = float(found.log_ratios[0, 0, block])
                if known.log_corrections is not None:
                    ratio -= float(known.log_corrections[block])
                allowed = tolerance(before, after, position.dtype, problem.plan.factor)
                if not agree(ratio, before, after, allowed):
                    # Two evaluations more, which are seldom needed
                    allowed += ROUNDINGS * sum(
                        sensitivity(problem.density, at.rows, observed, where, z, terms)
                        for where, terms in ((position, before), (moved, after))
                    )
                if agree(ratio, before, after, allowed):
                    if not torch.equal(before.observed, after.observed):
                        unproven.discard(group)
                elif block in doubted:
                    raise _disagreement(engine, partition, block, before, after, ratio)
                else:
                    doubted.add(block)
        if number == 0:
            _compare_draws(engine, problem, position, rows, z, known)
        if number + 1 >= turns and not unproven and not doubted:
            return
    if unproven:
        raise NotFeedforward(
            f"no candidate tried in layers {sorted(unproven)} changed the likelihood, so the "
            "engine could not be compared with the model"
        )


def _compare_draws(
    engine: Engine,
    problem: Problem,
    position: Tensor,
    rows: Tensor | None,
    z: Tensor,
    known: Displacement,
) -> None:
    """Compare what an engine draws from conditionals with the moves' own draws.

    Raises:
        Disagreement: Naming the block.
    """
    moves = problem.moves
    drawn = {b: move for b, move in enumerate(moves.of_block) if isinstance(move, Conjugate)}
    if not drawn:
        return
    log_u = torch.full((1, 1, problem.partition.num_blocks), math.inf, dtype=torch.float64)
    log_u[..., list(drawn)] = -math.inf
    start = stacked([moves.start()])
    found = engine.run(SweepInputs(position[None], rows, z[None, None], log_u, start))
    for block, move in drawn.items():
        index = problem.partition.indices[block]
        expected = move.draw(position.cpu(), block, known.increment[index])
        gaps = (found.positions[0, 0].cpu()[index] - expected).abs()
        if not bool((gaps <= TOLERANCES[position.dtype][0]).all()):
            raise Disagreement(
                f"engine {engine.name!r} and the model disagree: a draw of block "
                f"{problem.partition.blocks[block].name!r} from its conditional is off by "
                f"{float(gaps.max()):.3g}"
            )


def _is_normal_draw(
    engine: Engine, problem: Problem, position: Tensor, rows: Tensor | None, z: Tensor, block: int
) -> bool:
    """Compare what an engine draws from a Normal conditional with the model's density there.

    The density of the draw and that of the current values are as their log densities say, so the
    ratio is 1: of a Normal distribution that is another, it would not be.

    Returns:
        Whether the draw moves the likelihood.

    Raises:
        Disagreement: Naming the block.
    """
    density, observed = problem.density, problem.sites.observed
    log_u = torch.full((1, 1, problem.partition.num_blocks), math.inf, dtype=torch.float64)
    start, densities = stacked([problem.moves.start()]), []
    for threshold in (math.inf, -math.inf):
        log_u[..., block] = threshold
        found = engine.run(SweepInputs(position[None], rows, z[None, None], log_u, start))
        densities.append(float(found.log_densities[0, 0]))
    moved, ratio = found.positions[0, 0], float(found.log_ratios[0, 0, block])
    batch = None if rows is None else rows[0, 0]
    before = terms_at(density, position, batch, observed)
    after = terms_at(density, moved, batch, observed)
    change = densities[1] - densities[0]
    allowed = tolerance(before, after, position.dtype, problem.plan.factor)
    if not agree(change, before, after, allowed) or not abs(ratio) <= allowed:
        raise Disagreement(
            f"engine {engine.name!r} and the model disagree: for a draw of block "
            f"{problem.partition.blocks[block].name!r} from its conditional the model's log "
            f"density changes by {float((torch.cat(after) - torch.cat(before)).sum()):.6g}, the "
            f"engine's by {change:.6g}, and its log ratio, which should be 0, is {ratio:.3g}"
        )
    return not torch.equal(before.observed, after.observed)


def check_conditionals(problem: Problem, at: Places) -> None:
    """Compare the conditionals that blocks are drawn from with the model's density.

    Raises:
        ValueError: If they differ; names the block and by how much.
    """
    density, observed = problem.density, problem.sites.observed
    for block, move in enumerate(problem.moves.of_block):
        if not isinstance(move, Conjugate):
            continue
        # Where the chain starts, whose density is finite
        position, index = at.positions[0], problem.partition.indices[block]
        index = index.to(position.device)
        before = terms_at(density, position, at.rows, observed)
        for shift in (0.5, -0.5):
            moved = position.index_add(0, index, torch.full_like(position[index], shift))
            after = terms_at(density, moved, at.rows, observed)
            change = move.log_density(moved.cpu(), block) - move.log_density(position.cpu(), block)
            found = float((torch.cat(after) - torch.cat(before)).sum())
            allowed = tolerance(before, after, position.dtype, problem.plan.factor)
            if math.isfinite(found) and not agree(float(change), before, after, allowed):
                raise ValueError(
                    f"block {problem.partition.blocks[block].name!r} cannot be drawn from an "
                    f"inverse gamma conditional: the model's log density changes by {found:.6g} "
                    f"where that of the conditional does by {float(change):.6g}; the sites that "
                    "feedforward() gives as prior_scales must hold variances of the priors that "
                    "it names, and be in the model nowhere else"
                )


def check_rescaling(problem: Problem, at: Places) -> None:
    """Compare what rescalings of relu nodes do to the log prior with the model's whole density.

    Raises:
        ValueError: If they differ; names the layer and by how much.
    """
    rescaling, density, observed = problem.moves.rescaling, problem.density, problem.sites.observed
    if rescaling is None:
        return
    for number, position in enumerate(at.positions):
        before = terms_at(density, position, at.rows, observed)
        factors = rescaling.noise(at.key, number, 1).at(0).factors
        for layer, (moved, changes) in enumerate(rescaling.by_layer(position.cpu(), factors)):
            moved, change = moved.to(position.device), float(changes.sum())
            after = terms_at(density, moved, at.rows, observed)
            found = float((torch.cat(after) - torch.cat(before)).sum())
            allowed = tolerance(before, after, position.dtype, problem.plan.factor)
            if not math.isfinite(found):
                continue
            if not agree(change, before, after, allowed):
                # An evaluation more, which is seldom needed
                z = torch.ones_like(position)
                allowed += ROUNDINGS * sensitivity(density, at.rows, observed, moved, z, after)
            if not agree(change, before, after, allowed):
                raise ValueError(
                    f"nodes of layer {rescaling.nodes[layer].layer} cannot be rescaled: the "
                    f"model's log density changes by {found:.6g} where the log priors of their "
                    f"parameters do by {change:.6g}; leave rescale out"
                )


def blocks_by_layer(network: Network, partition: Partition) -> dict[int, list[int]]:
    """Choose a few blocks of each layer, by the lowest layer that a block touches."""
    layers: dict[int, list[int]] = {}
    for number, index in enumerate(partition.indices):
        layers.setdefault(int(network.places[index, 0].min()), []).append(number)
    return {layer: _some(blocks) for layer, blocks in layers.items()}


def blocks_by_site(problem: Problem) -> dict[int, list[int]]:
    """Choose a few blocks of each site, by the first site that a block touches."""
    ends = torch.tensor(problem.sites.layout.sizes).cumsum(0)
    sites: dict[int, list[int]] = {}
    for number, index in enumerate(problem.partition.indices):
        first = int(torch.searchsorted(ends, index.min(), right=True))
        sites.setdefault(first, []).append(number)
    return {site: _some(blocks) for site, blocks in sites.items()}


def _some(blocks: Sequence[int]) -> list[int]:
    return sorted({blocks[len(blocks) * i // BLOCKS_PER_LAYER] for i in range(BLOCKS_PER_LAYER)})


def _disagreement(
    engine: Engine, partition: Partition, block: int, before: Terms, after: Terms, ratio: float
) -> Disagreement:
    prior = float((after.latent - before.latent).sum())
    likelihood = float((after.observed - before.observed).sum())
    return Disagreement(
        f"engine {engine.name!r} and the model disagree: for a candidate of block "
        f"{partition.blocks[block].name!r} the model's log prior changes by {prior:.6g} and its "
        f"log likelihood by {likelihood:.6g}, but the engine's log ratio is {ratio:.6g}, off by "
        f"{ratio - prior - likelihood:.3g}"
    )
