"""Observed responses, as predictions compare with them."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fnbg.prediction.responses import ClassResponse, Response

__all__ = ["as_labels", "as_numbers", "as_observed"]


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
    y = _as_tensor(y)
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
    y = _as_tensor(y)
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


def _as_tensor(y: object) -> Tensor:
    if not isinstance(y, Tensor) or y.is_complex():
        got = f"dtype {y.dtype}" if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"y must be a torch tensor of real numbers, got {got}")
    return y
