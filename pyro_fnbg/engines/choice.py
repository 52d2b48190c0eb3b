"""Which engine runs a model, and the proof at set-up that it computes what the model does."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.moves.joint import stacked
from pyro_fnbg.core.noise import ChainKey, Stream, sweep_noise
from pyro_fnbg.core.step import log_accept_ratio
from pyro_fnbg.engines.base import Engine, Problem, SweepInputs
from pyro_fnbg.engines.feedforward import FeedforwardEngine
from pyro_fnbg.engines.fused.engine import FusedEngine
from pyro_fnbg.engines.network import Network, NotFeedforward, read_network
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.networks.mlp import BayesianMLP

__all__ = ["ENGINE_NAMES", "Places", "choose_engine"]

FAST: dict[str, type[FusedEngine] | type[FeedforwardEngine]] = {
    "fused": FusedEngine,
    "feedforward": FeedforwardEngine,
}
ENGINE_NAMES = ("auto", *FAST, "trace")

# Blocks of a layer that are compared; factors on the proposal scale in attempts to find candidates
# that move the likelihood; and how far log ratios may lie apart: absolutely, as a share of the
# summed changes of their terms, and in units of rounding of the terms themselves, see _rounding
BLOCKS_PER_LAYER, STRETCHES = 3, (1.0, 1.0, 1.0, 10.0, 10.0, 100.0)
TOLERANCES = {torch.float32: (1e-3, 1e-4), torch.float64: (1e-8, 1e-9)}
ROUNDINGS = 8


class _Disagreement(Exception):
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


def choose_engine(
    name: str,
    problem: Problem,
    at: Places,
) -> Problem:
    """Give a problem, which has the trace engine, that of a name; "auto" is the fastest possible.

    Where an engine disagrees with a ``BayesianMLP``, whose statement is the package's own, "auto"
    goes on to the next with a warning.

    Raises:
        ValueError: If the engine does not know the model, or disagrees with it; says in what.
    """
    if name == "trace":
        return replace(problem, engine_reason="asked for by engine='trace'")
    candidates: Sequence[str] = (name,)
    if name == "auto":
        candidates = ("feedforward",) if at.positions.is_cuda else ("fused", "feedforward")
    reason = ""
    try:
        network = read_network(problem.bound, problem.sites, problem.plan)
    except NotFeedforward as refusal:
        reason, candidates = str(refusal), ()
    for candidate in candidates:
        unknown = [move.name for move in problem.moves.moves if not FAST[candidate].knows(move)]
        if unknown:
            reason = f"engine {candidate!r} does not run the moves {unknown}"
            continue
        try:
            engine = FAST[candidate](network, problem.partition, problem.moves)
            _compare(engine, network, problem, at)
        except NotFeedforward as refusal:
            reason = str(refusal)
            continue
        except _Disagreement as found:
            # A subclass may compute something else than it states
            if type(problem.bound.model) is not BayesianMLP:
                raise ValueError(
                    f"{found}: the model's feedforward() must state what the model computes "
                    "(inputs, layers, activations, likelihood, observation_scale); engine='trace' "
                    "needs no statement"
                ) from None
            report = (
                f"{found}: the engine is inaccurate here, your model is not wrong; please report it"
            )
            if name != "auto":
                raise ValueError(f"{report}; engine='auto' goes on to the next engine") from None
            warnings.warn(f"{report}; the next engine is tried", UserWarning, stacklevel=2)
            reason = str(found)
            continue
        asked = f"asked for by engine={name!r}" if name != "auto" else "the fastest that applies"
        if reason:
            asked += f" (not a faster one: {reason})"
        asked += "; its log ratios were compared with the model's"
        return replace(problem, engine=engine, engine_reason=asked)
    if name != "auto":
        raise ValueError(
            f"engine={name!r} cannot run this model: {reason}; engine='trace' runs any model, and "
            "'auto' chooses"
        )
    return replace(problem, engine_reason=f"the model itself is run: {reason}")


def _compare(engine: Engine, network: Network, problem: Problem, at: Places) -> None:
    """Compare an engine's log ratios with the model's, for some blocks of every layer.

    In every layer one candidate at least has to move the likelihood. A disagreement has to come
    twice: in single precision a unit that steps may once do so within rounding.

    Raises:
        _Disagreement: Naming the block and the terms.
        NotFeedforward: If no candidate of a layer moves the likelihood.
    """
    partition, moves, observed = problem.partition, problem.moves, problem.sites.observed
    layers = _blocks_by_layer(network, partition)
    doubted: set[int] = set()
    unproven = set(layers)
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
        before = _terms(problem.density, position, at.rows, observed)
        for layer, blocks in layers.items():
            for block in blocks:
                index = partition.indices[block].to(position.device)
                increment = known.increment.to(position.device)[index]
                moved = position.index_add(0, index, increment)
                after = _terms(problem.density, moved, at.rows, observed)
                ratio = float(found.log_ratios[0, 0, block])
                if known.log_corrections is not None:
                    ratio -= float(known.log_corrections[block])
                allowed = _tolerance(before, after, position.dtype, network.factor)
                if not _agree(ratio, before, after, allowed):
                    # Two evaluations more, which are seldom needed
                    allowed += ROUNDINGS * sum(
                        _sensitivity(problem.density, at.rows, observed, where, z, terms)
                        for where, terms in ((position, before), (moved, after))
                    )
                if _agree(ratio, before, after, allowed):
                    if not torch.equal(before.observed, after.observed):
                        unproven.discard(layer)
                elif block in doubted:
                    raise _disagreement(engine, partition, block, before, after, ratio)
                else:
                    doubted.add(block)
        if not unproven and not doubted:
            return
    if unproven:
        raise NotFeedforward(
            f"no candidate tried in layers {sorted(unproven)} changed the likelihood, so the "
            "engine could not be compared with the model"
        )


class _Terms(NamedTuple):
    latent: Tensor
    observed: Tensor


def _terms(
    density: ModelDensity, position: Tensor, rows: Tensor | None, observed: Sequence[str]
) -> _Terms:
    terms = density.site_terms(position, rows)
    # Where masks hide all data, or all priors, there is still something to join
    nothing = torch.zeros(0, dtype=torch.float64, device=position.device)
    of_data = [term.reshape(-1).double() for name, term in terms.items() if name in observed]
    others = [term.reshape(-1).double() for name, term in terms.items() if name not in observed]
    return _Terms(torch.cat([nothing, *others]), torch.cat([nothing, *of_data]))


def _agree(ratio: float, before: _Terms, after: _Terms, allowed: float) -> bool:
    """Whether a log ratio is the model's, up to what is allowed."""
    expected = float(log_accept_ratio(torch.cat(after), torch.cat(before)))
    if not math.isfinite(expected):
        return not math.isfinite(ratio)
    return abs(ratio - expected) <= allowed


def _tolerance(before: _Terms, after: _Terms, dtype: torch.dtype, factor: float) -> float:
    """Say how far a log ratio may lie from the model's, as far as the terms alone tell."""
    absolute, relative = TOLERANCES[dtype]
    # A factor on the likelihood multiplies the rounding of its terms
    changes = float((torch.cat(after) - torch.cat(before)).abs().sum())
    allowed = absolute * max(1.0, factor) + relative * changes
    return allowed + _rounding(before, after, dtype, factor)


def _rounding(before: _Terms, after: _Terms, dtype: torch.dtype, factor: float) -> float:
    """Bound what rounding does to a log ratio; on equal rows it is the same, and adds up.

    Each term has a few units of rounding relative to its size, from both sides and from what they
    score: 1.6 at most in some hundred networks with few distinct rows, unless outcomes are a
    thousand standard deviations from 0. A row's term may be far smaller than what torch's own
    likelihoods subtract for it, a logit and its log sigmoid or log-sum-exp: logit x is rounded, by
    half a unit on each side, as long as the term exp(-x) is noticed beside it, up to -log(epsilon).
    Priors that do not change are not computed.
    """
    epsilon = torch.finfo(dtype).eps
    sizes = [old.abs() + new.abs() for old, new in zip(before, after, strict=True)]
    of_terms = float(sizes[0][before.latent != after.latent].sum() + sizes[1].sum())
    of_logits = factor * len(sizes[1]) * -math.log(epsilon)
    return epsilon * (ROUNDINGS * of_terms + of_logits)


def _sensitivity(
    density: ModelDensity,
    rows: Tensor | None,
    observed: Sequence[str],
    position: Tensor,
    z: Tensor,
    terms: _Terms,
) -> float:
    """Return how far the terms move when every parameter does by a unit of rounding.

    Sums of a layer come out as if its weights had been rounded so, whatever the order of their
    terms. Where a scale follows from the network and is small, a row's term is far more sensitive
    to that than its size tells: an output of -10, the difference of what is larger, is a standard
    deviation of exp(-10).
    """
    unit = torch.finfo(position.dtype).eps * z.sign().to(position)
    around = _terms(density, position + position * unit, rows, observed)
    return float((torch.cat(around) - torch.cat(terms)).abs().nansum())


def _blocks_by_layer(network: Network, partition: Partition) -> dict[int, list[int]]:
    """Choose a few blocks of each layer, by the lowest layer that a block touches."""
    layers: dict[int, list[int]] = {}
    for number, index in enumerate(partition.indices):
        layers.setdefault(int(network.places[index, 0].min()), []).append(number)
    return {
        layer: sorted(
            {blocks[len(blocks) * i // BLOCKS_PER_LAYER] for i in range(BLOCKS_PER_LAYER)}
        )
        for layer, blocks in layers.items()
    }


def _disagreement(
    engine: Engine, partition: Partition, block: int, before: _Terms, after: _Terms, ratio: float
) -> _Disagreement:
    prior = float((after.latent - before.latent).sum())
    likelihood = float((after.observed - before.observed).sum())
    return _Disagreement(
        f"engine {engine.name!r} and the model disagree: for a candidate of block "
        f"{partition.blocks[block].name!r} the model's log prior changes by {prior:.6g} and its "
        f"log likelihood by {likelihood:.6g}, but the engine's log ratio is {ratio:.6g}, off by "
        f"{ratio - prior - likelihood:.3g}"
    )
