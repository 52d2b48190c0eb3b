"""Threads that share the rows of a chain: the same sweeps bit for bit, whoever adds them up."""

import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from pyro_fnbg.chains import statistics
from pyro_fnbg.core.tasks import torch_threads
from pyro_fnbg.engines import base
from pyro_fnbg.engines.fused import allocation, engine, sharing
from pyro_fnbg.networks.priors import ScalePrior
from pyro_fnbg.testing import make_inputs, run_on, start
from support.engines import (
    assert_as_trace,
    assert_decides_both_ways,
    assert_identical,
    past_the_check,
)
from support.slow import slowly

ROWS, BATCH, SWEEPS = 300, 200, 5

CASES = {
    "classes": ([3, 4, 3, 3], {"likelihood": "categorical"}, {"parts": {1: 2}}),
    "layers": ([3, 3, 2], {"likelihood": "categorical"}, {"blocks": "layer"}),
    # Rows of one segment move, and none of another
    "saturated": ([3, 4, 2, 2], {"likelihood": "categorical", "prior_scale": 30.0}, {}),
    "variances": (
        [3, 2, 2],
        {
            "likelihood": "categorical",
            "prior_scale": ScalePrior(dist.InverseGamma(2.0, 1.0), of="variance", per="input"),
        },
        {},
    ),
    "scale": (
        [2, 3, 1],
        {
            "likelihood": "normal",
            "observation_scale": dist.HalfNormal(torch.tensor(1.0, dtype=torch.float64)),
        },
        {},
    ),
}


@pytest.fixture
def few_rows_pay(monkeypatch):
    """Let threads share small batches."""
    monkeypatch.setattr(allocation, "FEWEST_ROWS", 64)


def set_up(case):
    widths, structure, options = CASES[case]
    model = BayesianMLP(widths, **{"prior_scale": 1.5, **structure})
    x = torch.randn(ROWS, widths[0], dtype=torch.float64)
    # Rows that go together, so that what a block does to one segment it does not to another
    x = x.sort(0).values
    y = torch.randint(0, max(2, widths[-1]), (ROWS,))
    if structure["likelihood"] == "normal":
        y = y + 0.1 * torch.randn(ROWS, dtype=torch.float64)
    options = {"batch_size": BATCH, "likelihood_scale": 0.05, **options}
    return past_the_check(start("trace", model, x, y, warmup_steps=100, **options), "fused")


@pytest.mark.parametrize("count", [slowly(1), 2, slowly(3)])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("few_rows_pay")
def test_threads_take_the_decisions_of_the_trace_engine(case, count):
    run = set_up(case)
    inputs = make_inputs(run, 2, SWEEPS, scale=0.3, spread=0.3, seed=5)._replace(gains=None)
    with torch_threads(count):
        record = assert_as_trace(run, inputs)
    assert_decides_both_ways(record.accepted)
    assert [len(works) for works in run.problem.engine._kept] == [count]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("few_rows_pay")
def test_results_do_not_depend_on_the_number_of_threads(case):
    """Of sweeps that tune the scales; not even the last digit."""
    run = set_up(case)
    inputs = make_inputs(run, 1, 2 * SWEEPS, scale=0.3, spread=0.3, seed=5)
    assert inputs.gains is not None
    found, moved = [], []
    for count in (1, 2, 3):
        with torch_threads(count):
            found.append(run_on(run, inputs))
        moved.append(run.problem.engine.moved_rows)
    for other in found[1:]:
        assert_identical(other, found[0])
    assert all(torch.equal(other, moved[0]) for other in moved[1:])
    assert_decides_both_ways(found[0].accepted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("few_rows_pay")
def test_a_density_that_is_not_finite_is_so_for_all_threads(dtype):
    """Counts whose rates overflow in some rows alone: threads that saw but these would disagree."""
    x = torch.zeros(ROWS, 1, dtype=dtype)
    x[-3:] = 1.0
    model = BayesianMLP([1, 2, 1], activation="identity", likelihood="poisson", prior_scale=300.0)
    run = start("fused", model, x, torch.ones(ROWS))
    inputs = make_inputs(run, 2, 40, scale=200.0, spread=300.0, seed=5)
    found = []
    for count in (1, 2, 3):
        with torch_threads(count):
            found.append(run_on(run, inputs))
    ratios = found[0].log_ratios
    assert (ratios == -math.inf).any()
    assert ratios.isfinite().any()
    for other in found[1:]:
        assert torch.equal(other.accepted, found[0].accepted)
        assert torch.equal(other.positions, found[0].positions)
        assert torch.allclose(other.log_ratios, ratios, 1e-12, 0.0, equal_nan=True)


@pytest.mark.parametrize(
    ("rows", "available", "expected"),
    [(1023, 8, 1), (1024, 8, 2), (3000, 2, 2), (3000, 1, 1), (3000, 16, 5), (60_000, 16, 8)],
)
def test_threads_have_so_many_rows_that_they_pay(rows, available, expected):
    assert allocation.threads_that_pay(rows, available) == expected


@pytest.mark.parametrize(("rows", "count"), [(1024, 2), (3000, 5), (10_001, 3), (60_000, 8)])
def test_segments_are_shared_out_and_are_whole_vectors(rows, count):
    run = start("fused", BayesianMLP([2, 2, 2]), torch.randn(9, 2), torch.ones(9))
    of_engine = run.problem.engine._net, run.problem.engine._data
    works = allocation.make_works(*of_engine, rows, count)
    starts = [work.first_row for work in works]
    assert starts == [sum(work.num_rows for work in works[:k]) for k in range(count)]
    assert sum(work.num_rows for work in works) == rows
    assert max(work.num_rows for work in works) <= 2 * min(work.num_rows for work in works) + 64
    ends = [work.first_row + end for work in works for end in work.segment_ends]
    (alone,) = allocation.make_works(*of_engine, rows)
    assert ends == alone.segment_ends.tolist()
    assert {end % 64 for end in ends} == {0}
    assert len({id(work.sums) for work in works}) == len({id(work.arrivals) for work in works}) == 1


# --- Drivers -------------------------------------------------------------------------------------


def draws_of(driver, count):
    x = torch.randn(1500, 3, generator=torch.Generator().manual_seed(1))
    y = (x.sum(-1) > 0).long()
    pyro.set_rng_seed(3)
    with torch_threads(count):
        mcmc = driver(FNBG(BayesianMLP([3, 4, 2])))
        mcmc.run(x, y)
    return mcmc.get_samples()


DRIVERS = {
    "pyro": lambda kernel: MCMC(kernel, num_samples=20, warmup_steps=20, disable_progbar=True),
    "one chain": lambda kernel: MultiChainMCMC(kernel, 20, 20, disable_progbar=True),
    "in sequence": lambda kernel: MultiChainMCMC(
        kernel, 20, 20, num_chains=2, chain_method="sequential", disable_progbar=True
    ),
}


@pytest.mark.parametrize("driver", DRIVERS.values(), ids=DRIVERS)
def test_a_chain_that_runs_alone_has_all_threads(driver, monkeypatch):
    seen = []

    def noted(*of_engine):
        seen.append(of_engine[3])
        return allocation.make_works(*of_engine)

    monkeypatch.setattr(engine, "make_works", noted)
    expected = draws_of(driver, 1)
    assert set(seen) == {1}
    found = draws_of(driver, 2)
    assert seen[-1] == 2
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("driver", DRIVERS.values(), ids=DRIVERS)
def test_what_is_done_between_sweeps_keeps_no_other_thread_awake(driver, monkeypatch):
    """Torch's own threads look out for more work for milliseconds, on the cores of the sweeps."""
    seen = {}

    def noted(module, name):
        function = getattr(module, name)

        def call(*args, **kwargs):
            seen.setdefault(name, set()).add(torch.get_num_threads())
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    for place in ((base, "noise_of_sweeps"), (base, "replace"), (statistics, "accept_prob")):
        noted(*place)
    draws_of(driver, 3)
    assert seen == {"noise_of_sweeps": {1}, "replace": {1}, "accept_prob": {1}}


def test_chains_side_by_side_have_one_thread_each(monkeypatch):
    seen = []
    monkeypatch.setattr(
        engine, "threads_that_pay", lambda rows, available: seen.append(available) or 1
    )
    draws_of(lambda kernel: MultiChainMCMC(kernel, 20, 20, num_chains=3, disable_progbar=True), 3)
    # Those of set-up, which compiles, come before any chain
    assert seen[-3:] == [1, 1, 1]


# --- What comes between --------------------------------------------------------------------------


class Refuses(ThreadPoolExecutor):
    """Start one thread, and no other: as a system does that has no more of them."""

    def submit(self, *args, **kwargs):
        if self._threads:
            raise RuntimeError("can't start new thread")
        return super().submit(*args, **kwargs)


def interrupted(*args):
    if threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt
    return sweeps_of_engine(*args)


sweeps_of_engine = engine.run_sweeps


@pytest.mark.parametrize(
    ("name", "instead", "error"),
    [
        ("ThreadPoolExecutor", Refuses, RuntimeError),
        ("run_sweeps", interrupted, KeyboardInterrupt),
    ],
)
@pytest.mark.usefixtures("few_rows_pay")
def test_threads_do_not_wait_for_one_that_never_comes(name, instead, error, monkeypatch):
    """And the next call is none the worse for it."""
    run = set_up("classes")
    inputs = make_inputs(run, 1, SWEEPS, scale=0.3, seed=5)
    with torch_threads(3):
        expected = run_on(run, inputs)
        with monkeypatch.context() as patch:
            patch.setattr(engine, name, instead)
            with pytest.raises(error):
                run_on(run, inputs)
        assert_identical(run_on(run, inputs), expected)


# --- Numbers that threads share ------------------------------------------------------------------


def count_up_often(counter, times):
    for _ in range(times):
        sharing.count_up(counter)
    return sharing.shown_by(counter)


@numba.njit(nogil=True)
def wait_for(counter, number):
    while sharing.shown_by(counter) < number:
        sharing.let_others_run()
    return True


@pytest.mark.parametrize(
    "count", [numba.njit(nogil=True)(count_up_often), count_up_often], ids=["compiled", "Python"]
)
def test_no_count_is_lost(count):
    counter = np.zeros(1, np.int64)
    with ThreadPoolExecutor(3) as pool:
        waiting = pool.submit(wait_for, counter, 40_000)
        done = [pool.submit(count, counter, 20_000) for _ in range(2)]
        assert max(one.result(60) for one in done) == 40_000
        assert waiting.result(60)
    assert sharing.shown_by(counter) == 40_000


def test_others_run_where_the_system_lets_them(monkeypatch):
    called = []
    monkeypatch.setattr(os, "sched_yield", lambda: called.append(1), raising=False)
    sharing.let_others_run()
    assert called == [1]
