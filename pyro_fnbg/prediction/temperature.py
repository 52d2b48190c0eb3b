"""A temperature for class probabilities, fitted on rows that the chain has not seen."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_fnbg.prediction.labels import as_compared, first_place
from pyro_fnbg.prediction.outcomes import ClassPrediction

__all__ = ["fit_temperature"]

# Temperatures are sought between these
LOWEST, HIGHEST = 1e-6, 1e6


def fit_temperature(prediction: ClassPrediction, y: Tensor) -> float:
    """Find the temperature under which held-out rows are most probable.

    It minimises the mean of minus the log probability of the observed classes, of probabilities to
    the power of 1 / temperature, renormalised (Guo and others, 2017, "On calibration of modern
    neural networks", there of a single network's logits), to about six digits by SciPy. Nothing
    uses a temperature unless you ask for it by `ClassPrediction.with_temperature`; scores of the
    result name it.

    A chain that targets something hotter than the posterior predicts too little confidence, and a
    temperature below 1 makes up for it on average. It does not turn its draws into draws from the
    posterior. Fit it on rows that are used neither for the chain nor for the scores.

    Args:
        prediction: The prediction of the held-out rows.
        y: Their observed classes, as in `predict`.

    Returns:
        The temperature, by which `ClassPrediction.with_temperature` is called.

    Raises:
        TypeError: If ``prediction`` is not one of classes, or ``y`` no tensor of real numbers.
        ValueError: If a row of ``prediction`` is no distribution, ``y`` does not fit it, an
            observed class has probability 0, or there is no best temperature: where the most
            probable class is right in all rows, lower ones are ever better; where predictions are
            no better than chance, higher ones.

    Example:
        >>> p = torch.tensor([[0.6, 0.4], [0.4, 0.6], [0.6, 0.4], [0.6, 0.4], [0.4, 0.6]])
        >>> prediction = ClassPrediction(p, torch.zeros(5), num_draws=10)
        >>> y = torch.tensor([0, 1, 0, 0, 0])  # confidence 60 %, but four of five are right
        >>> temperature = fit_temperature(prediction, y)
        >>> prediction.with_temperature(temperature).confidence[0]
        tensor(0.8000)
    """
    from scipy.optimize import minimize_scalar

    probabilities, labels = as_compared(prediction, y)
    log_probabilities = probabilities.log()
    observed = log_probabilities.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    if place := first_place(observed.isneginf()):
        raise ValueError(
            f"y has class {int(labels[place])} in row {place[0]}, whose predicted probability is "
            "0: no temperature changes that; leave the row out, or predict in double precision"
        )

    def loss(log_temperature: float) -> float:
        scaled = log_probabilities / math.exp(log_temperature)
        return float(torch.nn.functional.cross_entropy(scaled, labels))

    # The loss is convex in 1 / temperature, so its slopes at both ends say whether it has a minimum
    # between
    if bool((observed == log_probabilities.amax(-1)).all()):
        raise ValueError(
            "y has the most probable class in every row, so ever lower temperatures are ever "
            "better: fit it on more rows, some of them wrongly predicted"
        )
    hottest = torch.softmax(log_probabilities / HIGHEST, -1)
    # Classes of probability 0 stay at 0
    expected = torch.where(hottest > 0, hottest * log_probabilities, 0.0).sum(-1)
    if bool(observed.mean() <= expected.mean()):
        raise ValueError(
            "y is predicted no better than by chance, so ever higher temperatures are ever better: "
            "look whether y belongs to these rows"
        )
    bounds = (math.log(LOWEST), math.log(HIGHEST))
    found = minimize_scalar(loss, bounds=bounds, options={"xatol": 1e-7})
    return math.exp(found.x)
