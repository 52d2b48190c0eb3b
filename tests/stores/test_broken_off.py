"""A store after a run that broke off between any two writes: killed, or with no space left."""

import errno
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from zarr.storage import _local

from pyro_fnbg import FNBG, open_samples, open_store
from pyro_fnbg.stores import checkpoint
from support.drivers import by_chain, drive
from support.stores import NET, SIZES, X, Y, assert_same_runs, go_on

pytestmark = pytest.mark.usefixtures("small_chunks")


class Writes:
    """Count the writes of a store, and have no space left from some write on.

    A write that fails leaves half of what it should have written, beside its place.
    """

    def __init__(self, monkeypatch):
        self.count, self.limit = 0, None
        self.paths = []
        put, save = _local._put, checkpoint.np.savez

        def counted_put(path, value, exclusive=False):
            self._note(path.with_suffix(".partial"))
            return put(path, value, exclusive)

        def counted_save(file, **arrays):
            self._note(Path(file.name))
            return save(file, **arrays)

        monkeypatch.setattr(_local, "_put", counted_put)
        monkeypatch.setattr(checkpoint.np, "savez", counted_save)

    def _note(self, path):
        self.count += 1
        self.paths.append(path)
        if self.limit is not None and self.count > self.limit:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@pytest.fixture
def writes(monkeypatch):
    return Writes(monkeypatch)


@pytest.fixture(scope="module")
def expected():
    return drive(FNBG(NET, batch_size=7), X, Y, **SIZES)


def assert_readers_see(path, expected):
    """Whatever readers are shown are draws of the run, of both ways to read them."""
    tree = xr.open_datatree(path, engine="zarr")["posterior"]
    for name, values in by_chain(expected).items():
        for chain, count in enumerate(tree.attrs["complete_draws"]):
            assert np.array_equal(tree[name][chain, :count], values[chain, :count])
    found = open_store(path)["posterior"]
    for name, values in by_chain(expected).items():
        kept = values[found["chain"].values.tolist(), : found.sizes["draw"]]
        assert np.array_equal(found[name], kept)


@pytest.mark.slow
def test_a_run_goes_on_wherever_its_disk_was_full(writes, expected, tmp_path):
    """All writes of a run are places to break off, a sample of which is tried."""
    drive(FNBG(NET, batch_size=7), X, Y, store=tmp_path / "whole", **SIZES)
    is_there = [tmp_path / "whole" in path.parents for path in writes.paths]
    first, num_writes = is_there.index(True), writes.count
    # Those of the first commits, a few later ones, and the last of all
    limits = [*range(first, first + 12), *range(first + 12, num_writes - 1, 7), num_writes - 1]
    assert len(limits) > 13
    for limit in limits:
        path = tmp_path / f"run {limit}"
        writes.count, writes.limit = 0, limit
        with pytest.raises(OSError, match="No space left on device"):
            drive(FNBG(NET, batch_size=7), X, Y, store=path, **SIZES)
        writes.limit = None
        assert_readers_see(path, expected)
        assert_same_runs(go_on(path, FNBG(NET, batch_size=7), X, Y), expected)


def test_a_disk_that_is_full_at_the_start_leaves_no_store(writes, tmp_path):
    writes.limit = 12
    with pytest.raises(OSError, match="No space left on device"):
        drive(FNBG(NET), X, Y, store=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    writes.limit = None
    assert drive(FNBG(NET), X, Y, store=tmp_path / "run").is_complete


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path))

    monkeypatch.setattr(_local, "_put", refuse)
    with pytest.raises(PermissionError, match=r"Permission denied: .*pytest"):
        drive(FNBG(NET), X, Y, store=tmp_path / "run")


KILLED = """
    import os, signal, sys
    import pyro, torch
    from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, warm_start
    from pyro_fnbg.stores import archive, checkpoint, hierarchy, writer
    from zarr.storage import _local

    path, moment, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    hierarchy.CHUNK_BYTES, writer.SECONDS = 7 * (4 * 13 + 28), 0.0
    left = iter(range(number))

    def die_after(function):
        def dying(*args, **kwargs):
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return dying

    hook = lambda *_: None
    x = torch.sin(1.7 * torch.arange(60.0)).reshape(30, 2)
    y = (x[:, 0] > 0).long()
    net = BayesianMLP([2, 3, 1], likelihood="bernoulli")
    if moment == "step":
        hook = die_after(hook)
    elif moment == "commit":  # before any of its files, or what comes between them
        archive.show = die_after(archive.show)
        _local._put = die_after(_local._put)
        checkpoint.np.savez = die_after(checkpoint.np.savez)
        checkpoint.os.fsync = die_after(checkpoint.os.fsync)
    elif moment == "warm start":
        pyro.optim.PyroOptim = None
        torch.optim.AdamW.step = die_after(torch.optim.AdamW.step)
    if os.path.exists(path):
        mcmc = MultiChainMCMC.resume(path, FNBG(net), hook_fn=hook, disable_progbar=True)
    else:
        pyro.set_rng_seed(1)
        start = warm_start(net, x, y, num_chains=3, steps=30, disable_progbar=True)
        mcmc = MultiChainMCMC(
            FNBG(net), 40, 12, num_chains=3, store=path, hook_fn=hook, disable_progbar=True,
            initial_params=start,
        )
    mcmc.run(x, y)
    assert mcmc.is_complete
    torch.save(mcmc.get_samples(group_by_chain=True), path + ".pt")
"""
MOMENTS = [
    *(("step", number) for number in (0, 5, 11, 36, 40, 61, 90, 120, 140, 155)),
    *(("commit", number) for number in (30, 75, 94, 131, 152, 214, 289, 380, 481, 602, 710)),
    *(("warm start", number) for number in (0, 17)),
]


def run_and_kill(path, moment, number):
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(path), moment, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    assert run_and_kill(path, "never", 0) == 0
    return torch.load(f"{path}.pt")


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "number"), MOMENTS)
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(
    moment, number, never_killed, tmp_path
):
    """Killed by the system, in a process of its own; gone on with in another."""
    path = tmp_path / "run"
    assert run_and_kill(path, moment, number) == -9
    assert run_and_kill(path, "never", 0) == 0
    found = torch.load(f"{path}.pt")
    assert all(torch.equal(found[name], values) for name, values in never_killed.items())


WITH_WORKERS = """
    import multiprocessing, os, signal, sys
    import pyro, torch
    from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
    from pyro_fnbg.stores import hierarchy, writer

    hierarchy.CHUNK_BYTES, writer.SECONDS = 7 * (4 * 13 + 28), 0.0
    path, method, what = sys.argv[1:]

    def hook(kernel, params, stage, i):
        if (stage, i) == ("Sample [0]", 20):
            if what == "parent":
                os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)
            else:
                os.killpg(0, signal.SIGTERM)

    if __name__ == "__main__":
        x = torch.sin(1.7 * torch.arange(60.0)).reshape(30, 2)
        y = (x[:, 0] > 0).long()
        net = BayesianMLP([2, 3, 1], likelihood="bernoulli")
        pyro.set_rng_seed(1)
        mcmc = MultiChainMCMC(
            FNBG(net, engine="trace"), 1_000_000, 12, num_chains=2, store=path, hook_fn=hook,
            disable_progbar=True, chain_method="processes", mp_context=method,
        )
        mcmc.run(x, y)
        print("kept", mcmc.num_samples, mcmc.is_complete)
"""


def run_with_workers(tmp_path, method, what):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(WITH_WORKERS))
    command = [sys.executable, "-W", "ignore", script, tmp_path / "run", method, what]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=100, start_new_session=True
    )


def assert_goes_on_with_the_same_draws(tmp_path):
    found = open_store(tmp_path / "run")["posterior"]
    num_draws = found.sizes["draw"]
    assert num_draws > 0
    sizes = SIZES | {"num_chains": 2, "draws": num_draws}
    expected = by_chain(drive(FNBG(NET, engine="trace"), X, Y, **sizes))
    for name, values in expected.items():
        assert np.array_equal(found[name], values[found["chain"].values.tolist()])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_whose_parent_was_killed_end_and_let_others_go_on(method, tmp_path):
    assert run_with_workers(tmp_path, method, "parent").returncode == -9
    deadline, has_ended = time.monotonic() + 60, False
    while not has_ended:
        assert time.monotonic() < deadline
        try:
            with pytest.warns(UserWarning, match="the run was stopped after max_seconds"):
                go_on(tmp_path / "run", FNBG(NET, engine="trace"), X, Y, max_seconds=1e-9)
            has_ended = True
        except RuntimeError:  # they have the store until they have ended
            time.sleep(0.1)
    assert_goes_on_with_the_same_draws(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_sigterm_for_all_processes_of_a_run_keeps_its_draws(method, tmp_path):
    done = run_with_workers(tmp_path, method, "all")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kept ")
    assert done.stdout.endswith(" False\n")
    assert_goes_on_with_the_same_draws(tmp_path)


WRITER = """
    import sys
    import pyro, torch
    from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
    from pyro_fnbg.stores import hierarchy, writer

    hierarchy.CHUNK_BYTES, writer.SECONDS = 7 * (4 * 13 + 28), 0.0
    x = torch.sin(1.7 * torch.arange(60.0)).reshape(30, 2)
    y = (x[:, 0] > 0).long()
    net = BayesianMLP([2, 3, 1], likelihood="bernoulli")
    pyro.set_rng_seed(1)
    mcmc = MultiChainMCMC(
        FNBG(net, engine="trace"), 1_000_000, 12, num_chains=3, store=sys.argv[1],
        disable_progbar=True, hook_fn=lambda *_: None,
    )
    mcmc.run(x, y)
"""
OPENED = 300


@pytest.mark.slow
def test_a_store_that_is_written_to_can_be_read_at_any_moment(tmp_path):
    """Opened many times while commits go on: no error, no gap, and all draws those of the run."""
    path = tmp_path / "run"
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(WRITER), path]
    seen = []
    with subprocess.Popen(command) as process:
        try:
            while len(seen) < OPENED:
                if not path.exists():
                    assert process.poll() is None
                    time.sleep(0.05)
                    continue
                tree = xr.open_datatree(path, engine="zarr")
                counts = tree["posterior"].attrs["complete_draws"]
                for group, name in (("posterior", "layer1.weight"), ("sample_stats", "lp")):
                    for chain, count in enumerate(counts):
                        new = slice(max(0, count - 50), count)
                        assert not np.isnan(tree[group][name][chain, new]).any()
                found = open_store(path)["posterior"]
                assert not np.isnan(found["layer2.bias"][:, -50:]).any()
                if min(counts) > 0:
                    samples = open_samples(path)
                    new = slice(samples.num_draws - 50, samples.num_draws)
                    assert samples.read(new)["layer1.bias"].isfinite().all()
                seen.append(found)
            assert process.poll() is None
        finally:
            process.kill()
    # Of all chains: now and then more draws of one give way to fewer of more chains
    draws = [one.sizes["chain"] * one.sizes["draw"] for one in seen if one.sizes["draw"]]
    assert sorted(draws) == draws
    assert len(set(draws)) > OPENED / 10
    last, chains = seen[-1].isel(draw=slice(0, 500)), seen[-1]["chain"].values.tolist()
    sizes = SIZES | {"draws": last.sizes["draw"]}
    for name, values in by_chain(drive(FNBG(NET, engine="trace"), X, Y, **sizes)).items():
        assert np.array_equal(last[name], values[chains])
