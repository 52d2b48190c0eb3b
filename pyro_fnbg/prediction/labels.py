"""Observed responses, as predictions compare with them."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fnbg.core.checks import shown
from pyro_fnbg.prediction.outcomes import ClassPrediction
from pyro_fnbg.prediction.responses import ClassResponse, Response

__all__ = [
    "SUM_TOLERANCE",
    "as_compared",
    "as_labels",
    "as_numbers",
    "as_observed",
    "as_real_tensor",
    "check_kind",
    "first_place",
]

# By so much may the probabilities of a row miss a sum of 1: float16 has three digits
SUM_TOLERANCE = 5e-3


def check_kind(prediction: object, kind: type) -> None:
    """Check that a prediction is one of classes, or one of numbers.

    Raises:
        TypeError: If it is not; names it.
    """
    if not isinstance(prediction, kind):
        raise TypeError(
            f"prediction must be a {kind.__name__}, got one of type {type(prediction).__name__}"
        )


def first_place(wrong: Tensor) -> tuple[int, ...] | None:
    """Return where the first of the entries that are wrong stands, if there are any.

    Example:
        >>> first_place(torch.tensor([[False, False], [False, True]]))
        (1, 1)
    """
    places = wrong.nonzero()
    return tuple(places[0].tolist()) if len(places) else None


def as_compared(prediction: ClassPrediction, y: object) -> tuple[Tensor, Tensor]:
    """Return the probabilities of a prediction of classes, and what was observed.

    The probabilities come in double precision, and without what their rows miss to a sum of 1 by
    rounding.

    Args:
        prediction: The prediction.
        y: As in `as_labels`.

    Raises:
        TypeError: If ``prediction`` is not one of classes, or ``y`` no tensor of real numbers.
        ValueError: If ``prediction`` has a row that is no distribution, or one class alone; or if
            ``y`` does not fit it.

    Example:
        >>> prediction = ClassPrediction(torch.tensor([[0.25, 0.75]]), torch.zeros(1), num_draws=1)
        >>> as_compared(prediction, torch.tensor([1]))
        (tensor([[0.2500, 0.7500]], dtype=torch.float64), tensor([1]))
    """
    check_kind(prediction, ClassPrediction)
    probabilities = prediction.probabilities.detach().double()
    sums = probabilities.sum(-1, keepdim=True)
    # NaN, too, is not near to 1
    is_distribution = (probabilities >= 0).all(-1) & ((sums - 1).abs() <= SUM_TOLERANCE).all(-1)
    if place := first_place(~is_distribution):
        raise ValueError(
            "prediction must have probabilities from 0 on that sum to 1 in each row, got "
            f"{shown(probabilities[place].tolist())} in row {place[0]}"
        )
    num_rows, num_classes = probabilities.shape
    if num_classes < 2:
        raise ValueError(f"prediction must have two classes or more, got {num_classes}")
    labels = as_labels(y, num_rows, num_classes).to(probabilities.device)
    return probabilities / sums, labels


def as_labels(y: object, num_rows: int, num_classes: int) -> Tensor:
    """Return the number of each row's class, of numbers or of one-hot rows.

    Args:
        y: A tensor of whole numbers 0 to ``num_classes`` - 1, ``(rows,)`` or ``(rows, 1)``, of any
            real dtype; or of one-hot rows, ``(rows, num_classes)``.
        num_rows: Number of rows.
        num_classes: Number of classes.

    Raises:
        TypeError: If ``y`` is no tensor of real numbers.
        ValueError: If its shape or a value is not allowed; names it.

    Example:
        >>> as_labels(torch.tensor([[0.0, 1.0]]), 1, 2)
        tensor([1])
    """
    y = as_real_tensor("y", y)
    if y.shape == (num_rows, num_classes) and num_classes > 1:
        if not bool((((y == 0) | (y == 1)).all(-1) & (y.sum(-1) == 1)).all()):
            raise ValueError("y of several columns must hold one-hot rows")
        return y.argmax(-1)
    if y.shape not in ((num_rows,), (num_rows, 1)):
        raise ValueError(
            f"y must have shape {(num_rows,)}, {(num_rows, 1)} or {(num_rows, num_classes)}; "
            f"got {tuple(y.shape)}"
        )
    y = y.reshape(num_rows)
    labels = y.long()
    wrong = (labels != y) | (labels < 0) | (labels >= num_classes)
    if bool(wrong.any()):
        raise ValueError(
            f"y must hold whole numbers from 0 to {num_classes - 1}, got {y[wrong][0].item()}"
        )
    return labels


def as_real_tensor(name: str, value: object) -> Tensor:
    """Return a tensor of real numbers, whole ones as int64.

    Torch computes little with bool and with unsigned numbers.

    Raises:
        TypeError: If it is something else; names the argument.
        ValueError: If a whole number is too large; names it.

    Example:
        >>> as_real_tensor("y", torch.tensor([False, True]))
        tensor([0, 1])
    """
    if not isinstance(value, Tensor) or value.is_complex():
        got = f"dtype {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be a torch tensor of real numbers, got {got}")
    if value.is_floating_point():
        return value
    whole = value.long()
    if value.dtype == torch.uint64 and (place := first_place(whole < 0)):
        raise ValueError(f"{name} must hold numbers below 2**63, got {value[place].item()}")
    return whole


def as_observed(y: object, response: Response, num_rows: int) -> Tensor:
    """Return observed responses in the shape and dtype of what a model predicts.

    Raises:
        TypeError: If ``y`` is no tensor of real numbers.
        ValueError: If its shape or a value is not allowed; names it.
    """
    means = response.means
    if isinstance(response, ClassResponse):
        return as_labels(y, num_rows, means.shape[-1]).to(means.device)
    return as_numbers(y, tuple(means.shape[1:])).to(means)


def as_numbers(y: object, shape: tuple[int, ...]) -> Tensor:
    """Return observed numbers in the shape of what is predicted.

    Args:
        y: A tensor of that shape; a column of numbers may stand for a row of them, or the reverse.
        shape: ``(rows,)`` or ``(rows, outputs)``.

    Raises:
        TypeError: If ``y`` is no tensor of real numbers.
        ValueError: If its shape or a value is not allowed; names it.
    """
    y = as_real_tensor("y", y)
    allowed = [shape]
    if len(shape) == 1:
        allowed.append((*shape, 1))
    elif shape[1:] == (1,):
        allowed.append(shape[:1])
    if tuple(y.shape) not in allowed:
        raise ValueError(
            f"y must have shape {' or '.join(map(str, allowed))}, got {tuple(y.shape)}"
        )
    if not bool(torch.isfinite(y).all()):
        raise ValueError(f"y must hold finite numbers, got {y[~torch.isfinite(y)][0].item()}")
    return y.reshape(shape)
