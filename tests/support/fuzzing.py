"""Values of every kind, for arguments that must take a few of them and refuse all others."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from hypothesis import example
from hypothesis import strategies as st
from torch import Tensor

NAN, INFINITY = float("nan"), float("inf")
# Seconds after which a refusal counts as a hang: it takes a few milliseconds on an idle machine
PATIENCE = 20.0
# Words of which an error that says what is allowed has one
ALLOWED = ("must", "allowed", "there are", "need", "layers are", "none of")
# Values that once ended otherwise than in one clear error, each for several arguments
FOUND = (
    10**400,
    -(10**5000),
    "no",
    "",
    [1, None],
    ["a", None],
    [10**400, 1.0],
    [True, True],
    {True: 1},
    {1.0: 2},
    {"a": 1},
    np.array([1.0, 2.0]),
    np.array([]),
    np.array([None, 1], dtype=object),
    np.array(["a", "b"]),
    np.array([1j, 2]),
    np.bool_(True),
    torch.tensor(True),
    torch.tensor([]),
    torch.tensor(1.0, requires_grad=True),
    torch.tensor([1.0, 2.0], device="meta"),
    torch.tensor([1.0, 0.0]).to_sparse(),
    torch.tensor([1.0 + 0.0j, 2.0]),
    Fraction(3, 2),
    Decimal("0.5"),
    NotImplemented,
    b"\x01\x02",
    b"",
    np.int64(0),
)

reals = st.one_of(
    st.floats(),
    st.sampled_from([0.0, -0.0, 1e-320, 1e-50, 1e-45, 1e39, 1e300, NAN, INFINITY, -INFINITY]),
    st.integers(-5, 5),
    st.integers(),
    st.sampled_from([2**31, 2**63, -(2**63), 10**400]),
    st.fractions(),
    st.floats(width=32).map(np.float32),
    st.integers(-9, 9).map(np.int64),
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Tensors of any dtype and few elements, some of them not in memory."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtypes = ("float16", "bfloat16", "float32", "float64", "int8", "int64", "bool", "complex64")
    dtype = getattr(torch, draw(st.sampled_from(dtypes)))
    values = [draw(st.sampled_from([0.0, 1.0, -1.0, 2.0, NAN])) for _ in range(math.prod(shape))]
    if dtype in (torch.int8, torch.int64, torch.bool):
        values = [0.0 if math.isnan(value) else value for value in values]
    found = torch.tensor(values, dtype=torch.float64).reshape(shape).to(dtype)
    kind = draw(st.sampled_from(["plain", "plain", "plain", "gradient", "meta", "sparse"]))
    if kind == "gradient" and found.is_floating_point():
        return found.requires_grad_()
    if kind == "meta":
        return found.to("meta")
    return found.to_sparse() if kind == "sparse" and shape else found


def arrays() -> st.SearchStrategy[Any]:
    """Arrays of NumPy of several dtypes."""
    dtypes = ["float32", ">f8", "longdouble", "int8", "uint64", "bool", "complex128", "U3"]
    numbers = st.lists(st.integers(0, 3), max_size=3)
    return st.builds(np.array, numbers | st.lists(numbers, max_size=0), st.sampled_from(dtypes))


scalars = st.one_of(
    st.none(), st.booleans(), st.text(max_size=5), st.binary(max_size=3), reals,
    st.complex_numbers(), st.decimals(allow_nan=False), st.sampled_from(["node", "full", "auto"]),
)  # fmt: skip
anything = st.one_of(
    scalars,
    tensors(),
    arrays(),
    st.lists(scalars, max_size=3),
    st.lists(st.lists(reals, max_size=2), max_size=2),
    st.lists(scalars, max_size=3).map(tuple),
    st.dictionaries(scalars, scalars, max_size=2),
    st.sets(st.integers(), max_size=2),
    st.sampled_from([range(1, 3), range(0), object(), ..., NotImplemented, [1] * 1000, "x" * 1000]),
    st.builds(iter, st.just([1, 2])),
)


def with_found(test: Callable[..., Any]) -> Callable[..., Any]:
    """Let a test that is given ``value`` also try what once went wrong."""
    for value in FOUND:
        test = example(value=value)(test)
    return test


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
    found = [type(value).__name__]
    with contextlib.suppress(ValueError):  # an integer of thousands of digits
        found.append(" ".join(repr(value).split())[:150])
    if isinstance(value, str):
        found.append(value)
    if isinstance(value, Tensor | np.ndarray):
        found.append(str(tuple(value.shape)))
    if isinstance(value, int | float | Fraction | np.generic):
        found.append("got ()")  # its shape, where an array is wanted
    if isinstance(value, list | tuple | range):
        found += [f"got {len(value)}"]
    entries = value.values() if isinstance(value, Mapping) else ()
    return found + [" ".join(str(entry).split())[:150] for entry in entries if _is_short(entry)]


def _is_short(value: object) -> bool:
    return not isinstance(value, int) or abs(value) < 10**300


# --- What is allowed, said in other words than the package says it -------------------------------


def is_whole(value: object, least: int = 1, most: int = 2**63 - 1) -> bool:
    """Whether something is a whole number in a range."""
    return (
        type(value) is not bool and isinstance(value, int | np.integer) and least <= value <= most
    )


def is_real(value: object) -> bool:
    """Whether something is a finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number | Fraction):
        return False
    if isinstance(value, np.complexfloating) or (isinstance(value, int) and abs(value) > 10**308):
        return False
    return math.isfinite(value)


def is_positive(value: object) -> bool:
    """Whether something is a positive finite number."""
    return is_real(value) and float(value) > 0


def entries_of(value: object) -> list[Any] | None:
    """Return the numbers of a row, or None if it is none."""
    if isinstance(value, Tensor):
        is_row = value.dim() == 1 and not value.is_meta and not value.is_sparse
        fits = is_row and not value.is_complex() and value.dtype != torch.bool
        return value.tolist() if fits else None
    if isinstance(value, np.ndarray):
        fits = value.ndim == 1 and value.dtype.kind in "iufO"
        return [v.item() if isinstance(v, np.generic) else v for v in value] if fits else None
    return list(value) if isinstance(value, list | tuple | range) else None
