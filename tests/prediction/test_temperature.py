import math

import pytest
import torch

from pyro_fnbg.prediction.outcomes import ClassPrediction
from pyro_fnbg.prediction.scores import score_classes
from pyro_fnbg.prediction.temperature import fit_temperature

# 1 / temperature is the slope of a logistic regression on 2,000 rows; logits have a variance of
# 0.42 among the classes of a row, on average: the standard error is 1 / sqrt(2000 x 0.42)
TOLERANCE = 4.5 * 0.0345


def tempered(temperature, num_rows=2000, classes=3):
    """Classes drawn from some probabilities, and these to the power of 1 / temperature."""
    logits = 2 * torch.randn(num_rows, classes)
    y = torch.multinomial(torch.softmax(logits, -1), 1).squeeze(-1)
    probabilities = torch.softmax(logits / temperature, -1)
    return ClassPrediction(probabilities, torch.ones(num_rows), num_draws=7), y


def nll_by_hand(prediction, y, temperature):
    total = 0.0
    for row, label in zip(prediction.probabilities.double().tolist(), y.tolist(), strict=True):
        powers = [p ** (1 / temperature) for p in row]
        total -= math.log(powers[label] / sum(powers)) / len(y)
    return total


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_temperature_is_where_held_out_rows_are_most_probable(temperature):
    prediction, y = tempered(temperature)
    found = fit_temperature(prediction, y)
    lowest = nll_by_hand(prediction, y, found)
    for other in (0.99 * found, 1.01 * found):
        assert nll_by_hand(prediction, y, other) > lowest
    assert score_classes(prediction.with_temperature(found), y)["nll"] == pytest.approx(
        lowest, rel=1e-5
    )
    assert found * temperature == pytest.approx(1.0, rel=TOLERANCE)


def test_the_best_temperature_of_a_rescaled_prediction_is_one():
    prediction, y = tempered(5.0)
    rescaled = prediction.with_temperature(fit_temperature(prediction, y))
    assert fit_temperature(rescaled, y) == pytest.approx(1.0, rel=1e-4)


def test_under_confidence_is_mended():
    prediction, y = tempered(5.0)
    rescaled = prediction.with_temperature(fit_temperature(prediction, y))
    before, after = score_classes(prediction, y), score_classes(rescaled, y)
    assert before["calibration_error"] > 0.2
    assert after["calibration_error"] < 0.05
    assert before["accuracy"] == after["accuracy"]


def test_a_rescaled_prediction():
    p = torch.tensor([[0.2, 0.8, 0.0]])
    prediction = ClassPrediction(p, torch.tensor([0.1]), num_draws=4)
    found = prediction.with_temperature(0.5)
    torch.testing.assert_close(found.probabilities, torch.tensor([[1 / 17, 16 / 17, 0.0]]))
    assert (found.temperature, found.num_draws, prediction.temperature) == (0.5, 4, 1.0)
    assert found.expected_entropy.isnan().all()
    assert found.mutual_information.isnan().all()
    twice = found.with_temperature(4.0)
    assert twice.temperature == 2.0
    torch.testing.assert_close(twice.probabilities, prediction.with_temperature(2.0).probabilities)


@pytest.mark.parametrize("wrong", [0, -1.0, math.nan, math.inf, True, "1", None])
def test_a_temperature_is_a_positive_number(wrong):
    with pytest.raises(ValueError, match="temperature must be a positive number, got"):
        ClassPrediction(torch.ones(1, 2) / 2, torch.zeros(1), 1).with_temperature(wrong)


def predicted(*rows):
    return ClassPrediction(torch.tensor(rows), torch.zeros(len(rows)), num_draws=1)


@pytest.mark.parametrize(
    ("prediction", "y", "message"),
    [
        (predicted([0.6, 0.4], [0.3, 0.7]), [0, 1], "y has the most probable class in every row"),
        (predicted([0.5, 0.5], [0.3, 0.7]), [0, 1], "y has the most probable class in every row"),
        (predicted([0.6, 0.4], [0.3, 0.7]), [1, 0], "y is predicted no better than by chance"),
        (predicted([0.6, 0.4], [0.6, 0.4]), [1, 0], "y is predicted no better than by chance"),
        (predicted([0.6, 0.4, 0.0], [0.3, 0.7, 0.0]), [1, 0], "y is predicted no better than by"),
        (predicted([0.6, 0.4, 0.0], [0.6, 0.4, 0.0]), [1, 0], "y is predicted no better than by"),
        (predicted([0.6, 0.4], [1.0, 0.0]), [0, 1], "y has class 1 in row 1, whose predicted prob"),
        (predicted([0.6, 0.4], [0.3, 0.7]), [0, 2], "y must hold whole numbers from 0 to 1"),
    ],
)
def test_where_there_is_no_best_temperature(prediction, y, message):
    with pytest.raises(ValueError, match=message):
        fit_temperature(prediction, torch.tensor(y))


def test_classes_that_are_ruled_out_rightly_are_no_trouble():
    prediction = predicted([0.8, 0.2, 0.0], [0.8, 0.2, 0.0], [0.8, 0.2, 0.0])
    found = fit_temperature(prediction, torch.tensor([0, 0, 1]))
    assert prediction.with_temperature(found).confidence[0] == pytest.approx(2 / 3)


@pytest.mark.parametrize("temperature", [0.3, 4.0])
def test_ruled_out_classes_change_no_temperature(temperature):
    prediction, y = tempered(temperature)
    wider = torch.cat([prediction.probabilities, torch.zeros(len(y), 5)], -1)
    padded = ClassPrediction(wider, prediction.expected_entropy, num_draws=7)
    expected = fit_temperature(prediction, y)
    assert fit_temperature(padded, y) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-7, 1e300])
def test_extreme_temperatures_leave_the_surest_class_or_the_possible_ones(dtype, temperature):
    p = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]], dtype=dtype)
    surest = [[0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]
    possible = [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]
    found = ClassPrediction(p, torch.zeros(3), num_draws=1).with_temperature(temperature)
    expected = torch.tensor(surest if temperature < 1 else possible, dtype=dtype)
    torch.testing.assert_close(found.probabilities, expected)


def test_a_temperature_far_from_one():
    prediction, y = tempered(100.0)
    assert fit_temperature(prediction, y) == pytest.approx(0.01, rel=TOLERANCE)
