"""The scores on MNIST come from one command that goes on where it was, and say who is better."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks import mnist_scores
from benchmarks.mnist_fits import NETWORK, AdamPlan, cached, fit_adam, read_images
from benchmarks.mnist_page import ADAM, CHAIN, verdict
from pyro_fnbg import ClassPrediction
from support.images import write_images

NUM_TRAIN, NUM_TEST = 220, 60
CHAIN_PLAN, ADAM_PLAN = mnist_scores.SMOKE_PLANS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    # Most rows are of one class: a few sweeps and steps learn that much
    labels = [
        np.where(generator.random(size) < 0.8, 3, np.arange(size) % 10)
        for size in (NUM_TRAIN, NUM_TEST)
    ]
    for name, brightest in (("MNIST", 100), ("FashionMNIST", 256)):
        images = [generator.integers(0, brightest, (size, 28, 28)) for size in map(len, labels)]
        images[0].flat[:2] = 0, 255
        write_images(folder, name, *images, *labels)
    return folder


def pixels_of(folder, name, part, size):
    content = (folder / name / "raw" / f"{part}-images-idx3-ubyte").read_bytes()
    return np.frombuffer(content[16:], np.uint8).reshape(size, 784).astype(float)


def scores_of_run(folder, output):
    arguments = ["--data", folder, "--seeds", "1", "2", "--output", output]
    command = ["mnist_scores", *arguments, "--page", output / "page.md", "--smoke"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", list(map(str, command)))
        mnist_scores.main()
    return json.loads((output / "scores.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def output(folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("output")
    scores_of_run(folder, output)
    return output


@pytest.mark.slow
def test_everybody_is_scored_for_every_seed(output):
    records = json.loads((output / "scores.json").read_text("utf-8"))
    assert [record["seed"] for record in records] == [1, 2]
    assert records[0]["scores"] != records[1]["scores"]
    for record in records:
        sizes = {name: len(every) for name, every in record["scores"].items()}
        assert sizes == {
            "one draw": 2,
            "one chain": 2,
            "pooled chains": 1,
            "one Adam": 2,
            "pooled Adams": 1,
            "pooled chains, temperature fitted": 1,
            "one Adam, temperature fitted": 2,
            "pooled Adams, temperature fitted": 1,
        }
        assert sum(record["reliability"]["pooled chains"]["rows"]) == NUM_TEST
        # The last length is that of what is predicted from, and the highest coverage all rows
        accuracy = record["scores"]["pooled chains"][0]["accuracy"]
        assert record["course"]["pooled"]["accuracy"][-1][-1] == pytest.approx(accuracy)
        assert record["course"]["lengths"][-1] == record["used"] == 4
        risk = record["risk"]["pooled chains"]["mutual information"]["risk"]
        assert risk[-1] == pytest.approx(1 - accuracy)


@pytest.mark.slow
def test_page_says_what_was_run_and_warns(output):
    text = (output / "page.md").read_text("utf-8")
    assert "Its figures mean nothing" in text
    assert all((output / f"curves-{seed}.png").stat().st_size > 0 for seed in (1, 2))
    assert "--data FOLDER --seeds 1 2" in text
    assert "approximate: prior x likelihood^0.15" in text
    assert "200 of MNIST's training rows to learn from and 20 held out" in text
    for heading in ("Where gradient training wins", "Reliability", "Risk and coverage"):
        assert f"\n## {heading}\n" in text


@pytest.mark.slow
def test_what_was_sampled_and_fitted_is_not_made_again(folder, output, monkeypatch):
    before = json.loads((output / "scores.json").read_text("utf-8"))

    def refuse(*_):
        raise AssertionError("made again")

    monkeypatch.setattr(mnist_scores, "run_chains", refuse)
    monkeypatch.setattr(mnist_scores, "fit_adam", refuse)
    assert scores_of_run(folder, output) == before


def test_another_plan_is_made_anew(tmp_path):
    path = tmp_path / "folder" / "made.pt"
    assert cached(path, AdamPlan(), lambda: {"found": 1})["found"] == 1
    assert cached(path, AdamPlan(), lambda: {"found": 2})["found"] == 1
    assert cached(path, AdamPlan(epochs=3), lambda: {"found": 2})["found"] == 2


def test_held_out_rows_are_no_training_rows_and_pixels_are_in_units_of_mnist(folder):
    images = read_images(folder, 20)
    pixels = pixels_of(folder, "MNIST", "train", NUM_TRAIN)
    mean, deviation = pixels.mean(), pixels.std()
    both = torch.cat([images.x_train, images.x_held_out]).double().numpy() * deviation + mean
    assert sorted(map(tuple, both.round())) == sorted(map(tuple, pixels))
    assert (len(images.x_train), len(images.x_held_out)) == (NUM_TRAIN - 20, 20)
    elsewhere = (pixels_of(folder, "FashionMNIST", "t10k", NUM_TEST) - mean) / deviation
    assert np.abs(images.x_elsewhere.numpy() - elsewhere).max() < 1e-3


def test_adam_returns_the_best_epoch_of_the_best_step_size(folder):
    images = read_images(folder, 20)
    plan = replace(ADAM_PLAN, num_fits=1)
    everything = fit_adam(images, 1, plan)
    ((rate, epoch),) = everything["chosen"]
    assert 0 < epoch < plan.epochs
    same = fit_adam(images, 1, replace(plan, epochs=epoch, learning_rates=(rate,)))["samples"]
    assert all(torch.equal(everything["samples"][name], same[name]) for name in same)
    one = {name: values[0] for name, values in same.items()}

    def loss(params):
        logits = NETWORK.forward(params, images.x_held_out)
        return torch.nn.functional.cross_entropy(logits, images.y_held_out)

    for other in plan.learning_rates:
        for epochs in (1, plan.epochs):
            alone = replace(plan, epochs=epochs, learning_rates=(other,))
            fit = fit_adam(images, 1, alone)["samples"]
            assert loss({name: values[0] for name, values in fit.items()}) >= loss(one)


def test_verdict_names_the_winner_of_every_seed():
    def record(chains, adam):
        return {
            "scores": {CHAIN: [chains], ADAM: [adam, adam]},
            "seconds": {CHAIN: 4.0, ADAM: 2.0},
        }

    records = [
        record(
            {"accuracy": 0.8, "nll": 0.5, "brier_score": 0.2, "auroc_information": 0.9},
            {"accuracy": 0.7, "nll": 0.3, "brier_score": 0.3},
        ),
        record(
            {"accuracy": 0.9, "nll": 0.5, "brier_score": 0.3, "auroc_information": 0.9},
            {"accuracy": 0.8, "nll": 0.4, "brier_score": 0.2},
        ),
    ]
    assert verdict(records, CHAIN, ADAM) == (
        "- one chain (4 s) against one Adam (2 s): the chains win in accuracy; Adam wins in "
        "negative log likelihood; the seeds disagree on Brier score"
    )


def test_rows_are_summed_by_confidence():
    probabilities = torch.tensor([[0.95, 0.05], [0.35, 0.65], [1.0, 0.0], [0.65, 0.35]])
    prediction = ClassPrediction(probabilities, torch.zeros(4), num_draws=2)
    found = mnist_scores.reliability(prediction, torch.tensor([0, 0, 1, 0]))
    assert found["rows"] == [0, 0, 0, 0, 0, 0, 2, 0, 0, 2]
    assert found["right"][6] == found["right"][9] == 1
    assert found["confidence"][9] == pytest.approx(1.95)
