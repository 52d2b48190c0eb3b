"""A file has all that the store has."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
import xarray as xr

from pyro_fnbg import FNBG, open_store, store_predictions
from pyro_fnbg.command_line import netcdf
from pyro_fnbg.command_line.netcdf import export_netcdf
from pyro_fnbg.stores.contents import Contents
from support.drivers import drive
from support.stores import NET, SIZES, X, Y

GROUPS = ("posterior", "sample_stats", "chain_stats", "predictions", "observed_data")


def exported(store, path):
    export_netcdf(Contents.read(store), path)
    return xr.load_datatree(path)


@pytest.mark.usefixtures("small_chunks")
def test_a_file_is_what_open_store_shows(tmp_path, monkeypatch):
    monkeypatch.setattr(netcdf, "PIECE_BYTES", 24 * 9)  # nine draws of the largest site
    drive(FNBG(NET, batch_size=7), X, Y, store=tmp_path / "run", **SIZES)
    store_predictions(tmp_path / "run", NET, X[:3], progress=False)
    found, expected = exported(tmp_path / "run", tmp_path / "a.nc"), open_store(tmp_path / "run")
    assert set(found.children) == set(GROUPS)
    for group in GROUPS:
        assert set(found[group].variables) == set(expected[group].variables)
        for name, values in expected[group].variables.items():
            assert found[group][name].dims == values.dims
            assert np.array_equal(found[group][name], values)
            assert values.dtype.kind == "U" or found[group][name].dtype == values.dtype
    for attributes in (found.attrs, found["posterior"].attrs):
        assert attributes["target"] == expected["posterior"].attrs["target"]
        assert list(attributes["complete_draws"]) == [40, 40, 40]
    assert found["predictions"].attrs["is_current"] == 1


def of_odd_names(y):
    pyro.sample("a/b", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("empty", dist.Normal(torch.zeros(0), 1.0).to_event(1))
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def test_names_that_are_paths_and_sites_without_numbers_are_written(tmp_path):
    drive(FNBG(of_odd_names), X[:, 0], store=tmp_path / "run")
    found = exported(tmp_path / "run", tmp_path / "a.nc")["posterior"]
    assert found["a%2Fb"].shape == (1, 20, 2)
    assert found["a%2Fb"].dims[-1] == "a%2Fb_dim_0"
    assert found["empty"].shape == (1, 20, 0)


def test_a_store_without_draws_is_written(tmp_path):
    def hook(kernel, params, stage, i):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drive(FNBG(NET), X, Y, store=tmp_path / "run", hook_fn=hook)
    found = exported(tmp_path / "run", tmp_path / "a.nc")
    assert found["posterior"]["layer1.weight"].shape == (1, 0, 3, 2)
    assert np.array_equal(found["observed_data"]["obs"], Y)
