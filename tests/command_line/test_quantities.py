"""Quantities are those of the draws that they are said to be of."""

import numpy as np
import pytest

from pyro_fnbg import FNBG, open_store, store_predictions
from pyro_fnbg.command_line import quantities
from pyro_fnbg.command_line.quantities import coordinates, log_density, worst_prediction
from pyro_fnbg.command_line.summary import Summary
from pyro_fnbg.stores.contents import Contents
from support.drivers import drive
from support.slow import slowly
from support.stores import NET, SIZES, X, Y

pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.fixture
def summary(tmp_path):
    drive(FNBG(NET, batch_size=7), X, Y, store=tmp_path / "run", **SIZES)
    return Summary(Contents.read(tmp_path / "run"))


@pytest.mark.parametrize(("most", "every"), [slowly(40, 1), slowly(39, 2), (13, 4), slowly(1, 40)])
def test_each_is_the_last_of_so_many_draws(most, every, summary, monkeypatch):
    monkeypatch.setattr(quantities, "MAX_DRAWS", most)
    first, _, last = coordinates(summary)
    store = open_store(summary.contents.archive.path)
    assert (first.label, first.every) == ("layer1.weight[1,1]", every)
    weights = store["posterior"]["layer1.weight"].values
    assert np.array_equal(first.values, weights[:, every - 1 :: every, 1, 1])
    assert last.label == "layer2.bias[0]"
    assert np.array_equal(
        last.values, store["posterior"]["layer2.bias"].values[:, every - 1 :: every, 0]
    )
    found = log_density(summary)
    assert found.label == "log density on a batch"
    stats = store["sample_stats"]["batch_log_density"].values
    assert np.array_equal(found.values, stats[:, every - 1 :: every])


def test_of_many_chains_the_first_are_read(summary, monkeypatch):
    monkeypatch.setattr(quantities, "MAX_CHAINS", 2)
    assert log_density(summary).values.shape == (2, 40)


def test_the_prediction_shown_is_the_one_with_the_largest_r_hat(summary):
    assert worst_prediction(summary) is None
    path = summary.contents.archive.path
    store_predictions(path, NET, X[:5], progress=False)
    again = Summary(Contents.read(path))
    found = worst_prediction(again)
    r_hat = again.diagnosed[0].estimates["r_hat"].values
    row, label = np.unravel_index(np.nanargmax(r_hat), r_hat.shape)
    assert found.label == f"probability of class {label} in row {row}"
    values = open_store(path)["predictions"]["probability"].values
    assert np.array_equal(found.values, values[:, :, row, label])
