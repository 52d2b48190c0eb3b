"""Chains in one process: what each does depends on nothing that runs beside it, nor on time."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.chains import running, setup
from pyro_fnbg.chains.running import run_chains, start_chains
from pyro_fnbg.core import tasks
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.engines.base import Engine
from pyro_fnbg.model.bound import BoundModel
from support.engines import ENGINES, FOR_DRIVERS

on_every_engine = pytest.mark.parametrize("engine", FOR_DRIVERS)

NET = BayesianMLP([2, 2, 2], likelihood="categorical")
ROWS, WARMUP = 24, 6


@pytest.fixture(autouse=True)
def _as_under_mcmc():
    """Switch distributions' own checks off, as Pyro's MCMC does."""
    with pyro.validation_enabled(False):
        yield


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def start(engine, numbers=(0, 1, 2), initial_params=None, **options):
    config = FNBG(NET, engine=engine, **options).config
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 2, generator=generator).double()
    y = torch.randint(0, 2, (ROWS,), generator=generator)
    keys = [ChainKey(17, number) for number in numbers]
    given = initial_params or [None] * len(keys)
    return start_chains(config, WARMUP, BoundModel(NET, (x, y)), given, keys)


def scales_of(chain):
    return chain.adaptation[0].scales


def join(problem, chains, pieces):
    """Put every chain's pieces together, and check that each goes on from the one before."""
    states, found = list(chains), [[] for _ in chains]
    for piece in pieces:
        assert piece.before is states[piece.number]
        before, after, count = piece.before, piece.after, len(piece.record.accepted)
        assert (after.key, after.sweeps) == (before.key, before.sweeps + count)
        assert torch.equal(after.position, piece.record.positions[-1])
        in_warmup = problem.is_warming_up(before)
        assert count <= problem.warmup_steps - before.sweeps or not in_warmup
        assert in_warmup or count % problem.thin == 0
        states[piece.number] = after
        found[piece.number].append(piece.record)
    return states, [
        [torch.cat(values) for values in zip(*(record[:4] for record in own), strict=True)]
        for own in found
    ]


def assert_same(one, other, engine):
    """The same records and states; up to rounding, with the same decisions, on one engine."""
    for (state, record), (known, known_record) in zip(
        zip(*one, strict=True), zip(*other, strict=True), strict=True
    ):
        assert torch.equal(record[2], known_record[2])
        pairs = [*zip(record, known_record, strict=True)]
        pairs += [(state.position, known.position), (scales_of(state), scales_of(known))]
        for mine, its in pairs:
            if engine in ("captured", "feedforward"):
                torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-9)
            else:
                assert torch.equal(mine, its)
        for mine, its in (
            (state.warmup_tally, known.warmup_tally),
            (state.draw_tally, known.draw_tally),
        ):
            assert torch.equal(mine.accepted, its.accepted)
            assert mine.sweeps == its.sweeps


@on_every_engine
def test_a_chain_beside_others_is_the_chain_alone(engine):
    """Bit for bit, but on two engines, where it is the decisions that are the same."""
    options = {"batch_size": 7, "batch_order": "stratified"}
    problem, chains = start(engine, **options)
    together = join(problem, chains, run_chains(problem, chains, WARMUP + 9))
    assert [state.sweeps for state in together[0]] == [WARMUP + 9] * 3
    alone = [], []
    for number in range(3):
        own_problem, (chain,) = start(engine, [number], **options)
        assert torch.equal(chain.position, chains[number].position)
        states, records = join(own_problem, [chain], run_chains(own_problem, [chain], WARMUP + 9))
        alone[0].extend(states)
        alone[1].extend(records)
    assert_same(together, alone, engine)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(together[1][one][1], together[1][other][1])


@on_every_engine
@pytest.mark.parametrize("enough", [0.0, float("inf")], ids=["single sweeps", "large pieces"])
def test_chains_do_not_depend_on_the_size_of_pieces(engine, enough, monkeypatch):
    problem, chains = start(engine, batch_size=7)
    after, warmup = problem.engine.sweeps(problem, chains, WARMUP)
    expected, draws = problem.engine.sweeps(problem, after, 12)
    records = [
        [
            torch.cat(both)
            for both in zip(*(r.of_chain(i)[:4] for r in (warmup, draws)), strict=True)
        ]
        for i in range(3)
    ]
    monkeypatch.setattr(running, "ENOUGH_SECONDS", enough)
    found = join(problem, chains, run_chains(problem, chains, WARMUP + 12))
    assert_same(found, (expected, records), engine)


def sizes(problem, chains, num_sweeps, number=0):
    pieces = run_chains(problem, chains, num_sweeps)
    return [len(piece.record.accepted) for piece in pieces if piece.number == number]


@on_every_engine
def test_pieces_double_within_their_bounds_and_end_with_the_warmup(engine, monkeypatch):
    monkeypatch.setattr(running, "ENOUGH_SECONDS", float("inf"))
    problem, chains = start(engine)
    assert sizes(problem, chains, WARMUP + 20) == [1, 2, 3, 8, 12]
    # Whole draws, though one may be more sweeps than a piece
    assert sizes(*start(engine, thin=5), WARMUP + 25) == [1, 2, 3, 5, 10, 10]
    beside = 3 if problem.engine.joins_chains else 1
    monkeypatch.setattr(running, "MAX_NUMBERS", 4 * beside * problem.partition.num_params)
    assert sizes(problem, chains, WARMUP + 13) == [1, 2, 3, 4, 4, 4, 1]
    monkeypatch.setattr(running, "ENOUGH_SECONDS", 0.0)
    assert sizes(problem, chains, WARMUP + 3) == [1] * (WARMUP + 3)


def test_initial_params_are_each_chains_own():
    given = [
        {
            name: torch.full(shape, value, dtype=torch.float64)
            for name, shape in NET.parameter_shapes.items()
        }
        for value in (0.5, -1.0, 2.0)
    ]
    _, chains = start("fused", initial_params=given)
    assert [set(chain.position.tolist()) for chain in chains] == [{0.5}, {-1.0}, {2.0}]
    # and may be some chains' alone
    _, chains = start("fused", initial_params=[None, given[1], None])
    assert set(chains[1].position.tolist()) == {-1.0}
    _, fresh = start("fused")
    assert torch.equal(chains[0].position, fresh[0].position)
    assert torch.equal(chains[2].position, fresh[2].position)


def test_no_sweeps_no_pieces():
    for engine in ENGINES:
        problem, chains = start(engine)
        assert list(run_chains(problem, chains, 0)) == []


def test_the_model_is_inspected_once_for_all_chains(monkeypatch):
    """Each chain more costs its start, but no second set-up."""
    calls = []

    def count(name):
        function = getattr(setup, name)

        def counting(*args):
            calls.append(name)
            return function(*args)

        monkeypatch.setattr(setup, name, counting)

    names = ("checked_sites", "make_plan", "make_partition", "prior_draws", "choose_engine")
    for name in names:
        count(name)
    _, chains = start("fused", range(5))
    assert len(chains) == 5
    assert sorted(calls) == sorted(names)


@on_every_engine
@pytest.mark.parametrize("sweeps", [4, WARMUP + 3], ids=["tuning", "tuned"])
def test_a_state_that_was_pickled_is_all_that_the_next_sweeps_need(engine, sweeps):
    """On a problem that was set up anew, as after a restart."""
    options = {"batch_size": 7, "proposal_scale": 0.3}
    problem, chains = start(engine, [5], **options)
    middle, _ = join(problem, chains, run_chains(problem, chains, sweeps))
    expected = join(problem, middle, run_chains(problem, middle, WARMUP + 20))
    stored = pickle.dumps(middle[0])
    assert len(stored) < 5_000
    again, _ = start(engine, [5], **options)
    loaded = [pickle.loads(stored)]
    found = join(again, loaded, run_chains(again, loaded, WARMUP + 20))
    assert 0.05 < found[1][0][2].double().mean() < 0.95  # decisions of both kinds
    assert_same(found, expected, "fused")  # bit for bit, whatever the engine
    assert found[0][0].key == ChainKey(17, 5)


def test_impossible_candidates_tune_as_acceptance_zero_and_are_counted():
    def model():
        a = pyro.sample("a", dist.Normal(torch.zeros(2, 1), 1.0).to_event(2))
        pyro.factor("edge", torch.where(a[0, 0] > 0, torch.nan, 0.0))

    config = FNBG(model, proposal_scale=1.0).config
    problem, chains = start_chains(config, 40, BoundModel(model), [None], [ChainKey(17, 0)])
    scales, lost = [scales_of(chains[0])], []
    for piece in run_chains(problem, chains, 40):
        scales.extend(piece.record.adaptation[0].scales)
        lost.extend(piece.record.log_ratios.isnan())
    lost, scales = torch.stack(lost), torch.stack(scales)
    assert torch.equal(piece.after.warmup_tally.non_finite, lost.sum(0))
    assert lost[:, 0].any()
    assert not lost[:, 1].any()
    gains = torch.arange(1, 41, dtype=torch.float64) ** -0.6
    expected = scales[:-1] * (-0.44 * gains)[:, None].exp()
    torch.testing.assert_close(scales[1:][lost], expected[lost], rtol=1e-12, atol=0.0)


# --- Threads -------------------------------------------------------------------------------------


@pytest.fixture
def pools(monkeypatch):
    """Numbers of threads of the pools that are made."""
    made = []

    class Recorded(ThreadPoolExecutor):
        def __init__(self, max_workers, **options):
            made.append(max_workers)
            super().__init__(max_workers, **options)

    monkeypatch.setattr(tasks, "ThreadPoolExecutor", Recorded)
    return made


@pytest.mark.usefixtures("two_threads")
def test_two_threads_make_the_same_draws_as_one(pools):
    problem, chains = start("fused", range(5), batch_size=7)
    two = join(problem, chains, run_chains(problem, chains, WARMUP + 200))
    torch.set_num_threads(1)
    one = join(problem, chains, run_chains(problem, chains, WARMUP + 200))
    assert pools == [2, 1]
    assert_same(two, one, "fused")


@pytest.mark.usefixtures("two_threads")
def test_only_compiled_engines_run_on_threads_and_no_more_than_there_are_chains(pools):
    for engine in ENGINES:
        problem, chains = start(engine)
        states, _ = join(problem, chains, run_chains(problem, chains, WARMUP))
        assert [state.sweeps for state in states] == [WARMUP] * 3
    assert pools == [2]
    problem, chains = start("fused", [4])
    join(problem, chains, run_chains(problem, chains, WARMUP))
    assert pools == [2, 1]


@on_every_engine
def test_every_chain_gets_its_turn(engine, monkeypatch):
    """No chain is far behind when a run is stopped."""
    monkeypatch.setattr(running, "ENOUGH_SECONDS", 0.0)
    problem, chains = start(engine)
    with closing(run_chains(problem, chains, WARMUP + 30)) as pieces:
        first = [piece.number for piece in islice(pieces, 60)]
    counts = [first.count(number) for number in range(3)]
    assert sum(counts) == 60
    assert max(counts) - min(counts) <= 1


@on_every_engine
def test_an_error_of_the_engine_reaches_the_caller(engine, monkeypatch):
    problem, chains = start(engine)
    calls = []

    def fail(self, inputs):
        calls.append(self.name)
        raise OSError("bad block on disk")

    monkeypatch.setattr(type(problem.engine), "run", fail)
    with pytest.raises(OSError, match="bad block on disk"):
        list(run_chains(problem, chains, WARMUP))
    assert set(calls) == {engine}


def test_each_call_of_the_engine_takes_the_chains_that_go_together(monkeypatch):
    calls, sweeps = [], Engine.sweeps

    def listening(self, problem, chains, count):
        calls.append([chain.key.chain for chain in chains])
        return sweeps(self, problem, chains, count)

    monkeypatch.setattr(Engine, "sweeps", listening)
    for engine, groups in (
        ("feedforward", {(0, 1, 2)}),
        ("captured", {(0, 1, 2)}),
        ("fused", {(0,), (1,), (2,)}),
        ("trace", {(0,), (1,), (2,)}),
    ):
        problem, chains = start(engine)
        calls.clear()
        numbers = {piece.number for piece in run_chains(problem, chains, WARMUP)}
        assert numbers == {0, 1, 2}
        assert set(map(tuple, calls)) == groups, engine


@pytest.mark.usefixtures("two_threads")
def test_closing_leaves_no_thread_at_work():
    before = threading.active_count()
    problem, chains = start("fused")
    with closing(run_chains(problem, chains, 10**6)) as pieces:
        next(pieces)
        assert threading.active_count() > before
    assert threading.active_count() == before
