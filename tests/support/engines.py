"""What tests of the package's own engines need besides ``pyro_fnbg.testing``.

``past_the_check`` builds an engine that the proof at set-up has not seen, as a faulty one is.
``assert_as_trace`` sets an engine beside the trace engine, decision by decision, and knows nothing
of what proposes.
"""

import shutil
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from pyro_fnbg.chains.setup import Run
from pyro_fnbg.core.moves.draws import NoState
from pyro_fnbg.core.moves.joint import at
from pyro_fnbg.engines.base import Record, SweepInputs
from pyro_fnbg.engines.choice import FAST as CLASSES
from pyro_fnbg.engines.choice import OF_CAPTURED
from pyro_fnbg.engines.network import read_network
from pyro_fnbg.engines.trace import TraceEngine
from pyro_fnbg.graphs.capture import capture
from pyro_fnbg.testing import run_on, with_engine
from support.slow import slowly

Piece = TypeVar("Piece", SweepInputs, Record)

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
# Every exactness test runs on each of these
ENGINES = ("trace", "captured", "feedforward", "fused")
FAST = ("feedforward", "fused")
# For what drivers do, where one engine that runs any model is enough in a hurry
FOR_DRIVERS = (ENGINES[0], slowly(ENGINES[1]), *ENGINES[2:])
# With captured operations compiled as well, some seconds a model
WITH_COMPILED = (*ENGINES, pytest.param("compiled", marks=[pytest.mark.slow, needs_compiler]))
# The same for long chains, which take half a minute where Python runs something for every block
ENGINES_OF_LONG_CHAINS = (
    *(slowly(engine) for engine in ENGINES[:3]), ENGINES[3],
)  # fmt: skip
ALL = slice(None)


# --- Engines, inputs and records -----------------------------------------------------------------


def past_the_check(run: Run, engine: str) -> Run:
    """Return a run with an engine that was not compared with the model at set-up."""
    problem = run.problem
    if engine == "trace":
        built: Any = TraceEngine(problem.density, problem.partition, problem.moves)
    elif engine in OF_CAPTURED:
        rows = problem.batches.rows(run.chain.key, 0)
        captured = capture(problem.density, run.chain.position, rows)
        layout = problem.sites.layout
        built = OF_CAPTURED[engine](captured, layout, problem.partition, problem.moves)
    else:
        network = read_network(problem.bound, problem.sites, problem.plan)
        built = CLASSES[engine](network, problem.partition, problem.moves)
    return with_engine(run, built)


def part(piece: Piece, chains: slice = ALL, sweeps: slice = ALL) -> Piece:
    """Take some chains and sweeps of inputs or of a record; positions of inputs stay the first."""
    if isinstance(piece, SweepInputs):
        positions, rows, z, log_u, adaptation, gains, rescaling = piece
        return SweepInputs(
            positions[chains],
            None if rows is None else rows[chains, sweeps],
            z[chains, sweeps],
            log_u[chains, sweeps],
            at(adaptation, chains),
            None if gains is None else gains[sweeps],
            None if rescaling is None else rescaling.at(chains, sweeps),
        )
    learnt = at(piece.adaptation, chains)
    if all(values.shape[1] == piece.positions.shape[1] for state in learnt for values in state):
        learnt = tuple(type(state)(*(values[:, sweeps] for values in state)) for state in learnt)
    return Record(*(values[chains, sweeps] for values in piece[:4]), learnt)


def go_on(inputs: SweepInputs, record: Record) -> SweepInputs:
    """Return inputs that start where the last sweep of a record led."""
    learnt = tuple(type(state)(*(values[:, -1] for values in state)) for state in record.adaptation)
    return inputs._replace(positions=record.positions[:, -1], adaptation=learnt)


# --- Against the trace engine --------------------------------------------------------------------


def assert_as_trace(run: Run, inputs: SweepInputs, tolerance: float = 1e-9) -> Record:
    """Assert that an engine makes the sweeps of the trace engine, and return its record."""
    record = run_on(run, inputs)
    assert_same(record, run_on(past_the_check(run, "trace"), inputs), inputs.log_u, tolerance)
    return record


def assert_same(found: Record, expected: Record, log_u: Tensor, tolerance: float = 1e-9) -> None:
    """Assert the same sweeps: decisions and positions exactly, the rest within rounding.

    Where the moves learn, what they have learnt is rounded, and with it where they go; so is what
    is drawn from a conditional.
    """
    differ = (found.accepted != expected.accepted).nonzero()
    if len(differ):
        where = tuple(differ[0].tolist())
        margin = abs(float(log_u[where] - expected.log_ratios[where]))
        hint = ", below 1e-9: rounding may turn it, take another seed" if margin < 1e-9 else ""
        pytest.fail(
            f"decision {where} (chain, sweep, block) is another; the threshold's distance from the "
            f"log ratio is {margin:.3g}{hint}"
        )
    for name in ("log_ratios", "log_densities"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype == torch.float64
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    has_learnt = any(values.shape[1] > 1 for state in found.adaptation for values in state)
    # As what is drawn from a conditional, which follows from a sum
    is_drawn = any(isinstance(state, NoState) for state in found.adaptation)
    may_differ = tolerance if has_learnt or is_drawn else 0.0
    torch.testing.assert_close(
        found.positions, expected.positions, rtol=may_differ, atol=may_differ
    )
    for own, others in zip(found.adaptation, expected.adaptation, strict=True):
        assert type(own) is type(others)
        for one, other in zip(own, others, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=0.0)


def assert_identical(found: Record, expected: Record) -> None:
    """Assert the same record bit for bit."""
    for one, other in zip(found[:4], expected[:4], strict=True):
        assert torch.equal(one, other)
    for own, others in zip(found.adaptation, expected.adaptation, strict=True):
        assert type(own) is type(others)
        assert all(torch.equal(one, other) for one, other in zip(own, others, strict=True))


def assert_decides_both_ways(accepted: Tensor, least: float = 0.05, most: float = 0.95) -> None:
    """Assert that a part of the decisions, within these shares, was to accept."""
    rate = float(accepted.double().mean())
    assert least < rate < most, f"decisions of one kind only: {rate}"


# --- Data ----------------------------------------------------------------------------------------


def put_labels(run: Run, labels: Tensor) -> None:
    """Write new labels over those that the run's engine holds."""
    engine: Any = run.problem.engine
    if engine.name in ("trace", *OF_CAPTURED):
        held = run.problem.bound.args[1]
    elif engine.name == "feedforward":
        held = engine._density._labels
    else:
        held = torch.from_numpy(engine._data.labels)
    held.copy_(labels.reshape(held.shape))
    if engine.name in OF_CAPTURED:
        # What follows from labels was computed when they were captured; few are ever different
        known, key = vars(engine).setdefault("by_labels", {}), tuple(labels.flatten().tolist())
        if key not in known:
            known[key] = vars(past_the_check(run, engine.name).problem.engine)
        vars(engine).update(known[key])
