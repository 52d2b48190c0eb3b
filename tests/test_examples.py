"""The demo runs from the command line, says what it should and writes what it lists."""

import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

DEMO = Path(__file__).resolve().parents[1] / "examples" / "demo.py"
PICTURES = (
    "traces.png",
    "acceptance-by-node.png",
    "decision-surface.png",
    "decision-surface-by-chain.png",
)
SECTIONS = (
    "What the chains target",
    "Acceptance rates and proposal scales over the draws",
    "Test accuracy (%)",
    "Convergence of the predictions (ArviZ)",
    "What this run can and cannot show",
    "Files",
)


def run_demo(folder, *arguments):
    # Pyro shows no progress bar where either of these is set
    hidden = ("CI", "PYTEST_XDIST_WORKER")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.run(
        [sys.executable, str(DEMO), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    arguments = ("--smoke", "--seed", "3", "--draws", "12", "--warmup", "8", "--output", "out")
    done = run_demo(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done, folder / "out"


def test_sections_come_in_order(demo):
    lines = demo[0].stdout.splitlines()
    places = [lines.index(section) for section in SECTIONS]
    assert places == sorted(places)


def test_target_and_its_measured_companions_are_printed(demo):
    text = demo[0].stdout
    assert "approximate: prior x likelihood^0.02" in text
    assert "nominal likelihood temperature: 50" in text
    assert "standard deviation of the log ratio across batches:" in text
    assert "share of decisions that another batch would reverse:" in text


def test_every_layer_and_node_has_its_row(demo):
    starts = [line.partition(" ")[0] for line in demo[0].stdout.splitlines()]
    layers = [f"layer{layer}" for layer in range(1, 8)]
    nodes = [f"{layer}.node{node}" for layer in layers[:-1] for node in (1, 2)]
    nodes.append("layer7.node1")
    assert [word for word in starts if word in layers] == layers
    assert [word for word in starts if word in nodes] == nodes


def test_warnings_are_plain_lines(demo):
    assert "Warning" not in demo[0].stdout + demo[0].stderr
    assert "Traceback" not in demo[0].stderr


def test_progress_bar_shows_acceptance(demo):
    assert "acc. rate by layer (%)=" in demo[0].stderr


def test_conclusion_names_the_length_of_this_run(demo):
    conclusion = demo[0].stdout.partition(SECTIONS[4])[2]
    assert "After 8 + 12 sweeps" in conclusion
    assert "of 4 chains" in conclusion


def test_files_listed_are_the_files_written(demo):
    done, output = demo
    assert {path.name for path in output.iterdir()} == {*PICTURES, "draws.npz"}
    listing = done.stdout.partition("\nFiles\n")[2]
    for path in output.iterdir():
        assert f"out/{path.name}" in listing
    for name in PICTURES:
        pixels = matplotlib.image.imread(output / name)
        assert min(pixels.shape[:2]) > 400
        assert np.ptp(pixels[..., :3]) > 0.5


def test_draws_have_chain_and_draw_first(demo):
    with np.load(demo[1] / "draws.npz") as draws:
        shapes = {name: draws[name].shape for name in draws.files}
        assert int(draws["seed"]) == 3
        about = json.loads(str(draws["settings"]))
    assert shapes.pop("seed") == shapes.pop("settings") == ()
    assert len(shapes) == 14
    assert shapes["layer1.weight"] == (4, 12, 2, 2)
    assert shapes["layer7.weight"] == (4, 12, 1, 2)
    assert shapes["layer7.bias"] == (4, 12, 1)
    assert (about["draws"], about["warmup"], about["batch_size"]) == (12, 8, 100)


def test_too_few_draws_are_refused(tmp_path):
    done = run_demo(tmp_path, "--draws", "2")
    assert done.returncode == 2
    assert "must be 4 or more, got 2" in done.stderr
