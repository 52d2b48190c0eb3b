"""The benchmark on images gives chains and fits the same time, and goes on where it was."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.images import __main__ as command
from benchmarks.images import rows
from benchmarks.images.page import page
from benchmarks.images.plans import NETWORKS, PLANS, widths
from benchmarks.images.rows import Row, run_row
from benchmarks.report import read_records
from pyro_fnbg import mnist
from support.images import write_images

NETWORK = "784-3-10"
SMALL = {
    name: replace(
        plan, steps=5, warmup=min(plan.warmup, 2), draws=min(plan.draws, 2), at_a_time=2, thin=1,
        batch_size=plan.batch_size and 50, held_out=0.1,
    )
    for name, plan in PLANS["784-100-10"].items()
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    for name in ("MNIST", "FashionMNIST"):
        pixels = [generator.integers(0, 256, (size, 28, 28)) for size in (120, 40)]
        write_images(folder, name, *pixels, *(np.arange(size) % 10 for size in (120, 40)))
    return folder


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(rows.PLANS, NETWORK, SMALL)


def test_rounds_fill_the_budgets_and_no_more(folder, small, tmp_path, monkeypatch):
    # Each look at the clock is five seconds later than the one before, so a round takes five
    clock = iter(range(0, 10_000, 5))
    monkeypatch.setattr(rows.time, "process_time", lambda: next(clock))
    row = Row("mnist", NETWORK, "ensemble", 0)
    found = run_row(row, tmp_path, mnist(folder), [9, 3, 20])
    of = {each["budget"]: each for each in found["at_budgets"]}
    assert {budget: (each["seconds"], each["chains"]) for budget, each in of.items()} == {
        3: (5, 2),
        9: (5, 2),
        20: (20, 8),
    }
    assert of[20]["networks"] == 8


def test_draws_are_pooled_and_described(folder, small, tmp_path):
    found = run_row(Row("mnist", NETWORK, "chains", 0), tmp_path, mnist(folder), [1e-9])
    (only,) = found["at_budgets"]
    assert (only["chains"], only["networks"]) == (2, 4)
    assert found["last_round"]["target"].startswith("exact")
    assert len(found["last_round"]["acceptance"]) == 2


def test_a_row_is_not_run_again_and_seeds_differ(folder, small, tmp_path, monkeypatch):
    first, second = (
        run_row(Row("mnist", NETWORK, "ensemble", seed), tmp_path, mnist(folder), [1e-9])
        for seed in (0, 1)
    )
    assert first["at_budgets"][0]["nll"] != second["at_budgets"][0]["nll"]
    monkeypatch.setattr(rows, "warm_start", None)
    assert first == run_row(Row("mnist", NETWORK, "ensemble", 0), tmp_path, mnist(folder), [1])


@pytest.mark.slow  # every method on every network
def test_the_command_runs_all_rows_and_writes_the_page(folder, tmp_path, monkeypatch):
    methods = ["ensemble", "chains", "tempered"]
    for network in NETWORKS:
        monkeypatch.setitem(rows.PLANS, network, SMALL)
    files = ["--data", folder, "--results", tmp_path / "records", "--page", tmp_path / "page.md"]
    options = [*files, "--sets", "mnist", "--rows", *methods, "--budgets", 1e-9, 2e-9]
    monkeypatch.setattr(sys, "argv", ["images", *map(str, options)])
    command.main()
    records = read_records(tmp_path / "records")
    assert len(records) == len(NETWORKS) * len(methods)
    assert {len(record["at_budgets"]) for record in records} == {1, 2}
    text = (tmp_path / "page.md").read_text("utf-8")
    assert text == page(records)
    assert all(SMALL[method].name in text for method in methods)


def record(method, nll, network=NETWORK):
    at_budget = {"budget": 120, "seconds": 100.0, "chains": 2, "networks": 4}
    scores = {"accuracy": 0.5, "nll": nll, "calibration_error": 0.1}
    return {
        **Row("mnist", network, method, 0)._asdict(),
        "plan": json.loads(json.dumps(vars(SMALL[method]))),
        "at_budgets": [at_budget | scores],
        "last_round": {"target": "exact", "acceptance": [0.3, 0.4]},
        "machine": "a machine",
        "versions": "1",
    }


@pytest.mark.parametrize(("nll", "who"), [(0.3, "chains"), (0.5, "the ensemble")])
def test_the_page_says_who_is_better(nll, who):
    text = page([record("chains", nll), record("ensemble", 0.4)])
    assert f"- MNIST, 120 s: {who} by 0.100 nats a row" in text


def test_the_name_of_a_network_tells_its_widths():
    assert [widths(network) for network in NETWORKS] == [[784, 10, 10, 10, 10], [784, 100, 10]]
    assert torch.Size(widths(NETWORK)) == (784, 3, 10)
