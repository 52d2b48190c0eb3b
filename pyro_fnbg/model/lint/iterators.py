"""Whether a model's arguments can be read again and again."""

from __future__ import annotations

from collections.abc import Iterator

from pyro_fnbg.model.bound import BoundModel

__all__ = ["check_rereadable"]


def check_rereadable(bound: BoundModel) -> None:
    """Refuse iterators among a model's arguments, without reading from them.

    The model runs thousands of times with the same arguments, and finds an iterator empty, or at
    other data, from the second run on.

    Raises:
        TypeError: Naming the argument.
    """
    for name, value in bound.named_arguments().items():
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
