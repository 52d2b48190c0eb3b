"""Scripts that repeat the paper's experiments write tables and pictures, and go on with chains."""

import argparse
import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pandas as pd
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP, noisy_xor

PAPER = Path(__file__).resolve().parents[1] / "examples" / "paper"
SCRIPTS = sorted(path.stem for path in PAPER.glob("*.py") if path.stem != "common")


@pytest.fixture
def common(monkeypatch):
    monkeypatch.syspath_prepend(PAPER)
    yield importlib.import_module("common")
    del sys.modules["common"]


def options_for(folder, **changed):
    given = {"quick": True, "stores": folder, "out": folder, "seed": 1, "burn_in": 10, "sweeps": 40}
    return argparse.Namespace(**(given | changed))


def small_kernel():
    return FNBG(BayesianMLP([2, 2, 1], likelihood="bernoulli"), batch_size=20)


def test_there_is_a_script_for_each_experiment():
    assert len(SCRIPTS) == 11


def test_chains_are_those_of_the_store_and_go_on(common, tmp_path):
    data = noisy_xor(40, 8)

    def run(sweeps):
        options = options_for(tmp_path, sweeps=sweeps)
        return common.sample("small", small_kernel(), data.x_train, data.y_train, options, chains=2)

    first, again, longer = run(40), run(40), run(60)
    assert first.num_draws == again.num_draws == 4
    assert again.seconds == first.seconds > 0
    assert (longer.num_draws, longer.sweeps) == (6, 70)
    assert longer.seconds > first.seconds
    for chain in (0, 1):
        before, after = first.last(chain), longer.last(chain)
        assert all(torch.equal(draws, after[name][:4]) for name, draws in before.items())
        assert torch.equal(longer.last(chain, 20)["layer1.weight"], after["layer1.weight"][-2:])
    clock = json.loads((tmp_path / "small-seed1.json").read_text("utf-8"))
    assert clock == {"draws": 6, "seconds": longer.seconds}


def test_pilots_shrink_the_scales_of_layers_that_vanish(common, monkeypatch):
    """Of a sampler whose second layer moves at steps of 0.3 or less only."""

    class Sampler:
        def __init__(self, scales, *_, **__):
            rates = {layer: 0.5 for layer in scales}
            rates["layer2"] = 0.2 if scales["layer2"] <= 0.3 else 0.01
            self.reports = [{"acceptance rate by layer": rates}]

        def run(self, *_):
            pass

    monkeypatch.setattr(common, "MultiChainMCMC", Sampler)
    nothing = torch.zeros(0)
    scales, table = common.pilot_scales(dict, nothing, nothing, 2, high=2.0, sweeps=10, seed=1)
    assert scales["layer1"] == 2.0
    assert scales["layer2"] == pytest.approx(0.2)
    assert table["scale layer2"].tolist() == pytest.approx([2.0, 0.4**0.5, 0.2])
    assert table["rate layer2 (%)"].tolist() == pytest.approx([1.0, 1.0, 20.0])


def test_images_without_a_folder_are_for_quick_runs(common, tmp_path):
    made_up = common.image_data(options_for(tmp_path, data=None), "MNIST")
    assert made_up.x_train.shape == (1000, 784)
    assert made_up.x_train.mean().abs() < 1e-3
    with pytest.raises(SystemExit, match="--data must name the folder that holds MNIST/raw"):
        common.image_data(options_for(tmp_path, data=None, quick=False), "MNIST")


def test_a_number_of_sweeps_that_is_no_number_of_draws_is_refused(common, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["script", "--sweeps", "25"])
    with pytest.raises(SystemExit):
        common.read_options("Do something.")
    assert "--sweeps must be a multiple of 10, got 25" in capsys.readouterr().err


def test_blocks_are_those_that_the_paper_counts(common, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["blocks.py", "--quick", "--out", str(tmp_path)])
    runpy.run_path(str(PAPER / "blocks.py"), run_name="__main__")
    table = pd.read_csv(tmp_path / "blocks.csv")
    toy = table[table.network == "MLP(3,2,2,2)"].set_index(["blocks", "layer"])
    assert toy.loc["layer", "blocks x parameters"].tolist() == ["1 x 8", "1 x 6", "1 x 6"]
    assert toy.loc["node", "blocks x parameters"].tolist() == ["2 x 4", "2 x 3", "2 x 3"]
    assert toy.loc[("2 parts of nodes in layer 1", 1), "blocks x parameters"] == "4 x 2"
    images = table[table.network != "MLP(3,2,2,2)"].set_index(["blocks", "layer"])
    in_all = images["blocks in all"].groupby("blocks").first()
    assert in_all["10 parts of nodes in layer 1"] == 130
    assert in_all["78 parts of nodes in layer 1"] == 810
    first = images.loc[("10 parts of nodes in layer 1", 1), "blocks x parameters"]
    assert first == "50 x 79 + 50 x 78"
    assert matplotlib.image.imread(tmp_path / "blocks.png").shape[0] > 400


def test_faults_are_shown_by_their_own_arithmetic(capsys):
    runpy.run_path(str(PAPER / "faults" / "number_of_blocks.py"))
    assert "as in the code: parts of [10, 11] parameters, 810 blocks" in capsys.readouterr().out
    runpy.run_path(str(PAPER / "faults" / "widening_blocks.py"))
    text = capsys.readouterr().out
    assert "39 parameters; never updated: []; repeated or none: []" in text
    assert "[2, 2, 5]: 21 parameters; never updated: [10, 11, 12, 13" in text


def test_results_that_the_page_shows_are_small_files_beside_it():
    docs = PAPER.parents[1] / "docs"
    page = (docs / "reproduction.md").read_text("utf-8")
    shown = set(re.findall(r"reproduction/[\w-]+\.(?:csv|png)", page))
    there = {f"reproduction/{path.name}" for path in (docs / "reproduction").iterdir()}
    assert shown == there
    assert all((docs / name).stat().st_size < 100_000 for name in shown)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_quick_run_writes_tables_and_pictures(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(PAPER / f"{name}.py"), "--quick", "--out", "out", "--seed", "3"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    tables = list((tmp_path / "out").glob("*.csv"))
    assert tables
    assert list((tmp_path / "out").glob("*.png"))
    for path in tables:
        table = pd.read_csv(path)
        assert len(table)
        assert not table.isna().all().any()
        assert f"out/{path.name}" in done.stdout
