"""Every score against a loop by hand, and what is printed beside it."""

import dataclasses
import math

import pytest
import torch

from pyro_fnbg.core.batches import EXACT_TARGET, BatchPlan
from pyro_fnbg.prediction import scores
from pyro_fnbg.prediction.outcomes import ClassPrediction, NumberPrediction
from pyro_fnbg.prediction.scores import Scores, ood_auroc, score_classes, score_numbers
from pyro_fnbg.prediction.temperature import fit_temperature

BATCHES = BatchPlan("data", 60_000, 3_000, "shuffled", 1.0).target


@pytest.fixture(params=[2, 5], ids=["two classes", "five classes"])
def classes(request):
    """Averaged probabilities of 200 rows, and classes drawn from sharper ones."""
    logits = 2 * torch.randn(20, 200, request.param) + torch.randn(200, request.param)
    probabilities = torch.softmax(logits, -1).mean(0)
    y = torch.multinomial(probabilities.square(), 1).squeeze(-1)
    return ClassPrediction(probabilities, torch.zeros(200), num_draws=20), y


@pytest.fixture(params=[(), (3,)], ids=["one number", "three numbers"])
def numbers(request):
    """A mixture of 40 Normal distributions a row, with all of its quantiles, and responses."""
    shape = (60, *request.param)
    means, scale = torch.randn(40, *shape).double(), 0.5
    responses = means + scale * torch.randn(40, *shape)
    levels = [0.025, 0.05, 0.1, 0.25, 0.75, 0.9, 0.95, 0.975]
    y = means[0] + scale * torch.randn(shape)
    density = torch.distributions.Normal(means, scale).log_prob(y)
    density = density.sum(-1) if request.param else density
    prediction = NumberPrediction(
        means.mean(0),
        torch.full(shape, scale**2).double(),
        means.var(0, correction=0),
        num_draws=40,
        quantiles={level: responses.quantile(level, dim=0) for level in levels},
        log_density=density.logsumexp(0) - math.log(40),
    )
    return prediction, y, responses


def calibration_error_by_hand(probabilities, y, bins=15):
    total = 0.0
    for place in range(bins):
        rows = [
            (max(row), float(row.index(max(row)) == label))
            for row, label in zip(probabilities, y, strict=True)
            if min(int(max(row) * bins), bins - 1) == place
        ]
        if rows:
            confidence, accuracy = (sum(values) / len(rows) for values in zip(*rows, strict=True))
            total += len(rows) / len(y) * abs(confidence - accuracy)
    return total


def test_scores_of_classes_by_hand(classes):
    prediction, y = classes
    found = score_classes(prediction, y)
    rows = list(zip(prediction.probabilities.double().tolist(), y.tolist(), strict=True))
    expected = {
        "accuracy": sum(row.index(max(row)) == label for row, label in rows) / 200,
        "lppd": sum(math.log(row[label]) for row, label in rows) / 200,
        "nll": -sum(math.log(row[label]) for row, label in rows) / 200,
        "brier_score": sum(
            (p - (place == label)) ** 2 for row, label in rows for place, p in enumerate(row)
        )
        / 200,
        "calibration_error": calibration_error_by_hand(
            [row for row, _ in rows], [label for _, label in rows]
        ),
    }
    assert list(found) == list(expected)
    assert len(found) == 5
    assert dict(found) == pytest.approx(expected, rel=1e-5)
    assert all(type(value) is float for value in found.values())
    assert 0.3 < found["accuracy"] < 1.0  # neither all right nor all wrong
    assert found["calibration_error"] > 0.02


def test_scores_of_numbers_by_hand(numbers):
    prediction, y, responses = numbers
    found = score_numbers(prediction, y, responses)
    mean, scale = prediction.mean.flatten().tolist(), prediction.scale.flatten().tolist()
    flat = y.flatten().tolist()
    ensembles = responses.flatten(1).T.tolist()
    squares = [(m - v) ** 2 for m, v in zip(mean, flat, strict=True)]
    gaussian = [
        0.5 * math.log(2 * math.pi * s**2) + (v - m) ** 2 / (2 * s**2)
        for m, s, v in zip(mean, scale, flat, strict=True)
    ]
    crps = [
        sum(abs(a - v) for a in some) / 40
        - sum(abs(a - b) for a in some for b in some) / (2 * 40**2)
        for some, v in zip(ensembles, flat, strict=True)
    ]
    expected = {
        "rmse": math.sqrt(sum(squares) / len(flat)),
        "lppd": sum(prediction.log_density.tolist()) / 60,
        "gaussian_nll": sum(gaussian) / 60,
    }
    for percent in (50, 80, 90, 95):
        lower, upper = (
            prediction.quantiles[level].flatten().tolist()
            for level in ((100 - percent) / 200, (100 + percent) / 200)
        )
        inside = [low <= v <= high for low, v, high in zip(lower, flat, upper, strict=True)]
        expected[f"coverage_{percent}"] = sum(inside) / len(flat)
    expected["crps"] = sum(crps) / len(flat)
    assert list(found) == list(expected)
    assert dict(found) == pytest.approx(expected, rel=1e-5)
    assert 0 < found["coverage_50"] < found["coverage_95"] <= 1


@pytest.mark.parametrize("at_a_time", [1, 40**2 * 7, 10**9])
def test_the_ranked_score_does_not_depend_on_the_rows_at_a_time(numbers, at_a_time, monkeypatch):
    prediction, y, responses = numbers
    expected = score_numbers(prediction, y, responses)["crps"]
    monkeypatch.setattr(scores, "MAX_NUMBERS", at_a_time)
    assert score_numbers(prediction, y, responses)["crps"] == pytest.approx(expected, rel=1e-12)


def test_what_a_prediction_lacks_is_left_out():
    prediction = NumberPrediction(torch.zeros(3), torch.ones(3), torch.zeros(3), num_draws=5)
    assert list(score_numbers(prediction, torch.ones(3))) == ["rmse", "gaussian_nll"]


def test_a_class_that_was_ruled_out_costs_infinitely_much():
    prediction = ClassPrediction(torch.eye(2), torch.zeros(2), num_draws=1)
    found = score_classes(prediction, torch.tensor([0, 0]))
    assert (found["lppd"], found["nll"]) == (-math.inf, math.inf)
    assert found["brier_score"] == 1.0


def test_a_probability_rounded_above_one_is_no_logit():
    p = torch.tensor([[1 + 1e-7, 0.0], [0.5, 0.5], [0.1, 0.9]])
    found = score_classes(ClassPrediction(p, torch.zeros(3), 1), torch.tensor([0, 0, 1]))
    assert found["calibration_error"] == pytest.approx((0.0 + 0.5 + 0.1) / 3, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_probabilities_of_any_precision(classes, dtype):
    prediction, y = classes
    rounded = dataclasses.replace(prediction, probabilities=prediction.probabilities.to(dtype))
    # A rounded probability is off by a share of 2^-9 or less; rows near the edge of a bin change it
    for name in ("nll", "brier_score"):
        expected = score_classes(prediction, y)[name]
        assert score_classes(rounded, y)[name] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0.5, 0.5], [math.nan, 1.0]], r"sum to 1 in each row, got \[nan, 1.0\] in row 1"),
        ([[math.inf, 0.5], [0.5, 0.5]], r"sum to 1 in each row, got \[inf, 0.5\] in row 0"),
        ([[0.5, 0.5], [-1.0, 2.0]], r"sum to 1 in each row, got \[-1.0, 2.0\] in row 1"),
        ([[1.0], [0.5]], r"sum to 1 in each row, got \[0.5\] in row 1"),
        ([[1.0], [1.0]], "two classes or more, got 1"),
    ],
)
@pytest.mark.parametrize("function", [score_classes, fit_temperature])
def test_predictions_that_are_no_distribution_are_refused(function, rows, message):
    prediction = ClassPrediction(torch.tensor(rows), torch.zeros(2), num_draws=1)
    with pytest.raises(ValueError, match=f"prediction must have .*{message}"):
        function(prediction, torch.zeros(2))


@pytest.mark.parametrize(
    ("plan", "warns"),
    [
        (BatchPlan("data", 10, 10, "full", 1.0), False),
        (BatchPlan("data", 10, 10, "full", 0.5), True),
        (BatchPlan("data", 10, 5, "shuffled", 1.0), True),
        (BatchPlan("data", 10, 5, "shuffled", 2.0), True),
    ],
)
def test_scores_say_what_the_chain_targeted(classes, plan, warns):
    prediction, y = classes
    found = score_classes(prediction, y, target=plan.target)
    lines = str(found).splitlines()
    assert repr(found) == str(found)
    assert lines[5:7] == ["200 rows, 20 draws", f"target of the chain: {plan.target}"]
    assert lines[7:] == [f"warning: {scores.UNDERCONFIDENT}"] * warns
    assert "target of the chain: not given" in str(score_classes(prediction, y))


def test_scores_name_a_temperature(classes):
    prediction, y = classes
    assert "temperature:" not in str(score_classes(prediction, y, target=EXACT_TARGET))
    found = score_classes(prediction.with_temperature(0.25), y, target=BATCHES)
    assert found.temperature == 0.25
    warning, temperature = str(found).splitlines()[-2:]
    assert warning == f"warning: {scores.TEMPERED}"
    assert temperature.startswith("temperature: 0.25 (")


@pytest.mark.parametrize("target", ["NUTS", 1.0, ""])
def test_a_target_in_other_words_is_refused(classes, target):
    with pytest.raises(ValueError, match="target must be the words of to_arviz"):
        score_classes(*classes, target=target)
    prediction = NumberPrediction(torch.zeros(3), torch.ones(3), torch.zeros(3), num_draws=5)
    with pytest.raises(ValueError, match="target must be the words of to_arviz"):
        score_numbers(prediction, torch.zeros(3), target=target)


CLASSES = ClassPrediction(torch.full((3, 2), 0.5), torch.zeros(3), num_draws=1)
NUMBERS = NumberPrediction(torch.zeros(3), torch.ones(3), torch.zeros(3), num_draws=5)


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        ([0, 1, 0], TypeError, "y must be a torch tensor of real numbers, got list"),
        (torch.zeros(4), ValueError, r"y must have shape \(3,\), \(3, 1\) or \(3, 2\); got \(4,\)"),
        (torch.tensor([0, 1, 2]), ValueError, "whole numbers from 0 to 1, got 2"),
        (torch.tensor([0, -1, 1]), ValueError, "whole numbers from 0 to 1, got -1"),
        (torch.tensor([0, 0.5, 1]), ValueError, "whole numbers from 0 to 1, got 0.5"),
        (torch.tensor([0, torch.nan, 1]), ValueError, "whole numbers from 0 to 1, got nan"),
    ],
)
def test_classes_that_do_not_fit(y, error, message):
    with pytest.raises(error, match=message):
        score_classes(CLASSES, y)


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (None, TypeError, "y must be a torch tensor of real numbers, got NoneType"),
        (torch.zeros(4), ValueError, r"y must have shape \(3,\) or \(3, 1\), got \(4,\)"),
        (torch.tensor([0, torch.inf, 1]), ValueError, "finite numbers, got inf"),
    ],
)
def test_numbers_that_do_not_fit(y, error, message):
    with pytest.raises(error, match=message):
        score_numbers(NUMBERS, y)


def test_the_other_kind_of_prediction_is_refused():
    for function in (score_classes, fit_temperature):
        with pytest.raises(TypeError, match="prediction must be a ClassPrediction, got .*NumberPr"):
            function(NUMBERS, torch.zeros(3))
    with pytest.raises(TypeError, match="must be a NumberPrediction, got one of type ClassPred"):
        score_numbers(CLASSES, torch.zeros(3))


@pytest.mark.parametrize(
    ("responses", "error", "message"),
    [
        (torch.zeros(1, 3), ValueError, r"have shape \(draws, \*\(3,\)\), two draws"),
        (torch.zeros(3, 9), ValueError, r"have shape \(draws, \*\(3,\)\), two draws"),
        (torch.eye(3).log(), ValueError, "hold finite numbers, got -inf of draw 0 in row 1"),
        (torch.eye(3).log() * 0.0, ValueError, "hold finite numbers, got nan of draw 0 in row 1"),
        ([0.0], TypeError, "be a torch tensor of real numbers, got list"),
        (torch.zeros(2, 3) * 1j, TypeError, "be a torch tensor of real numbers, got dtype torch.c"),
    ],
)
def test_responses_that_do_not_fit(responses, error, message):
    with pytest.raises(error, match=f"responses must {message}"):
        score_numbers(NUMBERS, torch.zeros(3), responses)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("part", ["mean", "data_variance", "network_variance"])
def test_predictions_without_numbers_are_refused_by_row(part, wrong):
    parts = {"mean": torch.zeros(3, 2), "data_variance": torch.ones(3, 2)}
    parts |= {"network_variance": torch.ones(3, 2)}
    parts[part][1, 1] = wrong
    with pytest.raises(ValueError, match="prediction must have finite means and .* in row 1$"):
        score_numbers(NumberPrediction(**parts, num_draws=5), torch.zeros(3, 2))


def test_a_prediction_without_spread_is_refused_by_row():
    prediction = NumberPrediction(torch.ones(3), torch.eye(3)[0], torch.zeros(3), num_draws=5)
    with pytest.raises(ValueError, match=r"deviations above 0, got 1\.0 and 0\.0 in row 1$"):
        score_numbers(prediction, torch.zeros(3))


@pytest.mark.parametrize("level", [0.25, 0.75])
def test_the_coverage_of_unknown_intervals_is_not_known(level):
    quantiles = {0.05: -torch.ones(3), 0.25: -torch.ones(3), 0.75: torch.ones(3)}
    quantiles |= {0.95: torch.ones(3), level: torch.tensor([0.0, torch.nan, 0.0])}
    prediction = dataclasses.replace(NUMBERS, quantiles=quantiles)
    found = score_numbers(prediction, torch.zeros(3))
    assert math.isnan(found["coverage_50"])
    assert found["coverage_90"] == 1.0


def test_auroc_by_hand():
    inside, outside = torch.randn(40).round(decimals=1), 0.5 + torch.randn(30).round(decimals=1)
    pairs = [(a, b) for a in inside.tolist() for b in outside.tolist()]
    expected = sum((b > a) + 0.5 * (b == a) for a, b in pairs) / len(pairs)
    assert ood_auroc(inside, outside) == pytest.approx(expected)
    assert 0.5 < expected < 0.9
    assert ood_auroc(outside, inside) == pytest.approx(1 - expected)
    assert ood_auroc(1e6 * inside, 1e6 * outside) == pytest.approx(expected)


@pytest.mark.parametrize("wrong", [[], [[0.1]], [torch.nan], "a", None])
def test_uncertainties_that_are_no_numbers(wrong):
    with pytest.raises(ValueError, match="in_scores must be finite numbers, one a row"):
        ood_auroc(wrong, [1.0])
    with pytest.raises(ValueError, match="out_scores must be finite numbers, one a row"):
        ood_auroc([1.0], wrong)


def test_a_mapping_of_scores():
    found = Scores({"a": 1.0, "bb": 2.0}, num_rows=3, num_draws=4, target=None)
    assert (dict(found), len(found), found["bb"]) == ({"a": 1.0, "bb": 2.0}, 2, 2.0)
    assert str(found).splitlines()[:2] == ["a   1", "bb  2"]
