"""Engines against the model itself, which judges every block of a sweep anew.

Nothing here knows what proposes: it asks the problem's moves. In single precision this is all that
can be asked of an engine that is faster than the model, since its decisions may differ by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyro
import torch
from torch import Tensor

from pyro_fnbg.chains.setup import Run
from pyro_fnbg.core.moves.base import MoveState
from pyro_fnbg.core.moves.conjugate import Conjugate
from pyro_fnbg.core.moves.gibbs import Gibbs
from pyro_fnbg.core.moves.joint import at
from pyro_fnbg.core.rescaling import Rescaling, RescalingNoise
from pyro_fnbg.core.step import BatchState, Density, log_accept_ratio, proposals
from pyro_fnbg.engines.base import Problem, Record, SweepInputs

__all__ = ["TOLERANCES", "Replay", "assert_as_model", "assert_follows", "replay"]

# How far a fast engine's log ratios and log densities may lie from the model's own, from the same
# state. In double precision rounding is about 1e-12 for the sums of tests; in single precision a
# term of size 10 is off by 1e-6, and there are up to some hundreds of them.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}
# Units of rounding, of the sum of the absolute terms, that a log ratio may be off by; and
# those that a draw from a Normal conditional may be, for which equations are solved
ROUNDINGS, ROUNDINGS_OF_NORMAL = 8, 2**13


class Replay(NamedTuple):
    """Hold what the model itself says of one sweep's decisions; ``replay`` returns it.

    Attributes:
        log_ratios: Log acceptance ratio of each block, judged where those accepted before it led,
            shape ``(num_blocks,)``.
        position: Where the accepted blocks led, shape ``(num_params,)``.
        log_density: Log density there.
        sizes: Sum of the absolute terms of each block's two log densities, shape ``(num_blocks,)``.
        slack: Units of rounding that each coordinate may be off by, shape ``(num_params,)``: 0 but
            for draws from conditionals, which follow from rounded sums.

    Example:
        >>> ratios, nothing = torch.tensor([-0.1, 0.2]), torch.tensor(0.0)
        >>> said = Replay(ratios, torch.zeros(4), nothing, torch.ones(2), torch.zeros(4))
        >>> said.log_ratios > torch.tensor([-1.0, 0.5])  # what would be accepted
        tensor([ True, False])
    """

    log_ratios: Tensor
    position: Tensor
    log_density: Tensor
    sizes: Tensor
    slack: Tensor


def replay(
    problem: Problem,
    position: Tensor,
    rows: Tensor | None,
    z: Tensor,
    adaptation: Sequence[MoveState],
    accepted: Tensor,
    rescaling: RescalingNoise | None = None,
) -> Replay:
    """Follow one sweep's decisions, and evaluate the whole model before and after every block.

    Args:
        problem: What the chains share.
        position: Where the sweep starts, unconstrained, shape ``(num_params,)``.
        rows: Rows of the sweep's batch; None for all rows.
        z: Its standard normal noise, shape ``(num_params,)``.
        adaptation: The moves' states.
        accepted: The decisions to follow, shape ``(num_blocks,)``.
        rescaling: Noise of the rescalings that end the sweep, if some do.

    Returns:
        The model's own log ratios, and where the decisions lead.

    Example:
        >>> from pyro_fnbg import BayesianMLP
        >>> from pyro_fnbg.testing import make_inputs, run_on, start
        >>> x, y = torch.linspace(-1, 1, 6).unsqueeze(-1), torch.arange(6) % 2
        >>> run = start("feedforward", BayesianMLP([1, 2, 1], likelihood="bernoulli"), x, y)
        >>> inputs = make_inputs(run, scale=0.5)
        >>> record, of_chain = run_on(run, inputs).of_chain(0), inputs.of_chain(0)
        >>> given = of_chain.positions, None, of_chain.z[0], of_chain.adaptation
        >>> said = replay(run.problem, *given, record.accepted[0])
        >>> torch.equal(said.position, record.positions[0])
        True
    """
    increment, corrections = problem.moves.displace(adaptation, position, z)
    density = problem.density.on(rows)
    propose = proposals(density, problem.partition.indices, increment)
    log_ratios, sizes = [], []
    slack, units = torch.zeros(len(position), dtype=torch.float64), ROUNDINGS
    with pyro.validation_enabled(False):
        state = density(position)
        for block, is_accepted in enumerate(accepted.tolist()):
            index, move = problem.partition.indices[block], problem.moves.of_block[block]
            moved = state.position.clone()
            correction = None if corrections is None else corrections[block]
            if isinstance(move, Conjugate):
                moved[index] = move.draw(state.position, block, increment[index])
                slack[index] = units
            elif isinstance(move, Gibbs):
                moved[index], correction = move.draw(propose, state, block, increment[index])
                # And what is drawn later in the sweep follows from it
                slack[index] = units = ROUNDINGS_OF_NORMAL
            else:
                moved[index] += increment[index]
            candidate = density(moved)
            log_ratio = log_accept_ratio(candidate.log_terms, state.log_terms)
            if isinstance(move, Conjugate):
                log_ratio = torch.zeros_like(log_ratio)
            log_ratios.append(log_ratio if correction is None else log_ratio + correction)
            sizes.append(candidate.log_terms.abs().sum() + state.log_terms.abs().sum())
            state = candidate if is_accepted else state
        if rescaling is not None and problem.moves.rescaling is not None:
            state = _rescaled(density, state, problem.moves.rescaling, rescaling)
    return Replay(
        torch.stack(log_ratios), state.position, state.log_density, torch.stack(sizes), slack
    )


def _rescaled(
    density: Density, state: BatchState, rescaling: Rescaling, noise: RescalingNoise
) -> BatchState:
    """Rescale relu nodes one by one, each judged by the model's whole density."""
    noises = zip(*(values.tolist() for values in noise), strict=True)
    for layer in rescaling.nodes:
        for incoming, outgoing in zip(layer.incoming, layer.outgoing, strict=True):
            log_c, c, log_u = next(noises)
            moved = state.position.clone()
            moved[incoming] = (moved[incoming].double() * c).to(moved.dtype)
            moved[outgoing] = (moved[outgoing].double() / c).to(moved.dtype)
            candidate = density(moved)
            log_ratio = log_accept_ratio(candidate.log_terms, state.log_terms)
            if log_u < log_ratio + (len(incoming) - len(outgoing)) * log_c:
                state = candidate
    return state


def assert_follows(record: Record, expected: Replay, log_u: Tensor, tolerance: float) -> None:
    """Assert that one sweep, its record without leading dimensions, is that of the model.

    Log ratios and log density agree within the tolerance, and a few units of rounding of the terms'
    size where that is larger; a tolerance of 0 asks for the same numbers. Each decision follows
    from the reported ratio, exactly, and from the model's unless the threshold lies within the
    tolerance of it; and the position is bit for bit what the accepted increments give.

    Args:
        record: What an engine reports of the sweep.
        expected: What the model says of the record's decisions, from ``replay``.
        log_u: The sweep's thresholds, shape ``(num_blocks,)``.
        tolerance: How far log ratios and log density may be off.

    Raises:
        AssertionError: If something differs; says what, and by how much.

    Example:
        >>> from pyro_fnbg import BayesianMLP
        >>> from pyro_fnbg.testing import make_inputs, run_on, start
        >>> x, y = torch.linspace(-1, 1, 6).unsqueeze(-1), torch.arange(6) % 2
        >>> run = start("feedforward", BayesianMLP([1, 2, 1], likelihood="bernoulli"), x, y)
        >>> inputs = make_inputs(run, scale=0.5)
        >>> record, of_chain = run_on(run, inputs).of_chain(0), inputs.of_chain(0)
        >>> given = of_chain.positions, None, of_chain.z[0], of_chain.adaptation
        >>> said = replay(run.problem, *given, record.accepted[0])
        >>> of_sweep = Record(*(values[0] for values in record[:4]), of_chain.adaptation)
        >>> assert_follows(of_sweep, said, of_chain.log_u[0], tolerance=1e-3)
    """
    # A term comes from a chain of some operations, each rounded; squares double the relative error
    rounding = ROUNDINGS * torch.finfo(record.positions.dtype).eps * expected.sizes
    allowed = rounding.clamp(min=tolerance) if tolerance > 0 else torch.zeros_like(rounding)
    gaps = (record.log_ratios - expected.log_ratios).abs()
    is_same = (gaps <= allowed) | (record.log_ratios == expected.log_ratios)
    is_same |= record.log_ratios.isnan() & expected.log_ratios.isnan()
    _require(is_same, "the log ratio is not the model's", record.log_ratios, expected.log_ratios)
    is_same = record.accepted == (log_u < record.log_ratios)
    _require(is_same, "the decision is not the reported ratio's", record.accepted, log_u)
    differs = record.accepted != (log_u < expected.log_ratios)
    is_same = ~differs | ((log_u - expected.log_ratios).abs() <= allowed)
    _require(is_same, "the decision is not the model's", record.accepted, log_u)
    found, where = record.positions, expected.position
    apart = expected.slack * torch.finfo(found.dtype).eps * (1 + where.double().abs())
    is_same = (found == where) | ((found.double() - where.double()).abs() <= apart)
    _require(is_same, "the position is another", found, where)
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
        tolerance: See ``assert_follows``; left out, that of the positions' type, 1e-9 in double
            precision and 1e-3 in single.

    Raises:
        AssertionError: If something differs; says what, and by how much.
        ValueError: If the inputs have gains: the moves would learn between the sweeps.

    Example:
        >>> from pyro_fnbg import BayesianMLP
        >>> from pyro_fnbg.testing import make_inputs, run_on, start
        >>> x, y = torch.linspace(-1, 1, 6).unsqueeze(-1), torch.arange(6) % 2
        >>> run = start("feedforward", BayesianMLP([1, 2, 1], likelihood="bernoulli"), x, y)
        >>> inputs = make_inputs(run, chains=2, sweeps=5, scale=0.5)
        >>> assert_as_model(run, inputs, run_on(run, inputs))
    """
    if inputs.gains is not None:
        raise ValueError("inputs must have no gains, since what moves learn is not replayed")
    if tolerance is None:
        tolerance = TOLERANCES[inputs.positions.dtype]
    for chain in range(len(inputs.positions)):
        position, learnt = inputs.positions[chain], at(inputs.adaptation, chain)
        for sweep in range(inputs.z.shape[1]):
            of_sweep = Record(
                record.positions[chain, sweep],
                record.log_ratios[chain, sweep],
                record.accepted[chain, sweep],
                record.log_densities[chain, sweep],
                learnt,
            )
            rows = None if inputs.rows is None else inputs.rows[chain, sweep]
            z, log_u = inputs.z[chain, sweep], inputs.log_u[chain, sweep]
            rescaling = None if inputs.rescaling is None else inputs.rescaling.at(chain, sweep)
            expected = replay(run.problem, position, rows, z, learnt, of_sweep.accepted, rescaling)
            assert_follows(of_sweep, expected, log_u, tolerance)
            position = of_sweep.positions


def _require(is_right: Tensor, complaint: str, found: Tensor, other: Tensor) -> None:
    """Raise an error that names the first entry that is not right."""
    wrong = (~is_right).nonzero().flatten().tolist()
    if wrong:
        values = f"{found[wrong[0]].item():.6g} beside {other[wrong[0]].item():.6g}"
        raise AssertionError(f"{complaint} at {len(wrong)} places, first at {wrong[0]}: {values}")
