"""What vector instructions do at once is what the same functions say in Python."""

import numba
import numpy as np
import pytest

from pyro_fnbg.engines.fused.vectors import find_set, lowest_bit, set_bits, transpose


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
def compiled_transpose(source, target, first):
    transpose(source, target, first)


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
    source = np.random.default_rng(0).standard_normal((length, columns)).astype(kind)
    target = np.full((columns, 3 * length), 7, kind)
    compiled_transpose(source, target, length)
    expected = np.full_like(target, 7)
    expected[:, length : 2 * length] = source.T
    np.testing.assert_array_equal(target, expected)
    target[:] = 7
    transpose.py_func(source, target, length)
    np.testing.assert_array_equal(target, expected)
