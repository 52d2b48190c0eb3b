"""Runs that are stopped, refused, tiny, repeated with other data, saved and loaded."""

import copy
import io
import pickle
import signal
import threading

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.infer.mcmc.api as api
import pytest
import torch
from pyro.infer import MCMC

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, to_arviz
from support.data import three_classes
from support.drivers import by_chain, drive, same, stock
from support.limits import LIMIT
from support.slow import slowly

DRIVERS = [stock, drive]
METHODS = ["vectorized", "sequential", "processes"]
ENGINES = ["trace", "feedforward", "fused"]
NET = BayesianMLP([4, 5, 3], likelihood="categorical")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*may lead to deadlocks"),
    pytest.mark.filterwarnings("ignore:num_chains=:UserWarning"),
    pytest.mark.usefixtures("limited"),
]


def location(y):
    loc = pyro.sample("loc", dist.Normal(0.0, 50.0))
    spread = pyro.sample("spread", dist.HalfNormal(1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc, spread), obs=y)


def stop_at(stage, number, error):
    def hook(kernel, params, at, i):
        if at.startswith(stage) and i == number:
            raise error

    return hook


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stage", ["Warmup", "Sample"])
def test_pyros_driver_lets_an_interrupt_through_and_the_kernel_runs_again(engine, stage):
    kernel, data = FNBG(NET, engine=engine), three_classes()
    with pytest.raises(KeyboardInterrupt):
        stock(kernel, *data, hook_fn=stop_at(stage, 4, KeyboardInterrupt()))
    assert same(by_chain(stock(kernel, *data)), by_chain(stock(FNBG(NET, engine=engine), *data)))


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupt_before_the_first_draw_leaves_the_run_before(method):
    options = {"num_chains": 2, "chain_method": method, "mp_context": "fork"}
    x, y = three_classes()
    mcmc = drive(FNBG(NET), x, y, **options)
    draws, reports = by_chain(mcmc), mcmc._diagnostics
    mcmc._hook_fn = stop_at("Warmup", 0, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        mcmc.run(x[:9], y[:9])
    assert same(by_chain(mcmc), draws)
    assert mcmc._diagnostics is reports
    assert mcmc.is_complete
    assert to_arviz(mcmc)["observed_data"]["obs"].shape == (30,)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_refused_leaves_the_run_before(method, capsys):
    options = {"num_chains": 2, "chain_method": method, "mp_context": "fork"}
    x, y = three_classes()
    mcmc = drive(FNBG(NET, batch_size=10), x, y, **options)
    draws = by_chain(mcmc)
    for data, words in (
        ((x[:5], y[:5]), "batch_size must be 1..5"),
        ((x, y + 0.5), "y must hold whole numbers"),
    ):
        with pytest.raises(ValueError, match=words):
            mcmc.run(*data)
    assert same(by_chain(mcmc), draws)
    data = to_arviz(mcmc)
    assert data["observed_data"]["obs"].shape == (30,)
    assert data["posterior"].attrs["num_rows"] == 30
    mcmc.summary()
    assert "10 of 30 rows" in capsys.readouterr().out


def test_reports_of_a_run_that_broke_off_are_not_put_beside_the_draws_of_another():
    """Pyro's driver replaces the reports chain by chain, and the draws at the end."""
    mcmc = stock(FNBG(NET), *three_classes(), num_chains=2)
    mcmc.sampler.hook = stop_at("Sample [1]", 3, OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        mcmc.run(*three_classes())
    with pytest.raises(RuntimeError, match="the last run of mcmc broke off.*earlier run"):
        to_arviz(mcmc)
    mcmc.sampler.hook = None
    mcmc.run(*three_classes())
    assert to_arviz(mcmc)["posterior"].sizes["chain"] == 2


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("draws", "warmup"), [(1, 0), (1, 1), (2, 0)])
@pytest.mark.parametrize("engine", ENGINES)
def test_one_draw_is_a_run(driver, draws, warmup, engine):
    """And its report is of the blocks that moved from draw to draw, and from the start."""
    start = {name: torch.zeros(shape) for name, shape in NET.parameter_shapes.items()}
    kernel = FNBG(NET, engine=engine, batch_size=7)
    mcmc = driver(kernel, *three_classes(), draws=draws, warmup=warmup, initial_params=start)
    samples = mcmc.get_samples()
    assert samples["layer1.weight"].shape == (draws, 5, 4)
    layout = kernel.problem.sites.layout
    path = [layout.flatten({name: v[i] for name, v in samples.items()}) for i in range(draws)]
    path = torch.stack([layout.flatten(start), *path] if warmup == 0 else path)
    (report,) = mcmc._diagnostics
    for index, rate in zip(
        kernel.partition.indices, report["acceptance rate by block"].values(), strict=True
    ):
        moves = path.diff(dim=0)[:, index].any(1)
        # That of a draw right after the warmup is not seen in the draws
        assert rate == moves.double().mean() if warmup == 0 else rate in (0, 1)
    assert to_arviz(mcmc)["posterior"].sizes["draw"] == draws


def test_one_draw_has_tables(capfd):
    mcmc = drive(FNBG(location), torch.ones(4), draws=1, warmup=0)
    assert mcmc.diagnostics()["loc"]["n_eff"].isnan()
    mcmc.summary()
    out, err = capfd.readouterr()
    assert "1 chains of 1 draws" in out
    assert err == ""


@pytest.mark.parametrize("driver", DRIVERS)
def test_one_driver_run_again_with_other_data_is_as_good_as_a_new_one(driver):
    first, second = torch.randn(30) - 3.0, torch.randn(55) + 3.0
    mcmc = driver(FNBG(location), first, num_chains=2)
    pyro.set_rng_seed(1)
    mcmc.run(second)
    fresh = driver(FNBG(location), second, num_chains=2)
    assert same(by_chain(mcmc), by_chain(fresh))
    np.testing.assert_equal(mcmc._diagnostics, fresh._diagnostics)
    assert to_arviz(mcmc)["observed_data"]["y"].values.tolist() == second.tolist()


def bounded(top):
    pyro.sample("z", dist.Uniform(torch.zeros(()), top))
    pyro.factor("no data", torch.zeros(()))


@pytest.mark.parametrize("is_loaded", [False, True])
def test_one_driver_run_again_maps_its_draws_to_the_new_runs_support(is_loaded):
    """Pyro keeps the maps of the first run."""
    options = {"warmup_steps": 10, "disable_progbar": True}
    mcmc = MCMC(FNBG(bounded), 200, **options)
    mcmc.run(torch.tensor(1.0))
    assert mcmc.get_samples()["z"].max() < 1
    if is_loaded:
        mcmc = pickle.loads(pickle.dumps(mcmc))
    pyro.set_rng_seed(1)
    mcmc.run(torch.tensor(100.0))
    pyro.set_rng_seed(1)
    fresh = MCMC(FNBG(bounded), 200, **options)
    fresh.run(torch.tensor(100.0))
    assert torch.equal(mcmc.get_samples()["z"], fresh.get_samples()["z"])
    assert mcmc.get_samples()["z"].max() > 50


def test_one_kernel_run_again_in_workers_refuses_another_support(monkeypatch):
    """Pyro would map by the first run's: nothing in its process knows the second.

    Each run has an ``MCMC`` of its own: Pyro's may wait for ever in a second run in workers.
    """
    monkeypatch.setattr(api.mp, "cpu_count", lambda: 8)
    kernel = FNBG(bounded)

    def run(top):
        MCMC(kernel, 20, warmup_steps=10, num_chains=2, disable_progbar=True).run(top)

    run(torch.tensor(1.0))
    run(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"supports of latent sites 'z' .*make a new kernel and"):
        run(torch.tensor(100.0))


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("engine", [slowly("trace"), *ENGINES[1:]])
def test_a_kernel_fits_one_data_set_after_the_other(driver, engine):
    kernel = FNBG(NET, engine=engine, batch_size=6)
    x, y = three_classes()
    driver(kernel, x, y)
    found = driver(kernel, x[:11] * 3, y[:11])
    fresh = driver(FNBG(NET, engine=engine, batch_size=6), x[:11] * 3, y[:11])
    assert same(by_chain(found), by_chain(fresh))


@pytest.mark.slow
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))]
)
def test_a_kernel_travels_before_and_after_a_run(driver, copied):
    kernel = FNBG(location)
    expected = by_chain(driver(copied(kernel), torch.ones(5)))
    driver(kernel, torch.zeros(3))
    assert same(by_chain(driver(copied(kernel), torch.ones(5))), expected)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_whole_run_can_be_saved_and_asked_afterwards(driver, capsys):
    mcmc = driver(FNBG(NET, batch_size=10), *three_classes(), num_chains=2)
    file = io.BytesIO()
    torch.save(mcmc, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert same(by_chain(loaded), by_chain(mcmc))
    loaded.summary()
    np.testing.assert_equal(loaded._diagnostics, mcmc._diagnostics)
    assert loaded.diagnostics().keys() == mcmc.diagnostics().keys()
    one, other = to_arviz(loaded), to_arviz(mcmc)
    assert one["posterior"].equals(other["posterior"])
    assert one["observed_data"].equals(other["observed_data"])


@pytest.mark.usefixtures("heard_ctrl_c")
def test_a_second_ctrl_c_while_the_draws_are_put_away_does_not_lose_them(monkeypatch):
    """A real signal, sent while the noise of the batches is measured after the first."""
    import pyro_fnbg.drivers.collect

    report, sent = pyro_fnbg.drivers.collect.report, []

    def interrupted(*args):
        sent.append(signal.getsignal(signal.SIGINT))
        signal.raise_signal(signal.SIGINT)
        return report(*args)

    monkeypatch.setattr(pyro_fnbg.drivers.collect, "report", interrupted)
    pyro.set_rng_seed(1)
    mcmc = MultiChainMCMC(
        FNBG(NET, batch_size=10), 20, 10, disable_progbar=True,
        hook_fn=stop_at("Sample", 7, KeyboardInterrupt()),
    )  # fmt: skip
    with pytest.warns(UserWarning, match="by Ctrl-C: kept are 8 of 20"):
        mcmc.run(*three_classes())
    assert sent == [signal.SIG_IGN]
    assert to_arviz(mcmc)["posterior"].sizes["draw"] == 8
    with pytest.raises(KeyboardInterrupt):  # and the next one is heard
        signal.raise_signal(signal.SIGINT)


def test_a_run_in_a_thread_is_a_run():
    """As in a window or a server: signals are the main thread's alone."""
    found = []
    thread = threading.Thread(target=lambda: found.append(drive(FNBG(NET), *three_classes())))
    thread.start()
    thread.join(LIMIT)
    assert same(by_chain(found[0]), by_chain(drive(FNBG(NET), *three_classes())))


@pytest.mark.parametrize("error", [StopIteration(), OSError("disk full"), SystemExit(3)])
@pytest.mark.parametrize("method", METHODS)
def test_whatever_a_hook_raises_arrives_and_leaves_the_draws(method, error):
    mcmc = MultiChainMCMC(
        FNBG(NET), 20, 10, num_chains=2, hook_fn=stop_at("Sample [0]", 7, error),
        chain_method=method, mp_context="fork", disable_progbar=True,
    )  # fmt: skip
    with (
        pytest.warns(UserWarning, match="stopped by an error: kept are"),
        pytest.raises(type(error)) as caught,
    ):
        mcmc.run(*three_classes())
    assert str(caught.value) == str(error)
    assert mcmc.num_samples > 0
    assert not mcmc.is_complete
