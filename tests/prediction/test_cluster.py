"""Predictions on the workers of a Dask cluster."""

import functools
import os

import pytest
import torch

from pyro_fnbg import BayesianMLP, marginal_predictive, predict
from pyro_fnbg.prediction import sources
from support.cluster import client, kill_once  # noqa: F401 (a fixture)

NET = BayesianMLP([3, 8, 2], likelihood="normal", observation_scale=0.5)


class Deadly(BayesianMLP):
    """A model whose first evaluation in another process than the test's kills that."""

    def __init__(self, flag, *args, **options):
        super().__init__(*args, **options)
        self.flag, self.home = flag, os.getpid()

    feedforward = None

    def __call__(self, x, y=None):
        if os.getpid() != self.home:
            kill_once(self.flag)
        return super().__call__(x, y)


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(1)
    samples = {
        name: torch.randn(40, *shape, generator=generator)
        for name, shape in NET.parameter_shapes.items()
    }
    x = torch.randn(9, 3, generator=generator)
    return samples, x, torch.randn(9, 2, generator=generator)


def same(found, expected):
    names = ["mean", "data_variance", "network_variance", "log_density"]
    equal = functools.partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6)
    for name in names:
        equal(getattr(found, name), getattr(expected, name))
    for level, value in expected.quantiles.items():
        equal(found.quantiles[level], value)


@pytest.mark.slow
def test_a_cluster_predicts_the_same(client, rows):  # noqa: F811
    samples, x, y = rows
    same(predict(NET, samples, x, y, client=client), predict(NET, samples, x, y))
    found = marginal_predictive(NET, samples, x, client=client)
    torch.testing.assert_close(found, marginal_predictive(NET, samples, x))


@pytest.mark.slow  # a worker is started anew
def test_a_worker_that_is_killed_loses_nothing(client, rows, tmp_path, monkeypatch):  # noqa: F811
    # Or workers would evaluate the network, and never run the model
    monkeypatch.setattr(sources, "recognised", lambda *_: None)
    samples, x, y = rows
    deadly = Deadly(tmp_path / "killed", [3, 8, 2], likelihood="normal", observation_scale=0.5)
    found = predict(deadly, samples, x, y, client=client)
    assert deadly.flag.exists()
    same(found, predict(NET, samples, x, y))


def test_anything_else_is_no_client(rows):
    samples, x, _ = rows
    with pytest.raises(
        TypeError, match=r"client must be a distributed.Client, got 'localhost:8786'"
    ):
        predict(NET, samples, x, client="localhost:8786")
