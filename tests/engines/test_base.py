"""Many sweeps a call are the sweeps one by one, and tuned as their source says."""

import math
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import BayesianMLP
from pyro_fnbg.chains.setup import Run
from pyro_fnbg.core.moves.choice import make_moves
from pyro_fnbg.core.moves.joint import at
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.core.state import Tally
from pyro_fnbg.engines.base import Record, advance
from support.engines import ENGINES, past_the_check
from support.engines import start as start_engine

on_every_engine = pytest.mark.parametrize("engine", ENGINES)

ROWS, WARMUP = 24, 12
SCALE = dist.HalfNormal(torch.tensor(1.0, dtype=torch.float64))
CLASSES = {"likelihood": "categorical"}
CASES = {
    "all rows": ([2, 2, 2], CLASSES, {}),
    "batches": ([2, 2, 2], CLASSES, {"batch_size": 7}),
    "stratified": ([2, 2, 2], CLASSES, {"batch_size": 7, "batch_order": "stratified"}),
    "scale": ([2, 2, 1], {"likelihood": "normal", "observation_scale": SCALE}, {"batch_size": 5}),
}


@pytest.fixture(autouse=True)
def _as_under_mcmc():
    """Switch distributions' own checks off, as Pyro's MCMC does."""
    with pyro.validation_enabled(False):
        yield


def start(engine, case="batches", warmup=WARMUP, **options):
    """Return a problem and a chain before its first sweep, in double precision."""
    widths, structure, own = CASES[case]
    pyro.set_rng_seed(3)
    x = torch.randn(ROWS, 2, dtype=torch.float64)
    y = torch.randint(0, 2, (ROWS,))
    y = y if structure is CLASSES else 0.3 * x.sum(1) + y
    # A fixed start of tuning, so that acceptances and rejections both come in few sweeps
    options = {"proposal_scale": 0.3} | own | options
    model = BayesianMLP(widths, **structure)
    return start_engine(engine, model, x, y, warmup_steps=warmup, **options)


def scales_of(record_or_chain):
    """The proposal scales of the one move that there is."""
    (state,) = record_or_chain.adaptation
    return state.scales


def follow(run, counts):
    """Run pieces of sweeps, and return the state at the end and the record of all."""
    problem, chain = run
    found = []
    for count in counts:
        (chain,), records = problem.engine.sweeps(problem, [chain], count)
        record = records.of_chain(0)
        assert len(record.positions) == count
        assert len(scales_of(record)) == (count if problem.tuned_sweeps >= chain.sweeps else 1)
        found.append(record)
    joined = [torch.cat(values) for values in zip(*(one[:4] for one in found), strict=True)]
    scales = torch.cat([scales_of(r).expand(len(r.positions), -1) for r in found])
    return chain, Record(*joined, (type(chain.adaptation[0])(scales),))


def assert_same_record(one, other):
    assert all(torch.equal(mine, its) for mine, its in zip(one[:4], other[:4], strict=True))
    assert torch.equal(scales_of(one), scales_of(other))


def assert_same_state(one, other):
    assert (one.key, one.sweeps) == (other.key, other.sweeps)
    assert torch.equal(one.position, other.position)
    assert torch.equal(scales_of(one), scales_of(other))
    for mine, its in ((one.warmup, other.warmup), (one.draws, other.draws)):
        assert torch.equal(mine.accepted, its.accepted)
        assert torch.equal(mine.non_finite, its.non_finite)
        assert mine.sweeps == its.sweeps


@on_every_engine
@pytest.mark.parametrize("case", CASES)
def test_sweeps_do_not_depend_on_how_many_are_asked_for(engine, case):
    """Warmup with tuning, then draws; pieces end at the border of the two, as they always do."""
    run = start(engine, case)
    alone = follow(run, [1] * 20)
    assert alone[0].warmup.sweeps == WARMUP
    assert alone[0].draws.sweeps == 8
    moved = alone[1].accepted.double().mean()
    assert 0.1 < moved < 0.95, f"decisions of one kind only: {moved}"
    for counts in ([12, 8], [5, 7, 1, 7], [11, 1, 3, 3, 2]):
        together = follow(run, counts)
        assert_same_record(alone[1], together[1])
        assert_same_state(alone[0], together[0])


@on_every_engine
def test_chains_together_are_each_chain_alone(engine):
    """Bit for bit, but on the feedforward engine, where it is the decisions that are the same."""
    problem, chain = start(engine)
    chains = [replace(chain, key=ChainKey(chain.key.seed, number)) for number in range(3)]
    after, together = problem.engine.sweeps(problem, chains, WARMUP)
    for number, chain in enumerate(chains):
        (alone_after,), alone = problem.engine.sweeps(problem, [chain], WARMUP)
        mine, its = together.of_chain(number), alone.of_chain(0)
        assert torch.equal(mine.accepted, its.accepted)
        if engine == "feedforward":
            for one, other in zip(mine[:4], its[:4], strict=True):
                torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(scales_of(mine), scales_of(its), rtol=1e-10, atol=0.0)
        else:
            assert_same_record(mine, its)
            assert_same_state(after[number], alone_after)
    assert not torch.equal(together.accepted[0], together.accepted[1])


@on_every_engine
def test_scales_follow_their_recursion_sweep_by_sweep(engine):
    """By the ratios that the engine reports, in NumPy: log scale += t**-0.6 (prob - target)."""
    targets = [0.2, 0.35, 0.44, 0.6]
    problem, chain = start(engine, warmup=15)
    moves = make_moves(
        problem.partition, "walk", scales_of(chain), torch.tensor(targets, dtype=torch.float64)
    )
    run = past_the_check(Run(replace(problem, moves=moves), chain), engine)
    end, record = follow(run, [4, 6, 5, 3])
    log_scales, found = np.log(scales_of(chain).numpy()), np.log(scales_of(record).numpy())
    for sweep, log_ratios in enumerate(record.log_ratios.numpy(), start=1):
        gain = sweep**-0.6 if sweep <= 15 else 0.0
        log_scales = log_scales + gain * (np.exp(np.minimum(log_ratios, 0.0)) - targets)
        np.testing.assert_allclose(found[sweep - 1], log_scales, rtol=0.0, atol=1e-12)
    assert torch.equal(scales_of(end), scales_of(record)[14])
    steps = scales_of(record)[:15].log().diff(dim=0)
    assert (steps > 0).any()
    assert (steps < 0).any()


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "trace"])
def test_every_engine_tunes_as_the_trace_engine_does(engine):
    """On batches, with an observation scale among the parameters."""
    run, reference = start(engine, "scale", warmup=100), start("trace", "scale", warmup=100)
    assert torch.equal(run.chain.position, reference.chain.position)
    end, found = follow(run, [100])
    known_end, known = follow(reference, [100])
    assert torch.equal(found.accepted, known.accepted)
    torch.testing.assert_close(scales_of(end), scales_of(known_end), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(scales_of(found), scales_of(known), rtol=1e-9, atol=0.0)
    torch.testing.assert_close(found.positions, known.positions, rtol=1e-9, atol=1e-9)
    assert torch.equal(end.warmup.accepted, known_end.warmup.accepted)
    # and it led somewhere
    assert ((scales_of(end) / scales_of(run.chain)).log().abs() > 0.1).any()


@on_every_engine
def test_untuned_and_frozen_scales_stay_as_they_are(engine):
    problem, fixed = start(engine, adapt=False)
    assert problem.tuned_sweeps == 0
    end, record = follow((problem, fixed), [12, 4])
    for scales in (scales_of(record), scales_of(end), scales_of(fixed)):
        assert (scales == 0.3).all()
    problem, chain = start(engine)
    frozen, _ = follow((problem, chain), [12])
    assert (scales_of(frozen) != 0.3).all()
    end, record = follow((problem, frozen), [3, 5])
    assert (scales_of(record) == scales_of(frozen)).all()
    assert torch.equal(scales_of(end), scales_of(frozen))


@on_every_engine
def test_a_chain_is_where_its_last_sweep_led_and_the_state_before_is_as_it_was(engine):
    problem, chain = start(engine)
    (later,), records = problem.engine.sweeps(problem, [chain], 5)
    record = records.of_chain(0)
    assert torch.equal(later.position, record.positions[4])
    assert not torch.equal(later.position, record.positions[0])
    assert torch.equal(scales_of(later), scales_of(record)[4])
    assert (later.key, later.sweeps) == (chain.key, 5)
    assert torch.equal(later.warmup.accepted, record.accepted.sum(0))
    assert later.draws.sweeps == 0
    assert (chain.sweeps, chain.warmup.sweeps) == (0, 0)
    with pytest.raises(FrozenInstanceError):
        chain.sweeps = 3
    with pytest.raises(FrozenInstanceError):
        problem.thin = 3


@on_every_engine
@pytest.mark.parametrize("sweeps", [5, WARMUP + 3])
def test_a_state_that_was_pickled_is_all_that_the_next_sweeps_need(engine, sweeps):
    """In the middle of tuning and after it, by a problem that was set up anew."""
    problem, chain = start(engine)
    counts = [sweeps] if sweeps < WARMUP else [WARMUP, sweeps - WARMUP]
    middle, _ = follow((problem, chain), counts)
    counts = [WARMUP - sweeps, 4] if sweeps < WARMUP else [4]
    expected, expected_record = follow((problem, middle), counts)
    stored = pickle.dumps(middle)
    assert len(stored) < 10_000
    again, _ = start(engine)
    end, record = follow((again, pickle.loads(stored)), counts)
    assert_same_record(record, expected_record)
    assert_same_state(end, expected)


@on_every_engine
def test_a_part_of_a_record_leads_to_the_state_in_its_middle(engine):
    """In warmup, where scales change with every sweep, and after it, where there is one of them."""
    problem, chain = start(engine)
    for count in (WARMUP, 6):
        (after,), records = problem.engine.sweeps(problem, [chain], count)
        record = records.of_chain(0)
        for part in (1, 4, count):
            (expected,), _ = problem.engine.sweeps(problem, [chain], part)
            middle = advance(problem, chain, record.of_sweeps(0, part))
            assert_same_state(middle, expected)
            if part < count:
                assert_same_state(advance(problem, middle, record.of_sweeps(part, count)), after)
        chain = after


def test_impossible_candidates_tune_as_acceptance_zero_and_are_counted():
    def model():
        a = pyro.sample("a", dist.Normal(torch.zeros(2, 1), 1.0).to_event(2))
        pyro.factor("edge", torch.where(a[0, 0] > 0, torch.nan, 0.0))

    run = start_engine("trace", model, warmup_steps=40, proposal_scale=1.0)
    end, record = follow(run, [40])
    lost = record.log_ratios.isnan()
    assert torch.equal(end.warmup.non_finite, lost.sum(0))
    assert lost[:, 0].any()
    assert not lost[:, 1].any()
    scales = scales_of(record)
    before = torch.cat([scales_of(run.chain)[None], scales[:-1]])
    gains = torch.arange(1, 41, dtype=torch.float64) ** -0.6
    expected = before * (-0.44 * gains)[:, None].exp()
    torch.testing.assert_close(scales[lost], expected[lost], rtol=1e-12, atol=0.0)


def test_phases_and_sweeps_a_draw_follow_the_number_of_sweeps():
    problem, chain = start("fused", warmup=4, thin=3)
    found = []
    for count in (1, 2, 1, 3, 6):
        found.append((problem.is_warming_up(chain), problem.sweeps_a_draw(chain)))
        (chain,), _ = problem.engine.sweeps(problem, [chain], count)
        assert problem.phase(chain) is (chain.warmup if chain.sweeps <= 4 else chain.draws)
        assert problem.phase(chain).sweeps == (
            chain.sweeps if chain.sweeps <= 4 else chain.sweeps - 4
        )
    assert found == [(True, 1)] * 3 + [(False, 3)] * 2


def test_entries_of_a_record_are_its_chains_and_its_sweeps():
    problem, chain = start("fused")
    chains = [replace(chain, key=ChainKey(1, number)) for number in range(2)]
    _, records = problem.engine.sweeps(problem, chains, 5)
    one = records.of_chain(1)
    assert torch.equal(one.positions, records.positions[1])
    assert torch.equal(scales_of(one), scales_of(records)[1])
    some = one.of_sweeps(1, 3)
    for name in ("positions", "log_ratios", "accepted", "log_densities"):
        assert torch.equal(getattr(some, name), getattr(records, name)[1, 1:3]), name
    assert torch.equal(scales_of(some), scales_of(records)[1, 1:3])
    assert at(records.adaptation, 1)[0].scales.shape == (5, problem.partition.num_blocks)
    assert records.log_densities.dtype == torch.float64
    assert not any(math.isnan(value) for value in records.log_ratios.flatten().tolist())


def test_a_count_is_that_of_one_phase():
    """A warmup's decisions never count as draws, and the other way round."""
    problem, chain = start("fused", warmup=3)
    (chain,), records = problem.engine.sweeps(problem, [chain], 3)
    assert torch.equal(chain.warmup.accepted, records.accepted[0].sum(0))
    assert chain.draws == Tally(chain.draws.accepted, chain.draws.non_finite, 0)
    assert not chain.draws.accepted.any()
    (later,), records = problem.engine.sweeps(problem, [chain], 4)
    assert later.warmup is chain.warmup
    assert torch.equal(later.draws.accepted, records.accepted[0].sum(0))
    assert later.draws.sweeps == 4
