import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_fnbg.core import batches as batches_module
from pyro_fnbg.core.batches import Batches, BatchPlan
from pyro_fnbg.core.noise import ChainKey

KEY = ChainKey(seed=5, chain=0)


def plan(num_rows, batch_size, order="shuffled", factor=1.0):
    return BatchPlan("data", num_rows, batch_size, order, factor)


def epoch(batches, num_rows, batch_size, number=0, key=KEY):
    per_epoch = num_rows // batch_size
    return [batches.rows(key, number * per_epoch + i) for i in range(per_epoch)]


@given(st.integers(1, 40), st.data())
def test_shuffled_epochs_use_no_row_twice(num_rows, data):
    batch_size = data.draw(st.integers(1, num_rows))
    batches = Batches(plan(num_rows, batch_size))
    for number in (0, 1):
        rows = epoch(batches, num_rows, batch_size, number)
        assert all(len(batch) == batch_size for batch in rows)
        joined = torch.cat(rows)
        assert len(joined.unique()) == len(joined) == num_rows // batch_size * batch_size
        assert 0 <= joined.min() <= joined.max() < num_rows


def test_over_an_epoch_each_row_is_used_once():
    batches = Batches(plan(12, 3))
    for number in range(5):
        assert sorted(torch.cat(epoch(batches, 12, 3, number)).tolist()) == list(range(12))


def test_rows_left_over_wait_for_the_next_shuffle():
    batches = Batches(plan(5, 2))
    seen = torch.zeros(5)
    for sweep in range(4000):
        seen[batches.rows(KEY, sweep)] += 1
    # each epoch leaves out one row of five at random
    expected, sd = 2000 * 0.8, (2000 * 0.8 * 0.2) ** 0.5
    assert ((seen - expected).abs() < 4.5 * sd).all()


def test_epochs_chains_and_seeds_shuffle_differently():
    rows = [
        tuple(torch.cat(epoch(Batches(plan(30, 10)), 30, 10, number, key)).tolist())
        for key in (KEY, ChainKey(5, 1), ChainKey(6, 0))
        for number in (0, 1)
    ]
    assert len(set(rows)) == len(rows)


def test_batches_depend_on_the_sweep_alone():
    batches = Batches(plan(30, 7))
    forwards = [batches.rows(KEY, sweep).tolist() for sweep in range(12)]
    backwards = [batches.rows(KEY, sweep).tolist() for sweep in reversed(range(12))]
    assert forwards == backwards[::-1]


def test_independent_rows_are_no_batch_of_a_sweep():
    batches = Batches(plan(1000, 100))
    swept = {tuple(batches.rows(KEY, sweep).tolist()) for sweep in range(20)}
    assert not swept & {
        tuple(batches.independent_rows(KEY, number).tolist()) for number in range(20)
    }


def test_full_batches_are_all_rows():
    assert Batches(plan(10, 10, "full")).rows(KEY, 3) is None


@given(st.lists(st.integers(1, 25), min_size=1, max_size=6), st.integers(0, 2**30), st.data())
def test_stratified_batches_hold_the_classes_in_proportion(counts, seed, data):
    labels = torch.repeat_interleave(torch.arange(len(counts)) * 3 - 1, torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    num_rows = len(labels)
    batch_size = data.draw(st.integers(1, num_rows))
    batches = Batches(plan(num_rows, batch_size, "stratified"), labels)
    rows = epoch(batches, num_rows, batch_size, key=ChainKey(seed, 0))
    joined = torch.cat(rows)
    assert len(joined.unique()) == len(joined)
    for batch in rows:
        assert len(batch) == batch_size
        for code, count in enumerate(counts):
            quota = batch_size * count / num_rows
            held = int((labels[batch] == code * 3 - 1).sum())
            assert abs(held - quota) < 1 + 1e-9, (held, quota)


def test_stratified_counts_round_at_random_and_every_row_comes_as_often():
    labels = torch.tensor([0] * 7 + [1] * 3 + [2] * 10)
    batches = Batches(plan(20, 6, "stratified"), labels)
    seen = torch.zeros(20)
    epochs = 2000
    for sweep in range(3 * epochs):
        seen[batches.rows(KEY, sweep)] += 1
    # a row is in an epoch with probability 18 / 20; per epoch a Bernoulli draw
    sd = (epochs * 0.9 * 0.1) ** 0.5
    assert ((seen - 0.9 * epochs).abs() < 4.5 * sd).all()
    held = torch.tensor([int((labels[batches.rows(KEY, s)] == 0).sum()) for s in range(600)])
    assert set(held.tolist()) == {2, 3}
    assert abs(held.double().mean() - 2.1) < 4.5 * (0.1 * 0.9 / 600) ** 0.5


@pytest.mark.parametrize("order", ["shuffled", "stratified"])
@pytest.mark.parametrize(("num_rows", "batch_size"), [(20, 6), (20, 5), (7, 7), (9, 5)])
@pytest.mark.parametrize("epochs", [1, 3, 64])
def test_rows_of_many_sweeps_are_those_of_one_at_a_time(
    order, num_rows, batch_size, epochs, monkeypatch
):
    """Across the borders of epochs, and of the groups of epochs that share a generator."""
    monkeypatch.setattr(batches_module, "GROUP_EPOCHS", epochs)
    labels = torch.arange(num_rows) % 3 if order == "stratified" else None
    arguments = plan(num_rows, batch_size, order), labels
    alone = Batches(*arguments)
    expected = torch.stack([alone.rows(KEY, sweep) for sweep in range(24)])
    per_epoch = num_rows // batch_size
    assert len(expected[: 24 // per_epoch * per_epoch].flatten().unique()) == num_rows
    for size in (1, 2, per_epoch, per_epoch + 1, 24):
        batches = Batches(*arguments)
        for first in range(0, 24 - size + 1, size):
            found = batches.rows_of_sweeps(KEY, first, size)
            assert torch.equal(found, expected[first : first + size])
    batches = Batches(*arguments)
    for first, count in ((17, 6), (2, 5), (0, 24), (23, 1)):
        assert torch.equal(
            batches.rows_of_sweeps(KEY, first, count), expected[first : first + count]
        )


def test_chains_that_take_turns_get_the_batches_of_each_alone():
    """They share what remembers the last epochs, and each has its own."""
    keys = [ChainKey(seed, chain) for seed in (5, 6) for chain in (0, 1)]
    shared = Batches(plan(12, 5))
    alone = {key: Batches(plan(12, 5)).rows_of_sweeps(key, 0, 200) for key in keys}
    for first in range(0, 200, 8):
        for key in keys:
            found = shared.rows_of_sweeps(key, first, 8)
            assert torch.equal(found, alone[key][first : first + 8])
    assert len({tuple(rows.flatten().tolist()) for rows in alone.values()}) == 4


def test_full_batches_of_many_sweeps_are_all_rows():
    assert Batches(plan(10, 10, "full")).rows_of_sweeps(KEY, 3, 5) is None


@pytest.mark.parametrize(
    ("plan", "temperature", "words"),
    [
        (plan(100, 100, "full"), 1.0, "exact: the posterior"),
        (plan(100, 100, "full", 0.5), 2.0, r"exact: prior x likelihood\^0.5 .*not the posterior"),
        (plan(60_000, 3_000), 20.0, r"approximate: prior x likelihood\^0.05,.*temperature 20"),
        (plan(5_000, 100, factor=50.0), 1.0, r"approximate: prior x likelihood\^1,.*times 50"),
        (plan(5_000, 100, "stratified"), 50.0, "fresh stratified batch of 100 of 5000 rows"),
        # rows that the model itself fixed and scales by N / n are its own statement
        (plan(100, 10, "full", 10.0), 1.0, "exact: the posterior"),
        (plan(15, 11, "full", 15 / 11), 1.0, "exact: the posterior"),
    ],
)
def test_the_plan_says_what_the_chain_targets(plan, temperature, words):
    assert plan.temperature == pytest.approx(temperature)
    assert re.search(words, plan.target), plan.target
