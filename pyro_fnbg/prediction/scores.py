"""Scores of predictions against what was observed, with what the chain targeted beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from pyro_fnbg.core.batches import EXACT_TARGET
from pyro_fnbg.core.checks import as_one_a_row, shown
from pyro_fnbg.prediction.labels import (
    as_compared,
    as_numbers,
    as_real_tensor,
    check_kind,
    first_place,
)
from pyro_fnbg.prediction.outcomes import ClassPrediction, NumberPrediction

__all__ = ["Scores", "ood_auroc", "score_classes", "score_numbers"]

# Bins of equal width for the calibration error
BINS = 15
# Probabilities of the intervals whose coverage is counted
INTERVALS = (0.5, 0.8, 0.9, 0.95)
# TorchMetrics compares all responses of a row with each other: it gets rows that need at most so
# many numbers
MAX_NUMBERS = 2**23

UNDERCONFIDENT = (
    "the chain did not target the posterior: where the likelihood's power is below 1, or batches "
    "add noise, predictions are less sure than the posterior's, and these scores show that as well"
)

TEMPERED = (
    "the chain did not target the posterior: the temperature makes up, on average, for predictions "
    "that are less sure than the posterior's, and for nothing else"
)


@dataclass(frozen=True, eq=False, repr=False)
class Scores(Mapping[str, float]):
    """Hold scores by name, and show them with what they stand on.

    It is a mapping from names to numbers; ``print`` shows a line for each, and below them what the
    chain targeted, a word of warning if that is not the posterior, and the temperature of the
    prediction if it has one.

    Attributes:
        values_by_name: The scores.
        num_rows: Number of rows that they are means over.
        num_draws: Number of draws that the prediction averages over.
        target: What the chain targeted, in the package's words; None if it was not given.
        temperature: That of the prediction; 1 unless one was fitted.

    Example:
        >>> print(Scores({"accuracy": 0.5}, num_rows=4, num_draws=9, target=None, temperature=0.5))
        accuracy  0.5
        4 rows, 9 draws
        target of the chain: not given
        temperature: 0.5 (probabilities to the power of 1 / temperature, renormalised)
    """

    values_by_name: Mapping[str, float]
    num_rows: int
    num_draws: int
    target: str | None
    temperature: float = 1.0

    def __getitem__(self, name: str) -> float:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def __repr__(self) -> str:
        width = max(map(len, self))
        lines = [f"{name:{width}}  {value:.4g}" for name, value in self.items()]
        lines.append(f"{self.num_rows} rows, {self.num_draws} draws")
        lines.append(f"target of the chain: {self.target or 'not given'}")
        if self.target not in (None, EXACT_TARGET):
            lines.append(f"warning: {UNDERCONFIDENT if self.temperature == 1.0 else TEMPERED}")
        if self.temperature != 1.0:
            lines.append(
                f"temperature: {self.temperature:.4g} (probabilities to the power of "
                "1 / temperature, renormalised)"
            )
        return "\n".join(lines)


def score_classes(prediction: ClassPrediction, y: Tensor, *, target: str | None = None) -> Scores:
    """Score a prediction of classes.

    Exact given the prediction; means over rows. All but ``accuracy`` are of probabilities that were
    averaged over draws first, which is what the posterior predicts, and not of scores averaged over
    draws:

    - ``accuracy``: share of rows whose most probable class was observed;
    - ``lppd``: log pointwise predictive density, the mean log probability of the observed class, in
      nats. Minus infinity if one of them has probability 0;
    - ``nll``: negative log likelihood, which is minus ``lppd``;
    - ``brier_score``: squared difference between probabilities and the one-hot class, summed over
      *all* classes: from 0 to 2, and with two classes twice what some call by this name;
    - ``calibration_error``: expected calibration error of the most probable class, the difference
      between confidence and accuracy averaged over 15 bins of equal width (Guo and others, 2017,
      "On calibration of modern neural networks").

    scikit-learn computes accuracy and Brier score, TorchMetrics the calibration error.

    Args:
        prediction: The prediction.
        y: The observed classes, as in `predict`.
        target: What the chain targeted: `to_arviz(mcmc)["posterior"].attrs["target"]` or
            `kernel.target`. A chain with a flatter target than the posterior predicts less surely,
            and the printed scores then say so.

    Returns:
        The scores by name.

    Raises:
        TypeError: If ``prediction`` is not one of classes, or ``y`` no tensor of real numbers.
        ValueError: If a row of ``prediction`` is no distribution or there is one class alone, if
            ``y`` does not fit it, or if ``target`` is not in the package's words.

    Example:
        >>> p = torch.tensor([[0.9, 0.1], [0.3, 0.7]])
        >>> prediction = ClassPrediction(p, torch.zeros(2), num_draws=10)
        >>> scores = score_classes(prediction, torch.tensor([0, 0]), target=EXACT_TARGET)
        >>> scores["accuracy"]
        0.5
        >>> print(scores)
        accuracy           0.5
        lppd               -0.6547
        nll                0.6547
        brier_score        0.5
        calibration_error  0.4
        2 rows, 10 draws
        target of the chain: exact: the posterior of the model
    """
    from sklearn.metrics import accuracy_score, brier_score_loss
    from torchmetrics.functional.classification import multiclass_calibration_error

    _check_target(target)
    probabilities, labels = as_compared(prediction, y)
    num_rows, num_classes = probabilities.shape
    # scikit-learn's log_loss would move probabilities away from 0
    nll = float(torch.nn.functional.nll_loss(probabilities.log(), labels))
    one_by_one = labels.numpy(force=True)
    values = {
        "accuracy": accuracy_score(one_by_one, prediction.labels.numpy(force=True)),
        "lppd": -nll,
        "nll": nll,
        "brier_score": brier_score_loss(
            one_by_one,
            probabilities.numpy(force=True),
            labels=list(range(num_classes)),
            scale_by_half=False,
        ),
        "calibration_error": multiclass_calibration_error(
            probabilities, labels, num_classes=num_classes, n_bins=BINS
        ),
    }
    return _scores(values, num_rows, prediction.num_draws, target, prediction.temperature)


def score_numbers(
    prediction: NumberPrediction,
    y: Tensor,
    responses: Tensor | None = None,
    *,
    target: str | None = None,
) -> Scores:
    """Score a prediction of numbers.

    Exact given the prediction, apart from what ``crps`` says; means over rows, and over outputs
    where a row has several numbers, apart from the two log densities, which are joint:

    - ``rmse``: root of the mean squared difference from the mean, in the units of ``y``;
    - ``lppd``: log pointwise predictive density, the mean log density of a row's numbers under the
      mixture over draws, in nats. Only if the prediction was made with ``y``;
    - ``gaussian_nll``: minus the mean log density of a row's numbers under independent Normal
      distributions with the mixture's means and standard deviations, in nats. The mixture itself is
      not Normal: this compares with methods that predict no more than these two numbers;
    - ``coverage_50``, ``_80``, ``_90``, ``_95``: share of numbers inside the central intervals of
      50, 80, 90 and 95 %, ends included. Only of intervals whose quantiles the prediction has,
      and NaN where one of these is;
    - ``crps``: continuous ranked probability score, in the units of ``y`` (Gneiting and Raftery,
      2007, "Strictly proper scoring rules, prediction, and estimation"), of the draws as an
      ensemble, which approaches that of the mixture as draws become more. Only with ``responses``;
      its time grows with the square of the draws, so thin them first where they are thousands.

    scikit-learn computes the root of squares, TorchMetrics the ranked score.

    Args:
        prediction: The prediction.
        y: The observed numbers, as in `predict`.
        responses: A response drawn for each draw, as from `sample_responses`: shape
            ``(draws, *shape of the mean)``, two draws at least.
        target: As in `score_classes`.

    Returns:
        The scores by name.

    Raises:
        TypeError: If ``prediction`` is not one of numbers, or ``y`` or ``responses`` no tensor of
            real numbers.
        ValueError: If ``prediction`` has a mean that is not finite or a standard deviation that is
            not above 0, if ``y`` or ``responses`` does not fit it or is not finite, or if
            ``target`` is not in the package's words.

    Example:
        >>> quantiles = {0.25: torch.tensor([-0.7, 0.3]), 0.75: torch.tensor([0.7, 1.7])}
        >>> mean, one = torch.tensor([0.0, 1.0]), torch.ones(2)
        >>> prediction = NumberPrediction(mean, one, 0 * one, num_draws=10, quantiles=quantiles)
        >>> dict(score_numbers(prediction, torch.tensor([2.0, 1.0])))  # doctest: +ELLIPSIS
        {'rmse': 1.414..., 'gaussian_nll': 1.918..., 'coverage_50': 0.5}
    """
    from sklearn.metrics import root_mean_squared_error

    check_kind(prediction, NumberPrediction)
    _check_target(target)
    numbers = as_numbers(y, tuple(prediction.mean.shape)).to(prediction.mean.device, torch.float64)
    mean, scale = prediction.mean.detach().double(), prediction.scale.detach().double()
    is_usable = mean.isfinite() & scale.isfinite() & (scale > 0)
    if place := first_place(~is_usable):
        raise ValueError(
            "prediction must have finite means and finite standard deviations above 0, got "
            f"{float(mean[place])} and {float(scale[place])} in row {place[0]}"
        )
    values = {
        "rmse": root_mean_squared_error(
            numbers.flatten().numpy(force=True), mean.flatten().numpy(force=True)
        )
    }
    if prediction.log_density is not None:
        values["lppd"] = prediction.log_density.double().mean()
    log_densities = torch.distributions.Normal(mean, scale).log_prob(numbers)
    values["gaussian_nll"] = -log_densities.sum() / len(mean)
    for probability in INTERVALS:
        try:
            lower, upper = prediction.interval(probability)
        except ValueError:
            continue
        inside = ((lower <= numbers) & (numbers <= upper)).double()
        is_known = ~(lower.isnan() | upper.isnan())
        coverage = torch.where(is_known, inside, torch.nan).mean()
        values[f"coverage_{100 * probability:.0f}"] = coverage
    if responses is not None:
        values["crps"] = _crps(responses, numbers)
    return _scores(values, len(mean), prediction.num_draws, target)


def ood_auroc(in_scores: ArrayLike | Tensor, out_scores: ArrayLike | Tensor) -> float:
    """Return how well uncertainty tells rows from elsewhere from rows like the training data.

    It is the area under the receiver operating characteristic, by scikit-learn: the probability
    that a row from outside of the distribution is more uncertain than one from inside, ties
    counting one half. 0.5 is chance, 1 is perfect, and below 0.5 the score points the wrong way.
    Exact.

    Args:
        in_scores: An uncertainty of each row from inside, such as `ClassPrediction.entropy` or
            `ClassPrediction.mutual_information`: larger for what is less known. Shape ``(rows,)``.
        out_scores: The same of each row from outside, which may be more or fewer.

    Raises:
        ValueError: If one of them is not one-dimensional, is empty, or has numbers that are not
            finite.

    References:
        Hendrycks and Gimpel (2017), "A baseline for detecting misclassified and out-of-distribution
        examples in neural networks".

    Example:
        >>> ood_auroc([0.1, 0.3], [0.3, 0.9])
        0.875
    """
    from sklearn.metrics import roc_auc_score

    scores = [as_one_a_row("in_scores", in_scores), as_one_a_row("out_scores", out_scores)]
    is_out = np.repeat([0, 1], [len(array) for array in scores])
    return float(roc_auc_score(is_out, np.concatenate(scores)))


def _crps(responses: Tensor, numbers: Tensor) -> float:
    """Average the ranked score, some rows at a time."""
    from torchmetrics.functional.regression import continuous_ranked_probability_score

    responses = as_real_tensor("responses", responses)
    if responses.shape[1:] != numbers.shape or len(responses) < 2:
        raise ValueError(
            f"responses must have shape (draws, *{tuple(numbers.shape)}), two draws at least; got "
            f"{tuple(responses.shape)}"
        )
    if place := first_place(~responses.isfinite()):
        raise ValueError(
            f"responses must hold finite numbers, got {responses[place].item()} of draw {place[0]} "
            f"in row {place[1]}"
        )
    ensemble = responses.detach().to(numbers).flatten(1).mT
    at_a_time = max(1, MAX_NUMBERS // ensemble.shape[1] ** 2)
    total = 0.0
    for some, y in zip(ensemble.split(at_a_time), numbers.flatten().split(at_a_time), strict=True):
        total += len(y) * float(continuous_ranked_probability_score(some, y))
    return total / numbers.numel()


def _check_target(target: object) -> None:
    """Refuse words that are not the package's: nothing is known of other chains."""
    is_known = isinstance(target, str) and target.startswith(("exact: ", "approximate: "))
    if target is not None and not is_known:
        raise ValueError(
            "target must be the words of to_arviz(mcmc)['posterior'].attrs['target'] or "
            f"kernel.target, or None; got {shown(target)}"
        )


def _scores(
    values: Mapping[str, float | Tensor],
    num_rows: int,
    num_draws: int,
    target: str | None,
    temperature: float = 1.0,
) -> Scores:
    numbers = {name: float(value) for name, value in values.items()}
    return Scores(numbers, num_rows, num_draws, target, temperature)
