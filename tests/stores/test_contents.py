"""What a store says of its chains and its data is what a finished run says."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP, ScalePrior, StoreHook, open_store, to_arviz
from pyro_fnbg.chains.report import ChainReport
from pyro_fnbg.stores import writer
from pyro_fnbg.stores.archive import Archive
from pyro_fnbg.stores.contents import Contents
from pyro_fnbg.stores.reports import keep_noise
from support.drivers import drive, stock
from support.slow import slowly
from support.stores import NET, SIZES, X, Y, go_on

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*may lead to deadlocks"),
    pytest.mark.usefixtures("small_chunks"),
]
GROUPS = ("chain_stats", "observed_data")
# Walks beside variances that are drawn
OF_TWO_MOVES = BayesianMLP(
    [2, 3, 1],
    likelihood="bernoulli",
    prior_scale=ScalePrior(dist.InverseGamma(2.0, 1.0), of="variance"),
)


def assert_says_the_same(path, mcmc):
    expected, found = to_arviz(mcmc), open_store(path)
    for group in GROUPS:
        assert set(found[group].data_vars) == set(expected[group].data_vars)
        for name, values in expected[group].variables.items():
            assert np.array_equal(found[group][name], values, equal_nan=values.dtype.kind == "f")


@pytest.mark.parametrize("method", ["vectorized", *map(slowly, ["sequential", "processes"])])
def test_chain_stats_and_data_are_those_of_the_run(method, tmp_path):
    kernel = FNBG(NET, batch_size=7, thin=2)
    mcmc = drive(kernel, X, Y, store=tmp_path / "run", chain_method=method, **SIZES)
    assert_says_the_same(tmp_path / "run", mcmc)
    assert "log_ratio_sd_across_batches" in open_store(tmp_path / "run")["chain_stats"]
    longer = go_on(tmp_path / "run", FNBG(NET, batch_size=7), X, Y, more_samples=9)
    assert_says_the_same(tmp_path / "run", longer)


@pytest.mark.parametrize(
    ("kernel", "name"), [(FNBG(NET, moves="pcn"), "rho"), (FNBG(OF_TWO_MOVES), "proposal_scale")]
)
def test_all_that_moves_tell_is_there(kernel, name, tmp_path):
    mcmc = drive(kernel, X, Y, store=tmp_path / "run", num_chains=2)
    assert name in open_store(tmp_path / "run")["chain_stats"]
    assert_says_the_same(tmp_path / "run", mcmc)


def test_a_report_from_a_store_is_that_of_the_run(tmp_path):
    mcmc = drive(FNBG(NET, batch_size=7), X, Y, store=tmp_path / "run", **SIZES)
    found = Contents.read(tmp_path / "run").reports
    for own, other in zip(found, [one.report for one in mcmc._diagnostics], strict=True):
        for name in ChainReport.__dataclass_fields__:
            if name not in ("plates", "statistics", "learnt"):
                assert np.array_equal(getattr(own, name), getattr(other, name)), name
        assert own.num_sweeps == other.num_sweeps
        for name, values in other.statistics.items():
            assert np.array_equal(own.statistics[name], values)


def test_pyros_driver_tells_the_same(tmp_path):
    hook = StoreHook(tmp_path / "run", 40, 3)
    mcmc = stock(FNBG(NET, batch_size=7), X, Y, hook_fn=hook, **SIZES)
    assert_says_the_same(tmp_path / "run", mcmc)


def test_what_one_chain_tells_at_its_end_leaves_the_files_of_others_alone(tmp_path):
    """They may be those of other processes, which go on."""
    options = {"chain_method": "processes", **SIZES}
    mcmc = drive(FNBG(NET, batch_size=7), X, Y, store=tmp_path / "run", **options)
    files = sorted((tmp_path / "run").glob("checkpoint-*.npz"))
    before = [path.stat().st_mtime_ns for path in files]
    keep_noise(Archive(tmp_path / "run"), [mcmc._diagnostics[1].report])
    after = [path.stat().st_mtime_ns for path in files]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]


class Killed(Exception):
    """What stands for kill -9 in these tests."""


def test_of_a_run_that_was_killed_they_are_those_of_the_last_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(writer.StoreWriter, "close", lambda *_: None)

    def hook(kernel, params, stage, i):
        if (stage, i) == ("Sample", 25):
            raise Killed

    kernel = FNBG(NET, engine="trace", batch_size=7)
    with pytest.raises(Killed):
        drive(kernel, X, Y, store=tmp_path / "run", hook_fn=hook, draws=40)
    found = open_store(tmp_path / "run")
    num_draws = found["posterior"].sizes["draw"]
    assert num_draws > 0
    expected = to_arviz(drive(FNBG(NET, engine="trace", batch_size=7), X, Y, draws=num_draws))
    assert "share_reversed_by_another_batch" not in found["chain_stats"]
    for name in ("acceptance_rate", "proposal_scale", "non_finite_candidates"):
        assert np.array_equal(found["chain_stats"][name], expected["chain_stats"][name])


def test_before_the_first_draw_there_are_data_and_no_chain_stats(tmp_path):
    def hook(kernel, params, stage, i):
        raise Killed

    with pytest.raises(Killed):
        drive(FNBG(NET), X, Y, store=tmp_path / "run", hook_fn=hook)
    contents = Contents.read(tmp_path / "run")
    assert contents.num_draws == 0
    assert contents.reports == []
    assert "chain_stats" not in open_store(tmp_path / "run")
    assert np.array_equal(open_store(tmp_path / "run")["observed_data"]["obs"], Y)


def of_several_data(y, counts, one):
    mean = pyro.sample("mean", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("one\\b", dist.Normal(mean[0], 1.0), obs=one)
    with pyro.plate("data", len(y), subsample_size=4) as rows:
        pyro.sample("y", dist.MultivariateNormal(mean, torch.eye(2)), obs=y[rows])
        pyro.sample("counts", dist.Poisson(mean[0].exp()), obs=counts[rows])


def test_data_of_several_sites_are_read_as_to_arviz_reads_them(tmp_path):
    data = torch.arange(20.0).reshape(10, 2) / 10, torch.arange(10), torch.tensor(0.5)
    mcmc = drive(FNBG(of_several_data), *data, store=tmp_path / "run")
    assert_says_the_same(tmp_path / "run", mcmc)
    found = open_store(tmp_path / "run")["observed_data"]
    assert found["counts"].dtype == np.int64
    assert np.array_equal(found["y"], data[0])


def test_a_run_with_data_of_a_name_that_cannot_be_stored_is_refused(tmp_path):
    def model():
        pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.sample("y" * 201, dist.Normal(0.0, 1.0), obs=torch.tensor(1.0))

    with pytest.raises(ValueError, match="must have a name of 200 bytes at most to be stored"):
        drive(FNBG(model), store=tmp_path / "run")
    assert not list(tmp_path.iterdir())
