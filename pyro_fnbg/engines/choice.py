"""Which engine runs a model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

from pyro_fnbg.engines.base import Problem
from pyro_fnbg.engines.captured.compiled import CompiledEngine
from pyro_fnbg.engines.captured.engine import CapturedEngine
from pyro_fnbg.engines.comparison import (
    Disagreement,
    Places,
    blocks_by_layer,
    blocks_by_site,
    check_conditionals,
    check_rescaling,
    compare,
)
from pyro_fnbg.engines.feedforward import FeedforwardEngine
from pyro_fnbg.engines.fused.engine import FusedEngine
from pyro_fnbg.engines.network import Network, NotFeedforward
from pyro_fnbg.engines.structure import Structure
from pyro_fnbg.graphs.capture import NotCaptured
from pyro_fnbg.networks.mlp import BayesianMLP

__all__ = ["ENGINE_NAMES", "choose_engine"]

FAST: dict[str, type[FusedEngine] | type[FeedforwardEngine]] = {
    "fused": FusedEngine,
    "feedforward": FeedforwardEngine,
}
OF_CAPTURED: dict[str, type[CapturedEngine]] = {
    "captured": CapturedEngine,
    "compiled": CompiledEngine,
}
ENGINE_NAMES = ("auto", *FAST, *OF_CAPTURED, "trace")

# Steps of blocks in the warmup, for each latent site, from which on compiling pays: it takes some
# second for each site, and saves some 50 millionths at each step of a run longer than its warmup
STEPS_THAT_PAY = 20_000
# Positions that a captured computation is compared at: another might take another turn
TURNS = 3
PROVEN = "its log ratios were compared with the model's"


def choose_engine(
    name: str,
    problem: Problem,
    structure: Structure,
    at: Places,
) -> Problem:
    """Give a problem, which has the trace engine, that of a name; "auto" is the fastest possible.

    A network that the model shows, and does not state, is taken as long as engines agree with it.
    Where an engine disagrees with a ``BayesianMLP``, whose statement is the package's own, "auto"
    goes on to the next with a warning.

    Raises:
        ValueError: If the engine does not know the model, or disagrees with it; says in what. Or if
            scales are to be drawn from conditionals that are not the model's, or nodes are to be
            rescaled and its density does not follow.
    """
    check_conditionals(problem, at)
    check_rescaling(problem, at)
    if name == "trace":
        return replace(problem, engine_reason="asked for by engine='trace'")
    if name in OF_CAPTURED:
        return _captured(name, problem, structure, at, f"asked for by engine={name!r}")
    candidates: Sequence[str] = (name,)
    if name == "auto":
        candidates = ("feedforward",) if at.positions.is_cuda else ("fused", "feedforward")
    reason, network = "", structure.network
    if isinstance(network, NotFeedforward):
        reason, candidates = str(network), ()
    for candidate in candidates:
        assert isinstance(network, Network)
        try:
            found = _fast(candidate, problem, network, at)
        except NotFeedforward as refusal:
            reason = str(refusal)
            continue
        except Disagreement as difference:
            reason = str(difference)
            if structure.is_stated:
                _report(name, problem, reason)
            continue
        asked = f"asked for by engine={name!r}" if name != "auto" else "the fastest that applies"
        if not structure.is_stated:
            asked += " to the network that the model was found to be"
        if reason:
            asked += f" (not a faster one: {reason})"
        return replace(found, engine_reason=f"{asked}; {PROVEN}")
    if name != "auto":
        raise ValueError(
            f"engine={name!r} cannot run this model: {reason}; engine='auto' takes the fastest "
            "that can"
        )
    refusals, candidates = dict.fromkeys([reason]), _of_captured(problem, at)
    if isinstance(structure.captured, NotCaptured):
        refusals[str(structure.captured)], candidates = None, ()
    for candidate in candidates:
        why = f"the fastest that applies (not a faster one: {'; '.join(refusals)})"
        try:
            return _captured(candidate, problem, structure, at, why)
        except ValueError as refusal:
            refusals[str(refusal)] = None
    words = f"the model itself is run: {'; and '.join(refusals)}"
    return replace(problem, engine_reason=words)


def _of_captured(problem: Problem, at: Places) -> Sequence[str]:
    """Name the engines of captured operations to try, the fastest first."""
    # By what is the same in every run, not by a clock: engines round differently
    num_steps = problem.warmup_steps * problem.partition.num_blocks
    pays = (
        num_steps >= STEPS_THAT_PAY * len(problem.sites.layout.sites) and not at.positions.is_cuda
    )
    return ("compiled", "captured") if pays else ("captured",)


def _fast(name: str, problem: Problem, network: Network, at: Places) -> Problem:
    """Give a problem the engine of a name that runs networks.

    Raises:
        NotFeedforward: If the engine does not know the network or the moves.
        Disagreement: If what it computes is not what the model does.
    """
    unknown = [move.name for move in problem.moves.moves if not FAST[name].knows(move)]
    if unknown:
        raise NotFeedforward(f"engine {name!r} does not run the moves {unknown}")
    engine = FAST[name](network, problem.partition, problem.moves)
    layers = blocks_by_layer(network, problem.partition)
    # Scales of priors are in a layer above, and move no likelihood
    movers = {layer for layer in layers if layer <= network.architecture.num_layers + 1}
    compare(engine, layers, movers, problem, at)
    return replace(problem, engine=engine)


def _report(name: str, problem: Problem, found: str) -> None:
    """Report that an engine disagrees with a model that states what it is.

    Raises:
        ValueError: If the statement may be wrong, or the engine was asked for.
    """
    # A subclass may compute something else than it states
    if type(problem.bound.model) is not BayesianMLP:
        raise ValueError(
            f"{found}: the model's feedforward() must state what the model computes "
            "(inputs, layers, activations, likelihood, observation_scale); engine='trace' "
            "needs no statement"
        ) from None
    report = f"{found}: the engine is inaccurate here, your model is not wrong; please report it"
    if name != "auto":
        raise ValueError(f"{report}; engine='auto' goes on to the next engine") from None
    warnings.warn(f"{report}; the next engine is tried", UserWarning, stacklevel=3)


def _captured(name: str, problem: Problem, structure: Structure, at: Places, why: str) -> Problem:
    """Give a problem the engine of a name that runs what was captured.

    Raises:
        ValueError: If the model cannot be captured, or what was captured is not the model.
    """
    captured, words = structure.captured, f"engine={name!r} cannot run this model: "
    otherwise = "; engine='trace' runs any model"
    if isinstance(captured, NotCaptured):
        raise ValueError(f"{words}{captured}{otherwise}")
    layout = problem.sites.layout
    try:
        engine = OF_CAPTURED[name](captured, layout, problem.partition, problem.moves)
        compare(engine, blocks_by_site(problem), set(), problem, at, TURNS)
    except (Disagreement, RuntimeError, TypeError) as refusal:
        # Torch's errors, too: what is wrong with the model itself, its own runs say
        raise ValueError(f"{words}{refusal}{otherwise}") from refusal
    reason = f"{why}; {PROVEN}"
    if isinstance(engine, CompiledEngine):
        count, seconds = engine.compiler.count, engine.compiler.seconds
        reason += f"; {count} of its functions were compiled in {seconds:.1f} s"
    return replace(problem, engine=engine, engine_reason=reason)
