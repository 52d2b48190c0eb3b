"""Predictions that are kept in a store are those that its draws make."""

import os
import shutil

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
import xarray as xr

from pyro_fnbg import FNBG, BayesianMLP, open_store, predictive_probabilities, store_predictions
from pyro_fnbg.stores import predictions
from support.drivers import by_chain, drive
from support.stores import NET, SIZES, X, Y, go_on

PROBE = X[:4]


def expected(model, mcmc):
    found = [
        predictive_probabilities(
            model, {name: values[chain] for name, values in by_chain(mcmc).items()}, PROBE
        )
        for chain in range(mcmc.num_chains)
    ]
    return torch.stack(found)


@pytest.mark.usefixtures("small_chunks")
def test_they_are_those_of_the_draws_read_piece_by_piece(tmp_path, monkeypatch):
    mcmc = drive(FNBG(NET), X, Y, store=tmp_path / "run", **SIZES)
    pieces = []
    whole = predictions.predictive_probabilities
    monkeypatch.setattr(predictions, "CHUNK_BYTES", 6 * 4 * 2 * 4)  # six draws
    monkeypatch.setattr(predictions, "PIECE_BYTES", 1)
    monkeypatch.setattr(
        predictions,
        "predictive_probabilities",
        lambda model, draws, x, **options: (
            pieces.append(len(draws["layer1.bias"])) or whole(model, draws, x, **options)
        ),
    )
    store_predictions(tmp_path / "run", NET, PROBE, progress=False)
    assert pieces == 3 * [*6 * [6], 4]
    found = open_store(tmp_path / "run")["predictions"]
    assert found["probability"].dims == ("chain", "draw", "row", "class")
    assert np.allclose(found["probability"], expected(NET, mcmc), rtol=1e-6)
    assert found.attrs["is_current"]
    tree = xr.open_datatree(tmp_path / "run", engine="zarr")
    assert np.array_equal(tree["predictions"]["probability"], found["probability"])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def of_two_numbers(x, y=None):
    means = pyro.sample("means", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x * means, 1.0).to_event(1), obs=y)


@pytest.mark.parametrize(
    ("model", "y", "dims"),
    [
        (BayesianMLP([2, 2, 1], likelihood="normal"), X[:, 0], ("chain", "draw", "row")),
        (of_two_numbers, X, ("chain", "draw", "row", "output")),
    ],
)
def test_means_of_numbers_are_kept_likewise(model, y, dims, tmp_path):
    mcmc = drive(FNBG(model), X, y, store=tmp_path / "run", num_chains=2)
    store_predictions(tmp_path / "run", model, PROBE, progress=False)
    found = open_store(tmp_path / "run")["predictions"]["mean"]
    assert found.dims == dims
    assert np.allclose(found, expected(model, mcmc), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("small_chunks")
def test_a_run_goes_on_with_them_and_they_say_that_they_are_older(tmp_path):
    drive(FNBG(NET), X, Y, store=tmp_path / "run", **SIZES)
    store_predictions(tmp_path / "run", NET, PROBE, progress=False)
    before = open_store(tmp_path / "run")["predictions"]["probability"].values
    longer = go_on(tmp_path / "run", FNBG(NET), X, Y, more_samples=9)
    found = open_store(tmp_path / "run")["predictions"]
    assert not found.attrs["is_current"]
    assert np.array_equal(found["probability"], before)
    assert longer.num_samples == 49
    store_predictions(tmp_path / "run", NET, PROBE, progress=False)
    found = open_store(tmp_path / "run")["predictions"]
    assert found.attrs["is_current"]
    assert np.array_equal(found["probability"][:, :40], before)
    assert found.sizes["draw"] == 49


@pytest.mark.usefixtures("small_chunks")
def test_they_can_be_stored_while_a_run_is_under_way(tmp_path):
    def hook(kernel, params, stage, i):
        if (stage, i) == ("Sample [0]", 38):
            store_predictions(tmp_path / "run", NET, PROBE, progress=False)

    options = {"store": tmp_path / "run", "hook_fn": hook, "chain_method": "sequential"}
    mcmc = drive(FNBG(NET, engine="trace"), X, Y, **SIZES, **options)
    assert mcmc.is_complete
    found = open_store(tmp_path / "run")
    num_draws = found["predictions"].sizes["draw"]
    assert 0 < num_draws < found["posterior"].sizes["draw"] == 40
    assert not found["predictions"].attrs["is_current"]
    chains = found["predictions"]["chain"].values.tolist()
    kept = expected(NET, mcmc)[chains, :num_draws]
    assert np.allclose(found["predictions"]["probability"], kept, rtol=1e-6)


def test_what_cannot_be_predicted_leaves_the_store_as_it_is(tmp_path):
    drive(FNBG(NET), X, Y, store=tmp_path / "run")
    with pytest.raises(ValueError, match="samples"):
        store_predictions(tmp_path / "run", of_two_numbers, PROBE)
    with pytest.raises(TypeError, match="x must be a torch tensor"):
        store_predictions(tmp_path / "run", NET, [[1.0, 2.0]])
    with pytest.raises(FileNotFoundError, match="store must be a folder that"):
        store_predictions(tmp_path / "nothing", NET, PROBE)
    assert os.listdir(tmp_path) == ["run"]
    assert "predictions" not in open_store(tmp_path / "run")


def test_a_store_without_draws_has_nothing_to_predict(tmp_path):
    def hook(kernel, params, stage, i):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drive(FNBG(NET), X, Y, store=tmp_path / "run", hook_fn=hook)
    with pytest.raises(ValueError, match=r"store must have draws, got .*, which has none yet"):
        store_predictions(tmp_path / "run", NET, PROBE)
    shutil.rmtree(tmp_path / "run")
