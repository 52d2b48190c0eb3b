"""A run that was stopped and goes on equals one that was never stopped, bit for bit."""

import json
import shutil
import signal

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
import xarray as xr

from pyro_fnbg import (
    FNBG,
    BayesianMLP,
    Block,
    MultiChainMCMC,
    Partition,
    ScalePrior,
    open_store,
    to_arviz,
)
from pyro_fnbg.stores import writer
from pyro_fnbg.stores.archive import Archive
from support.drivers import by_chain, drive, same
from support.engines import ENGINES_OF_LONG_CHAINS, WITH_COMPILED
from support.slow import slowly
from support.stores import (
    NET,
    SIZES,
    Stopped,
    X,
    Y,
    assert_same_runs,
    go_on,
    stop_after,
    stopped,
)

OTHER_ENGINES = ("trace", "feedforward", "fused")
# A variance that is drawn from its conditional beside walks, and positive numbers
HIERARCHY = BayesianMLP(
    [2, 3, 1],
    likelihood="normal",
    observation_scale=dist.Gamma(2.0, 2.0),
    prior_scale=ScalePrior(dist.InverseGamma(2.0, 1.0), of="variance"),
)


# A fork in a process that has threads is what Python 3.12 warns of
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*may lead to deadlocks")


def stop_and_go_on(engine, sweeps, path):
    def kernel():
        return FNBG(NET, engine=engine, batch_size=7)

    expected = drive(kernel(), X, Y, hook_fn=lambda *_: 0, **SIZES)
    stopped(path, kernel(), X, Y, sweeps=sweeps)
    pyro.set_rng_seed(77)
    assert_same_runs(go_on(path, kernel(), X, Y, hook_fn=lambda *_: 0), expected)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("engine", [*ENGINES_OF_LONG_CHAINS, WITH_COMPILED[-1]])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(engine, tmp_path):
    stop_and_go_on(engine, 75, tmp_path / "run")


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("engine", ["captured", *(slowly(name) for name in OTHER_ENGINES)])
def test_a_run_that_was_stopped_in_its_warmup_goes_on_likewise(engine, tmp_path):
    stop_and_go_on(engine, 7, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_a_run_whose_nodes_are_rescaled_goes_on_likewise(tmp_path):
    net, data = BayesianMLP([2, 3, 1], activation="relu", likelihood="bernoulli"), (X, Y)
    expected = drive(FNBG(net, rescale=True), *data, hook_fn=lambda *_: 0, **SIZES)
    stopped(tmp_path / "run", FNBG(net, rescale=True), *data, sweeps=75)
    with pytest.raises(ValueError, match="walk of 4 blocks, 3 relu nodes rescaled"):
        go_on(tmp_path / "run", FNBG(net), *data)
    pyro.set_rng_seed(77)
    found = go_on(tmp_path / "run", FNBG(net, rescale=True), *data, hook_fn=lambda *_: 0)
    assert_same_runs(found, expected)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("sweeps", [slowly(0), 36])
def test_a_run_goes_on_from_its_start_and_from_the_end_of_its_warmup(sweeps, tmp_path):
    stop_and_go_on("fused", sweeps, tmp_path / "run")


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("method", ["sequential", slowly("processes")])
def test_chains_that_are_not_equally_far_are_kept_and_go_on(method, tmp_path):
    """Also on an engine that those go through together that are equally far."""
    options = {"chain_method": method, "hook_fn": stop_after(70 if method == "sequential" else 30)}
    with pytest.raises(Stopped):
        drive(FNBG(NET, engine="captured"), X, Y, store=tmp_path / "run", **SIZES, **options)
    kept = open_store(tmp_path / "run")["posterior"]["layer1.weight"]
    assert kept.size > 0
    before = sum(one.state.sweeps for one in saved_in(tmp_path / "run"))
    for _ in range(3):
        with pytest.warns(UserWarning, match="the run was stopped after max_seconds"):
            go_on(tmp_path / "run", FNBG(NET, engine="captured"), X, Y, max_seconds=1e-9)
        after = sum(one.state.sweeps for one in saved_in(tmp_path / "run"))
        assert before < after
        before = after
    found = go_on(tmp_path / "run", FNBG(NET, engine="captured"), X, Y, chain_method=method)
    assert found.is_complete
    found = by_chain(found)["layer1.weight"][kept["chain"].values.tolist(), : kept.sizes["draw"]]
    assert np.array_equal(found, kept)


def saved_in(path):
    return Archive(path).saved().values()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("engine", "method"),
    [
        ("fused", "vectorized"),
        slowly("captured", "vectorized"),
        slowly("captured", "sequential"),
        slowly("fused", "sequential"),
        slowly("captured", "processes"),
        slowly("fused", "processes"),
    ],
)
def test_an_error_of_a_hook_costs_no_draw(engine, method, tmp_path):
    """As many are kept as without a store, and all of them are the run's own."""
    hooks = [stop_after(35 if method == "processes" else 100) for _ in range(2)]
    options = {"chain_method": method, **SIZES}
    pyro.set_rng_seed(1)
    in_memory = MultiChainMCMC(
        FNBG(NET, engine=engine), 40, 12, num_chains=3, chain_method=method, hook_fn=hooks[0],
        disable_progbar=True,
    )  # fmt: skip
    with pytest.raises(Stopped), pytest.warns(UserWarning, match="stopped by an error"):
        in_memory.run(X, Y)
    with pytest.raises(Stopped), pytest.warns(UserWarning, match="stopped by an error"):
        drive(FNBG(NET, engine=engine), X, Y, store=tmp_path / "run", hook_fn=hooks[1], **options)
    kept = open_store(tmp_path / "run")["posterior"]
    if method != "processes":  # whose chains are as far as they happen to be
        assert kept.sizes["draw"] == in_memory.num_samples
        for name, values in by_chain(in_memory).items():
            assert np.array_equal(kept[name], values)
    expected = drive(FNBG(NET, engine=engine), X, Y, hook_fn=lambda *_: 0, **options)
    found = go_on(
        tmp_path / "run", FNBG(NET, engine=engine), X, Y, chain_method=method, hook_fn=lambda *_: 0
    )
    assert same(by_chain(found), by_chain(expected))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("before", "method"),
    [
        ("vectorized", "processes"),
        slowly("processes", "sequential"),
        slowly("vectorized", "sequential"),
        slowly("processes", "vectorized"),
        slowly("processes", "processes"),
    ],
)
def test_others_may_go_on_with_it(before, method, tmp_path):
    """Draws, variances that are drawn, positive numbers and statistics, whoever runs the chains."""
    data = X, X[:, :1]
    expected = drive(FNBG(HIERARCHY), *data, **SIZES)
    options = {"max_seconds": 1e-9, "chain_method": before}
    with pytest.warns(UserWarning, match="the run was stopped after max_seconds=1e-09"):
        drive(FNBG(HIERARCHY), *data, store=tmp_path / "run", **SIZES, **options)
    found = go_on(tmp_path / "run", FNBG(HIERARCHY), *data, chain_method=method)
    assert same(by_chain(found), by_chain(expected))
    report, other = found._diagnostics[2].report, expected._diagnostics[2].report
    for name, values in other.statistics.items():
        assert np.array_equal(report.statistics[name], values)


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_a_run_can_be_stopped_again_and_again(tmp_path):
    expected = drive(FNBG(NET, batch_size=7), X, Y, **SIZES)
    stopped(tmp_path / "run", FNBG(NET, batch_size=7), X, Y, sweeps=10)
    for _ in range(4):
        with pytest.raises(Stopped):
            go_on(tmp_path / "run", FNBG(NET, batch_size=7), X, Y, hook_fn=stop_after(25))
    assert_same_runs(go_on(tmp_path / "run", FNBG(NET, batch_size=7), X, Y), expected)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("draws", [35, slowly(38)])
def test_a_finished_run_is_extended(draws, tmp_path):
    """Where its last chunk is full, and where it is not."""
    expected = drive(FNBG(NET, batch_size=7, thin=2), X, Y, **SIZES | {"draws": draws + 9})
    kernel = FNBG(NET, batch_size=7)
    drive(kernel, X, Y, store=tmp_path / "run", thin=2, **SIZES | {"draws": draws})
    found = go_on(tmp_path / "run", FNBG(NET, batch_size=7), X, Y, more_samples=9)
    assert found.num_samples == draws + 9
    assert_same_runs(found, expected)
    again = go_on(tmp_path / "run", FNBG(NET, batch_size=7), X, Y)
    assert_same_runs(again, expected)


def test_a_store_says_and_holds_what_to_arviz_does(tmp_path):
    mcmc = drive(FNBG(NET, batch_size=7), X, Y, store=tmp_path / "run", **SIZES)
    expected = to_arviz(mcmc)
    found = open_store(tmp_path / "run")
    tree = xr.open_datatree(tmp_path / "run", engine="zarr")
    groups = ("posterior", "sample_stats", "chain_stats", "observed_data")
    assert {name for name in groups if name in expected} == set(groups)
    for group in groups:
        assert dict(found[group].sizes) == dict(expected[group].sizes)
        for name, values in expected[group].variables.items():
            assert np.array_equal(found[group][name], values)
            assert found[group][name].dims == values.dims
            assert found[group][name].dtype == values.dtype
            if group in tree and name in tree[group]:
                assert np.array_equal(tree[group][name], values)
    assert np.array_equal(tree["observed_data"]["obs"], Y)
    assert found["chain_stats"]["share_reversed_by_another_batch"].dims == ("chain", "layer")
    for attributes in (found["posterior"].attrs, tree["posterior"].attrs):
        for name, value in expected["posterior"].attrs.items():
            assert attributes[name] == value or name == "created_at"
        assert attributes["complete"]
        assert attributes["complete_draws"] == [40, 40, 40]


@pytest.mark.usefixtures("small_chunks")
def test_draws_of_a_run_that_was_killed_are_all_there(tmp_path, monkeypatch):
    """As after kill -9: nothing is closed, and the last draws are in the checkpoint alone."""
    monkeypatch.setattr(writer.StoreWriter, "close", lambda *_: None)
    seen = []

    def hook(kernel, params, stage, i):
        seen.append(stage)
        if (stage, i) == ("Sample [2]", 25):
            raise Stopped

    with pytest.raises(Stopped):
        # One after the other, so that how far they are depends on no clock
        drive(
            FNBG(NET, engine="trace"),
            X,
            Y,
            store=tmp_path / "run",
            hook_fn=hook,
            chain_method="sequential",
            **SIZES,
        )
    tree = xr.open_datatree(tmp_path / "run", engine="zarr")["posterior"]
    counts = tree.attrs["complete_draws"]
    assert not tree.attrs["complete"]
    assert all(count and count % 7 == 0 for count in counts)
    assert tree.sizes["draw"] == max(counts)
    found = open_store(tmp_path / "run")["posterior"]
    kept, num_draws = found["chain"].values.tolist(), found.sizes["draw"]
    assert num_draws % 7 > 0
    expected = drive(FNBG(NET, engine="trace"), X, Y, **SIZES)
    for name, values in by_chain(expected).items():
        assert np.array_equal(found[name], values[kept, :num_draws])
        for chain, count in enumerate(counts):
            assert np.array_equal(tree[name][chain, :count], values[chain, :count])
    weights = found["layer1.weight"]
    assert np.array_equal(weights[1, 19:23, 2], weights.values[1, 19:23, 2])
    assert np.array_equal(weights[:, [22, 3], 1:, 0], weights.values[:, [22, 3]][:, :, 1:, 0])


def test_sigterm_ends_a_run_with_its_draws(tmp_path):
    def hook(kernel, params, stage, i):
        if (stage, i) == ("Sample [1]", 3):
            signal.raise_signal(signal.SIGTERM)

    kernel, options = FNBG(NET, engine="trace"), {"hook_fn": hook, **SIZES}
    with pytest.warns(UserWarning, match="the run was stopped by SIGTERM: kept are"):
        mcmc = drive(kernel, X, Y, store=tmp_path / "run", **options)
    assert not mcmc.is_complete
    assert not open_store(tmp_path / "run")["posterior"].attrs["complete"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    found = go_on(tmp_path / "run", FNBG(NET, engine="trace"), X, Y)
    assert_same_runs(found, drive(FNBG(NET, engine="trace"), X, Y, **SIZES))


def plain(y, scale=1.0):
    mean = pyro.sample("mean", dist.Normal(0.0, 10.0 * scale))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def plain_but_wide(y, scale=1.0):
    plain(y, scale=2.0)


def other_site(y, scale=1.0):
    pyro.sample("other", dist.Normal(0.0, 1.0))
    plain(y)


def apart(layout):
    return Partition((Block("by another name", (0,)),), layout.num_params)


OTHERS = {
    "data": (FNBG(plain), (torch.full((10,), 2.0),), "argument 0 of run was Tensor of shape"),
    "rows": (FNBG(plain), (torch.full((9,), 3.0),), "argument 0 of run was Tensor of shape"),
    "a further argument": (FNBG(plain), (torch.full((10,), 3.0), 1.5), "argument 1 of run was not"),
    "prior": (
        FNBG(plain_but_wide),
        (torch.full((10,), 3.0),),
        r"the log density where chain 0 is, on its batch, was -\d+\.\d+ and is now -\d+\.\d+",
    ),
    "sites": (FNBG(other_site), (torch.full((10,), 3.0),), "latent site 'other' was not there"),
    "blocks": (FNBG(plain, blocks=apart), (torch.full((10,), 3.0),), "blocks was 1 with contents"),
    "moves": (FNBG(plain, moves="pcn"), (torch.full((10,), 3.0),), "moves was walk of 1 blocks"),
    "engine": (FNBG(plain, engine="trace"), (torch.full((10,), 3.0),), "engine was captured"),
    "target": (FNBG(plain, likelihood_scale=0.5), (torch.full((10,), 3.0),), "target was exact"),
    "aim": (
        FNBG(plain, target_accept_prob=0.9),
        (torch.full((10,), 3.0),),
        "target_accept_prob was",
    ),
    "tuning": (FNBG(plain, adapt=False), (torch.full((10,), 3.0),), "sweeps that tune was 20"),
}


def narrow(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Uniform(mean - 1e-3, mean + 1e-3), obs=y)


@pytest.mark.parametrize("method", ["vectorized", slowly("processes")])
def test_a_run_whose_starts_were_given_goes_on_without_them(method, tmp_path):
    """No draw of the prior is possible."""
    start = {"mean": torch.tensor([3.0, 3.0005])}
    y = torch.tensor(3.0)
    options = {"num_chains": 2, "chain_method": method}
    drive(FNBG(narrow), y, store=tmp_path / "run", initial_params=start, **options)
    found = go_on(tmp_path / "run", FNBG(narrow), y, more_samples=5, chain_method=method)
    expected = drive(FNBG(narrow), y, initial_params=start, draws=25, **options)
    assert same(by_chain(found), by_chain(expected))


NAMES = ("a\\b", "x.part", "x.partial", ".", "..", "zarr.json", "a/b", "50%", "w\n", "ä", " ")


def of_many_names(y, unused):
    for name in NAMES:
        pyro.sample(name, dist.Normal(0.0, 1.0))
    pyro.sample("empty", dist.Normal(torch.zeros(0), 1.0).to_event(1))
    plain(y)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    "unused",
    [
        None, slowly(torch.tensor([1j]).conj()), slowly(np.array([None])),
        slowly(torch.ones(3, dtype=torch.bfloat16)), slowly(torch.eye(2).to_sparse()),
        slowly(torch.zeros(0)), slowly({"a": [1, "b"]}), slowly(torch.tensor(True)),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_sites_of_any_name_and_arguments_of_any_kind_are_stored(unused, tmp_path):
    y = torch.full((10,), 3.0)
    expected = drive(FNBG(of_many_names), y, unused, draws=15)
    found = drive(FNBG(of_many_names), y, unused, store=tmp_path / "run", draws=15)
    assert same(by_chain(found), by_chain(expected))
    posterior = open_store(tmp_path / "run")["posterior"]
    # A tree takes some names for paths
    posterior = posterior.to_dataset() if hasattr(posterior, "to_dataset") else posterior
    for name, values in by_chain(expected).items():
        shown = name if name in posterior else name.replace("/", "%2F")
        assert np.array_equal(posterior[shown], values)
    longer = go_on(tmp_path / "run", FNBG(of_many_names), y, unused, more_samples=2)
    assert longer.num_samples == 17


@pytest.mark.parametrize("name", ["chain", "draw", "ä" * 120])
def test_a_site_with_a_name_that_cannot_be_stored_is_refused(name, tmp_path):
    def model():
        pyro.sample(name, dist.Normal(0.0, 1.0))
        pyro.factor("f", torch.zeros(()))

    with pytest.raises(ValueError, match=f"site '{name[:3]}.* give it another"):
        drive(FNBG(model), store=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_relative_path_is_that_of_the_folder_where_it_was_given(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    mcmc = MultiChainMCMC(FNBG(NET), 20, store="run", disable_progbar=True)
    monkeypatch.chdir(tmp_path / "other")
    mcmc.run(X, Y)
    assert by_chain(mcmc)["layer1.bias"].shape == (1, 20, 3)
    assert (tmp_path / "run").is_dir()


def test_a_store_is_written_to_a_file_as_arviz_does(tmp_path):
    drive(FNBG(NET), X, Y, store=tmp_path / "run")
    open_store(tmp_path / "run").to_netcdf(tmp_path / "a.nc")
    xr.open_datatree(tmp_path / "run", engine="zarr").to_netcdf(tmp_path / "b.nc")
    with xr.open_datatree(tmp_path / "b.nc") as tree:
        assert tree["posterior"].attrs["complete"]
    none = open_store(tmp_path / "run")["posterior"]["layer1.weight"].isel(chain=[]).values
    assert none.shape == (0, 20, 3, 2)


@pytest.mark.parametrize("what", OTHERS)
def test_another_run_is_refused_with_what_differs(what, tmp_path):
    kernel, data, words = OTHERS[what]
    drive(FNBG(plain), torch.full((10,), 3.0), warmup=20, store=tmp_path / "run")
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=f"a run goes on with the model, .* but .*{words}"):
        go_on(tmp_path / "run", kernel, *data, more_samples=5)
    assert files == {path: path.read_bytes() for path in files}


def test_a_path_that_is_taken_is_refused_and_stays(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(FileExistsError, match="store must be a path where there is nothing yet"):
        MultiChainMCMC(FNBG(NET), 5, store=tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"
    with pytest.raises(FileNotFoundError, match="store must be a path in a folder that is there"):
        MultiChainMCMC(FNBG(NET), 5, store=tmp_path / "no" / "run")
    with pytest.raises(TypeError, match="store must be a path, got 3"):
        MultiChainMCMC(FNBG(NET), 5, store=3)
    with pytest.raises(FileNotFoundError, match="store must be a folder that"):
        MultiChainMCMC.resume(tmp_path / "nothing", FNBG(NET))
    drive(FNBG(NET), X, Y, store=tmp_path / "thin", thin=2)
    with pytest.raises(ValueError, match="kernel has thin=3, but the run in the store has thin=2"):
        MultiChainMCMC.resume(tmp_path / "thin", FNBG(NET, thin=3))
    with pytest.raises(ValueError, match="more_samples must be a whole number, 0 or more"):
        MultiChainMCMC.resume(tmp_path / "nothing", FNBG(NET), -1)
    with pytest.raises(RuntimeError, match="no draws yet: .* or read it by open_samples"):
        MultiChainMCMC.resume(tmp_path / "thin", FNBG(NET, thin=2)).get_samples()


@pytest.mark.parametrize("seconds", [0, -1.0, "1", True, float("nan")])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises(ValueError, match="max_seconds must be a positive number of seconds"):
        MultiChainMCMC(FNBG(NET), 5, max_seconds=seconds)


def test_two_runs_on_one_store_are_refused(tmp_path):
    def hook(kernel, params, stage, i):
        if (stage, i) == ("Sample", 3):
            go_on(tmp_path / "run", FNBG(NET), X, Y)

    with pytest.raises(RuntimeError, match="store must be of no other run that goes on"):
        drive(FNBG(NET), X, Y, store=tmp_path / "run", hook_fn=hook)
    assert go_on(tmp_path / "run", FNBG(NET), X, Y).is_complete


def damage(path, what):
    checkpoint = path / "checkpoint.npz"
    if what == "cut short":
        checkpoint.write_bytes(checkpoint.read_bytes()[:-50])
    elif what == "edited":
        text = bytearray(checkpoint.read_bytes())
        text[text.index(b"warmup_sweeps")] ^= 1
        checkpoint.write_bytes(text)
    elif what == "missing":
        checkpoint.unlink()
    elif what == "of another store":
        drive(FNBG(NET), X, Y, store=path.with_name("other"))
        shutil.copy(path.with_name("other") / "checkpoint.npz", checkpoint)
    elif what == "another format":
        root = json.loads((path / "zarr.json").read_text())
        root["attributes"]["format"] = 0
        (path / "zarr.json").write_text(json.dumps(root))
    elif what == "no store any more":
        (path / "zarr.json").write_text("{")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("cut short", "checkpoint.npz must be a whole checkpoint"),
        ("edited", "checkpoint.npz must be a whole checkpoint"),
        ("missing", "no checkpoint of the chains"),
        ("of another store", "checkpoint.npz must be of the run"),
        ("another format", "store must have the format 2, which this version reads, got 0"),
        ("no store any more", "zarr.json cannot be read"),
    ],
)
def test_a_damaged_store_is_refused_and_stays_as_it_is(what, words, tmp_path):
    path = tmp_path / "run"
    drive(FNBG(NET), X, Y, store=path)
    damage(path, what)
    files = {one: one.read_bytes() for one in path.rglob("*") if one.is_file()}
    for read in (open_store, lambda path: go_on(path, FNBG(NET), X, Y)):
        with pytest.raises(ValueError, match=words):
            read(path)
    assert files == {one: one.read_bytes() for one in files}


@pytest.mark.usefixtures("small_chunks")
def test_chunks_that_are_missing_or_changed_are_named(tmp_path):
    drive(FNBG(NET), X, Y, store=tmp_path / "run")
    chunk = tmp_path / "run" / "posterior" / "layer1.weight" / "c" / "0" / "1" / "0" / "0"
    contents = chunk.read_bytes()
    weights = open_store(tmp_path / "run")["posterior"]["layer1.weight"]
    for changed in (contents[:-1] + bytes([contents[-1] ^ 1]), contents[:9], b""):
        chunk.write_bytes(changed)
        with pytest.raises(ValueError, match=r"a chunk of posterior/layer1.weight cannot be read"):
            _ = weights.values
    chunk.unlink()
    with pytest.raises(ValueError, match=r"posterior/layer1.weight/c/0/1/0/0 is missing"):
        _ = weights.values
    chunk.write_bytes(contents)
    assert np.isfinite(weights.values).all()
