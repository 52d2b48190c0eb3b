"""A store for Pyro's own driver: the draws it would have kept, to go on with."""

import os

import numpy as np
import pyro
import pyro.infer.mcmc.api as api
import pytest
from pyro.infer import MCMC, NUTS

from pyro_fnbg import FNBG, StoreHook, open_store
from support.drivers import by_chain, drive, same, stock
from support.slow import slowly
from support.stores import NET, SIZES, X, Y, assert_same_runs, go_on

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*may lead to deadlocks"),
    pytest.mark.usefixtures("small_chunks"),
]
WITHOUT_DRAWS = {"save_params": [], "draws": 40, "warmup": 12}


def interrupted(store, count):
    """Make a hook that stands for Ctrl-C after so many calls of a store's."""
    left = iter(range(count))

    def hook(*args):
        store(*args)
        if next(left, None) is None:
            raise KeyboardInterrupt

    return hook


def assert_holds(path, expected):
    posterior = open_store(path)["posterior"]
    assert posterior.attrs["complete"]
    for name, values in by_chain(expected).items():
        assert np.array_equal(posterior[name], values)


@pytest.mark.parametrize(("engine", "num_chains"), [slowly("trace", 1), ("fused", 3)])
def test_the_store_has_the_draws_that_pyro_would_have_kept(num_chains, engine, tmp_path):
    """Of draws that the kernel made one by one, and of those that it made several at once."""
    sizes = SIZES | {"num_chains": num_chains}
    expected = stock(FNBG(NET, engine=engine, batch_size=7, thin=2), X, Y, **sizes)
    hook = StoreHook(tmp_path / "run", 40, num_chains)
    options = {"num_chains": num_chains, "hook_fn": hook, **WITHOUT_DRAWS}
    kept = stock(FNBG(NET, engine=engine, batch_size=7, thin=2), X, Y, **options)
    assert not kept.get_samples()
    assert_holds(tmp_path / "run", expected)
    report = kept.kernel.diagnostics()["sample_stats"]
    stats = open_store(tmp_path / "run")["sample_stats"]
    assert np.array_equal(stats["batch_log_density"][-1], report["batch_log_density"])
    more = go_on(tmp_path / "run", FNBG(NET, engine=engine, batch_size=7), X, Y, more_samples=5)
    longer = drive(FNBG(NET, engine=engine, batch_size=7, thin=2), X, Y, **sizes | {"draws": 45})
    assert same(by_chain(more), by_chain(longer))


@pytest.mark.slow  # workers import the package
def test_chains_in_workers_write_to_one_store(tmp_path, monkeypatch):
    monkeypatch.setattr(api.mp, "cpu_count", lambda: 8)
    options = {"num_chains": 3, "mp_context": "fork"}
    hook = StoreHook(tmp_path / "run", 40, 3)
    kernel = FNBG(NET, engine="trace", batch_size=7)
    pyro.set_rng_seed(1)
    mcmc = MCMC(kernel, 40, 12, hook_fn=hook, save_params=[], disable_progbar=True, **options)
    mcmc.run(X, Y)
    assert_holds(tmp_path / "run", drive(FNBG(NET, engine="trace", batch_size=7), X, Y, **SIZES))


@pytest.mark.parametrize("engine", ["trace", "fused"])
def test_a_run_that_broke_off_goes_on_with_our_driver(engine, tmp_path):
    expected = drive(FNBG(NET, engine=engine), X, Y, **SIZES | {"num_chains": 1})
    hook = interrupted(StoreHook(tmp_path / "run", 40), 33)
    with pytest.raises(KeyboardInterrupt):
        stock(FNBG(NET, engine=engine), X, Y, hook_fn=hook, **WITHOUT_DRAWS)
    assert not open_store(tmp_path / "run")["posterior"].attrs["complete"]
    # Another process may not take what this one, for all that it knows, is at work on
    (tmp_path / "run" / ".run-0.pid").write_text("1")
    with pytest.raises(RuntimeError, match="store must be of no other run that goes on"):
        go_on(tmp_path / "run", FNBG(NET, engine=engine), X, Y)
    (tmp_path / "run" / ".run-0.pid").write_text(str(os.getpid()))
    assert_same_runs(go_on(tmp_path / "run", FNBG(NET, engine=engine), X, Y), expected)


def test_chains_that_have_not_begun_are_started_by_our_driver(tmp_path):
    expected = drive(FNBG(NET, engine="fused"), X, Y, **SIZES)
    hook = interrupted(StoreHook(tmp_path / "run", 40, 3), 60)
    with pytest.raises(KeyboardInterrupt):
        stock(FNBG(NET, engine="fused"), X, Y, hook_fn=hook, num_chains=3, **WITHOUT_DRAWS)
    posterior = open_store(tmp_path / "run")["posterior"]
    assert posterior.attrs["complete_draws"] == [40, 0, 0]
    assert posterior.sizes["draw"] == 40
    assert_same_runs(go_on(tmp_path / "run", FNBG(NET, engine="fused"), X, Y), expected)


def test_what_does_not_fit_is_refused(tmp_path):
    few = StoreHook(tmp_path / "few", 40, 2)
    with pytest.raises(ValueError, match="num_chains must be that of MCMC, got 2, but there is"):
        stock(FNBG(NET), X, Y, hook_fn=few, **SIZES)
    hook = StoreHook(tmp_path / "run", 20)
    stock(FNBG(NET), X, Y, hook_fn=hook)
    with pytest.raises(FileExistsError, match="store must be a path where there is nothing yet"):
        stock(FNBG(NET), X, Y, hook_fn=hook)
    with pytest.raises(FileExistsError, match="store must be a path where there is nothing yet"):
        StoreHook(tmp_path / "run", 20)
    with pytest.raises(ValueError, match="num_samples must be a whole number"):
        StoreHook(tmp_path / "new", 0)
    nuts = NUTS(lambda: api.pyro.sample("a", api.pyro.distributions.Normal(0.0, 1.0)))
    with pytest.raises(TypeError, match="StoreHook is for runs of the kernel FNBG, got <pyro"):
        MCMC(nuts, 2, hook_fn=StoreHook(tmp_path / "new", 2), disable_progbar=True).run()
    kernel = FNBG(NET)
    kernel.setup(0, X, Y)
    params = kernel.sample(kernel.sample(kernel.initial_params))
    kernel.sample(params)
    with pytest.raises(RuntimeError, match="StoreHook must see a chain from its first step on"):
        StoreHook(tmp_path / "new", 9)(FNBG(NET), params, "Sample", 0)
