"""A chain's state: many sweeps a call are the sweeps one by one, tuned as their source says."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import BayesianMLP
from pyro_fnbg.chains.setup import Run
from pyro_fnbg.core.moves.joint import JointMoves
from pyro_fnbg.core.moves.walk import ScaleState, Walk
from pyro_fnbg.core.noise import ChainKey, sweep_noise
from pyro_fnbg.engines.base import Record, advance, next_inputs
from pyro_fnbg.engines.trace import TraceEngine
from pyro_fnbg.testing import start
from support.engines import (
    ENGINES,
    FAST,
    assert_decides_both_ways,
    assert_identical,
    assert_same,
    part,
    past_the_check,
)

ROWS, WARMUP = 24, 12
CASES = {
    "all rows": ([2, 2, 2], "categorical", {}),
    "batches": ([2, 2, 2], "categorical", {"batch_size": 7}),
    "stratified": ([2, 2, 2], "categorical", {"batch_size": 7, "batch_order": "stratified"}),
    "scale": ([2, 2, 1], "normal", {"batch_size": 5}),
}

on_every_engine = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(autouse=True)
def _as_under_mcmc():
    """Switch distributions' own checks off, as Pyro's MCMC does."""
    with pyro.validation_enabled(False):
        yield


def begin(engine, case="batches", warmup_steps=WARMUP, **options):
    """Place a chain before its first sweep, in double precision."""
    widths, likelihood, own = CASES[case]
    structure = {"likelihood": likelihood}
    x = torch.randn(ROWS, 2, dtype=torch.float64)
    y = torch.randint(0, 2, (ROWS,))
    if likelihood == "normal":
        y = 0.3 * x.sum(1) + y
        structure["observation_scale"] = dist.HalfNormal(torch.tensor(1.0, dtype=torch.float64))
    # A fixed start of tuning, so that acceptances and rejections both come in few sweeps
    options = {"proposal_scale": 0.3} | own | options
    return start(
        engine, BayesianMLP(widths, **structure), x, y, warmup_steps=warmup_steps, **options
    )


def follow(run, pieces):
    """Run pieces of sweeps, and return the state at the end and the record of all."""
    problem, chain = run
    records = []
    for count in pieces:
        (chain,), record = problem.engine.sweeps(problem, [chain], count)
        assert record.positions.shape[:2] == (1, count)
        records.append(record)
    scales = [
        scales_of(record).expand(1, count, -1)
        for record, count in zip(records, pieces, strict=True)
    ]
    values = zip(*(record[:4] for record in records), strict=True)
    joined = [torch.cat(of_pieces, 1) for of_pieces in values]
    return chain, Record(*joined, (ScaleState(torch.cat(scales, 1)),))


def scales_of(chain_or_record):
    return chain_or_record.adaptation[0].scales


def assert_same_chain(one, other):
    assert one.key == other.key
    assert one.sweeps == other.sweeps
    assert torch.equal(one.position, other.position)
    assert torch.equal(scales_of(one), scales_of(other))
    for mine, its in ((one.warmup_tally, other.warmup_tally), (one.draw_tally, other.draw_tally)):
        assert torch.equal(mine.accepted, its.accepted)
        assert torch.equal(mine.non_finite, its.non_finite)
        assert mine.sweeps == its.sweeps


# --- What sweeps start from ----------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_inputs_are_the_noise_and_the_batches_of_the_next_sweeps(case):
    problem, chain = begin("trace", case)
    chains = [replace(chain, sweeps=9, key=ChainKey(chain.key.seed, n)) for n in (0, 3)]
    inputs = next_inputs(problem, chains, 3)
    size = problem.partition.num_params, problem.partition.num_blocks
    assert inputs.positions.shape == (2, size[0])
    for place, own in enumerate(chains):
        assert torch.equal(inputs.positions[place], own.position)
        assert torch.equal(inputs.adaptation[0].scales[place], scales_of(own))
        for number in range(3):
            noise = sweep_noise(own.key, 9 + number, *size)
            assert torch.equal(inputs.z[place, number], noise.z)
            assert torch.equal(inputs.log_u[place, number], noise.log_u)
            rows = problem.batches.rows(own.key, 9 + number)
            if case == "all rows":
                assert rows is None
                assert inputs.rows is None
            else:
                assert torch.equal(inputs.rows[place, number], rows)
    expected = [t**-0.6 for t in (10, 11, 12)]
    assert inputs.gains.tolist() == pytest.approx(expected, rel=1e-15)


def test_there_are_no_gains_where_nothing_is_learnt():
    problem, chain = begin("trace")
    assert next_inputs(problem, [replace(chain, sweeps=WARMUP - 1)], 1).gains is not None
    assert next_inputs(problem, [replace(chain, sweeps=WARMUP)], 1).gains is None
    problem, chain = begin("trace", adapt=False)
    assert next_inputs(problem, [chain], 1).gains is None


def test_inputs_go_to_a_device_as_a_whole():
    """The device without memory, which is everywhere: nothing may stay behind."""
    meta = torch.device("meta")
    for case in ("all rows", "batches"):
        problem, chain = begin("trace", case)
        inputs = next_inputs(problem, [chain], 2)
        moved = inputs.to(meta)
        assert (moved.rows is None) == (case == "all rows")
        tensors = [moved.positions, moved.z, moved.log_u, moved.gains, *moved.adaptation[0]]
        tensors += [] if moved.rows is None else [moved.rows]
        assert all(tensor.device == meta for tensor in tensors)
        assert isinstance(moved.adaptation[0], type(inputs.adaptation[0]))
    problem, chain = begin("trace", adapt=False)
    assert next_inputs(problem, [chain], 2).to(meta).gains is None


# --- Pieces --------------------------------------------------------------------------------------


@on_every_engine
@pytest.mark.parametrize("case", CASES)
def test_sweeps_do_not_depend_on_how_many_are_asked_for(engine, case):
    """Warmup with tuning, then draws; pieces end at the border of the two, as they always do."""
    run = begin(engine, case)
    end, alone = follow(run, [1] * 20)
    assert end.warmup_tally.sweeps == 12
    assert end.draw_tally.sweeps == 8
    assert_decides_both_ways(alone.accepted, 0.1)
    for pieces in ([12, 8], [5, 7, 1, 7], [11, 1, 3, 3, 2]):
        other_end, together = follow(run, pieces)
        assert_identical(together, alone)
        assert_same_chain(other_end, end)


@on_every_engine
def test_a_record_taken_in_pieces_leads_where_the_whole_does(engine):
    """As when draws made together are handed out one by one."""
    problem, chain = begin(engine)
    for _ in range(2):  # the warmup, then as many draws
        (after,), records = problem.engine.sweeps(problem, [chain], WARMUP)
        record = records.of_chain(0)
        for cuts in ([0, 1, 2, 12], [0, 5, 12], range(13)):
            here = chain
            for first, stop in zip(cuts, cuts[1:], strict=False):
                here = advance(problem, here, record.of_sweeps(first, stop))
                assert torch.equal(here.position, record.positions[stop - 1])
            assert_same_chain(here, after)
        chain = after
    assert (chain.warmup_tally.sweeps, chain.draw_tally.sweeps) == (WARMUP, WARMUP)


@on_every_engine
def test_a_chain_goes_on_from_the_last_sweep(engine):
    problem, chain = begin(engine)
    (later,), record = problem.engine.sweeps(problem, [chain], 5)
    assert torch.equal(later.position, record.positions[0, 4])
    assert not torch.equal(later.position, record.positions[0, 0])
    assert torch.equal(scales_of(later), scales_of(record)[0, 4])
    assert not torch.equal(scales_of(later), scales_of(record)[0, 0])
    assert later.sweeps == 5
    assert torch.equal(later.warmup_tally.accepted, record.accepted[0].sum(0))
    assert later.draw_tally.sweeps == 0
    assert not later.draw_tally.accepted.any()
    (last,), record = problem.engine.sweeps(problem, [replace(later, sweeps=WARMUP)], 2)
    assert last.sweeps == WARMUP + 2
    assert torch.equal(last.draw_tally.accepted, record.accepted[0].sum(0))
    assert last.warmup_tally == later.warmup_tally
    # and the states it came from are what they were
    assert chain.sweeps == 0
    assert later.draw_tally.sweeps == 0


@on_every_engine
def test_chains_together_are_each_chain_alone(engine):
    """Bit for bit, but on two engines, where it is the decisions that are the same."""
    problem, chain = begin(engine)
    chains = [replace(chain, key=ChainKey(chain.key.seed, number)) for number in range(3)]
    afters, together = problem.engine.sweeps(problem, chains, WARMUP)
    for number in range(3):
        (after,), alone = problem.engine.sweeps(problem, [chains[number]], WARMUP)
        mine = part(together, chains=slice(number, number + 1))
        if engine in ("captured", "feedforward"):
            log_u = next_inputs(problem, [chains[number]], WARMUP).log_u
            assert_same(mine, alone, log_u, 1e-10)
        else:
            assert_identical(mine, alone)
            assert_same_chain(afters[number], after)
        assert afters[number].key == chains[number].key
        assert torch.equal(afters[number].warmup_tally.accepted, after.warmup_tally.accepted)
    assert not torch.equal(together.accepted[0], together.accepted[1])


def test_phases_and_sweeps_a_draw_follow_the_number_of_sweeps():
    problem, chain = begin("fused", warmup_steps=4, thin=3)
    found = []
    for count in (1, 2, 1, 3, 6):
        found.append((problem.is_warming_up(chain), problem.sweeps_a_draw(chain)))
        (chain,), _ = problem.engine.sweeps(problem, [chain], count)
        in_warmup = chain.sweeps <= 4
        assert problem.phase(chain) is (chain.warmup_tally if in_warmup else chain.draw_tally)
        assert problem.phase(chain).sweeps == (chain.sweeps if in_warmup else chain.sweeps - 4)
    assert found == [(True, 1)] * 3 + [(False, 3)] * 2


def test_a_problem_cannot_be_edited():
    with pytest.raises(FrozenInstanceError):
        begin("trace").problem.thin = 3


def test_entries_of_a_record_are_its_chains_and_its_sweeps():
    problem, chain = begin("fused")
    chains = [replace(chain, key=ChainKey(1, number)) for number in range(2)]
    _, record = problem.engine.sweeps(problem, chains, 5)
    one = record.of_chain(1)
    some = one.of_sweeps(1, 3)
    for name in ("positions", "log_ratios", "accepted", "log_densities"):
        assert torch.equal(getattr(one, name), getattr(record, name)[1]), name
        assert torch.equal(getattr(some, name), getattr(record, name)[1, 1:3]), name
    assert torch.equal(scales_of(one), scales_of(record)[1])
    assert torch.equal(scales_of(some), scales_of(record)[1, 1:3])


# --- Tuning --------------------------------------------------------------------------------------


def with_targets(run, targets):
    """Have the walk aim at other acceptance probabilities."""
    problem = run.problem
    (walk,) = problem.moves.moves
    targets = torch.tensor(targets, dtype=torch.float64)
    aiming = Walk(problem.partition, walk.blocks, walk.first_scales, targets)
    problem = replace(problem, moves=JointMoves(problem.partition, [aiming]))
    return past_the_check(Run(problem, run.chain), problem.engine.name)


@on_every_engine
def test_scales_follow_their_recursion_sweep_by_sweep(engine):
    """By the ratios that the engine reports, in NumPy: log scale += t**-0.6 (prob - target)."""
    targets = [0.2, 0.35, 0.44, 0.6]
    run = with_targets(begin(engine, warmup_steps=15), targets)
    _, record = follow(run, [4, 6, 5, 3])
    scales = scales_of(record)[0]
    log_scales = np.log(scales_of(run.chain).numpy())
    for sweep, log_ratios in enumerate(record.log_ratios[0].numpy(), start=1):
        gain = sweep**-0.6 if sweep <= 15 else 0.0
        log_scales = log_scales + gain * (np.exp(np.minimum(log_ratios, 0.0)) - targets)
        found = np.log(scales[sweep - 1].numpy())
        np.testing.assert_allclose(found, log_scales, rtol=0.0, atol=1e-12)
    assert torch.equal(scales[-1], scales[14])
    moves = scales[:15].log().diff(dim=0)
    assert (moves > 0).any()
    assert (moves < 0).any()


@pytest.mark.parametrize("engine", FAST)
def test_every_engine_tunes_as_the_trace_engine_does(engine):
    """On batches, with an observation scale among the parameters."""
    run = begin(engine, "scale", warmup_steps=200)
    end, found = follow(run, [200])
    known_end, known = follow(past_the_check(run, "trace"), [200])
    assert_same(found, known, next_inputs(run.problem, [run.chain], 200).log_u)
    torch.testing.assert_close(scales_of(end), scales_of(known_end), rtol=1e-12, atol=0.0)
    assert torch.equal(end.warmup_tally.accepted, known_end.warmup_tally.accepted)
    # and it led somewhere
    assert ((scales_of(end) / scales_of(run.chain)).log().abs() > 0.1).any()


@on_every_engine
def test_untuned_and_frozen_scales_stay_as_they_are(engine):
    fixed = begin(engine, adapt=False)
    _, record = follow(fixed, [12, 4])
    assert (scales_of(record) == scales_of(fixed.chain)).all()
    assert (scales_of(fixed.chain) == 0.3).all()
    run = begin(engine)
    frozen, _ = follow(run, [12])
    assert (scales_of(frozen) != scales_of(run.chain)).all()
    later, record = follow(Run(run.problem, frozen), [3, 5])
    assert (scales_of(record) == scales_of(frozen)).all()
    assert torch.equal(scales_of(later), scales_of(frozen))


@on_every_engine
def test_a_record_of_nothing_learnt_has_one_state(engine):
    """Which stands for all sweeps, in pieces of the record, too."""
    problem, chain = begin(engine, adapt=False)
    (after,), record = problem.engine.sweeps(problem, [chain], 6)
    assert scales_of(record).shape[:2] == (1, 1)
    first = record.of_chain(0).of_sweeps(0, 2)
    assert first.accepted.shape[0] == 2
    assert torch.equal(scales_of(advance(problem, chain, first)), scales_of(after))


def test_the_trace_engine_runs_two_moves_side_by_side():
    """Two walks that share the blocks are one walk over all of them, tuning included."""
    problem, chain = begin("trace", "scale")
    (walk,) = problem.moves.moves
    blocks = torch.arange(problem.partition.num_blocks)
    moves = [
        Walk(problem.partition, own, walk.first_scales[own], walk.targets[own])
        for own in (blocks[::2].clone(), blocks[1::2].clone())
    ]
    joint = JointMoves(problem.partition, moves)
    engine = TraceEngine(problem.density, problem.partition, joint)
    both = replace(problem, moves=joint, engine=engine)
    one_chain, other = chain, replace(chain, adaptation=joint.start())
    for count in (WARMUP, 5):
        (one_chain,), expected = problem.engine.sweeps(problem, [one_chain], count)
        (other,), found = engine.sweeps(both, [other], count)
        for one, same in zip(expected[:4], found[:4], strict=True):
            assert torch.equal(one, same)
        (whole,) = one_chain.adaptation
        for move, state in zip(moves, other.adaptation, strict=True):
            assert torch.equal(state.scales, whole.scales[move.blocks])
    assert_decides_both_ways(found.accepted)
