"""How an object shows itself: as the call that makes it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

__all__ = ["call_of"]


def call_of(one: object, kind: type, arguments: Mapping[str, Any]) -> str:
    """Write the call that makes an object, with those arguments that differ from the defaults.

    Args:
        one: The object.
        kind: The class whose constructor has the arguments; the object's, or one above it.
        arguments: What it was made with, by name.

    Example:
        >>> class Pair:
        ...     def __init__(self, first, second=2, third=3): ...
        >>> call_of(Pair(1), Pair, {"first": 1, "second": 5, "third": 3})
        'Pair(1, second=5)'
    """
    words = []
    parameters = inspect.signature(kind).parameters
    for place, (name, parameter) in enumerate(parameters.items()):
        value = arguments.get(name, parameter.default)
        if value is parameter.default or repr(value) == repr(parameter.default):
            continue
        words.append(repr(value) if place == 0 else f"{name}={value!r}")
    return f"{type(one).__name__}({', '.join(words)})"
