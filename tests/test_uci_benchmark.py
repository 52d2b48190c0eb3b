"""The benchmark on sets in common use scores all methods alike, and goes on where it was."""

import json
import math
import sys
import time
from dataclasses import replace

import numpy as np
import pyro
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from benchmarks.report import read_records
from benchmarks.uci import __main__ as command
from benchmarks.uci import baselines, fits, rows, scoring, sets
from benchmarks.uci.exchange import (
    Outcome,
    Task,
    read_outcome,
    read_task,
    write_outcome,
    write_task,
)
from benchmarks.uci.page import page, place_of
from benchmarks.uci.plans import PLANS, Plan
from pyro_fnbg import BayesianMLP, predict, score_classes, score_numbers

Y_NUMBERS = np.array([0.0, 1.0])
# Two chains of one draw: of each row a mixture of two Normal distributions
NUMBERS = Outcome(
    means=np.array([[[0.0, 1.0]], [[0.0, 3.0]]]),
    scales=np.array([[[1.0, 2.0]], [[2.0, 2.0]]]),
)


def normal(y, mean, scale):
    return math.exp(-((y - mean) ** 2) / (2 * scale**2)) / (scale * math.sqrt(2 * math.pi))


def test_numbers_are_scored_as_mixtures():
    found = scoring.scores(NUMBERS, Y_NUMBERS)
    assert found["rmse"] == pytest.approx(math.sqrt((0 + 1) / 2))
    densities = [
        (normal(0, 0, 1) + normal(0, 0, 2)) / 2,
        (normal(1, 1, 2) + normal(1, 3, 2)) / 2,
    ]
    assert found["lppd"] == pytest.approx(np.log(densities).mean())
    # Variances: (1 + 4) / 2 in the first row, 4 + 1 in the second
    gaussians = [normal(0, 0, math.sqrt(2.5)), normal(1, 2, math.sqrt(5))]
    assert found["gaussian_nll"] == pytest.approx(-np.log(gaussians).mean())
    assert [found[f"coverage_{one}"] for one in (50, 80, 90, 95)] == [1.0] * 4


def test_coverage_counts_the_ends_of_the_mixture():
    one = Outcome(np.zeros((1, 1, 4)), np.ones((1, 1, 4)))
    found = scoring.scores(one, np.array([0.6, 1.2, 1.7, 1.9]))
    assert [found[f"coverage_{one}"] for one in (50, 80, 90, 95)] == [0.25, 0.5, 0.5, 1.0]


def test_classes_are_scored_by_averaged_probabilities():
    probabilities = np.array([[[[0.9, 0.1], [0.2, 0.8]]], [[[0.5, 0.5], [0.6, 0.4]]]])
    outcome = Outcome(log_probabilities=np.log(probabilities))
    found = scoring.scores(outcome, np.array([0, 0]))
    assert found["accuracy"] == 0.5
    assert found["lppd"] == pytest.approx(np.log([0.7, 0.4]).mean())


def test_course_ends_with_the_scores_and_begins_with_those_of_one_chain():
    found, scores = scoring.course(NUMBERS, Y_NUMBERS), scoring.scores(NUMBERS, Y_NUMBERS)
    assert found["chains"] == [1, 2]
    assert found["draws"] == [1]
    for name, values in found["by_chains"].items():
        assert values[-1] == found["by_draws"][name][-1] == scores[name]
    assert found["by_chains"]["rmse"][0] == 0


def test_chains_are_diagnosed_by_rows_and_single_draws_are_not():
    generator = np.random.default_rng(0)
    means = generator.standard_normal((3, 50, 300))
    far = means + 9 * np.arange(3)[:, None, None]
    good, bad = (scoring.diagnostics(Outcome(each, np.ones_like(each))) for each in (means, far))
    assert good["rows"] == scoring.MAX_DIAGNOSED
    assert good["r_hat_median"] < 1.02
    assert good["r_hat_max"] < 1.2
    assert bad["r_hat_median"] > 2
    assert good["ess_median"] == pytest.approx(150, rel=0.2)
    assert scoring.diagnostics(NUMBERS) == {}


@pytest.mark.parametrize("num_classes", [3, 0])
def test_networks_predict_what_the_package_predicts(num_classes):
    pyro.set_rng_seed(1)
    x = torch.randn(6, 3)
    y = torch.tensor([0, 1, 2, 0, 1, 2]) if num_classes else torch.randn(6)
    about = {"num_classes": num_classes, "settings": {"hidden": [4]}}
    model = fits.network(Task(x.numpy(), y.numpy(), x.numpy(), about))
    assert isinstance(model, BayesianMLP)
    assert model.widths == (3, 4, num_classes or 2)
    samples = {name: torch.randn(2, 5, *shape) for name, shape in model.parameter_shapes.items()}
    found = scoring.scores(fits.predicted(model, samples, x, {}), y.numpy())
    pooled = {name: values.flatten(0, 1) for name, values in samples.items()}
    if num_classes:
        expected = score_classes(predict(model, pooled, x), y)
    else:
        expected = score_numbers(predict(model, pooled, x, y, quantiles=scoring.LEVELS), y)
    assert found == pytest.approx(dict(expected), rel=1e-4)


def test_split_is_standardised_by_the_rows_to_learn_from(tmp_path):
    generator = np.random.default_rng(0)
    table = generator.normal(5, 3, (50, 4))
    np.savetxt(tmp_path / "yacht.data", table)
    split = sets.split("yacht", tmp_path, seed=3)
    assert (split.x_train.shape, split.x_test.shape, split.num_classes) == ((40, 3), (10, 3), 0)
    for part in (split.x_train, split.y_train):
        assert part.mean(0) == pytest.approx(0, abs=1e-9)
        assert part.std(0) == pytest.approx(1)
    train, test = train_test_split(table, test_size=0.2, random_state=3)
    mean, deviation = train.mean(0), train.std(0)
    together = np.column_stack([split.x_test, split.y_test])
    assert together == pytest.approx((test - mean) / deviation)


def test_classes_are_numbers_from_zero():
    split = sets.split("breast_cancer", None, seed=0)
    y = load_breast_cancer(return_X_y=True)[1]
    expected = train_test_split(y, test_size=0.2, random_state=0)[1]
    assert split.num_classes == 2
    assert split.y_test.tolist() == expected.tolist()


def test_bikesharing_has_the_season_in_place_of_the_row(tmp_path):
    numbers = np.array([1, 1807, 1808, 8384, 8385, 17118, 17379])
    np.savetxt(tmp_path / "bikesharing.data", np.column_stack([numbers, 0 * numbers, numbers]))
    x, y = sets._read("bikesharing", tmp_path)
    assert x[:, 0].tolist() == [1, 1, 2, 4, 1, 1, 1]
    assert y.tolist() == numbers.tolist()


def test_a_set_that_is_read_from_a_folder_needs_one():
    with pytest.raises(ValueError, match="--data FOLDER"):
        sets.split("airfoil", None, 0)


def test_what_is_exchanged_comes_back(tmp_path):
    task = Task(
        np.ones((3, 2)), np.arange(3), np.zeros((1, 2)), {"seed": 1, "settings": {"a": [1]}}
    )
    write_task(tmp_path / "task.npz", task)
    found = read_task(tmp_path / "task.npz")
    assert found.about == task.about
    assert (found.y_train == task.y_train).all()
    assert found.y_train.dtype == task.y_train.dtype
    write_outcome(tmp_path / "folder" / "outcome.npz", replace(NUMBERS, about={"seconds": 1.5}))
    outcome = read_outcome(tmp_path / "folder" / "outcome.npz")
    assert outcome.about == {"seconds": 1.5}
    assert (outcome.means == NUMBERS.means).all()
    assert outcome.log_probabilities.size == 0
    # Nothing unfinished is left
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["outcome.npz"]


def test_pace_is_that_of_the_sweeps_without_set_up(monkeypatch):
    clock = [0.0]
    sweeps_run = []

    def run(warmup, num_draws, thin):
        # The first call compiles
        clock[0] += 1.5 + 0.01 * warmup + (20 if not sweeps_run else 0)
        sweeps_run.append(warmup)

    monkeypatch.setattr(time, "process_time", lambda: clock[0])
    set_up, per_sweep = fits.pace(run, seconds=2.0)
    assert (set_up, per_sweep) == pytest.approx((1.5, 0.01))
    assert 0.01 * sweeps_run[-1] > 2.0


def test_linear_model_and_trees_have_an_error_of_rows_that_they_did_not_see(monkeypatch):
    monkeypatch.setattr(baselines, "GRID", {"max_iter": [2, 40], "min_samples_leaf": [5]})
    generator = np.random.default_rng(0)
    x = generator.standard_normal((120, 3))
    y = x[:, 0] + generator.normal(0, 0.5, 120)
    task = Task(x, y, x[:7], {"num_classes": 0, "seed": 0, "settings": {"hidden": []}})
    for method in ("linear", "boosting"):
        outcome = fits.METHODS[method](task)
        assert outcome.means.shape == outcome.scales.shape == (1, 1, 7)
        assert len(np.unique(outcome.scales)) == 1
        # The noise has 0.5, and trees fit that too: to rows that they see the error is less
        assert 0.45 < outcome.scales[0, 0, 0] < 1
        assert outcome.about["core_seconds"] > 0
    labels = replace(task, y_train=(y > 0).astype(int), about=task.about | {"num_classes": 2})
    for method in ("linear", "boosting"):
        found = np.exp(fits.METHODS[method](labels).log_probabilities)
        assert found.shape == (1, 1, 7, 2)
        assert found.sum(-1) == pytest.approx(1, abs=1e-6)


def test_ensemble_stops_before_the_budget_is_spent(monkeypatch):
    clock = [0.0]
    model = fits.network(Task(np.ones((1, 2)), np.zeros(1), np.ones((1, 2)), ABOUT))

    def fit(model, x, y, count, settings):
        clock[0] += 3.0
        return {name: torch.zeros(count, *shape) for name, shape in model.parameter_shapes.items()}

    monkeypatch.setattr(time, "process_time", lambda: clock[0])
    monkeypatch.setattr(fits, "fitted", fit)
    monkeypatch.setattr(fits, "network", lambda task: model)
    outcome = fits.fit_ensemble(Task(np.ones((1, 2)), np.zeros(1), np.ones((4, 2)), ABOUT))
    # Four rounds would take 12 seconds
    assert outcome.log_probabilities.shape == (6, 1, 4, 2)
    assert outcome.about["core_seconds"] == 9.0


ABOUT = {
    "num_classes": 2,
    "seed": 0,
    "budget_seconds": 11.0,
    "settings": {"hidden": [3], "members_at_a_time": 2, "warm_start": {}},
}


@pytest.fixture
def options(tmp_path):
    return rows.Options(
        plan=PLANS["quick"],
        data=None,
        peer=None,
        budget_seconds=None,
        results=tmp_path / "results",
        output=tmp_path / "output",
    )


def refuse(*_, **__):
    raise AssertionError("run again")


@pytest.mark.slow  # a benchmark is run by hand
def test_a_row_that_is_there_is_not_run_again(options, monkeypatch):
    record = rows.run_row("digits", 0, "linear", options)
    assert record["status"] == "done"
    assert record["rows"] == {"train": 160, "test": 40}
    assert record["scores"]["accuracy"] > 0.8
    assert record["settings"] == {"hidden": [16] * 4}
    assert (options.output / "digits-0-linear.npz").exists()
    monkeypatch.setattr(rows.subprocess, "run", refuse)
    assert rows.run_row("digits", 0, "linear", options) == record
    # Without its record it is scored anew, and not fitted
    path = rows.record_path(options.results, "digits", 0, "linear")
    path.unlink()
    again = rows.run_row("digits", 0, "linear", options)
    assert again["scores"] == record["scores"]
    assert read_records(options.results) == [again]


def test_a_row_that_fails_is_recorded_and_tried_again(options, monkeypatch):
    record = rows.run_row("digits", 0, "bde", options)
    assert record["status"] == "failed"
    assert "--peer PYTHON" in record["error"]

    def fail(arguments, stdout, **_):
        stdout.write("first\nValueError: in /home/somebody/file.py: too few\n")
        return rows.subprocess.CompletedProcess(arguments, 1)

    monkeypatch.setattr(rows.subprocess, "run", fail)
    with_peer = replace(options, peer=options.output / "python")
    record = rows.run_row("digits", 0, "bde", with_peer)
    assert record["error"] == "RuntimeError: exit code 1: ValueError: in PATH: too few"
    assert read_records(options.results) == [record]


def test_budget_is_the_time_of_the_peer(options):
    with pytest.raises(RuntimeError, match="--budget-seconds"):
        rows._budget("digits", 1, options)
    path = rows.record_path(options.results, "digits", 1, "bde")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"status": "done", "about": {"core_seconds": 12.5}}), "utf-8")
    assert rows._budget("digits", 1, options) == 12.5
    asked = replace(options, budget_seconds=3.0)
    assert rows._budget("digits", 1, asked) == 3.0
    # It is among the settings of those that have one
    assert rows._settings("warm", asked)["budget_seconds"] == 3.0
    assert "budget_seconds" not in rows._settings("warm", options) | rows._settings("bde", asked)


def test_every_method_has_settings_and_a_program():
    for method in rows.METHODS:
        assert PLANS["full"].of(method)["hidden"] == [16] * 4
    assert set(fits.METHODS) == {name for name, module in rows.MODULES.items() if module == "fits"}
    # Those of the benchmark of the peer's authors
    peer = Plan("full").of("bde")
    assert (peer["num_chains"], peer["peer"]["warmup_steps"]) == (10, 50_000)


def record_of(method, seed, rmse, lppd, seconds=10.0, **about):
    scores = {"rmse": rmse, "lppd": lppd, "gaussian_nll": -lppd}
    course = {
        "chains": [1, 2],
        "by_chains": {name: [2 * value, value] for name, value in scores.items()},
        "draws": [1],
        "by_draws": {name: [value] for name, value in scores.items()},
    }
    return {
        "set": "airfoil",
        "seed": seed,
        "method": method,
        "plan": "full",
        "status": "done",
        "settings": PLANS["full"].of(method),
        "rows": {"train": 1202, "test": 301},
        "inputs": 5,
        "num_classes": 0,
        "scores": scores,
        "shape": [2, 1],
        "course": course,
        "diagnostics": {"r_hat_max": 1.5, "r_hat_median": 1.01, "ess_min": 3.0, "ess_median": 99.0},
        "about": {"core_seconds": seconds, **about},
        "machine": {"processor": "a processor", "system": "a system"},
        "versions": {"python": "3.11"},
    }


def test_course_has_only_what_all_seeds_of_a_method_have():
    first, second = record_of("ensemble", 0, 0.1, 0.9), record_of("ensemble", 1, 0.3, 0.7)
    second["course"]["chains"] = [1, 3]
    lines = page([first, second]).split("| chains or members |")[1].splitlines()
    assert [line.split(" | ")[0] for line in lines[2:] if line.startswith("| ")] == ["| 1"]
    assert "| 1 | 0.400, 1.600, -1.600 |" in lines


def test_page_has_means_ranges_winners_and_failures():
    rates = [[0.2, 0.4], [0.3, 0.5]]
    records = [
        record_of("warm", 0, 0.1, 0.9, acceptance_by_layer=rates),
        record_of("warm", 1, 0.2, 0.7, acceptance_by_layer=rates),
        record_of("bde", 0, 0.15, 0.9),
        record_of("bde", 1, 0.25, 0.8),
        {
            "set": "yacht",
            "seed": 2,
            "method": "nuts",
            "plan": "full",
            "status": "failed",
            "error": "RuntimeError: no memory",
            "settings": PLANS["full"].of("nuts"),
        },
    ]
    text = page(records[::-1])
    assert "mean nothing" not in text
    assert "| FNBG, from fits | 0.150 (0.100 to 0.200) | 0.800 (0.700 to 0.900) |" in text
    assert text.index("| FNBG, from fits | 0.15") < text.index("| sklearn-contrib-bde | 0.2")
    assert (
        "- FNBG, from fits (10 s) against sklearn-contrib-bde (10 s), seeds 0, 1: better in RMSE; "
        "seeds disagree on log predictive density, Gaussian NLL\n"
    ) in text
    assert "| 1 | 0.300, 1.600, -1.600 | 0.400, 1.700, -1.700 |" in text
    assert "| airfoil | FNBG, from fits | 25 % (20 to 30) | 45 % (40 to 50) |" in text
    assert "- yacht, seed 2, NUTS: RuntimeError: no memory" in text
    assert "warmup_steps 50000" in text
    assert "RMSE 0.1216, Gaussian NLL -0.913" in text


def test_rows_that_had_more_time_are_below_those_they_are_compared_with():
    records = [record_of("warm", seed, 0.1 * seed, 0.9) for seed in (1, 2)]
    assert "With more time" not in page(records)
    longer = [record_of("warm", 2, 0.15, 0.95, seconds=20.0)]
    lines = page(records, longer).split("## With more time")[1].splitlines()
    assert [line for line in lines if line.startswith("| airfoil")] == [
        "| airfoil, 2 | FNBG, from fits | 2 | 0.200 | 0.900 | -0.900 | 1.01 | 10.0 |",
        "| airfoil, 2 | FNBG, from fits | 2 | 0.150 | 0.950 | -0.950 | 1.01 | 20.0 |",
    ]


def test_places_of_gains():
    gains = ([1.0, 2.0], [-1.0, -2.0], [0.0, 0.0], [1.0, -1.0], [0.0, 1.0])
    assert [place_of(each) for each in gains] == [0, 1, 2, 3, 3]


def test_the_command_runs_what_it_is_asked_for(tmp_path, monkeypatch):
    asked = []

    def run(name, seed, method, options):
        asked.append((name, seed, method))
        record = record_of(method, seed, 0.1, 0.9) | {"plan": options.plan.name, "set": name}
        options.results.mkdir(parents=True, exist_ok=True)
        path = rows.record_path(options.results, name, seed, method)
        path.write_text(json.dumps(record), "utf-8")
        return record

    cores = []
    monkeypatch.setattr(command, "run_row", run)
    monkeypatch.setattr(command.os, "sched_setaffinity", lambda _, found: cores.append(found))
    wanted = "--sets yacht --seeds 4 2 --rows warm bde --core 0 --quick"
    arguments = [*wanted.split(), "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["uci", *arguments])
    command.main()
    # The peer first: its time is the budget
    assert asked == [("yacht", seed, method) for seed in (4, 2) for method in ("bde", "warm")]
    assert cores == [{0}]
    assert "Its figures mean nothing" in (tmp_path / "quick" / "uci.md").read_text("utf-8")
