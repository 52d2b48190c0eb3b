"""Loops over rows, compiled by Numba: exponentials, activations, likelihoods and sums.

Exponentials and logarithms are polynomials without a branch, which the compiler turns into vector
instructions; those of the C library are called one number at a time. They agree with it to a few
units in the last place, and carry NaN on. Activations and likelihoods are written so that they keep
these digits near zero and where a label is nearly certain: a log ratio adds up the errors of equal
rows. Exponentials end at the smallest and largest normal numbers: a sigmoid's tail of less than
1e-37 (1e-304 in double precision) stays there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

__all__ = [
    "ROUNDING",
    "activate",
    "add_products",
    "compiled",
    "log_likelihood",
    "sum_of_changes",
    "total_of",
]

Array = NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

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


def _exp(x: float) -> float:
    return math.exp(x)


def _expm1(x: float) -> float:
    return math.expm1(x)


def _log1p(x: float) -> float:
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


@overload(_exp, jit_options={"fastmath": ROUNDING})
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


@overload(_expm1, jit_options={"fastmath": ROUNDING})
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


@overload(_log1p, jit_options={"fastmath": ROUNDING})
def _compiled_log1p(x: Any) -> Callable[..., Any]:
    """log(1 + x) for finite x >= 0: 1 + x = 2**k (1 + f), and k log(2) + 2 atanh(s).

    There s = f / (2 + f), and 2 s = f - s f; where k is 0, f is x itself, which 1 + x has rounded.
    """
    mantissa, bias, real, whole, _, terms, _ = FORMATS[x]
    polynomial = _horner([2 / (2 * n + 1) for n in range(1, terms)], real)
    zero, one, root, log_2 = real(0.0), real(1.0), real(math.sqrt(2.0)), real(LOG_2)
    mask, exponent_of_one = whole(2**mantissa - 1), whole(bias * 2**mantissa)

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
        return value + (x - x)  # NaN and infinity have no such decomposition

    return implementation


@compiled()
def activate(code: int, source: Array, target: Array) -> None:
    """Apply an activation, by its code, to a row; source and target must not overlap."""
    one, two, zero = source.dtype.type(1.0), source.dtype.type(2.0), source.dtype.type(0.0)
    if code == 0:  # sigmoid
        for r in range(len(target)):
            target[r] = one / (one + _exp(-source[r]))
    elif code == 1:  # tanh
        for r in range(len(target)):
            # Of a negative number, which cannot overflow
            below = _expm1(-two * abs(source[r]))
            size = -below / (two + below)
            target[r] = -size if source[r] < zero else size
    elif code == 2:  # relu
        for r in range(len(target)):
            target[r] = zero if source[r] <= zero else source[r]
    elif code == 3:  # step
        for r in range(len(target)):
            target[r] = one if source[r] > zero else zero
    else:  # identity
        for r in range(len(target)):
            target[r] = source[r]


@compiled()
def add_products(
    weights: Array, inputs: Array, source: Array, first: int, start: int, target: Array
) -> None:
    """Add weights times rows of ``source``, its columns from ``start`` on, to ``target``.

    Weight k belongs to row ``first + inputs[k]``. Four at a time, to go over the target less often.
    """
    n = len(target)
    end, four = start + n, len(weights) - len(weights) % 4
    for k in range(0, four, 4):
        w0, w1, w2, w3 = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        a, b = source[first + inputs[k], start:end], source[first + inputs[k + 1], start:end]
        c, d = source[first + inputs[k + 2], start:end], source[first + inputs[k + 3], start:end]
        for r in range(n):
            target[r] += (w0 * a[r] + w1 * b[r]) + (w2 * c[r] + w3 * d[r])
    for k in range(four, len(weights)):
        w0, a = weights[k], source[first + inputs[k], start:end]
        for r in range(n):
            target[r] += w0 * a[r]


@compiled()
def log_likelihood(
    code: int,
    outputs: Array,
    first: int,
    start: int,
    labels: Array,
    label_start: int,
    scale: float,
    factor: float,
    sums: Array,
    target: Array,
) -> None:
    """Score rows by the likelihood of a code, times a factor.

    Args:
        code: Which likelihood.
        outputs: Holds the outputs in rows from ``first`` on, one a class or label column.
        first: Its first row.
        start: Its first column.
        labels: Labels in their columns from ``label_start`` on; a class is a whole number.
        label_start: Their first column.
        scale: Standard deviation of "normal".
        factor: Power of the likelihood.
        sums: Scratch memory, as long as the target.
        target: Takes the scores.
    """
    real, n = outputs.dtype.type, len(target)
    one, zero, times = real(1.0), real(0.0), real(factor)
    if code == 0:  # bernoulli
        logits, label = outputs[first, start : start + n], labels[0, label_start : label_start + n]
        for r in range(n):
            logit = logits[r]
            size = logit if logit > zero else -logit
            # As a sum of what is not negative, whose first part is 0 on the label's own side
            share = one - label[r] if logit > zero else label[r]
            target[r] = -times * (share * size + _log1p(_exp(-size)))
    elif code == 1:  # categorical
        # The largest logit, and the sum of exp(logit - largest) over the others: with its own 1
        # that sum would lose what the others add, where one class is nearly certain
        for r in range(n):
            target[r] = outputs[first, start + r]
        sums[:] = zero
        for k in range(1, len(outputs) - first):
            logits = outputs[first + k, start : start + n]
            for r in range(n):
                largest, logit = target[r], logits[r]
                is_larger = logit > largest
                share = _exp(largest - logit if is_larger else logit - largest)
                sums[r] = (sums[r] + one) * share if is_larger else sums[r] + share
                target[r] = logit if is_larger else largest
        for r in range(n):
            chosen = np.uintp(first) + np.uintp(labels[0, label_start + r])
            behind = target[r] - outputs[chosen, np.uintp(start + r)]
            target[r] = -times * (behind + _log1p(sums[r]))
    else:  # normal
        columns = len(labels)
        inverse, half = real(1.0 / scale), real(0.5)
        constant = real(columns * (math.log(scale) + 0.5 * math.log(2.0 * math.pi)))
        sums[:] = zero
        for k in range(columns):
            means = outputs[first + k, start : start + n]
            values = labels[k, label_start : label_start + n]
            for r in range(n):
                error = (values[r] - means[r]) * inverse
                sums[r] += error * error
        for r in range(n):
            target[r] = times * (-half * sums[r] - constant)


@compiled(fastmath=ROUNDING | {"reassoc"})
def sum_of_changes(new: Array, old: Array, index: Array) -> float:
    """Sum new minus old in double precision; ``index`` numbers the old entries."""
    total = 0.0
    for r in range(len(new)):
        total += np.float64(new[r]) - np.float64(old[index[r]])
    return total


@compiled(fastmath=ROUNDING | {"reassoc"})
def total_of(values: Array) -> float:
    """Sum a row in double precision."""
    total = 0.0
    for r in range(len(values)):
        total += np.float64(values[r])
    return total
