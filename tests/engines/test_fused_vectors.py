"""What vector instructions do at once is what the same functions say in Python."""

import numba
import numpy as np
import pytest

from pyro_fnbg.engines.fused.elementwise import LANES
from pyro_fnbg.engines.fused.vectors import (
    add_products,
    add_scaled,
    find_set,
    lowest_bit,
    set_bits,
    transpose,
)


@numba.njit
def compiled_set_bits(flags, start):
    return set_bits(flags, start)


@numba.njit
def compiled_lowest_bit(bits):
    return lowest_bit(bits)


@numba.njit
def compiled_find_set(flags, count, places):
    return find_set(flags, count, places)


@numba.njit
def compiled_transpose(source, count, target, first):
    transpose(source, count, target, first)


@numba.njit
def compiled_add_products(weights, inputs, source, first, start, target):
    add_products(weights, inputs, source, first, start, target)


@numba.njit
def compiled_add_scaled(source, row, scale, change, target, new_row, count):
    add_scaled(source, row, scale, change, target, new_row, count)


def flags_of(share, length=256):
    """Bytes of which about a share is not 0, the first and the last of them for certain."""
    flags = (np.random.default_rng(0).random(length) < share) * np.uint8(200)
    if share > 0:
        flags[[0, -1]] = 1
    return flags


@pytest.mark.parametrize("share", [0.0, 0.07, 0.9, 1.0])
def test_bits_are_those_of_bytes_that_are_not_0(share):
    flags = flags_of(share)
    for start in (0, 3, 64, 192):
        expected = sum(int(flags[start + k] > 0) << k for k in range(64))
        assert compiled_set_bits(flags, start) == set_bits(flags, start) == expected


def test_the_lowest_bit_is_found():
    for bit in range(64):
        for above in (0, 2**64 - 2 ** (bit + 1)):
            bits = np.uint64(2**bit + above)
            assert compiled_lowest_bit(bits) == lowest_bit(bits) == bit


@pytest.mark.parametrize("share", [0.0, 0.07, 0.9, 1.0])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 250, 256])
def test_places_of_bytes_that_are_not_0(share, count):
    flags = flags_of(share)
    flags[count:] = 0
    places = np.full(256, -1, np.int32)
    found = compiled_find_set(flags, count, places)
    np.testing.assert_array_equal(places[:found], np.flatnonzero(flags))
    assert (places[found:] == -1).all()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [1, 7, 8, 16, 35])
def test_rows_become_columns(kind, columns):
    """In whole squares, and one by one where they leave columns over; nothing else is touched."""
    length = 64 // np.dtype(kind).itemsize
    source = np.random.default_rng(0).standard_normal((length, columns + 3)).astype(kind)
    target = np.full((columns + 1, 3 * length), 7, kind)
    compiled_transpose(source, columns, target, length)
    expected = np.full_like(target, 7)
    expected[:columns, length : 2 * length] = source[:, :columns].T
    np.testing.assert_array_equal(target, expected)
    target[:] = 7
    transpose.py_func(source, columns, target, length)
    np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("number", [0, 1, 3, 4, 5, 8, 9, 15, 23])
def test_products_are_added(number, kind):
    """To rows picked by number, from an offset on; weights may lie apart."""
    rng = np.random.default_rng(2)
    weights = rng.standard_normal(3 * number).astype(kind)[::3]
    inputs = rng.permutation(25)[:number]
    source, target = rng.standard_normal((27, 3 * LANES)).astype(kind), np.ones(2 * LANES, kind)
    other = target.copy()
    compiled_add_products(weights, inputs, source, 2, 6, target)
    exact = 1 + weights.astype(np.float64) @ source[2 + inputs, 6 : 6 + len(target)].astype(float)
    np.testing.assert_allclose(target, exact, rtol=0, atol=30 * np.finfo(kind).eps)
    add_products(weights, inputs, source, 2, 6, other)
    np.testing.assert_allclose(other, exact, rtol=0, atol=30 * np.finfo(kind).eps)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("vectors", [1, 2, 3])
def test_a_scaled_change_is_added_to_a_row(vectors, kind):
    """As it is in Python, apart from rounding; into another array or in place, and nowhere else."""
    rng, count = np.random.default_rng(3), vectors * 64 // np.dtype(kind).itemsize
    source, change = rng.standard_normal((5, count + 8)).astype(kind), np.ones(count + 8, kind)
    change[:count] = rng.standard_normal(count)
    found, expected = np.zeros((2, 4, count + 8), kind)
    compiled_add_scaled(source, 3, kind(0.3), change, found, 1, count)
    add_scaled(source, 3, kind(0.3), change, expected, 1, count)
    np.testing.assert_allclose(found, expected, rtol=0, atol=8 * np.finfo(kind).eps)
    assert np.count_nonzero(found) == count
    compiled_add_scaled(source, 3, kind(0.3), change, source, 3, count)
    np.testing.assert_array_equal(source[3, :count], found[1, :count])
