"""Checks of arguments: one error each, which names the argument, its value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "are_checks_done",
    "as_finite",
    "as_one_a_row",
    "as_probability",
    "as_reals",
    "check_choice",
    "check_count",
    "check_flag",
    "check_names",
    "checks_done",
    "is_count",
    "is_list",
    "shown",
]

# A value is shown in an error up to so many characters
MAX_SHOWN = 200

_are_done: ContextVar[bool] = ContextVar("are_checks_done", default=False)


@contextmanager
def checks_done() -> Iterator[None]:
    """Say that what models are run with has been checked; a sweep runs them once a block."""
    token = _are_done.set(True)
    try:
        yield
    finally:
        _are_done.reset(token)


def are_checks_done() -> bool:
    """Whether a model need not check its arguments.

    Example:
        >>> with checks_done():
        ...     are_checks_done()
        True
    """
    return _are_done.get()


def shown(value: object) -> str:
    """Show a value in one line, cut short where it is long.

    Example:
        >>> shown([1, 2])
        '[1, 2]'
        >>> len(shown("a" * 1000))
        203
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def is_count(value: object, least: int, most: float = math.inf) -> bool:
    """Whether something is a whole number in a range; True and False are none."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    return is_whole and least <= int(value) <= most  # type: ignore[call-overload]


def check_count(name: str, value: object, least: int, most: float = math.inf) -> None:
    """Check a number of things.

    Raises:
        ValueError: If it is no whole number, too small or too large.
    """
    if not is_count(value, least, most):
        limit = f" and at most {most}" if most < math.inf else ""
        raise ValueError(
            f"{name} must be a whole number, {least} or more{limit}; got {shown(value)}"
        )


def check_choice(name: str, value: object, allowed: Sequence[str | None]) -> None:
    """Check that something is one of a few words, or None where that is among them.

    Raises:
        ValueError: If it is not.
    """
    if not (value is None or isinstance(value, str)) or value not in allowed:
        raise ValueError(f"{name} must be one of {tuple(allowed)}, got {shown(value)}")


def check_flag(name: str, value: object) -> None:
    """Check that something is True or False: of other things, also "no" would count as True.

    Raises:
        ValueError: If it is neither.
    """
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether something is a sequence; a text is not meant as one of letters."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def check_names(name: str, value: object, what: str) -> None:
    """Check a list of names: one text would be taken for its letters.

    Raises:
        TypeError: If it is something else.
    """
    if not is_list(value) or not all(isinstance(entry, str) for entry in value):
        raise TypeError(f"{name} must be a list of {what}, got {shown(value)}")


def as_finite(value: object) -> float | None:
    """Return a finite real number as a float; None for anything else, True and False included."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def as_probability(name: str, value: object) -> float:
    """Return a number between 0 and 1, both excluded, as a float.

    Raises:
        ValueError: If it is something else.
    """
    number = as_finite(value)
    if number is None or not 0 < number < 1:
        raise ValueError(f"{name} must be between 0 and 1, got {shown(value)}")
    return number


def as_reals(value: object) -> NDArray[np.float64] | None:
    """Return real numbers, true and false included, in double precision; None for anything else.

    Example:
        >>> as_reals([[1, 2.5]])
        array([[1. , 2.5]])
        >>> as_reals([1, None]) is None
        True
    """
    if isinstance(value, Tensor):
        # NumPy has no bfloat16
        value = (value.double() if value.is_floating_point() else value).numpy(force=True)
    try:
        array = np.asarray(value)
    except ValueError:  # rows of several lengths
        return None
    return array.astype(np.float64) if array.dtype.kind in "biuf" else None


def as_one_a_row(name: str, value: object) -> NDArray[np.float64]:
    """Return one finite number a row, in double precision; true counts as 1.

    Raises:
        ValueError: If they are something else, or none.
    """
    array = as_reals(value)
    if array is None or array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(
            f"{name} must be finite numbers, one a row and at least one; got {shown(value)}"
        )
    return array
