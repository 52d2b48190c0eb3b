"""Loops over rows, compiled by Numba: exponentials, activations and sums.

Exponentials and logarithms are polynomials without a branch, which the compiler turns into vector
instructions; those of the C library are called one number at a time. They agree with it to a few
units in the last place, and carry NaN on. Activations are written so that they keep these digits
near zero: a log ratio adds up the errors of equal rows. Exponentials end at the smallest and
largest normal numbers: a sigmoid's tail of less than 1e-37 (1e-304 in double precision) stays
there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload, register_jitable
from numpy.typing import NDArray

__all__ = [
    "INLINE",
    "LANES",
    "ROUNDING",
    "activate",
    "compiled",
    "exp",
    "expm1",
    "log",
    "log1p",
    "rounded_up",
    "sum_of_changes",
    "sum_of_products",
    "total_of",
    "whole_lanes",
]

Array = NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

# Rows come in multiples of this, the last of them several times over: else vector instructions
# would leave up to as many rows to be gone through one by one, which takes longer
LANES = 64

# No flag that would let NaN or infinity be assumed away; a fused multiply-add only rounds less
ROUNDING = {"contract", "nsz"}


def compiled(**options: Any) -> Callable[[Function], Function]:
    """Compile a function that is called by compiled functions alone.

    Without reference counts, which would take most of a small network's time: nothing in here
    allocates, and what calls it from Python holds all arrays. Without the wrappers for calls from
    elsewhere, which take long to compile.
    """
    kept = {"fastmath": ROUNDING, "error_model": "numpy", "_nrt": False}
    left_out = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    decorate: Any = njit
    found: Callable[[Function], Function] = decorate(**kept | left_out | options)
    return found


# For functions that take what describes a network, or the memory of a chain: to hand over all
# fields of all their arrays would take longer than what many of them do
INLINE = {"forceinline": True}

# By type: bits of the mantissa, bias of the exponent, the type, integer of the same size, number of
# Taylor terms of exp on [-log(2) / 2, log(2) / 2] and of atanh on [-0.172, 0.172], clip of exp's
# argument
FORMATS: dict[Any, tuple[Any, ...]] = {
    types.float32: (23, 127, np.float32, np.int32, 8, 5, 87.0),
    types.float64: (52, 1023, np.float64, np.int64, 14, 11, 700.0),
}
LOG_2 = math.log(2.0)


def _bitcast(value: Any, kinds: dict[Any, Any]) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return kinds[value](value), codegen


def _type_bits(typingctx: Any, value: Any) -> Any:
    return _bitcast(value, {types.float32: types.int32, types.float64: types.int64})


def _type_number(typingctx: Any, value: Any) -> Any:
    return _bitcast(value, {types.int32: types.float32, types.int64: types.float64})


_bits: Any = intrinsic(_type_bits)
_number: Any = intrinsic(_type_number)


def _horner(coefficients: list[float], real: Any) -> Callable[..., Any]:
    """Compile a polynomial, constant term first, unrolled."""
    text = f"real({coefficients[-1]!r})"
    for coefficient in coefficients[-2::-1]:
        text = f"({text}) * x + real({coefficient!r})"
    scope: dict[str, Any] = {"real": real}
    exec(f"def polynomial(x):\n    return {text}", scope)
    found: Callable[..., Any] = njit(fastmath=ROUNDING, inline="always")(scope["polynomial"])
    return found


def exp(x: float) -> float:
    """Compute the exponential of a number, which is clipped."""
    return math.exp(x)


def expm1(x: float) -> float:
    """Compute exp(x) - 1 of a number x, which is clipped."""
    return math.expm1(x)


def log(x: float) -> float:
    """Compute the logarithm of a normal number above zero, or of infinity."""
    return math.log(x)


def log1p(x: float) -> float:
    """Compute log(1 + x) for x >= 0."""
    return math.log1p(x)


def _reduction(kind: Any) -> Callable[..., Any]:
    """Compile the split of x into k log(2) + r, |r| <= log(2) / 2; the result is r and 2**k.

    The argument is clipped, so that denormals and infinity never come up.
    """
    mantissa, bias, real, whole, _, _, clip = FORMATS[kind]
    high = math.floor(LOG_2 * 2**12) / 2**12  # k * high is exact
    per_log_2, half, largest = real(1 / LOG_2), real(0.5), real(clip)
    first, rest = real(high), real(float(Decimal(2).ln() - Decimal(high)))

    def reduced(x: Any) -> Any:
        clipped: Any = largest if x > largest else x
        clipped = -largest if clipped < -largest else clipped
        power = np.floor(clipped * per_log_2 + half)
        remainder = (clipped - power * first) - power * rest
        return remainder, _number(whole(whole(whole(power) + bias) << mantissa))

    found: Callable[..., Any] = njit(fastmath=ROUNDING, inline="always")(reduced)
    return found


@overload(exp, jit_options={"fastmath": ROUNDING})
def _compiled_exp(x: Any) -> Callable[..., Any]:
    """exp(x) = 2**k exp(r)."""
    real, terms = FORMATS[x][2], FORMATS[x][4]
    reduced = _reduction(x)
    polynomial = _horner([1 / math.factorial(n) for n in range(terms)], real)

    def implementation(x: Any) -> Any:
        remainder, scale = reduced(x)
        value = polynomial(remainder) * scale
        return x if x != x else value

    return implementation


@overload(expm1, jit_options={"fastmath": ROUNDING})
def _compiled_expm1(x: Any) -> Callable[..., Any]:
    """exp(x) - 1 = 2**k (exp(r) - 1) + (2**k - 1), which near zero, where k is 0, loses nothing."""
    real, terms = FORMATS[x][2], FORMATS[x][4]
    reduced, one = _reduction(x), real(1.0)
    polynomial = _horner([1 / math.factorial(n) for n in range(1, terms)], real)

    def implementation(x: Any) -> Any:
        remainder, scale = reduced(x)
        value = polynomial(remainder) * remainder * scale + (scale - one)
        return x if x != x else value

    return implementation


@overload(log, jit_options={"fastmath": ROUNDING})
def _compiled_log(x: Any) -> Callable[..., Any]:
    """log(x) for x = 2**k (1 + f): k log(2) + 2 atanh(s), s = f / (2 + f), as in log1p."""
    mantissa, bias, real, whole, _, terms, _ = FORMATS[x]
    polynomial = _horner([2 / (2 * n + 1) for n in range(1, terms)], real)
    one, root, log_2 = real(1.0), real(math.sqrt(2.0)), real(LOG_2)
    mask, exponent_of_one = whole(2**mantissa - 1), whole(bias * 2**mantissa)
    largest = real(np.finfo(real).max)

    def implementation(x: Any) -> Any:
        bits = _bits(x)
        power = real(whole(whole(bits >> mantissa) - bias))
        part = _number(whole(whole(bits & mask) | exponent_of_one))
        is_large = part > root
        power = power + one if is_large else power
        part = real(0.5) * part if is_large else part
        above = part - one
        ratio = above / (part + one)
        square = ratio * ratio
        value = power * log_2 + (above - ratio * (above - polynomial(square) * square))
        return value if x <= largest else x

    return implementation


@overload(log1p, jit_options={"fastmath": ROUNDING})
def _compiled_log1p(x: Any) -> Callable[..., Any]:
    """log(1 + x) for x >= 0: 1 + x = 2**k (1 + f), and k log(2) + 2 atanh(s).

    There s = f / (2 + f), and 2 s = f - s f; where k is 0, f is x itself, which 1 + x has rounded.
    """
    mantissa, bias, real, whole, _, terms, _ = FORMATS[x]
    polynomial = _horner([2 / (2 * n + 1) for n in range(1, terms)], real)
    zero, one, root, log_2 = real(0.0), real(1.0), real(math.sqrt(2.0)), real(LOG_2)
    mask, exponent_of_one = whole(2**mantissa - 1), whole(bias * 2**mantissa)
    largest = real(np.finfo(real).max)

    def implementation(x: Any) -> Any:
        bits = _bits(one + x)
        power = real(whole(whole(bits >> mantissa) - bias))
        part = _number(whole(whole(bits & mask) | exponent_of_one))
        is_large = part > root
        power = power + one if is_large else power
        part = real(0.5) * part if is_large else part
        above = x if power == zero else part - one
        ratio = above / (part + one)
        square = ratio * ratio
        value = power * log_2 + (above - ratio * (above - polynomial(square) * square))
        return value if x <= largest else x  # NaN and infinity have no such decomposition

    return implementation


@register_jitable
def rounded_up(count: int, multiple: int) -> int:
    """Return the first multiple of a number from ``count`` on."""
    return count + (-count) % multiple


@compiled()
def whole_lanes(count: int) -> int:
    """Return a number of rows that is a multiple of LANES already, so that the compiler knows."""
    return count & -LANES


@compiled()
def activate(code: int, source: Array, target: Array) -> None:
    """Apply an activation, by its code, to a row; source and target must not overlap."""
    n = whole_lanes(len(target))
    one, two, zero = source.dtype.type(1.0), source.dtype.type(2.0), source.dtype.type(0.0)
    if code == 0:  # sigmoid
        for r in range(n):
            target[r] = one / (one + exp(-source[r]))
    elif code == 1:  # tanh
        for r in range(n):
            # Of a negative number, which cannot overflow
            below = expm1(-two * abs(source[r]))
            size = -below / (two + below)
            target[r] = -size if source[r] < zero else size
    elif code == 2:  # relu
        for r in range(n):
            target[r] = zero if source[r] <= zero else source[r]
    elif code == 3:  # step
        for r in range(n):
            target[r] = one if source[r] > zero else zero
    else:  # identity
        for r in range(n):
            target[r] = source[r]


@compiled(fastmath=ROUNDING | {"reassoc"})
def sum_of_changes(new: Array, old: Array, index: Array) -> float:
    """Sum new minus old in double precision; ``index`` numbers the old entries."""
    total = 0.0
    for r in range(len(new)):
        total += np.float64(new[r]) - np.float64(old[index[r]])
    return total


@compiled(fastmath=ROUNDING | {"reassoc"})
def sum_of_products(one: Array, other: Array) -> float:
    """Sum the products of two rows in double precision."""
    total = 0.0
    for r in range(len(one)):
        total += np.float64(one[r]) * np.float64(other[r])
    return total


@compiled(fastmath=ROUNDING | {"reassoc"})
def total_of(values: Array) -> float:
    """Sum a row in double precision."""
    total = 0.0
    for r in range(len(values)):
        total += np.float64(values[r])
    return total
