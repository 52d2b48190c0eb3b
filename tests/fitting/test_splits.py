"""Rows that are held out stay out of the batches, and models that cannot be split see all rows."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.fitting.splits import split_rows
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.sites import inspect_model
from support.data import even_normal, normal

Y = even_normal(40)
KEY = ChainKey(1, 0)


def plain(y, subsample_size=None):
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y), subsample_size) as rows:
        pyro.sample("y", dist.Normal(level, 1.0), obs=y[rows])


def unindexed(y):
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(level, 1.0), obs=y)


def without_plate(y):
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(level, 1.0).expand([40]).to_event(1), obs=y)


def local(y):
    with pyro.plate("data", len(y)) as rows:
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(level, 1.0), obs=y[rows])


def two_plates(y):
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    for name in ("a", "b"):
        with pyro.plate(name, len(y)) as rows:
            pyro.sample(f"y{name}", dist.Normal(level, 1.0), obs=y[rows])


def fixed(y):
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y), subsample=torch.arange(10)) as rows:
        pyro.sample("y", dist.Normal(level, 1.0), obs=y[rows])


def split(model, *args, batch_size=None, batch_plate=None, held_out=None):
    bound = BoundModel(model, args)
    with torch.no_grad():
        sites = inspect_model(bound)
        return split_rows(bound, sites, batch_size, batch_plate, held_out, KEY)


@pytest.mark.parametrize("held_out", [0.0, 0.1, 0.45])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_batches_and_held_out_rows_are_apart_and_all_rows_are_in_one_of_them(held_out, batch_size):
    rows = split(plain, Y, batch_size=batch_size, held_out=held_out)
    left = torch.cat(rows.held_out) if rows.held_out else torch.empty(0, dtype=torch.long)
    assert len(left) == rows.num_held_out == round(40 * held_out)
    batches = [rows.batch(step) for step in range(100)]
    if batches[0] is None:
        assert (batch_size, held_out) == (None, 0.0)
        return
    seen = torch.cat(batches).unique()
    assert sorted([*seen.tolist(), *left.tolist()]) == list(range(40))
    size = batch_size or 40 - len(left)
    assert {len(batch) for batch in batches} == {size}
    assert (rows.plan.batch_size, rows.plan.factor) == (size, 40 / size)


def test_large_data_come_in_batches_without_being_asked_for():
    rows = split(plain, normal(1000))
    assert (len(rows.batch(0)), rows.num_held_out) == (rows.plan.batch_size, 100)
    assert rows.plan.batch_size < 900


@pytest.mark.parametrize(("num_rows", "expected"), [(30, 10), (60, 20), (150, 20), (300, 30)])
def test_held_out_are_enough_rows_to_judge_by_and_not_too_many(num_rows, expected):
    assert split(plain, normal(num_rows)).num_held_out == expected


def test_subsample_size_of_a_model_is_that_of_batches_and_of_held_out_pieces():
    rows = split(plain, Y, 6, held_out=0.3)
    assert [len(piece) for piece in rows.held_out] == [6, 6]
    assert len(rows.batch(0)) == 6
    assert rows.plan.factor == 40 / 6


@pytest.mark.parametrize("model", [unindexed, without_plate, local, two_plates, fixed])
def test_model_that_cannot_be_given_some_rows_sees_all_of_them(model):
    rows = split(model, Y)
    assert (rows.batch(0), rows.held_out) == (None, ())
    with pytest.raises(Exception, match=r"."):
        split(model, Y, held_out=0.1)
    if model is not fixed:
        with pytest.raises(Exception, match=r"."):
            split(model, Y, batch_size=3)


def test_one_plate_of_several_can_be_named():
    rows = split(two_plates, Y, batch_plate="b", batch_size=5, held_out=0.1)
    assert (rows.plan.plate, rows.num_held_out) == ("b", 4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"held_out": 0.99}, "held_out=0.99 leaves too few of the 40 rows"),
        ({"batch_size": 41}, r"batch_size must be 1..40"),
        ({"batch_plate": "rows"}, "batch_plate='rows' is no plate"),
    ],
)
def test_wish_that_does_not_fit_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        split(plain, Y, **arguments)


def test_held_out_rows_of_local_sites_are_refused_by_name():
    with pytest.raises(ValueError, match="held_out must be 0 or left out: plate 'data'"):
        split(local, Y, held_out=0.2)
