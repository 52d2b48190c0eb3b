"""What a model is called with: how messages name it, and whether it can be read again and again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

__all__ = ["check_rereadable", "described", "named_arguments"]


def named_arguments(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Give every argument of a call its name; those that the model does not take have numbers."""
    try:
        return dict(inspect.signature(model).bind_partial(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {f"number {place}": value for place, value in enumerate(args, 1)} | dict(kwargs)


def check_rereadable(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Refuse iterators among a model's arguments, without reading from them.

    The model runs thousands of times with the same arguments, and finds an iterator empty, or at
    other data, from the second run on.

    Raises:
        TypeError: Naming the argument.
    """
    for name, value in named_arguments(model, args, kwargs).items():
        inside = value.values() if isinstance(value, dict) else value
        parts = inside if isinstance(value, dict | list | tuple) else ()
        for part in (value, *parts):
            if isinstance(part, Iterator):
                holder = "" if part is value else f"{type(value).__name__} that holds a "
                raise TypeError(
                    f"the model's argument {name!r} must be data that can be read again and again, "
                    f"got a {holder}{type(part).__name__}, which can be read only once: give a "
                    "list or a tensor of what it yields"
                )


def described(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Describe the arguments of a call: types, and shapes of tensors."""
    words = [
        f"{name}: {_described(value)}"
        for name, value in named_arguments(model, args, kwargs).items()
    ]
    return ", ".join(words) or "no arguments"


def _described(value: object) -> str:
    kind = type(value).__name__
    if isinstance(value, Tensor):
        return f"tensor of shape {tuple(value.shape)} and type {value.dtype}"
    return f"{kind} of shape {value.shape}" if hasattr(value, "shape") else kind
