"""The driver: each chain's own draws whatever runs beside it, and what it says of them."""

import json
import math
import os
import re
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, to_arviz
from pyro_fnbg.chains import batch_noise
from pyro_fnbg.chains import setup as run_module
from pyro_fnbg.results import estimates
from pyro_fnbg.results.estimates import import_arviz
from support.drivers import by_chain, drive, same, stock
from support.engines import FOR_DRIVERS
from support.slow import first_quickly, slowly

az = import_arviz()
IS_ARVIZ_1 = int(az.__version__.partition(".")[0]) >= 1
METHODS = ("vectorized", "sequential", "processes")
ROWS = 24
NET = BayesianMLP([2, 2, 2], likelihood="categorical")

on_every_engine = pytest.mark.parametrize("engine", FOR_DRIVERS)
pytestmark = [
    # A fork in a process that has threads is what Python 3.12 warns of
    pytest.mark.filterwarnings("ignore:.*use of fork.*may lead to deadlocks"),
    pytest.mark.usefixtures("limited"),
]


@pytest.fixture(autouse=True)
def few_probes(monkeypatch):
    """Measure the noise of batches on few of them, which is quick and as exact to compare."""
    monkeypatch.setattr(batch_noise, "PROBED_CANDIDATES", 1)


def make_data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 2, generator=generator)
    return x, torch.randint(0, 2, (ROWS,), generator=generator)


@pytest.fixture
def data():
    return make_data()


def scaled(dtype):
    scale = dist.HalfNormal(torch.tensor(1.0, dtype=dtype))
    return BayesianMLP([2, 2, 1], likelihood="normal", observation_scale=scale)


def regression(y):
    """Have a vector site, a positive one and a bounded one."""
    loc = pyro.sample("loc", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    share = pyro.sample("share", dist.Uniform(0.0, 2.0))
    with pyro.plate("data", len(y)) as rows:
        pyro.sample("y", dist.Normal(share * loc.sum(), scale), obs=y[rows])


# --- Each chain is the chain alone ---------------------------------------------------------------

# Options of the kernel; whether the model has a scale, which is constrained; initial values
CASES = {
    "stratified": ({"batch_size": 7, "batch_order": "stratified", "thin": 2}, False, False),
    "scale": ({"batch_size": 7}, True, False),
    "given": ({"adapt": False, "proposal_scale": 0.3}, True, True),
}


# Products over several chains round otherwise than those of one
ROUND_TOGETHER = ("captured", "feedforward")


def arguments(engine, case="given"):
    """The kernel, the data and the driver's options of a case."""
    options, is_scaled, is_given = CASES[case]
    dtype = torch.float64 if engine in ROUND_TOGETHER else torch.float32
    x, y = make_data()
    x = x.to(dtype)
    model, y = (scaled(dtype), x[:, 0]) if is_scaled else (NET, y)
    kernel = FNBG(model, engine=engine, **options)
    if not is_given:
        return kernel, (x, y), {}
    kernel.setup(0, x, y)
    generator = torch.Generator().manual_seed(3)
    given = {
        site.name: torch.randn(3, *site.shape, generator=generator, dtype=dtype)
        for site in kernel.problem.sites.layout.sites
    }
    return FNBG(model, engine=engine, **options), (x, y), {"initial_params": given}


def assert_same_run(one, other, engine):
    """The same draws and reports; up to rounding, with the same decisions, on two engines."""
    mine, its = by_chain(one), by_chain(other)
    if engine not in ROUND_TOGETHER:
        assert same(mine, its)
        np.testing.assert_equal(one._diagnostics, other._diagnostics)
        return
    assert mine.keys() == its.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], its[name], rtol=1e-8, atol=1e-8)
    for a, b in zip(one._diagnostics, other._diagnostics, strict=True):
        assert a["acceptance rate by block"] == b["acceptance rate by block"]
        for name in ("proposal scale by block", "sample_stats"):
            for key in a[name]:
                np.testing.assert_allclose(a[name][key], b[name][key], rtol=1e-5, atol=1e-5)


@on_every_engine
@pytest.mark.parametrize("case", first_quickly(CASES))
def test_each_chain_is_that_of_pyros_driver(engine, case):
    kernel, data, options = arguments(engine, case)
    expected = stock(kernel, *data, draws=8, warmup=6, num_chains=3, **options)
    found = drive(kernel, *data, draws=8, warmup=6, num_chains=3, **options)
    assert_same_run(found, expected, engine)
    assert found.is_complete
    for name, value in by_chain(found).items():
        assert value.shape[:2] == (3, 8)
        for one, other in ((0, 1), (0, 2), (1, 2)):
            assert not torch.equal(value[one], value[other]), name
    first = {name: value[0] for name, value in options.get("initial_params", {}).items()}
    options = {"initial_params": first} if first else {}
    alone = drive(kernel, *data, draws=8, warmup=6, **options)
    expected._samples = {name: value[:1] for name, value in expected._samples.items()}
    expected._diagnostics = expected._diagnostics[:1]
    assert_same_run(alone, expected, engine)


@on_every_engine
def test_chain_methods_and_threads_make_no_difference(engine):
    kernel, data, _ = arguments(engine)
    options = {"draws": 8, "warmup": 6, "num_chains": 2, "mp_context": "fork"}
    expected = drive(kernel, *data, **options)
    runs = [drive(kernel, *data, chain_method=method, **options) for method in METHODS[1:]]
    if engine == "fused":  # the only one that threads are for
        torch.set_num_threads(2)
        try:
            runs += [drive(kernel, *data, chain_method=method, **options) for method in METHODS]
        finally:
            torch.set_num_threads(1)
    for run in runs:
        assert_same_run(run, expected, engine)
        assert run.is_complete
        assert [report["chain"] for report in run._diagnostics] == [0, 1]


@pytest.mark.slow  # workers import the package
def test_spawned_workers_make_the_same_draws_and_take_the_parents_defaults(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one worker for both chains, to save time
    torch.set_default_dtype(torch.float64)
    options = {"draws": 12, "num_chains": 2}
    expected = drive(FNBG(regression), torch.ones(7), **options)
    assert expected.get_samples()["scale"].dtype == torch.float64
    found = drive(
        FNBG(regression), torch.ones(7), chain_method="processes", mp_context="spawn", **options
    )
    assert_same_run(found, expected, "trace")


def test_set_up_happens_once_for_all_chains(data, monkeypatch):
    calls, choose = [], run_module.choose_engine

    def counting(*args):
        calls.append(args)
        return choose(*args)

    monkeypatch.setattr(run_module, "choose_engine", counting)
    drive(FNBG(NET), *data, num_chains=4)
    assert len(calls) == 1
    drive(FNBG(NET), *data, num_chains=4, chain_method="sequential")
    assert len(calls) == 2


@on_every_engine
def test_the_drivers_thin_is_the_kernels(data, engine):
    by_kernel = drive(FNBG(NET, engine=engine, thin=3), *data, draws=6, num_chains=2)
    by_driver = drive(FNBG(NET, engine=engine), *data, draws=6, num_chains=2, thin=3)
    both = drive(FNBG(NET, engine=engine, thin=3), *data, draws=6, num_chains=2, thin=3)
    for run in (by_driver, both):
        assert same(by_chain(run), by_chain(by_kernel))
        np.testing.assert_equal(run._diagnostics, by_kernel._diagnostics)
    assert {report["thin"] for report in by_driver.reports} == {3}


def test_warmup_is_as_long_as_the_draws_unless_told(data):
    found = drive(FNBG(NET), *data, draws=15, warmup=None)
    assert found.warmup_steps == 15
    assert same(by_chain(found), by_chain(drive(FNBG(NET), *data, draws=15, warmup=15)))
    assert drive(FNBG(NET), *data, draws=1, warmup=0).get_samples()["layer1.bias"].shape == (1, 2)


# --- The surface of Pyro's driver ----------------------------------------------------------------


def test_samples_are_by_chain_or_joined_or_picked_at_random():
    mcmc = drive(FNBG(regression), torch.ones(7), num_chains=2)
    grouped, joined = by_chain(mcmc), mcmc.get_samples()
    shapes = {name: tuple(value.shape) for name, value in grouped.items()}
    assert shapes == {"loc": (2, 20, 2, 3), "scale": (2, 20), "share": (2, 20)}
    for name, value in joined.items():
        assert torch.equal(value, grouped[name].flatten(0, 1))
    assert (joined["scale"] > 0).all()
    picked = mcmc.get_samples(num_samples=5)
    assert picked["loc"].shape == (5, 2, 3)
    assert torch.isin(picked["scale"], joined["scale"]).all()
    assert mcmc.get_samples(5, group_by_chain=True)["scale"].shape == (2, 5)


def test_keyword_arguments_reach_the_model_and_gradients_stay_out(data):
    x, y = data[0].clone().requires_grad_(), data[1]
    expected = drive(FNBG(NET), *data)
    pyro.set_rng_seed(1)
    mcmc = MultiChainMCMC(FNBG(NET), num_samples=20, warmup_steps=10, disable_progbar=True)
    mcmc.run(x, y=y)
    assert same(by_chain(mcmc), by_chain(expected))
    assert not any(value.requires_grad for value in mcmc.get_samples().values())


@pytest.mark.parametrize("method", [*METHODS[:2], slowly(METHODS[2])])
def test_only_saved_sites_are_kept_and_the_statistics_are_of_all(method):
    options = {"draws": 8, "warmup": 4, "num_chains": 2}
    full = drive(FNBG(regression), torch.ones(7), **options)
    options |= {"chain_method": method, "mp_context": "fork"}
    for names in (["share", "loc"], []):
        mcmc = drive(FNBG(regression), torch.ones(7), save_params=names, **options)
        found = by_chain(mcmc)
        assert set(found) == set(names)
        assert all(torch.equal(value, by_chain(full)[name]) for name, value in found.items())
        np.testing.assert_equal(mcmc.reports, full.reports)
        report = mcmc.diagnostics()
        assert report["acceptance rate"]["chain 1"] == full.reports[1]["acceptance rate"]
        assert set(names) == set(report) - set(full.reports[0])
    # The last, with no site at all
    mcmc.summary()
    assert to_arviz(mcmc)["sample_stats"]["acceptance_rate"].shape == (2, 8)


def test_save_params_of_one_run_do_not_stay_with_the_kernel():
    kernel = FNBG(regression)
    assert set(by_chain(drive(kernel, torch.ones(7), save_params=["scale"]))) == {"scale"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(by_chain(stock(kernel, torch.ones(7)))) == {"loc", "scale", "share"}
        assert set(by_chain(drive(kernel, torch.ones(7)))) == {"loc", "scale", "share"}


def test_the_progress_bar_shows_all_sweeps_and_acceptance_by_layer(data, capsys):
    for method in METHODS:
        mcmc = drive(
            FNBG(NET), *data, num_chains=2, thin=3, disable_progbar=False, chain_method=method,
            mp_context="fork",
        )  # fmt: skip
        last = re.split(r"[\r\n]+", capsys.readouterr().err.strip())[-1]
        assert "Sample" in last, method
        assert "140/140" in last, method
        shown = re.search(r"acc\. rate by layer \(%\)=(\d+) (\d+)", last)
        rates = [
            np.mean([report["acceptance rate by layer"][layer] for report in mcmc.reports])
            for layer in ("layer1", "layer2")
        ]
        assert [int(rate) for rate in shown.groups()] == pytest.approx(
            [100 * rate for rate in rates], abs=0.501
        )


def test_quiet_runs_print_and_warn_nothing(data, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drive(FNBG(NET, batch_size=10), *data, draws=150, num_chains=3)
    assert capfd.readouterr() == ("", "")


def test_outer_handlers_and_random_numbers_are_left_alone(data):
    """But for one step of torch's stream, so that the next run gets other noise."""
    numbers = np.random.get_state()[1].copy()  # noqa: NPY002
    with pyro.poutine.trace() as outer:
        drive(FNBG(NET), *data, num_chains=2, seed=None)
    assert not outer.trace.nodes
    assert np.array_equal(numbers, np.random.get_state()[1])  # noqa: NPY002
    pyro.set_rng_seed(1)
    torch.rand(())
    expected = torch.rand(3)
    drive(FNBG(NET), *data, num_chains=2, seed=1)
    assert torch.equal(torch.rand(3), expected)


# --- Reports -------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_numbers", [1, 3 * 40 * 2, 10**9])
def test_diagnostics_are_arvizs_estimates_and_each_chains_report(max_numbers, monkeypatch):
    mcmc = drive(FNBG(regression), torch.ones(7), draws=40, num_chains=3)
    monkeypatch.setattr(estimates, "MAX_NUMBERS", max_numbers)
    found = mcmc.diagnostics()
    for name, value in by_chain(mcmc).items():
        columns = value.numpy().reshape(3, 40, -1)
        for key, function in (("n_eff", az.ess), ("r_hat", az.rhat)):
            expected = [function(columns[..., i]) for i in range(columns.shape[-1])]
            assert found[name][key].shape == value.shape[2:]
            np.testing.assert_array_equal(found[name][key].numpy().ravel(), np.ravel(expected))
    assert found["divergences"] == {f"chain {chain}": [] for chain in range(3)}
    for entry in mcmc.reports[0]:
        for chain in range(3):
            known = mcmc.reports[chain][entry]
            np.testing.assert_equal(found[entry][f"chain {chain}"], known)


def test_the_summary_says_what_the_chains_target_and_names_every_parameter(data, capsys):
    mcmc = drive(FNBG(NET, batch_size=6), *data, draws=30, num_chains=2, thin=4)
    mcmc.summary(prob=0.5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"target: {mcmc.kernel.target}"
    assert lines[0].startswith("target: approximate: prior x likelihood^0.25")
    assert lines[1] == "2 chains of 30 draws, sweeps a draw: 4"
    assert re.search(r"\b(hdi_25%|eti50_lb)", lines[2])
    names = [re.match(r"[\w.]+\[[\d, ]+\]", line).group() for line in lines[3:]]
    assert names[:4] == [f"layer1.weight[{i}, {j}]" for i in range(2) for j in range(2)]
    assert names[4:6] == ["layer1.bias[0]", "layer1.bias[1]"]
    assert len(names) == 12
    mean = float(lines[3].removeprefix(names[0]).split()[0])
    assert mean == pytest.approx(float(by_chain(mcmc)["layer1.weight"][..., 0, 0].mean()), abs=6e-4)


def test_the_reports_are_those_of_the_chains_from_chain_0_on(data):
    mcmc = drive(FNBG(NET), *data, num_chains=3)
    assert [report["chain"] for report in mcmc.reports] == [0, 1, 2]
    np.testing.assert_equal(mcmc.reports[-1], mcmc.kernel.diagnostics())
    for number, report in enumerate(mcmc.reports):
        assert report["seed"] == mcmc.diagnostics()["seed"][f"chain {number}"]


def test_a_summary_shows_what_is_asked_for_and_never_pages_of_parameters(capsys):
    wide = BayesianMLP([40, 3, 1], likelihood="bernoulli")
    mcmc = drive(FNBG(wide), torch.randn(20, 40), torch.arange(20) % 2, num_chains=2)

    def shown(**options):
        mcmc.summary(**options)
        head, *rows = capsys.readouterr().out.splitlines()[2:]
        return head, [re.match(r"[\w.]+\[[\d, ]+\]", row) for row in rows]

    head, rows = shown()
    assert len(rows) == 61
    assert rows.pop() is None  # how many are left out
    assert [row.group() for row in rows[:2]] == ["layer1.weight[0, 0]", "layer1.weight[0, 1]"]
    assert [row.group() for row in rows[-2:]] == ["layer2.weight[0, 2]", "layer2.bias[0]"]
    mcmc.summary()
    printed = capsys.readouterr().out
    assert "67 parameters in between are left out" in printed
    assert len(printed) < 10_000
    _, rows = shown(var_names=["layer1.weight"])
    assert len(rows) == 120
    head, rows = shown(var_names=["layer2.bias", "layer1.bias"], kind="diagnostics")
    assert [row.group()[:11] for row in rows] == ["layer2.bias"] + ["layer1.bias"] * 3
    assert "r_hat" in head
    assert "mean" not in head.split()
    head, _ = shown(kind="stats")
    assert "mean" in head
    assert "r_hat" not in head


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"var_names": ["layer3.bias"]}, ValueError, r"kept, \['layer1.*got \['layer3.bias'\]"),
        ({"var_names": "layer1.bias"}, TypeError, "var_names must be a list of sites"),
        ({"kind": "means"}, ValueError, "kind must be one of .*got 'means'"),
    ],
)
def test_a_summary_of_what_there_is_not_is_refused(data, options, kind, words):
    mcmc = drive(FNBG(NET), *data)
    with pytest.raises(kind, match=words):
        mcmc.summary(**options)


def test_a_driver_shows_what_it_was_made_with():
    mcmc = MultiChainMCMC(FNBG(NET, batch_size=6), 20, num_chains=3, thin=2, max_seconds=9)
    shown = (
        f"MultiChainMCMC({mcmc.kernel!r}, num_samples=20, num_chains=3, thin=2, max_seconds=9.0)"
    )
    assert repr(mcmc) == shown
    assert repr(MultiChainMCMC(FNBG(NET), 20, 10)).endswith("num_samples=20, warmup_steps=10)")


def test_chains_that_never_move_are_reported_without_an_error():
    def needle():
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.factor("needle", -0.5 * ((w - 0.25) / 1e-9).square().sum())

    mcmc = drive(
        FNBG(needle, adapt=False), num_chains=2, initial_params={"w": torch.full((2, 2), 0.25)}
    )
    assert (mcmc.get_samples()["w"] == 0.25).all()
    assert mcmc.diagnostics()["w"]["n_eff"].shape == (2,)
    mcmc.summary()


def test_arviz_gets_draws_statistics_and_what_the_chains_target(data):
    mcmc = drive(FNBG(NET, batch_size=6, thin=2), *data, num_chains=3)
    pyros = stock(FNBG(NET, batch_size=6, thin=2), *data, num_chains=3)
    found, expected = to_arviz(mcmc), to_arviz(pyros)
    for group in ("posterior", "sample_stats", "chain_stats", "observed_data"):
        assert set(found[group].data_vars) == set(expected[group].data_vars)
        for name in expected[group].data_vars:
            assert np.array_equal(found[group][name].values, expected[group][name].values), name
    same_attributes = set(expected.attrs) - {"created_at"}
    assert {n: found.attrs[n] for n in same_attributes} == {
        n: expected.attrs[n] for n in same_attributes
    }
    assert (found.attrs["is_complete"], found.attrs["thin"], found.attrs["warmup_steps"]) == (
        1,
        2,
        10,
    )
    assert found.attrs["random_streams"] == "0, 1, 2"


@pytest.mark.skipif(IS_ARVIZ_1, reason="ArviZ 1.x has no converter for Pyro")
def test_from_pyro_of_arviz_0_works_as_well(data):
    mcmc = drive(FNBG(regression), torch.ones(7), num_chains=2)
    data = az.from_pyro(mcmc, log_likelihood=False)
    for name, value in by_chain(mcmc).items():
        assert np.array_equal(data.posterior[name].values, value.numpy())
    assert data.sample_stats["diverging"].shape == (2, 20)
    assert not data.sample_stats["diverging"].values.any()
    assert np.array_equal(data.observed_data["y"].values, np.ones(7))


# --- Hooks ---------------------------------------------------------------------------------------


def recorder(calls):
    def hook(kernel, params, stage, i):
        said = kernel.target, kernel.engine, sorted(kernel.transforms), dict(kernel.logging())
        copies = {name: value.clone() for name, value in params.items()}
        calls.append((stage, i, params, copies, kernel.diagnostics(), said))

    return hook


def calls_by_chain(calls, num_chains):
    if num_chains == 1:
        return [calls]
    return [[c for c in calls if c[0].endswith(f" [{chain}]")] for chain in range(num_chains)]


@pytest.mark.parametrize(
    ("engine", "num_chains", "method"),
    [
        ("trace", 2, "vectorized"),
        ("fused", 1, "vectorized"),
        ("fused", 3, "vectorized"),
        ("fused", 3, "sequential"),
    ],
)
def test_hooks_see_what_they_see_under_pyros_driver(data, engine, num_chains, method):
    """Chain by chain: stages and numbers, values, reports, and the kernel at that moment."""
    kernel, x = FNBG(scaled(torch.float32), engine=engine, thin=2), data[0]
    y = x[:, 0]
    own, pyros = [], []
    options = {"draws": 5, "warmup": 4, "num_chains": num_chains}
    mcmc = drive(kernel, x, y, hook_fn=recorder(own), chain_method=method, **options)
    stock(kernel, x, y, hook_fn=recorder(pyros), **options)
    assert len(own) == num_chains * 9
    own, pyros = calls_by_chain(own, num_chains), calls_by_chain(pyros, num_chains)
    for mine, known in zip(own, pyros, strict=True):
        assert [call[:2] for call in mine] == [call[:2] for call in known]
        for one, other in zip(mine, known, strict=True):
            assert same(one[2], one[3])  # never changed afterwards
            assert same(one[2], other[2])
            np.testing.assert_equal(one[4:], other[4:])
    suffix = "" if num_chains == 1 else " [0]"
    stages = [("Warmup" + suffix, i) for i in range(4)] + [("Sample" + suffix, i) for i in range(5)]
    assert [call[:2] for call in own[0]] == stages
    expected = drive(kernel, x, y, **options)
    assert_same_run(mcmc, expected, engine)


def test_hooks_in_workers_see_their_chain(data, tmp_path):
    def hook(kernel, params, stage, i):
        chain = kernel.diagnostics()["chain"]
        found = {name: value.tolist() for name, value in params.items()}
        with open(tmp_path / str(chain), "a") as file:
            file.write(json.dumps([stage, i, found, kernel.target]) + "\n")

    mcmc = drive(
        FNBG(NET, thin=2), *data, draws=4, warmup=2, num_chains=2, hook_fn=hook,
        chain_method="processes", mp_context="fork",
    )  # fmt: skip
    for chain in range(2):
        lines = [json.loads(line) for line in (tmp_path / str(chain)).read_text().splitlines()]
        assert [line[:2] for line in lines] == [
            *([f"Warmup [{chain}]", i] for i in range(2)),
            *([f"Sample [{chain}]", i] for i in range(4)),
        ]
        for name, value in by_chain(mcmc).items():
            assert torch.equal(torch.tensor([line[2][name] for line in lines[2:]]), value[chain])
        assert {line[3] for line in lines} == {mcmc.kernel.target}


def test_after_a_run_the_kernel_shows_the_last_chain(data):
    for method in ("vectorized", "sequential"):
        kernel = FNBG(NET)
        mcmc = drive(kernel, *data, num_chains=3, chain_method=method)
        np.testing.assert_equal(kernel.diagnostics(), mcmc.reports[2])
        assert kernel.engine == "fused"
        assert set(kernel.transforms) == set(mcmc.get_samples())


# --- Runs that are stopped -----------------------------------------------------------------------


def stop_at(stage, number, error):
    def hook(kernel, params, at, i):
        if (at, i) == (stage, number):
            raise error

    return hook


@pytest.mark.parametrize(
    ("engine", "method"),
    [
        ("trace", "vectorized"),
        ("feedforward", "vectorized"),
        ("fused", "vectorized"),
        ("fused", "sequential"),
        slowly("trace", "processes"),
    ],
)
def test_ctrl_c_keeps_the_draws_so_far(engine, method):
    kernel, data, _ = arguments(engine)
    options = {"num_chains": 3, "chain_method": method, "mp_context": "fork", "draws": 30}
    full = drive(kernel, *data, **options)
    hook = stop_at("Sample [1]", 6, KeyboardInterrupt())
    with pytest.warns(UserWarning, match="the run was stopped by Ctrl-C: kept are") as caught:
        mcmc = drive(kernel, *data, hook_fn=hook, **options)
    assert caught[0].filename.endswith("drivers.py")  # where run was called
    assert mcmc.is_complete is False
    chains = [report["chain"] for report in mcmc.reports]
    kept = mcmc.num_samples
    assert (mcmc.num_chains, kept) == (len(chains), len(by_chain(mcmc)["layer1.bias"][0]))
    assert str(caught[0].message).endswith(
        f"kept are {kept} of 30 draws of {len(chains)} of 3 chains ({chains})"
    )
    if method == "sequential":  # the first chain is whole, and is more than two of seven draws
        assert (chains, kept) == ([0], 30)
    for name, value in by_chain(mcmc).items():
        torch.testing.assert_close(value, by_chain(full)[name][chains, :kept], rtol=1e-8, atol=1e-8)
        assert value.isfinite().all()
    for report, chain in zip(mcmc.reports, chains, strict=True):
        for name, values in report["sample_stats"].items():
            known = full.reports[chain]["sample_stats"][name][:kept]
            np.testing.assert_allclose(values, known, rtol=1e-5)
    data = to_arviz(mcmc)
    assert data.attrs["is_complete"] == 0
    assert data["posterior"].sizes["draw"] == data["sample_stats"].sizes["draw"] == kept
    assert data["posterior"].sizes["chain"] == len(chains)
    assert data.attrs["random_streams"] == ", ".join(map(str, chains))
    assert len(mcmc.diagnostics()["acceptance rate"]) == len(chains)


def test_a_summary_of_a_stopped_run_says_so(data, capsys):
    hook = stop_at("Sample", 6, KeyboardInterrupt())
    with pytest.warns(UserWarning, match="kept are 7 of 30 draws of 1 of 1 chains"):
        mcmc = drive(FNBG(NET), *data, draws=30, hook_fn=hook)
    mcmc.summary()
    assert "1 chains of 7 draws, sweeps a draw: 1; incomplete: 30 were asked for" in (
        capsys.readouterr().out
    )
    if not IS_ARVIZ_1:
        assert az.from_pyro(mcmc, log_likelihood=False).posterior.sizes["draw"] == 7


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_in_the_warmup_goes_on_to_the_caller(data, method):
    kernel = FNBG(NET)
    # No other chain may come to its draws before
    warmup, chain = (10, 0) if method == "sequential" else (10**6, 1)
    mcmc = MultiChainMCMC(
        kernel, 20, warmup, num_chains=2, chain_method=method, mp_context="fork",
        hook_fn=stop_at(f"Warmup [{chain}]", 3, KeyboardInterrupt()), disable_progbar=True,
    )  # fmt: skip
    pyro.set_rng_seed(1)
    with pytest.raises(KeyboardInterrupt, match="stopped by Ctrl-C in its warmup: no draws yet"):
        mcmc.run(*data)
    assert mcmc.is_complete is False
    with pytest.raises(RuntimeError, match="no draws yet"):
        mcmc.get_samples()
    # The kernel can be used at once
    assert same(by_chain(drive(kernel, *data)), by_chain(drive(FNBG(NET), *data)))


@pytest.mark.parametrize("method", METHODS)
def test_an_error_reaches_the_user_and_leaves_the_draws_so_far(data, method):
    full = drive(FNBG(NET), *data, num_chains=2)
    hook = stop_at("Sample [1]", 4, OSError("disk full"))
    pyro.set_rng_seed(1)
    mcmc = MultiChainMCMC(
        FNBG(NET), 20, 10, num_chains=2, hook_fn=hook, chain_method=method, mp_context="fork",
        disable_progbar=True,
    )  # fmt: skip
    with (
        pytest.warns(UserWarning, match="the run was stopped by an error: kept are"),
        pytest.raises(OSError, match="disk full"),
    ):
        mcmc.run(*data)
    assert mcmc.is_complete is False
    chains = [report["chain"] for report in mcmc.reports]
    for name, value in by_chain(mcmc).items():
        assert torch.equal(value, by_chain(full)[name][chains, : mcmc.num_samples])


def test_warnings_of_blocks_point_to_the_line_of_the_run(data):
    mcmc = MultiChainMCMC(FNBG(NET, proposal_scale=1e4, adapt=False), 150, 1, disable_progbar=True)
    with pytest.warns(UserWarning, match="hardly moved") as caught:
        mcmc.run(*data)
    assert caught[0].filename == __file__


def test_an_error_before_the_first_draw_leaves_what_was_there_before(data):
    mcmc = MultiChainMCMC(
        FNBG(NET), 5, 5, hook_fn=stop_at("Warmup", 2, OSError("disk full")), disable_progbar=True
    )
    with pytest.raises(OSError, match="disk full"):
        mcmc.run(*data)
    with pytest.raises(RuntimeError, match="no draws yet"):
        mcmc.get_samples()
    assert (mcmc.num_chains, mcmc.num_samples, mcmc.is_complete) == (1, 5, False)
    mcmc._hook_fn, hook = None, mcmc._hook_fn
    mcmc.run(*data)
    before = by_chain(mcmc)
    mcmc._hook_fn = hook
    with pytest.raises(OSError, match="disk full"):
        mcmc.run(*data)
    assert same(by_chain(mcmc), before)
    assert mcmc.is_complete


# --- Again ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_runs_without_a_new_seed_differ_and_with_it_repeat(data, method):
    kernel = FNBG(NET)
    options = {"num_chains": 2, "chain_method": method, "mp_context": "fork"}
    mcmc = drive(kernel, *data, **options)
    first = by_chain(mcmc)
    mcmc.run(*data)
    second = by_chain(mcmc)
    third = by_chain(drive(kernel, *data, seed=None, **options))
    weights = torch.cat([run["layer1.weight"] for run in (first, second, third)])
    assert len({tuple(weight.reshape(-1).tolist()) for weight in weights}) == 6
    pyro.set_rng_seed(1)
    mcmc.run(*data)
    assert same(by_chain(mcmc), first)
    assert mcmc.is_complete


def test_a_kernel_serves_one_driver_after_the_other():
    options = {"draws": 6, "warmup": 4, "num_chains": 2}
    expected = by_chain(drive(FNBG(regression), torch.ones(7), **options))
    kernel = FNBG(regression)
    for driver in (drive, stock):
        assert not same(by_chain(driver(kernel, torch.zeros(4), **options)), expected)
        found = by_chain(driver(kernel, torch.ones(7), **options))
        assert torch.equal(found["loc"], expected["loc"])
        assert torch.equal(found["scale"], expected["scale"])
        # A bounded site may differ in its last digit: Pyro maps all draws at once
        torch.testing.assert_close(found["share"], expected["share"], rtol=1e-6, atol=1e-6)


def test_initial_params_of_one_run_are_not_those_of_the_next():
    kernel, data, given = arguments("fused", "given")
    first = drive(kernel, *data, draws=2, warmup=0, num_chains=3, **given)
    again = drive(kernel, *data, draws=2, warmup=0, num_chains=3)
    fresh = drive(FNBG(kernel.model, engine="fused", **CASES["given"][0]), *data, draws=2,
                  warmup=0, num_chains=3)  # fmt: skip
    assert same(by_chain(again), by_chain(fresh))
    assert not same(by_chain(first), by_chain(again))


# --- What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [None, NET, pyro.infer.NUTS(regression)])
def test_other_kernels_are_refused(kernel):
    words = f"kernel must be an FNBG, got {type(kernel).__name__}.*pyro.infer.MCMC"
    with pytest.raises(TypeError, match=words):
        MultiChainMCMC(kernel, 10)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_samples": 0}, "num_samples must be a whole number, 1 or more; got 0"),
        ({"num_samples": 2.0}, "num_samples must.*got 2.0"),
        ({"warmup_steps": -1}, "warmup_steps must be a whole number, 0 or more; got -1"),
        (
            {"num_chains": 0},
            "num_chains must be a whole number, 1 or more and at most 100000; got 0",
        ),
        ({"num_chains": True}, "num_chains must.*got True"),
        (
            {"chain_method": "parallel"},
            r"chain_method must be one of \('vectorized', 'sequential', 'processes'\), "
            "got 'parallel'",
        ),
        ({"thin": 0}, "thin must be a whole number, 1 or more; got 0"),
        ({"thin": 2.5}, "thin must.*got 2.5"),
        ({"mp_context": "thread"}, r"mp_context must be one of \(.*'spawn'.*\), got 'thread'"),
        (
            {"num_chains": 2, "initial_params": {"a": torch.zeros(3, 2)}},
            r"initial_params\['a'\] must.*for each of 2 chains, got \(3, 2\)",
        ),
        (
            {"num_chains": 2, "initial_params": {"a": torch.zeros(())}},
            r"initial_params\['a'\] must.*for each of 2 chains, got \(\)",
        ),
        ({"num_chains": 2, "initial_params": {"a": 1.0}}, r"initial_params\['a'\] must.*got 1.0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_once(options, words):
    with pytest.raises(ValueError, match=words):
        MultiChainMCMC(FNBG(NET), **{"num_samples": 10} | options)


def test_arguments_of_the_wrong_type_are_refused_at_once():
    with pytest.raises(TypeError, match="initial_params must map sites to tensors, got list"):
        MultiChainMCMC(FNBG(NET), 10, initial_params=[torch.zeros(2)])
    with pytest.raises(TypeError, match="hook_fn must be a callable.*got 'print'"):
        MultiChainMCMC(FNBG(NET), 10, hook_fn="print")


def test_the_kernels_thin_and_another_of_the_driver_are_refused():
    with pytest.raises(ValueError, match="the kernel has thin=3, but the driver got thin=2"):
        MultiChainMCMC(FNBG(NET, thin=3), 10, thin=2)
    with pytest.raises(ValueError, match="the kernel has thin=3, but the driver got thin=1"):
        MultiChainMCMC(FNBG(NET, thin=3), 10, thin=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"save_params": ["sale"]}, r"save_params names \['sale'\].*\['loc', 'scale', 'share'\]"),
        ({"initial_params": {"loc": torch.zeros(2, 2, 3)}}, r"missing \['scale', 'share'\]"),
        (
            {
                "initial_params": {
                    "loc": torch.zeros(2, 3, 2), "scale": torch.zeros(2), "share": torch.zeros(2),
                }
            },
            r"initial_params\['loc'\] must have the unconstrained shape \(2, 3\), got \(3, 2\)",
        ),
    ],
    ids=["save_params", "missing site", "wrong shape"],
)  # fmt: skip
def test_arguments_that_do_not_fit_the_model_are_refused_in_run(options, words):
    mcmc = MultiChainMCMC(FNBG(regression), 10, num_chains=2, disable_progbar=True, **options)
    with pytest.raises(ValueError, match=words):
        mcmc.run(torch.ones(7))


@pytest.mark.parametrize("ask", ["get_samples", "diagnostics", "summary", "reports"])
def test_before_a_run_there_is_nothing_to_ask(ask):
    mcmc = MultiChainMCMC(FNBG(NET), 10, num_chains=2)
    assert (mcmc.num_chains, mcmc.num_samples, mcmc.warmup_steps) == (2, 10, 10)
    assert mcmc.is_complete is False
    with pytest.raises(RuntimeError, match=r"no draws yet: call run\(...\) first"):
        getattr(mcmc, ask)()
    with pytest.raises(RuntimeError, match="no finished run"):
        to_arviz(mcmc)


@pytest.mark.parametrize("prob", [0.0, 1.0, -0.1, 90, math.nan])
def test_intervals_of_no_probability_are_refused(data, prob):
    mcmc = drive(FNBG(NET), *data)
    with pytest.raises(ValueError, match=f"prob must be between 0 and 1, got {prob!r}"):
        mcmc.summary(prob)
