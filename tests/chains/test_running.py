"""Chains in one process: what each does depends on nothing that runs beside it, nor on time."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice

import pyro
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.chains import running as chains
from pyro_fnbg.chains import setup as run_module
from pyro_fnbg.chains.running import run_chains, start_chains
from pyro_fnbg.chains.setup import after, next_sweeps
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.engines.base import SweepResults
from support.engines import ENGINES

on_every_engine = pytest.mark.parametrize("engine", ENGINES)

NET = BayesianMLP([2, 2, 2], likelihood="categorical")
ROWS, WARMUP = 24, 6
X = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(1)).double()
Y = torch.randint(0, 2, (ROWS,), generator=torch.Generator().manual_seed(2))


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
    keys = [ChainKey(17, number) for number in numbers]
    given = initial_params or [None] * len(keys)
    return start_chains(config, WARMUP, (X, Y), {}, given, keys)


def join(runs, pieces):
    """Put every chain's pieces together, and check that each goes on from the one before."""
    states, found = list(runs), [[] for _ in runs]
    for piece in pieces:
        before = states[piece.chain]
        assert torch.equal(piece.before.position, before.position)
        assert torch.equal(piece.before.scales, before.scales)
        assert piece.before.sweeps == before.sweeps
        assert piece.before.key == before.key
        count = len(piece.results.accepted)
        assert count <= before.warmup_steps - before.sweeps or not before.in_warmup
        assert before.in_warmup or count % before.thin == 0
        states[piece.chain] = after(before, piece.results)
        found[piece.chain].append(piece.results)
    return states, [SweepResults(*map(torch.cat, zip(*of, strict=True))) for of in found]


def assert_same(one, other, engine):
    for mine, its in zip(one, other, strict=True):
        assert torch.equal(mine.accepted, its.accepted)
        for a, b in zip(mine, its, strict=True):
            if engine == "feedforward":
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
            else:
                assert torch.equal(a, b)


@on_every_engine
def test_a_chain_beside_others_is_the_chain_alone(engine):
    """Bit for bit, but on the feedforward engine, where it is the decisions that are the same."""
    options = {"batch_size": 7, "batch_order": "stratified"}
    runs = start(engine, **options)
    states, together = join(runs, run_chains(runs, WARMUP + 9))
    assert [state.sweeps for state in states] == [WARMUP + 9] * 3
    alone = []
    for number in range(3):
        (run,) = start(engine, [number], **options)
        assert torch.equal(run.position, runs[number].position)
        _, (results,) = join([run], run_chains([run], WARMUP + 9))
        alone.append(results)
    assert_same(together, alone, engine)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(together[one].log_ratios, together[other].log_ratios)


@on_every_engine
@pytest.mark.parametrize("enough", [0.0, float("inf")], ids=["single sweeps", "large pieces"])
def test_chains_do_not_depend_on_the_size_of_pieces(engine, enough, monkeypatch):
    runs = start(engine, batch_size=7)
    expected = next_sweeps(runs, WARMUP)
    runs = [after(run, results) for run, results in zip(runs, expected, strict=True)]
    expected = next_sweeps(runs, 12)
    monkeypatch.setattr(chains, "ENOUGH_SECONDS", enough)
    _, found = join(runs, run_chains(runs, WARMUP + 12))
    assert_same(found, expected, engine)


def sizes(runs, num_sweeps, chain=0):
    pieces = run_chains(runs, num_sweeps)
    return [len(piece.results.accepted) for piece in pieces if piece.chain == chain]


@on_every_engine
def test_pieces_double_within_their_bounds_and_end_with_the_warmup(engine, monkeypatch):
    monkeypatch.setattr(chains, "ENOUGH_SECONDS", float("inf"))
    runs = start(engine)
    assert sizes(runs, WARMUP + 20) == [1, 2, 3, 8, 12]
    # Whole draws, though one may be more sweeps than a piece
    assert sizes(start(engine, thin=5), WARMUP + 25) == [1, 2, 3, 5, 15, 5]
    beside = 3 if engine == "feedforward" else 1
    monkeypatch.setattr(chains, "MAX_NUMBERS", 4 * beside * len(runs[0].position))
    assert sizes(runs, WARMUP + 13) == [1, 2, 3, 4, 4, 4, 1]
    monkeypatch.setattr(chains, "ENOUGH_SECONDS", 0.0)
    assert sizes(runs, WARMUP + 3) == [1] * (WARMUP + 3)


@on_every_engine
def test_initial_params_are_each_chains_own(engine):
    shapes = NET.parameter_shapes.items()
    given = [
        {name: torch.full(shape, value, dtype=torch.float64) for name, shape in shapes}
        for value in (0.5, -1.0, 2.0)
    ]
    runs = start(engine, initial_params=given)
    assert [set(run.position.tolist()) for run in runs] == [{0.5}, {-1.0}, {2.0}]
    # and may be some chains' alone
    runs = start(engine, initial_params=[None, given[1], None])
    assert set(runs[1].position.tolist()) == {-1.0}
    fresh = start(engine)
    assert torch.equal(runs[0].position, fresh[0].position)
    assert torch.equal(runs[2].position, fresh[2].position)


def test_no_sweeps_no_pieces():
    for engine in ENGINES:
        assert list(run_chains(start(engine), 0)) == []


def test_chains_of_one_run_share_what_set_up_made():
    first, *others = start("fused")
    for run in others:
        for shared in ("sites", "partition", "plan", "density", "engine", "targets"):
            assert getattr(run, shared) is getattr(first, shared)
        assert run.batches is not first.batches


def test_the_model_is_inspected_once_for_all_chains(monkeypatch):
    """Each chain more costs its prior draws, its start and a check, but no second set-up."""
    calls = {}

    def count(name, function):
        def counting(*args):
            calls[name] = calls.get(name, 0) + 1
            return function(*args)

        return counting

    for name in ("inspect_model", "make_plan", "make_partition", "choose_engine"):
        monkeypatch.setattr(run_module, name, count(name, getattr(run_module, name)))
    start("fused", range(5))
    assert len(calls) == 4
    assert set(calls.values()) == {1}


# --- Threads -------------------------------------------------------------------------------------


@pytest.fixture
def pools(monkeypatch):
    """Numbers of threads of the pools that are made."""
    made = []

    class Recorded(ThreadPoolExecutor):
        def __init__(self, max_workers):
            made.append(max_workers)
            super().__init__(max_workers)

    monkeypatch.setattr(chains, "ThreadPoolExecutor", Recorded)
    return made


@pytest.mark.usefixtures("two_threads")
def test_two_threads_make_the_same_draws_as_one(pools):
    runs = start("fused", range(5), batch_size=7)
    _, two = join(runs, run_chains(runs, WARMUP + 200))
    torch.set_num_threads(1)
    _, one = join(runs, run_chains(runs, WARMUP + 200))
    assert pools == [2, 1]
    assert_same(two, one, "fused")


@pytest.mark.usefixtures("two_threads")
def test_only_compiled_engines_run_on_threads_and_no_more_than_there_are_chains(pools):
    for engine in ENGINES:
        runs = start(engine)
        join(runs, run_chains(runs, WARMUP))
    assert pools == [2]
    runs = start("fused", [4])
    join(runs, run_chains(runs, WARMUP))
    assert pools == [2, 1]


def test_every_chain_gets_its_turn(monkeypatch):
    """No chain is far behind when a run is stopped."""
    monkeypatch.setattr(chains, "ENOUGH_SECONDS", 0.0)
    for engine in ENGINES:
        runs = start(engine)
        first = [piece.chain for piece in islice(run_chains(runs, WARMUP + 30), 60)]
        counts = [first.count(chain) for chain in range(3)]
        # One piece a round; threads may be a round or two apart
        assert max(counts) - min(counts) <= (3 if engine == "fused" else 1), engine


@on_every_engine
def test_an_error_of_the_engine_reaches_the_caller(engine):
    runs = start(engine)

    def fail(*args):
        raise OSError("bad block on disk")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(runs[0].engine), "sweeps", fail)
        with pytest.raises(OSError, match="bad block on disk"):
            list(run_chains(runs, WARMUP))


@pytest.mark.usefixtures("two_threads")
def test_closing_leaves_no_thread_at_work():
    before = threading.active_count()
    runs = start("fused")
    with closing(run_chains(runs, 10**6)) as pieces:
        next(pieces)
        assert threading.active_count() > before
    assert threading.active_count() == before
