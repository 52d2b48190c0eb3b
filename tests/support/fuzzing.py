"""Assertions that what an argument is given by mistake is refused by one clear error."""

import time
from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

NAN, INFINITY = float("nan"), float("inf")
# Seconds after which a refusal counts as a hang: it takes a few milliseconds on an idle machine
PATIENCE = 20.0
# Words of which an error that says what is allowed has one
ALLOWED = ("must", "allowed", "there are", "need", "layers are", "none of")


def assert_refused(name: str, value: object, call: Callable[[], object]) -> None:
    """Assert that a call fails at once with an error that names, shows and says what is allowed."""
    started = time.perf_counter()
    error = _error_of(call)
    assert error is not None, f"{name} was not refused: {type(value).__name__}"
    text = str(error)
    assert type(error) in (TypeError, ValueError), f"{type(error)}: {text}"
    assert name in text, f"the error does not name {name}: {text}"
    assert any(form in text for form in _forms(value)), f"no word of the value: {text}"
    assert any(word in text for word in ALLOWED), text
    assert len(text) < 1500, text
    assert time.perf_counter() - started < PATIENCE


def _error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def _forms(value: object) -> list[str]:
    """What shows a value: itself, its beginning where it is long, its type or its shape."""
    found = [type(value).__name__, " ".join(repr(value).split())[:150]]
    if isinstance(value, str):
        found.append(value)
    if isinstance(value, Tensor | np.ndarray):
        found.append(str(tuple(value.shape)))
    if isinstance(value, int | float):
        found.append("got ()")  # its shape, where an array is wanted
    if isinstance(value, list | tuple | range):
        found += [f"got {len(value)}"]
    entries = value.values() if isinstance(value, Mapping) else ()
    return found + [" ".join(str(entry).split())[:150] for entry in entries]
