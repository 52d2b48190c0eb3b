"""Chains in processes: draws come home whatever happens, and every trouble ends in seconds."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, MultiChainMCMC
from pyro_fnbg.drivers import workers
from support.drivers import by_chain, drive, same

pytestmark = [
    # A fork in a process that has threads is what Python 3.12 warns of
    pytest.mark.filterwarnings("ignore:.*use of fork.*may lead to deadlocks"),
    pytest.mark.usefixtures("limited"),
]

FORKED = {"chain_method": "processes", "mp_context": "fork"}


def simple(y):
    a = pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(a.sum(), 1.0), obs=y)


@pytest.fixture
def one_at_a_time(monkeypatch):
    """One worker runs the chains in order."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


@pytest.fixture
def pools(monkeypatch):
    """Numbers of workers of the pools that are started."""
    made = []

    class Recorded(workers.ProcessPoolExecutor):
        def __init__(self, max_workers, *args):
            made.append(max_workers)
            super().__init__(max_workers, *args)

    monkeypatch.setattr(workers, "ProcessPoolExecutor", Recorded)
    return made


@pytest.mark.slow
def test_as_many_workers_run_as_there_are_cores_or_chains(pools, monkeypatch):
    options = {"draws": 6, "warmup": 4, "num_chains": 3}
    expected = drive(FNBG(simple), torch.ones(3), **options)
    for cores, workers_started in ((2, 2), (1, 1), (64, 3), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        mcmc = drive(FNBG(simple), torch.ones(3), **options, **FORKED)
        assert pools.pop() == workers_started
        assert same(by_chain(mcmc), by_chain(expected))
        np.testing.assert_equal(mcmc.reports, expected._diagnostics)


def die(kernel, params, stage, i):
    if (stage, i) == ("Sample [1]", 3):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("one_at_a_time")
def test_a_worker_that_is_killed_is_an_error_and_chains_that_had_ended_are_kept():
    """As one does that runs out of memory."""
    expected = drive(FNBG(simple), torch.ones(3))
    pyro.set_rng_seed(1)
    mcmc = MultiChainMCMC(
        FNBG(simple), 20, 10, num_chains=2, hook_fn=die, disable_progbar=True, **FORKED
    )
    with (
        pytest.warns(UserWarning, match=r"by an error: kept are 20 of 20 draws of 1 of 2.*\[0\]"),
        pytest.raises(RuntimeError, match="a worker process died without a word"),
    ):
        mcmc.run(torch.ones(3))
    assert not mcmc.is_complete
    assert torch.equal(mcmc.get_samples()["a"], expected.get_samples()["a"])


def fails_late(y):
    simple(y)
    fails_late.calls += 1
    if fails_late.calls > 600:
        raise OSError("bad block on disk")


def test_an_error_of_the_model_says_where_in_the_worker_it_was(monkeypatch):
    monkeypatch.setattr(fails_late, "calls", 0, raising=False)
    pyro.set_rng_seed(1)
    # By the engine that runs the model for every block
    kernel = FNBG(fails_late, engine="trace")
    mcmc = MultiChainMCMC(kernel, 2000, 10, num_chains=2, disable_progbar=True, **FORKED)
    with (
        pytest.warns(UserWarning, match="by an error: kept are"),
        pytest.raises(OSError, match="bad block on disk") as caught,
    ):
        mcmc.run(torch.ones(3))
    assert "In the worker of chain" in caught.value.__notes__[0]
    assert "in fails_late" in caught.value.__notes__[0]
    kept = mcmc.num_samples
    assert 0 < kept < 2000
    kernel = FNBG(simple, engine="trace")
    expected = by_chain(drive(kernel, torch.ones(3), draws=kept, num_chains=2))["a"]
    chains = [report["chain"] for report in mcmc.reports]
    assert torch.equal(by_chain(mcmc)["a"], expected[chains])


def test_what_does_not_fit_is_found_before_a_worker_starts(pools):
    for options, arguments, words in (
        ({}, {"save_params": ["b"]}, "save_params names"),
        ({"batch_size": 5}, {}, "batch_size"),
        ({}, {"initial_params": {"b": torch.zeros(2, 2)}}, "initial_params"),
    ):
        with pytest.raises(ValueError, match=words):
            drive(FNBG(simple, **options), torch.ones(3), num_chains=2, **arguments, **FORKED)
    assert pools == []


@pytest.mark.usefixtures("one_at_a_time")
def test_progress_reaches_the_parent(monkeypatch):
    """Sweeps grow from call to call, the last are all of them, with each chain's final rates."""
    shown, show = [], workers.run_in_processes

    def recording(*args):
        *before, bar = args

        def both(chain, sweeps, rates):
            shown.append((chain, sweeps, rates))
            bar(chain, sweeps, rates)

        return show(*before, both)

    monkeypatch.setattr("pyro_fnbg.drivers.multi_chain.run_in_processes", recording)
    mcmc = drive(FNBG(simple), torch.ones(3), draws=40, num_chains=2, thin=2, **FORKED)
    for chain in range(2):
        sweeps = [count for number, count, _ in shown if number == chain]
        assert sweeps == sorted(sweeps)
        assert sweeps[-1] == 10 + 40 * 2
        rates = [rates for number, _, rates in shown if number == chain][-1]
        assert rates == list(mcmc.reports[chain]["acceptance rate by block"].values())


def raise_interrupt(kernel, params, stage, i):
    if (stage, i) == ("Sample [1]", 4):
        raise KeyboardInterrupt


@pytest.mark.usefixtures("one_at_a_time")
def test_an_interrupt_inside_a_worker_brings_its_draws_home():
    """Also where no signal reached the parent."""
    expected = drive(FNBG(simple), torch.ones(3), draws=6, num_chains=2)
    with pytest.warns(UserWarning, match=r"by Ctrl-C: kept are 5 of 6 draws of 2 of 2 chains"):
        mcmc = drive(
            FNBG(simple), torch.ones(3), draws=6, num_chains=2, hook_fn=raise_interrupt, **FORKED
        )
    assert torch.equal(by_chain(mcmc)["a"], by_chain(expected)["a"][:, :5])


def stop_the_process(kernel, params, stage, i):
    if (stage, i) == ("Sample [0]", 2):
        raise SystemExit(3)


def test_a_hook_that_exits_does_so_in_the_parent_with_the_draws_kept():
    pyro.set_rng_seed(1)
    mcmc = MultiChainMCMC(
        FNBG(simple), 5, 5, num_chains=2, hook_fn=stop_the_process, disable_progbar=True, **FORKED
    )
    with pytest.warns(UserWarning, match="by an error"), pytest.raises(SystemExit):
        mcmc.run(torch.ones(3))
    assert mcmc.num_samples >= 3


def test_hooks_of_workers_draw_random_numbers_of_their_own(tmp_path):
    def hook(kernel, params, stage, i):
        chain = kernel.diagnostics()["chain"]
        with open(tmp_path / str(chain), "a") as file:
            file.write(f"{torch.rand(()).item()} {np.random.rand()}\n")  # noqa: NPY002

    drive(FNBG(simple), torch.ones(3), draws=3, warmup=2, num_chains=2, hook_fn=hook, **FORKED)
    numbers = [(tmp_path / str(chain)).read_text().split() for chain in range(2)]
    assert len({*numbers[0], *numbers[1]}) == 20


# --- Real signals, in a process group of their own -----------------------------------------------

# A few seconds are usual; a signal that nobody hears would keep the runs going for hours
SIGNALLED_SECONDS = 100
SIGNALLED = """
    import json, os, signal, time, warnings
    import pyro, torch
    from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
    from pyro_fnbg.drivers import workers

    # Under nohup and in background jobs SIGINT is ignored, and Python leaves it at that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parent = os.getpid()
    torch.set_num_threads(2)
    net = BayesianMLP([2, 2, 2], likelihood="categorical")
    x = torch.randn(24, 2, generator=torch.Generator().manual_seed(1))
    y = torch.randint(0, 2, (24,), generator=torch.Generator().manual_seed(2))

    def press_ctrl_c(kernel, params, stage, i):
        if (stage, i) == ("Sample [0]", 40):
            os.killpg(0, signal.SIGINT)
            if os.getpid() != parent:  # an impatient finger, or a terminal that sends two
                while not workers._shared.stop.value:
                    time.sleep(0.01)
                os.kill(parent, signal.SIGINT)

    def run(draws, method, engine, hook_fn=None, num_chains=2):
        pyro.set_rng_seed(1)
        mcmc = MultiChainMCMC(
            FNBG(net, engine=engine), draws, 5, num_chains=num_chains, hook_fn=hook_fn,
            chain_method=method, mp_context="fork", disable_progbar=True,
        )
        mcmc.run(x, y)
        return mcmc, mcmc.get_samples(group_by_chain=True)["layer1.weight"]

    for how in (("vectorized", "fused"), ("sequential", "fused"), ("processes", "trace")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mcmc, found = run(1_000_000, *how, press_ctrl_c)
        expected = run(mcmc.num_samples, "vectorized", how[1])[1]
        chains = [report["chain"] for report in mcmc.reports]
        print(json.dumps({
            "method": how[0],
            "complete": mcmc.is_complete,
            "draws": mcmc.num_samples,
            "shape": found.shape,
            "same": torch.equal(found, expected[chains]),
            "warnings": [str(warning.message) for warning in caught],
            "again": run(3, *how)[0].is_complete,
        }))

    def press_it_twice(kernel, params, stage, i):
        if (stage, i) == ("Sample", 2):
            os.kill(parent, signal.SIGINT)
            while not workers._shared.stop.value:  # the parent has noticed
                time.sleep(0.01)
            time.sleep(1.1 * workers.SAME_PRESS)
            os.kill(parent, signal.SIGINT)
            time.sleep(0.5)  # and does not wait for these draws

    try:
        run(1_000_000, *how, press_it_twice, num_chains=1)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.slow
def test_ctrl_c_at_the_terminal_keeps_the_draws_so_far():
    """All processes of the group get the signal, sent from a hook, once for each chain method.

    A second one right after it is taken for the same. One that comes later ends the run at once,
    with the draws that have come home: here none.
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SIGNALLED)],
        capture_output=True,
        text=True,
        timeout=SIGNALLED_SECONDS,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    *lines, last = done.stdout.splitlines()
    assert last == "interrupted"
    runs = [json.loads(line) for line in lines]
    assert [run["method"] for run in runs] == ["vectorized", "sequential", "processes"]
    for run in runs:
        assert run["complete"] is False
        assert 1 <= run["draws"] < 1_000_000
        assert run["shape"][1:] == [run["draws"], 2, 2]
        assert run["same"] is True
        assert run["again"] is True
        (warning,) = run["warnings"]
        assert warning.startswith("the run was stopped by Ctrl-C: kept are")
