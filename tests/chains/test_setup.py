"""The chain's state: many sweeps a call are the sweeps one by one, tuned as their source says."""

from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.chains.setup import after, next_sweeps, start_chain
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.engines.base import SweepResults
from support.engines import ENGINES

on_every_engine = pytest.mark.parametrize("engine", ENGINES)

ROWS = 24
SCALE = dist.HalfNormal(torch.tensor(1.0, dtype=torch.float64))
CASES = {
    "all rows": ([2, 2, 2], {"likelihood": "categorical"}, {}),
    "batches": ([2, 2, 2], {"likelihood": "categorical"}, {"batch_size": 7}),
    "stratified": (
        [2, 2, 2],
        {"likelihood": "categorical"},
        {"batch_size": 7, "batch_order": "stratified"},
    ),
    "scale": ([2, 2, 1], {"likelihood": "normal", "observation_scale": SCALE}, {"batch_size": 5}),
}


@pytest.fixture(autouse=True)
def _as_under_mcmc():
    """Switch distributions' own checks off, as Pyro's MCMC does."""
    with pyro.validation_enabled(False):
        yield


def start(engine, case="batches", warmup=12, **options):
    """Return a chain's state before its first sweep, in double precision."""
    widths, structure, own = CASES[case]
    pyro.set_rng_seed(3)
    x = torch.randn(ROWS, 2, dtype=torch.float64)
    y = torch.randint(0, 2, (ROWS,))
    y = y if structure["likelihood"] == "categorical" else 0.3 * x.sum(1) + y
    # A fixed start of tuning, so that acceptances and rejections both come in few sweeps
    options = {"proposal_scale": 0.3} | own | options
    kernel = FNBG(BayesianMLP(widths, **structure), engine=engine, **options)
    kernel.setup(warmup, x, y)
    return kernel._running()


def follow(run, pieces):
    """Run pieces of sweeps, and return the state at the end and the results of all."""
    found = []
    for count in pieces:
        (results,) = next_sweeps([run], count)
        assert len(results.positions) == count
        found.append(results)
        run = after(run, results)
    return run, SweepResults(*(torch.cat(values) for values in zip(*found, strict=True)))


def assert_same_state(one, other):
    assert torch.equal(one.position, other.position)
    assert torch.equal(one.scales, other.scales)
    assert one.sweeps == other.sweeps
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
    assert alone[0].warmup.sweeps == 12
    assert alone[0].draws.sweeps == 8
    moved = alone[1].accepted.double().mean()
    assert 0.1 < moved < 0.95, f"decisions of one kind only: {moved}"
    for pieces in ([12, 8], [5, 7, 1, 7], [11, 1, 3, 3, 2]):
        together = follow(run, pieces)
        for one, many in zip(alone[1], together[1], strict=True):
            assert torch.equal(one, many)
        assert_same_state(alone[0], together[0])


@on_every_engine
def test_chains_together_are_each_chain_alone(engine):
    """Bit for bit, but on the feedforward engine, where it is the decisions that are the same."""
    run = start(engine)
    others = [replace(run, key=ChainKey(run.key.seed, chain)) for chain in (1, 2)]
    runs = [run, *others]
    together = next_sweeps(runs, 12)
    for chain, results in zip(runs, together, strict=True):
        (alone,) = next_sweeps([chain], 12)
        assert torch.equal(results.accepted, alone.accepted)
        for one, other in zip(results, alone, strict=True):
            if engine == "feedforward":
                torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
            else:
                assert torch.equal(one, other)
    assert not torch.equal(together[0].accepted, together[1].accepted)


@on_every_engine
def test_scales_follow_their_recursion_sweep_by_sweep(engine):
    """By the ratios that the engine reports, in NumPy: log scale += t**-0.6 (prob - target)."""
    targets = [0.2, 0.35, 0.44, 0.6]
    run = replace(start(engine, warmup=15), targets=torch.tensor(targets, dtype=torch.float64))
    _, results = follow(run, [4, 6, 5, 3])
    log_scales = np.log(run.scales.numpy())
    for sweep, log_ratios in enumerate(results.log_ratios.numpy(), start=1):
        gain = sweep**-0.6 if sweep <= 15 else 0.0
        log_scales = log_scales + gain * (np.exp(np.minimum(log_ratios, 0.0)) - targets)
        found = np.log(results.scales[sweep - 1].numpy())
        np.testing.assert_allclose(found, log_scales, rtol=0.0, atol=1e-12)
    assert torch.equal(results.scales[-1], results.scales[14])
    moves = results.scales[:15].log().diff(dim=0)
    assert (moves > 0).any()
    assert (moves < 0).any()


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "trace"])
def test_every_engine_tunes_as_the_trace_engine_does(engine):
    """On batches, with an observation scale among the parameters."""
    run, reference = start(engine, "scale", warmup=200), start("trace", "scale", warmup=200)
    assert torch.equal(run.position, reference.position)
    end, found = follow(run, [200])
    known_end, known = follow(reference, [200])
    assert torch.equal(found.accepted, known.accepted)
    torch.testing.assert_close(found.scales[-1], known.scales[-1], rtol=1e-12, atol=0.0)
    torch.testing.assert_close(found.scales, known.scales, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(found.positions, known.positions, rtol=1e-9, atol=1e-9)
    assert torch.equal(end.warmup.accepted, known_end.warmup.accepted)
    # and it led somewhere
    assert ((found.scales[-1] / run.scales).log().abs() > 0.1).any()


@on_every_engine
def test_untuned_and_frozen_scales_stay_as_they_are(engine):
    fixed = start(engine, adapt=False)
    _, results = follow(fixed, [12, 4])
    assert (results.scales == fixed.scales).all()
    assert (fixed.scales == 0.3).all()
    frozen, _ = follow(start(engine), [12])
    _, results = follow(frozen, [3, 5])
    assert (results.scales == frozen.scales).all()


@on_every_engine
def test_after_goes_on_from_the_last_sweep(engine):
    run = start(engine)
    (results,) = next_sweeps([run], 5)
    later = after(run, results)
    assert torch.equal(later.position, results.positions[4])
    assert not torch.equal(later.position, results.positions[0])
    assert torch.equal(later.scales, results.scales[4])
    assert later.sweeps == 5
    assert torch.equal(later.warmup.accepted, results.accepted.sum(0))
    assert later.draws.sweeps == 0
    # The state before it is as it was
    assert run.sweeps == 0
    assert run.warmup.sweeps == 0


def test_impossible_candidates_tune_as_acceptance_zero_and_are_counted():
    def model():
        a = pyro.sample("a", dist.Normal(torch.zeros(2, 1), 1.0).to_event(2))
        pyro.factor("edge", torch.where(a[0, 0] > 0, torch.nan, 0.0))

    kernel = FNBG(model, proposal_scale=1.0)
    kernel.setup(40)
    run, results = follow(kernel._running(), [40])
    lost = results.log_ratios.isnan()
    assert torch.equal(run.warmup.non_finite, lost.sum(0))
    assert lost[:, 0].any()
    assert not lost[:, 1].any()
    before = torch.cat([kernel._running().scales[None], results.scales[:-1]])
    gains = torch.arange(1, 41, dtype=torch.float64) ** -0.6
    expected = before * (-0.44 * gains)[:, None].exp()
    torch.testing.assert_close(results.scales[lost], expected[lost], rtol=1e-12, atol=0.0)


def test_another_chain_of_a_run_starts_where_it_would_by_itself():
    model = BayesianMLP([2, 2, 2], likelihood="categorical")
    x, y = torch.randn(ROWS, 2), torch.randint(0, 2, (ROWS,))
    kernel = FNBG(model, batch_size=7, batch_order="stratified")
    pyro.set_rng_seed(3)
    chains = []
    for _ in range(3):
        kernel.setup(4, x, y)
        chains.append(kernel._running())
    assert [run.key.chain for run in chains] == [0, 1, 2]
    for run in chains[1:]:
        other = start_chain(chains[0], kernel.config, (x, y), {}, None, run.key)
        assert other.key == run.key
        assert torch.equal(other.position, run.position)
        assert torch.equal(other.scales, run.scales)
        for sweep in (0, 2, 3, 10):
            assert torch.equal(other.batches.rows(sweep), run.batches.rows(sweep))
        assert other.engine is chains[0].engine
    assert not torch.equal(chains[1].position, chains[2].position)
