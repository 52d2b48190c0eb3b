"""The one rig in which tests run engines on chosen noise, and compare them with the model itself.

``start`` sets a kernel up; ``past_the_check`` builds an engine that the proof at set-up has not
seen, as a faulty one is. ``make_inputs`` draws batches and noise of some sweeps for several chains.
``assert_as_trace`` sets an engine beside the trace engine, decision by decision;
``assert_as_model`` follows an engine's own decisions and has the model judge every block from the
same state, which in single precision is all that can be asked for. Both know nothing of what
proposes: they ask the problem's moves.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import pyro
import pytest
import torch
from torch import Tensor

from pyro_fnbg import FNBG
from pyro_fnbg.chains.setup import Run
from pyro_fnbg.core.moves.base import MoveState
from pyro_fnbg.core.moves.conjugate import Conjugate, NoState
from pyro_fnbg.core.moves.joint import at, stacked
from pyro_fnbg.core.noise import ChainKey, noise_of_sweeps
from pyro_fnbg.core.step import log_accept_ratio
from pyro_fnbg.engines.base import Problem, Record, SweepInputs, next_inputs
from pyro_fnbg.engines.choice import FAST as CLASSES
from pyro_fnbg.engines.choice import OF_CAPTURED
from pyro_fnbg.engines.network import read_network
from pyro_fnbg.engines.trace import TraceEngine
from pyro_fnbg.graphs.capture import capture
from support.slow import slowly

Piece = TypeVar("Piece", SweepInputs, Record)

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
# Every exactness test runs on each of these
ENGINES = ("trace", "captured", "feedforward", "fused")
FAST = ("feedforward", "fused")
# With captured operations compiled as well, some seconds a model
WITH_COMPILED = (*ENGINES, pytest.param("compiled", marks=[pytest.mark.slow, needs_compiler]))
# The same for long chains, which take half a minute where Python runs something for every block
ENGINES_OF_LONG_CHAINS = (
    *(slowly(engine) for engine in ENGINES[:3]), ENGINES[3],
)  # fmt: skip
# How far a fast engine's log ratios and log densities may lie from the model's own, from the same
# state. In double precision rounding is about 1e-12 for the sums of these tests; in single
# precision a term of size 10 is off by 1e-6, and there are up to some hundreds of them.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}
# Units of rounding, of the sum of the absolute terms, that a log ratio may be off by
ROUNDINGS = 8
ALL = slice(None)


# --- Set-up and noise ----------------------------------------------------------------------------


def start(engine: str, model: Any, *args: Any, warmup_steps: int = 0, **options: Any) -> Run:
    """Set a kernel up, as Pyro's ``MCMC`` does, and return its problem and its chain."""
    kernel = FNBG(model, engine=engine, **options)
    with pyro.validation_enabled(False):
        kernel.setup(warmup_steps, *args)
    assert kernel.engine == engine
    return Run(kernel.problem, kernel.state)


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
    return Run(replace(problem, engine=built), run.chain)


def with_scales(problem: Problem, scales: Tensor) -> tuple[MoveState, ...]:
    """Return states of the moves that learn a number a block: shape ``(..., num_blocks)``."""
    return tuple(
        type(state)(*(scales[..., move.blocks] for _ in state))
        for move, state in zip(problem.moves.moves, problem.moves.start(), strict=True)
    )


def make_inputs(
    run: Run,
    chains: int = 1,
    sweeps: int = 1,
    *,
    scale: float | None = None,
    spread: float = 0.0,
    first: int = 0,
    seed: int = 3,
) -> SweepInputs:
    """Draw batches and noise of some sweeps, for chains with streams of their own.

    Args:
        run: The problem, and where it starts.
        chains: Number of chains.
        sweeps: Number of sweeps.
        scale: What the moves have learnt differs by chain and block, around this number; left out,
            it is that of the run's chain.
        spread: Standard deviation of the chains' positions around the run's.
        first: Number of the first sweep.
        seed: Of the noise, the batches and the positions.
    """
    problem, num_blocks = run.problem, run.problem.partition.num_blocks
    rng = torch.Generator().manual_seed(seed)
    own = torch.linspace(0.7, 1.5, chains * num_blocks, dtype=torch.float64)
    scales = (scale or 0.0) * own.view(chains, num_blocks)
    position = run.chain.position
    starts = [
        replace(
            run.chain,
            key=ChainKey(seed, chain),
            sweeps=first,
            position=position
            + spread * torch.randn(len(position), generator=rng, dtype=position.dtype),
            adaptation=(
                run.chain.adaptation if scale is None else with_scales(problem, scales[chain])
            ),
        )
        for chain in range(chains)
    ]
    return next_inputs(problem, starts, sweeps)


def part(piece: Piece, chains: slice = ALL, sweeps: slice = ALL) -> Piece:
    """Take some chains and sweeps of inputs or of a record; positions of inputs stay the first."""
    if isinstance(piece, SweepInputs):
        positions, rows, z, log_u, adaptation, gains = piece
        return SweepInputs(
            positions[chains],
            None if rows is None else rows[chains, sweeps],
            z[chains, sweeps],
            log_u[chains, sweeps],
            at(adaptation, chains),
            None if gains is None else gains[sweeps],
        )
    learnt = at(piece.adaptation, chains)
    if all(values.shape[1] == piece.positions.shape[1] for state in learnt for values in state):
        learnt = tuple(type(state)(*(values[:, sweeps] for values in state)) for state in learnt)
    return Record(*(values[chains, sweeps] for values in piece[:4]), learnt)


def go_on(inputs: SweepInputs, record: Record) -> SweepInputs:
    """Return inputs that start where the last sweep of a record led."""
    learnt = tuple(type(state)(*(values[:, -1] for values in state)) for state in record.adaptation)
    return inputs._replace(positions=record.positions[:, -1], adaptation=learnt)


# --- Sweeps --------------------------------------------------------------------------------------


def run_on(run: Run, inputs: SweepInputs) -> Record:
    """Run a run's engine on inputs, distributions' own checks off as under Pyro's ``MCMC``."""
    with pyro.validation_enabled(False):
        return run.problem.engine.run(inputs)


def run_sweeps(
    run: Run,
    position: Tensor,
    rows: Sequence[Tensor | None],
    z: Tensor,
    log_u: Tensor,
    scales: Tensor,
) -> Record:
    """Run K sweeps of one chain; arguments and record have no dimension for chains."""
    batches = [row for row in rows if row is not None]
    inputs = SweepInputs(
        position[None],
        torch.stack(batches)[None] if batches else None,
        z[None],
        log_u[None],
        stacked([with_scales(run.problem, scales)]),
    )
    return run_on(run, inputs).of_chain(0)


def one_sweep(
    run: Run,
    position: Tensor,
    increments: Tensor,
    log_u: Sequence[float] | Tensor,
    rows: Tensor | None = None,
) -> Record:
    """Run one sweep of the walk with the given increments (scale 1) and thresholds."""
    return run_sweeps(
        run,
        position,
        [rows],
        increments.double().unsqueeze(0),
        torch.as_tensor(log_u, dtype=torch.float64).unsqueeze(0),
        torch.ones(run.problem.partition.num_blocks, dtype=torch.float64),
    )


def run_chain(
    run: Run,
    position: Tensor,
    scales: Tensor,
    num_sweeps: int,
    key: ChainKey,
    rows: Tensor | None = None,
    chunk: int = 250,
) -> Tensor:
    """Run sweeps on one frozen batch and return the positions, (num_sweeps, num_params)."""
    positions = []
    size = len(position), run.problem.partition.num_blocks
    for first in range(0, num_sweeps, chunk):
        z, log_u = noise_of_sweeps(key, first, chunk, *size)
        record = run_sweeps(run, position, [rows] * chunk, z, log_u, scales)
        position = record.positions[-1]
        positions.append(record.positions)
    return torch.cat(positions)


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


# --- Against the model itself --------------------------------------------------------------------


class Replay(NamedTuple):
    """What the model itself says of one sweep's decisions.

    Attributes:
        log_ratios: Log acceptance ratio of each block, judged where those accepted before it led.
        position: Where the accepted blocks led.
        log_density: Log density there.
        sizes: Sum of the absolute terms of each block's two log densities.
        is_drawn: Which coordinates are draws from a conditional, which follow from a rounded sum.
    """

    log_ratios: Tensor
    position: Tensor
    log_density: Tensor
    sizes: Tensor
    is_drawn: Tensor


def replay(
    problem: Problem,
    position: Tensor,
    rows: Tensor | None,
    z: Tensor,
    adaptation: Sequence[MoveState],
    accepted: Tensor,
) -> Replay:
    """Follow one sweep's decisions, and evaluate the whole model before and after every block."""
    increment, corrections = problem.moves.displace(adaptation, position, z)
    density = problem.density.on(rows)
    log_ratios, sizes = [], []
    is_drawn = torch.zeros(len(position), dtype=torch.bool)
    with pyro.validation_enabled(False):
        state = density(position)
        for block, is_accepted in enumerate(accepted.tolist()):
            index, move = problem.partition.indices[block], problem.moves.of_block[block]
            moved = state.position.clone()
            is_drawn[index] = isinstance(move, Conjugate)
            if isinstance(move, Conjugate):
                moved[index] = move.draw(state.position, block, increment[index])
            else:
                moved[index] += increment[index]
            candidate = density(moved)
            log_ratio = log_accept_ratio(candidate.log_terms, state.log_terms)
            if isinstance(move, Conjugate):
                log_ratio = torch.zeros_like(log_ratio)
            log_ratios.append(log_ratio if corrections is None else log_ratio + corrections[block])
            sizes.append(candidate.log_terms.abs().sum() + state.log_terms.abs().sum())
            state = candidate if is_accepted else state
    return Replay(
        torch.stack(log_ratios), state.position, state.log_density, torch.stack(sizes), is_drawn
    )


def assert_follows(record: Record, expected: Replay, log_u: Tensor, tolerance: float) -> None:
    """Assert that one sweep, its record without leading dimensions, is that of the model.

    Log ratios and log density agree within the tolerance, and a few units of rounding of the terms'
    size where that is larger; a tolerance of 0 asks for the same numbers. Each decision follows
    from the reported ratio, exactly, and from the model's unless the threshold lies within the
    tolerance of it; and the position is bit for bit what the accepted increments give.
    """
    # A term comes from a chain of some operations, each rounded; squares double the relative error
    rounding = ROUNDINGS * torch.finfo(record.positions.dtype).eps * expected.sizes
    allowed = rounding.clamp(min=tolerance) if tolerance > 0 else torch.zeros_like(rounding)
    gaps = (record.log_ratios - expected.log_ratios).abs()
    is_same = (gaps <= allowed) | (record.log_ratios == expected.log_ratios)
    assert (is_same | (record.log_ratios.isnan() & expected.log_ratios.isnan())).all()
    assert torch.equal(record.accepted, log_u < record.log_ratios)
    differs = record.accepted != (log_u < expected.log_ratios)
    assert ((log_u - expected.log_ratios).abs() <= allowed)[differs].all()
    found, where, is_drawn = record.positions, expected.position, expected.is_drawn
    assert torch.equal(found[~is_drawn], where[~is_drawn])
    epsilon = ROUNDINGS * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found[is_drawn], where[is_drawn], rtol=epsilon, atol=epsilon)
    torch.testing.assert_close(
        record.log_densities, expected.log_density, rtol=0.0, atol=float(allowed.max())
    )


def assert_as_model(
    run: Run, inputs: SweepInputs, record: Record, tolerance: float | None = None
) -> None:
    """Assert that the model judges every block of every sweep alike, from the same state.

    Args:
        run: The problem.
        inputs: What the sweeps started from, without gains.
        record: What an engine made of them.
        tolerance: See ``assert_follows``; left out, that of the positions' type.
    """
    assert inputs.gains is None
    if tolerance is None:
        tolerance = TOLERANCES[inputs.positions.dtype]
    for chain in range(len(inputs.positions)):
        position, learnt = inputs.positions[chain], at(inputs.adaptation, chain)
        for sweep in range(inputs.z.shape[1]):
            of_sweep = Record(*(values[chain, sweep] for values in record[:4]), learnt)
            rows = None if inputs.rows is None else inputs.rows[chain, sweep]
            z, log_u = inputs.z[chain, sweep], inputs.log_u[chain, sweep]
            expected = replay(run.problem, position, rows, z, learnt, of_sweep.accepted)
            assert_follows(of_sweep, expected, log_u, tolerance)
            position = of_sweep.positions


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
