"""Chains of the wide network go on where they were stopped, and the page says how far they got."""

import itertools
import pickle

import pytest
import torch

from benchmarks.models.records import keep
from benchmarks.wide import chains
from benchmarks.wide.page import page, record_of
from pyro_fnbg import mnist
from support.images import write_images

PLAN = chains.Plan("step", "full", batch_size=5, parts=2, warmup=4, sweeps_a_draw=2)


@pytest.fixture
def data(tmp_path, monkeypatch):
    write_images(tmp_path, "MNIST")
    # Minutes of one draw each
    monkeypatch.setattr(chains, "MINUTE", 1.0)
    monkeypatch.setattr(chains.time, "process_time", itertools.count().__next__)
    return mnist(tmp_path)


@pytest.mark.slow  # a benchmark is run by hand
def test_a_chain_goes_on_where_it_was_stopped(data, tmp_path):
    path = tmp_path / "a.pickle"
    chains.run_chain(PLAN, 0, data, 2, path)
    stopped = pickle.loads(path.read_bytes())
    assert stopped.sweeps == (2, 4)
    resumed = chains.run_chain(PLAN, 0, data, 4, path)
    whole = chains.run_chain(PLAN, 0, data, 4, tmp_path / "b.pickle")
    assert resumed.sweeps == whole.sweeps == (2, 4, 6, 8)
    assert resumed.draws == (1, 1, 1, 1)
    assert torch.equal(torch.stack(resumed.predictions), torch.stack(whole.predictions))
    assert torch.equal(resumed.state.position, whole.state.position)


@pytest.mark.slow  # a benchmark is run by hand
def test_scores_are_of_the_second_half_so_far_of_the_chains_that_came_so_far(data, tmp_path):
    runs = [chains.run_chain(PLAN, k, data, n, tmp_path / f"{k}") for k, n in ((0, 3), (1, 4))]
    record = keep(tmp_path / "record.json", record_of(runs, data.y_test))
    assert [at["minute"] for at in record["course"]] == [1, 2, 3, 4]
    assert [at["sweeps"] for at in record["course"]] == [[2, 2], [4, 4], [6, 6], [8]]
    pooled = sum(sum(run.predictions[1:3]) / 2 for run in runs) / 2
    own = pooled[torch.arange(15), data.y_test]
    alone = record["course"][-1]
    assert {name: alone[name] for name in alone["single"]} == alone["single"]
    last = record["course"][-2]
    assert last["nll"] == pytest.approx(float(-own.log().mean()), rel=1e-5)
    assert last["accuracy"] == pytest.approx(float((pooled.argmax(1) == data.y_test).sum()) / 15)
    assert last["single"]["nll"] >= last["nll"]  # Jensen
    text = page([record], [{"activation": "step", "fits": 2, "steps": 9, "seconds": 1.0, **last}])
    assert "## Step, full scale" in text
    assert record["target"][1:] in text
    assert f"| 4 | 1 | 8 | {100 * alone['accuracy']:.2f} %" in text
