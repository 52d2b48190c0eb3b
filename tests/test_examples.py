"""The examples run from the command line, say what they should and write what they list."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from support.images import write_images

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PICTURES = (
    "traces.png",
    "acceptance-by-node.png",
    "decision-surface.png",
    "decision-surface-by-chain.png",
)
SECTIONS = (
    "What the chains target",
    "Acceptance rates and proposal scales",
    "Test accuracy (%)",
    "Convergence of the predictions (ArviZ)",
    "What this run can and cannot show",
    "Files",
    "Seconds",
)


def run_example(name, folder, *arguments):
    # Pyro shows no progress bar where either of these is set
    hidden = ("CI", "PYTEST_XDIST_WORKER")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def refused(name, *arguments):
    """Run an example in this process, which saves its imports, and return what it exits with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(SystemExit) as caught:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return caught.value.code


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    arguments = ("--smoke", "--seed", "3", "--draws", "12", "--warmup", "8", "--output", "out")
    done = run_example("demo.py", folder, *arguments)
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


def test_no_line_is_too_wide_for_a_terminal(demo):
    tables = demo[0].stdout.partition(SECTIONS[0])[2].partition("\nFiles\n")[0]
    assert max(map(len, tables.splitlines())) <= 100


def test_every_chain_has_its_row_and_one_nearest_plateau(demo):
    table = demo[0].stdout.partition(SECTIONS[2])[2].partition(SECTIONS[3])[0]
    rows = [line.split() for line in table.splitlines() if re.match(r" +\d+ +\d+\.\d\d ", line)]
    assert [row[0] for row in rows] == [str(chain) for chain in range(10)]
    for row in rows:
        assert 99 <= sum(map(int, row[3:6])) <= 101  # shares of draws, rounded
    counts = re.search(r"nearest to 50 %: (\d+), 85 %: (\d+), 99 %: (\d+), of 10", table).groups()
    nearest = [row[-1] for row in rows]
    assert list(map(int, counts)) == [nearest.count(plateau) for plateau in ("50", "85", "99")]
    for row in rows:
        late = float(row[-2])
        assert int(row[-1]) == min((50, 85, 99), key=lambda plateau: abs(plateau - late))


def test_seconds_add_up(demo):
    lines = demo[0].stdout.partition("\nSeconds\n")[2].splitlines()
    *laps, total = [float(line.split()[0]) for line in lines if re.match(r" +\d+\.\d  ", line)]
    assert total == pytest.approx(sum(laps), abs=0.06 * len(laps))
    assert lines[-1].startswith("2,480 sweeps, ")


def test_warnings_are_plain_lines(demo):
    assert "Warning" not in demo[0].stdout + demo[0].stderr
    assert "Traceback" not in demo[0].stderr


def test_progress_bar_shows_acceptance(demo):
    assert "acc. rate by layer (%)=" in demo[0].stderr


def test_conclusion_names_the_length_of_this_run(demo):
    conclusion = demo[0].stdout.partition(SECTIONS[4])[2]
    assert "After 8 + 240 sweeps" in conclusion
    assert "of 10 chains" in conclusion


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
    assert shapes["layer1.weight"] == (10, 12, 2, 2)
    assert shapes["layer7.weight"] == (10, 12, 1, 2)
    assert shapes["layer7.bias"] == (10, 12, 1)
    lengths = about["draws"], about["warmup"], about["thin"], about["batch_size"]
    assert lengths == (12, 8, 20, 100)


def test_too_few_draws_are_refused(capsys):
    assert refused("demo.py", "--draws", "2") == 2
    assert "must be 4 or more, got 2" in capsys.readouterr().err


# --- MNIST -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mnist_example(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mnist")
    generator = np.random.default_rng(0)
    write_images(
        folder / "data",
        "MNIST",
        train=generator.integers(0, 256, (200, 28, 28)),
        test=generator.integers(0, 256, (50, 28, 28)),
    )
    done = run_example("mnist.py", folder, "--data", "data", "--smoke", "--sweeps", "3")
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_mnist_says_what_it_runs_and_how_long_it_takes(mnist_example):
    text = mnist_example.stdout
    assert "MNIST: 200 training and 50 test images" in text
    assert "8,180 parameters in 70 blocks" in text
    assert "target: approximate: prior x likelihood^0.5" in text
    assert text.index("A sweep, timed:") < text.index("milliseconds per sweep: median")
    assert "Expected for 2 + 3" in text
    assert re.search(r"milliseconds per block: \d+\.\d\d\d ", text)


@pytest.mark.slow
def test_mnist_has_a_row_for_each_layer_and_draw(mnist_example):
    lines = mnist_example.stdout.splitlines()
    layers = [line.split() for line in lines if re.match(r"layer\d ", line)]
    assert [(name, num_params, blocks) for name, num_params, blocks, *_ in layers] == [
        ("layer1", "7,850", "40"),
        *((f"layer{layer}", "110", "10") for layer in (2, 3, 4)),
    ]
    # Shares of the candidates of three sweeps, in per cent
    for _, _, blocks, rate, *_ in layers:
        accepted = float(rate.rstrip(",")) / 100 * 3 * int(blocks)
        assert accepted == pytest.approx(round(accepted), abs=0.0006 * 3 * int(blocks))
        assert accepted > 0
    draws = [re.match(r" +(\d) +(-\d+\.\d) +(\d+\.\d\d) +(\d+\.\d\d)$", line) for line in lines]
    draws = [match.groups() for match in draws if match]
    assert [draw for draw, *_ in draws] == ["1", "2", "3"]
    # The mean of one draw is that draw
    assert draws[0][2] == draws[0][3]


@pytest.mark.slow
def test_mnist_names_the_temperature_and_its_companions(mnist_example):
    text = mnist_example.stdout
    assert "nominal likelihood temperature: 2\n" in text
    assert "standard deviation of the log ratio across batches, at the last position:" in text
    assert "share of decisions that another batch would reverse, at the last position:" in text


@pytest.mark.slow
def test_mnist_says_what_it_cannot_show(mnist_example):
    conclusion = mnist_example.stdout.partition("What this run can and cannot show\n")[2]
    assert "In 5 sweeps from a" in conclusion
    assert "commonest class every time would be for 10.00 %" in " ".join(conclusion.split())
    assert "batches of 100 rows" in " ".join(conclusion.split())
    assert "Traceback" not in mnist_example.stderr


def test_mnist_without_data_ends_with_one_line():
    # Python prints the text of an exit, and ends with code 1
    text = refused("mnist.py", "--data", "nowhere", "--fashion")
    assert text.startswith("FashionMNIST was not found: nowhere/FashionMNIST/raw lacks")
    assert "\n" not in text


# --- NUTS and FNBG -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swap_example(tmp_path_factory):
    done = run_example("swap_kernel.py", tmp_path_factory.mktemp("swap"), "--smoke")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow  # NUTS takes its time
def test_swap_shows_which_parameters_have_no_gradient(swap_example):
    rows = [line.split() for line in swap_example.splitlines() if "no path" in line]
    assert [row[0] for row in rows] == ["ratio", "threshold"]
    # The likelihood does depend on them
    assert all(abs(float(row[-1])) > 1 for row in rows)


@pytest.mark.slow  # NUTS takes its time
def test_swap_gives_nuts_no_fewer_evaluations(swap_example):
    rows = [re.match(r"(FNBG|NUTS) +(\d) +([\d,]+) ", line) for line in swap_example.splitlines()]
    used = {match.groups()[:2]: int(match[3].replace(",", "")) for match in rows if match}
    assert len(used) == 4
    assert all(used["NUTS", chain] >= used["FNBG", chain] for chain in ("0", "1"))


@pytest.mark.slow  # NUTS takes its time
def test_swap_tabulates_every_parameter_for_both_kernels(swap_example):
    table = swap_example.partition("What came out\n")[2]
    for name, value in (("location", 0.5), ("ratio", -0.8), ("jump", 2.0)):
        row = next(line.split() for line in table.splitlines() if line.startswith(name))
        assert float(row[1]) == value
        assert len(row) == 8


@pytest.mark.slow  # NUTS takes its time
def test_swap_ends_with_what_was_measured(swap_example):
    conclusion = " ".join(swap_example.partition("can and cannot show\n")[2].split())
    assert "of the 6 generating values" in conclusion
    assert "where FNBG made 20 sweeps" in conclusion
    assert "The chain is not invalid" in conclusion


# --- Noisy XOR with the paper's settings -------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tuning", [(), ("--adapt",)])
def test_noisy_xor_reports_every_chain(tmp_path, tuning):
    arguments = ("--smoke", "--chains", "3", "--seed", "5", "--output", "out", *tuning)
    done = run_example("noisy_xor.py", tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out" / "chains.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["seed"], row["chain"], row["adapt"], row["sweeps"]) for row in rows] == [
        (5, chain, bool(tuning), 410) for chain in (0, 1, 2)
    ]
    printed = [line.split() for line in done.stdout.splitlines() if re.match(r" +\d  \d", line)]
    for row, cells in zip(rows, printed, strict=True):
        rates = list(row["acceptance by layer"].values())
        assert [float(cell) for cell in cells[1:8]] == pytest.approx(
            [100 * rate for rate in rates], abs=0.06
        )
        assert 0 < row["lowest node"] <= min(rates)
        assert float(cells[8]) == pytest.approx(100 * row["lowest node"], abs=0.06)
        assert len(row["acceptance by layer, last quarter"]) == 7
        assert float(cells[9]) == pytest.approx(row["accuracy of the mean prediction"], abs=0.006)
        assert int(cells[-1]) == row["plateau"]
    counts = [re.match(r"nearest \d\d % +(\d+) chains", line) for line in done.stdout.splitlines()]
    # In two tables: of all draws, and of the last quarter
    assert sum(int(match[1]) for match in counts if match) == 6
    assert done.stdout.lstrip().startswith("approximate: prior x likelihood^0.02")


def test_noisy_xor_singles_out_the_chains_that_found_the_best_mode():
    example = runpy.run_path(str(EXAMPLES / "noisy_xor.py"))
    layers = {"layer1": 0.6, "layer2": 0.8}
    rows = [
        {"plateau": plateau, "accuracy of the mean prediction": accuracy}
        | {"acceptance by layer": layers, "acceptance by layer, last quarter": layers}
        for plateau, accuracy in ((50, 62.0), (85, 97.9), (99, 98.1), (99, 99.0))
    ]
    sizes = {name: len(members) for name, members in example["groups"](rows).items()}
    assert sizes == {
        "all": 4,
        "nearest 50 %": 1,
        "nearest 85 %": 1,
        "nearest 99 %": 2,
        "above 98 %": 2,
    }
