"""What vector instructions do at once, and a compiler of loops does not find, for the fused engine.

What is written in Python says what is meant; compiled, the same is put in terms of whole vectors,
which any processor has an answer to, if only in several steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from pyro_fnbg.engines.fused.elementwise import compiled

__all__ = [
    "WIDTH",
    "add_products",
    "add_scaled",
    "find_set",
    "lowest_bit",
    "set_bits",
    "transpose",
    "transpose_square",
]

Array = NDArray[Any]

# Bytes of a vector, and of a line of the cache
WIDTH = 64


def add_products(
    weights: Array, inputs: Array, source: Array, first: int, start: int, target: Array
) -> None:
    """Add weights times rows of ``source``, its columns from ``start`` on, to ``target``.

    Weight k belongs to row ``first + inputs[k]``; the target is a multiple of LANES long.
    """
    for weight, row in zip(weights, inputs, strict=True):
        target += weight * source[first + row, start : start + len(target)]


def add_scaled(
    source: Array, row: int, scale: float, change: Array, target: Array, new_row: int, count: int
) -> None:
    """Add a scaled change to a row, and put it into a row of ``target``.

    ``count`` numbers from the first on, which fill whole vectors.
    """
    target[new_row, :count] = source[row, :count] + scale * change[:count]


def set_bits(flags: Array, start: int) -> np.uint64:
    """Return a number whose bits say which of 64 bytes, from ``start`` on, are not 0."""
    return np.uint64(sum(1 << k for k in range(64) if flags[start + k]))


def lowest_bit(bits: np.uint64) -> np.uint64:
    """Number the lowest bit that is set, of a number that is not 0."""
    return np.uint64((int(bits) & -int(bits)).bit_length() - 1)


def transpose_square(source: Array, column: int, target: Array, first: int) -> None:
    """Transpose the first rows of ``source``, from ``column`` on, into ``target``.

    As many rows and columns as a vector holds numbers go to as many rows from ``column`` on, in
    columns from ``first`` on.
    """
    length = WIDTH // source.itemsize
    square = source[:length, column : column + length]
    target[column : column + length, first : first + length] = square.T


def _fma(builder: Any, vector: Any) -> Any:
    """Declare the product of two vectors plus a third, rounded once where the processor can."""
    name = {"float": "f32", "double": "f64"}[str(vector.element)]
    kind = ir.FunctionType(vector, [vector] * 3)
    return builder.module.declare_intrinsic(f"llvm.fmuladd.v{vector.count}{name}", fnty=kind)


def _all_alike(builder: Any, vector: Any, value: Any) -> Any:
    """Put one number into every place of a vector."""
    first = builder.insert_element(vector(ir.Undefined), value, ir.IntType(32)(0))
    order = ir.VectorType(ir.IntType(32), vector.count)([0] * vector.count)
    return builder.shuffle_vector(first, vector(ir.Undefined), order)


def _type_add_products(
    typingctx: Any, weights: Any, inputs: Any, source: Any, first: Any, start: Any, target: Any
) -> Any:
    """Hold a few vectors of sums in registers, while the weights pass by."""
    length, at_once = WIDTH // (source.dtype.bitwidth // 8), 4

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole, number = context.get_value_type(types.intp), context.get_value_type(source.dtype)
        vector = ir.VectorType(number, length)
        weights, inputs, source_, target = (
            context.make_array(signature.args[k])(context, builder, args[k]) for k in (0, 1, 2, 5)
        )
        first, start = args[3], args[4]
        width = builder.extract_value(source_.shape, 1)
        step = builder.sdiv(
            builder.extract_value(weights.strides, 0), whole(source.dtype.bitwidth // 8)
        )
        fma = _fma(builder, vector)

        def vectors(array: Any, at: Any) -> list[Any]:
            places = [builder.add(at, whole(k * length)) for k in range(at_once)]
            pointers = [builder.gep(array.data, [place]) for place in places]
            return [builder.bitcast(pointer, vector.as_pointer()) for pointer in pointers]

        sums = [cgutils.alloca_once(builder, vector) for _ in range(at_once)]
        end = builder.extract_value(target.shape, 0)
        rows = (whole(0), end, whole(at_once * length), whole)
        with cgutils.for_range_slice(builder, *rows) as (row, _):
            for total, where in zip(sums, vectors(target, row), strict=True):
                builder.store(builder.load(where, align=1), total)
            with cgutils.for_range(builder, builder.extract_value(weights.shape, 0)) as loop:
                weight = builder.load(builder.gep(weights.data, [builder.mul(loop.index, step)]))
                alike = _all_alike(builder, vector, weight)
                unit = builder.add(first, builder.load(builder.gep(inputs.data, [loop.index])))
                at = builder.add(builder.mul(unit, width), builder.add(start, row))
                for total, where in zip(sums, vectors(source_, at), strict=True):
                    value = builder.load(where, align=1)
                    builder.store(builder.call(fma, [alike, value, builder.load(total)]), total)
            for total, where in zip(sums, vectors(target, row), strict=True):
                builder.store(builder.load(total), where, align=1)
        return context.get_dummy_value()

    place = (types.intp, types.intp)
    return types.void(weights, inputs, source, *place, target), codegen


def _type_add_scaled(
    typingctx: Any,
    source: Any,
    row: Any,
    scale: Any,
    change: Any,
    target: Any,
    new_row: Any,
    count: Any,
) -> Any:
    length = WIDTH // (source.dtype.bitwidth // 8)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole, number = context.get_value_type(types.intp), context.get_value_type(source.dtype)
        vector = ir.VectorType(number, length)
        old, change, new = (
            context.make_array(signature.args[k])(context, builder, args[k]) for k in (0, 3, 4)
        )
        fma = _fma(builder, vector)
        scales = _all_alike(builder, vector, args[2])
        starts = [
            builder.mul(args[k], builder.extract_value(array.shape, 1))
            for k, array in ((1, old), (5, new))
        ]
        rows = (whole(0), args[6], whole(length), whole)
        with cgutils.for_range_slice(builder, *rows) as (at, _):
            before, after, changes = (
                builder.bitcast(builder.gep(array.data, [place]), vector.as_pointer())
                for array, place in (
                    (old, builder.add(starts[0], at)),
                    (new, builder.add(starts[1], at)),
                    (change, at),
                )
            )
            values = [builder.load(where, align=1) for where in (changes, before)]
            builder.store(builder.call(fma, [scales, *values]), after, align=1)
        return context.get_dummy_value()

    signature = (source, types.intp, source.dtype, change, target, types.intp, types.intp)
    return types.void(*signature), codegen


def _type_set_bits(typingctx: Any, flags: Any, start: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), 64)
        array = context.make_array(signature.args[0])(context, builder, args[0])
        where = builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer())
        is_set = builder.icmp_unsigned("!=", builder.load(where, align=1), vector(None))
        return builder.bitcast(is_set, ir.IntType(64))

    return types.uint64(flags, types.intp), codegen


def _type_lowest_bit(typingctx: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


def _type_transpose_square(
    typingctx: Any, source: Any, column: Any, target: Any, first: Any
) -> Any:
    """Shuffle the rows into each other, first with those half the rows away, until all is there."""
    length = WIDTH // (source.dtype.bitwidth // 8)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole, places = context.get_value_type(types.intp), ir.VectorType(ir.IntType(32), length)

        def pointers(number: int, row: Any, column: Any) -> list[Any]:
            array = context.make_array(signature.args[number])(context, builder, args[number])
            width = builder.extract_value(array.shape, 1)
            at = builder.add(builder.mul(row, width), column)
            steps = [builder.add(at, builder.mul(width, whole(k))) for k in range(length)]
            number_type = context.get_value_type(signature.args[number].dtype)
            kind = ir.VectorType(number_type, length).as_pointer()
            return [builder.bitcast(builder.gep(array.data, [step]), kind) for step in steps]

        rows = [builder.load(where, align=1) for where in pointers(0, whole(0), args[1])]
        half = length // 2
        lower = places([k // 2 + k % 2 * length for k in range(length)])
        upper = places([half + k // 2 + k % 2 * length for k in range(length)])
        for _ in range(length.bit_length() - 1):
            rows = [
                builder.shuffle_vector(rows[k], rows[k + half], order)
                for k in range(half)
                for order in (lower, upper)
            ]
        for row, where in zip(rows, pointers(2, args[1], args[3]), strict=True):
            builder.store(row, where, align=1)
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp), codegen


_add_products: Any = intrinsic(_type_add_products)
_add_scaled: Any = intrinsic(_type_add_scaled)
_set_bits: Any = intrinsic(_type_set_bits)
_lowest_bit: Any = intrinsic(_type_lowest_bit)
_transpose_square: Any = intrinsic(_type_transpose_square)


@overload(add_products)
def _compiled_add_products(
    weights: Any, inputs: Any, source: Any, first: Any, start: Any, target: Any
) -> Callable[..., Any]:
    def implementation(
        weights: Any, inputs: Any, source: Any, first: Any, start: Any, target: Any
    ) -> Any:
        _add_products(weights, inputs, source, first, start, target)

    return implementation


@overload(add_scaled)
def _compiled_add_scaled(
    source: Any, row: Any, scale: Any, change: Any, target: Any, new_row: Any, count: Any
) -> Callable[..., Any]:
    def implementation(
        source: Any, row: Any, scale: Any, change: Any, target: Any, new_row: Any, count: Any
    ) -> Any:
        _add_scaled(source, row, scale, change, target, new_row, count)

    return implementation


@overload(set_bits)
def _compiled_set_bits(flags: Any, start: Any) -> Callable[..., Any]:
    def implementation(flags: Any, start: Any) -> Any:
        return _set_bits(flags, start)

    return implementation


@overload(lowest_bit)
def _compiled_lowest_bit(bits: Any) -> Callable[..., Any]:
    def implementation(bits: Any) -> Any:
        return _lowest_bit(bits)

    return implementation


@overload(transpose_square)
def _compiled_transpose_square(
    source: Any, column: Any, target: Any, first: Any
) -> Callable[..., Any]:
    def implementation(source: Any, column: Any, target: Any, first: Any) -> Any:
        _transpose_square(source, column, target, first)

    return implementation


@compiled()
def transpose(source: Array, count: int, target: Array, first: int) -> None:
    """Write the first columns of ``source`` as rows of ``target``, from column ``first`` on.

    There are as many rows as a vector of 64 bytes has numbers.
    """
    length = len(source)
    whole = count - count % length
    for i in range(0, whole, length):
        transpose_square(source, i, target, first)
    for i in range(whole, count):
        for r in range(length):
            target[i, first + r] = source[r, i]


@compiled()
def find_set(flags: Array, count: int, places: Array) -> int:
    """Write down which of the first bytes are not 0, in order; return how many they are.

    Both arrays are as long as a multiple of 64, and bytes from ``count`` on are 0.
    """
    found = 0
    for start in range(0, count, 64):
        bits = set_bits(flags, start)
        while bits != np.uint64(0):
            places[found] = np.uint64(start) + lowest_bit(bits)
            found += 1
            bits &= bits - np.uint64(1)
    return found
