"""Chains on a cluster: the draws of chains in one process, whatever happens to the workers."""

import functools
import gc
import os
import pickle
import signal
import threading
import time

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, to_arviz
from pyro_fnbg.chains import batch_noise
from pyro_fnbg.drivers import cluster
from support.cluster import kill_once, pids_of_workers
from support.drivers import by_chain, drive, same
from support.engines import ENGINES_OF_LONG_CHAINS

pytestmark = pytest.mark.usefixtures("limited")

NET = BayesianMLP([2, 2, 2], likelihood="categorical")
ROWS = 24


@pytest.fixture(autouse=True)
def few_probes(monkeypatch):
    """Measure the noise of batches on few of them, which is quick and as exact to compare."""
    monkeypatch.setattr(batch_noise, "PROBED_CANDIDATES", 1)


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 2, generator=generator)
    return x, torch.randint(0, 2, (ROWS,), generator=generator)


def set_bounds(seconds, numbers):
    cluster.ENOUGH_SECONDS, cluster.MAX_NUMBERS = seconds, numbers


@pytest.fixture
def short_stretches(client):
    """A stretch ends after its first piece."""
    client.run(set_bounds, 0.0, cluster.MAX_NUMBERS)
    yield
    client.run(set_bounds, cluster.ENOUGH_SECONDS, cluster.MAX_NUMBERS)


# Runs the model for every block, so that there are later calls
by_trace = functools.partial(FNBG, engine="trace")


class Trouble:
    """Trouble at a model's later calls in a worker, never at home."""

    def __init__(self, after=0):
        self.home, self.after, self.calls = os.getpid(), after, 0

    def come(self):
        self.calls += os.getpid() != self.home
        if self.calls > self.after:
            self.happen()

    def happen(self):
        raise OSError("bad block on disk")


class KilledOnce(Trouble):
    def __init__(self, after, flag):
        super().__init__(after)
        self.flag = flag

    def happen(self):
        kill_once(self.flag)


class Killed(Trouble):
    def happen(self):
        os.kill(os.getpid(), signal.SIGKILL)


def simple(y, trouble=None):
    a = pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    if trouble is not None:
        trouble.come()
    pyro.sample("y", dist.Normal(a.sum(), scale), obs=y)


def assert_same_run(one, other):
    """The same draws and reports, bit for bit."""
    assert same(by_chain(one), by_chain(other))
    np.testing.assert_equal(one._diagnostics, other._diagnostics)


@pytest.mark.usefixtures("short_stretches")
@pytest.mark.parametrize("engine", ENGINES_OF_LONG_CHAINS)
def test_chains_are_those_of_one_process(engine, client, data):
    """A chain runs alone in its task; products over several chains may round otherwise."""
    options = {"draws": 8, "warmup": 6, "num_chains": 3, "save_params": ["layer1.weight"]}
    kernel = functools.partial(FNBG, NET, engine=engine, batch_size=7, thin=2)
    method = "sequential" if engine in ("captured", "feedforward") else "vectorized"
    expected = drive(kernel(), *data, chain_method=method, **options)
    found = drive(kernel(), *data, client=client, **options)
    assert found.is_complete
    assert_same_run(found, expected)
    assert found.kernel.state.sweeps == 22
    told = found.kernel.diagnostics()["acceptance rate by block"]
    assert told == found._diagnostics[-1]["acceptance rate by block"]


@pytest.mark.slow
def test_where_a_stretch_ends_changes_nothing(client, data):
    expected = drive(FNBG(NET), *data, draws=400, num_chains=2)
    client.run(set_bounds, 60.0, 100)
    found = drive(FNBG(NET), *data, draws=400, num_chains=2, client=client)
    client.run(set_bounds, 60.0, 2**30)
    again = drive(FNBG(NET), *data, draws=400, num_chains=2, client=client)
    client.run(set_bounds, cluster.ENOUGH_SECONDS, cluster.MAX_NUMBERS)
    assert_same_run(found, expected)
    assert_same_run(again, expected)


@pytest.mark.slow
def test_start_values_and_a_model_without_a_module_are_sent(client):
    start = {"a": torch.tensor([[1.0, 2.0], [-3.0, 0.0]]), "scale": torch.zeros(2)}
    options = {"draws": 5, "warmup": 0, "num_chains": 2, "initial_params": start}
    shift = 0.5

    def shifted(y):
        simple(y + shift)

    expected = drive(FNBG(shifted), torch.ones(3), **options)
    assert_same_run(drive(FNBG(shifted), torch.ones(3), **options, client=client), expected)


def test_workers_have_the_parameters_and_the_default_type_of_home(client):
    def fitted(y):
        mean = pyro.param("mean", torch.zeros(()))
        width = pyro.param("width", torch.ones(()), constraint=dist.constraints.positive)
        a = pyro.sample("a", dist.Normal(mean, width))
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)

    before = client.run(torch.get_default_dtype)
    torch.set_default_dtype(torch.float64)
    pyro.param("mean", torch.tensor(7.0))
    pyro.param("width", torch.tensor(0.3), constraint=dist.constraints.positive)
    expected = drive(FNBG(fitted), torch.ones(3))
    found = drive(FNBG(fitted), torch.ones(3), client=client)
    assert found.get_samples()["a"].dtype == torch.float64
    assert abs(found.get_samples()["a"].mean() - 7.0) < 2.0
    assert_same_run(found, expected)
    assert client.run(torch.get_default_dtype) == before
    assert all(
        len(names) == 0 for names in client.run(lambda: list(pyro.get_param_store())).values()
    )


@pytest.mark.usefixtures("short_stretches")
def test_hooks_run_here_and_see_every_sweep(client):
    def run(**options):
        seen = {}

        def hook(kernel, params, stage, i):
            told = kernel.diagnostics()
            where = (stage, i, params["a"].tolist(), told["acceptance rate by block"])
            seen.setdefault(told["chain"], []).append(where)

        options = {"hook_fn": hook, "draws": 6, "warmup": 5, "num_chains": 2, **options}
        return drive(FNBG(simple, thin=3), torch.ones(3), **options), seen

    (expected, seen_there), (found, seen) = run(), run(client=client)
    assert_same_run(found, expected)
    np.testing.assert_equal(seen, seen_there)
    assert [stage for stage, *_ in seen[1]] == ["Warmup [1]"] * 5 + ["Sample [1]"] * 6


@pytest.mark.parametrize("has_hook", [False, True])
def test_an_error_of_the_model_comes_home_with_the_draws_before_it(client, has_hook):
    hook = (lambda *_: None) if has_hook else None
    pyro.set_rng_seed(1)
    options = {"disable_progbar": True, "client": client, "hook_fn": hook}
    mcmc = MultiChainMCMC(by_trace(simple), 2000, 10, **options)
    with (
        pytest.warns(UserWarning, match="by an error: kept are"),
        pytest.raises(OSError, match="bad block on disk") as caught,
    ):
        mcmc.run(torch.ones(3), Trouble(600))
    assert "In the worker of chain 0:" in caught.value.__notes__[0]
    assert "in simple" in caught.value.__notes__[0]
    assert 0 < mcmc.num_samples < 600
    expected = drive(by_trace(simple), torch.ones(3), draws=mcmc.num_samples)
    assert same(by_chain(mcmc), by_chain(expected))


def test_an_error_of_set_up_on_a_worker_comes_home(client):
    with pytest.raises(OSError, match="bad block on disk") as caught:
        drive(FNBG(simple), torch.ones(3), Trouble(), client=client)
    assert "In a worker of the cluster:" in str(caught.value.__notes__)


@pytest.mark.slow
@pytest.mark.usefixtures("heard_ctrl_c", "short_stretches")
def test_ctrl_c_keeps_the_draws_so_far(client):
    def press(kernel, params, stage, i):
        if (stage, i) == ("Sample [1]", 5):
            os.kill(os.getpid(), signal.SIGINT)

    options = {"num_chains": 2, "hook_fn": press, "client": client}
    with pytest.warns(UserWarning, match="by Ctrl-C: kept are"):
        mcmc = drive(FNBG(simple), torch.ones(3), draws=100_000, **options)
    assert not mcmc.is_complete
    chains = [report["chain"] for report in mcmc.reports]
    expected = drive(FNBG(simple), torch.ones(3), draws=mcmc.num_samples, num_chains=2)
    assert torch.equal(by_chain(mcmc)["a"], by_chain(expected)["a"][chains])


def count_left(dask_worker):
    runs = sum(type(value) is cluster.SharedRun for value in gc.get_objects())
    return len(dask_worker.data) + runs


def test_a_run_that_is_over_leaves_nothing_on_the_workers(client):
    client.run(gc.collect)
    drive(FNBG(simple), torch.ones(3), num_chains=2, client=client)
    while any(client.run(count_left).values()):  # or the test's limit stops it
        time.sleep(0.01)


def test_progress_is_shown(client, capsys):
    drive(FNBG(simple), torch.ones(3), num_chains=2, client=client, disable_progbar=False)
    shown = capsys.readouterr().err
    assert "60/60" in shown
    assert "Sample" in shown
    assert "acc. rate by layer (%)=" in shown


def test_results_are_converted_and_pickled_without_the_client(client):
    mcmc = drive(FNBG(simple), torch.ones(3), num_chains=2, client=client)
    found = to_arviz(mcmc)
    assert found["posterior"]["a"].shape == (2, 20, 2)
    loaded = pickle.loads(pickle.dumps(mcmc))
    assert_same_run(loaded, mcmc)
    pyro.set_rng_seed(1)
    loaded.run(torch.ones(3))
    assert_same_run(loaded, mcmc)


def test_what_does_not_fit_is_refused(client):
    with pytest.raises(TypeError, match="client must be a distributed.Client, got '127.0.0.1'"):
        MultiChainMCMC(FNBG(simple), 5, client="127.0.0.1")
    with pytest.raises(ValueError, match="chain_method must be left out where a client.*'seq"):
        MultiChainMCMC(FNBG(simple), 5, client=client, chain_method="sequential")
    with pytest.raises(RuntimeError, match="argument 'trouble' of run must be .* got lock, which"):
        MultiChainMCMC(FNBG(lambda y, trouble: simple(y)), 5, client=client).run(
            torch.ones(3), trouble=threading.Lock()
        )


# --- Last, since the next worker takes seconds to start -------------------------------------------


@pytest.mark.slow  # a worker is started anew
def test_a_worker_that_is_killed_loses_no_draw(client, tmp_path):
    """In the middle of a stretch, after others of the same chain."""
    pids = pids_of_workers(client)
    client.run(set_bounds, 0.05, cluster.MAX_NUMBERS)
    trouble = KilledOnce(1000, tmp_path / "flag")
    expected = drive(by_trace(simple), torch.ones(3), draws=300, num_chains=3)
    found = drive(by_trace(simple), torch.ones(3), trouble, draws=300, num_chains=3, client=client)
    assert len(set(pids) - set(pids_of_workers(client))) == 1
    assert found.is_complete
    assert_same_run(found, expected)


@pytest.mark.slow
def test_a_model_that_kills_every_worker_ends_in_an_error(client, monkeypatch):
    monkeypatch.setattr(client.cluster.scheduler, "allowed_failures", 1)
    mcmc = drive(FNBG(simple), torch.ones(3), draws=4)
    mcmc._client = client
    with pytest.raises(RuntimeError, match="2 workers died without a word at the same task"):
        mcmc.run(torch.zeros(3), Killed())
    assert same(mcmc.get_samples(), drive(FNBG(simple), torch.ones(3), draws=4).get_samples())
