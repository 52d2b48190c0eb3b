import itertools
from collections import Counter

import numpy as np
import pytest

from pyro_fnbg.core.shuffling import _shuffle, permutations


@pytest.mark.parametrize("size", [0, 1, 2, 7, 5000])
def test_every_number_comes_once(size):
    orders = permutations(np.random.default_rng(size), 3, size)
    assert orders.dtype == np.int64
    assert np.array_equal(np.sort(orders), np.tile(np.arange(size), (3, 1)))


def test_every_order_is_as_likely():
    rng, num_draws = np.random.default_rng(1), 24_000
    counts = Counter(map(tuple, permutations(rng, num_draws, 4).tolist()))
    assert set(counts) == set(itertools.permutations(range(4)))
    expected = num_draws / 24
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 49.7  # 0.1 % point with 23 degrees of freedom


@pytest.mark.parametrize("size", [2, 3, 1000, 2**20])
def test_exchanges_are_uniform_over_the_whole_range_of_the_words(size):
    """The largest word picks the last place, the smallest the first, and the cuts are even."""
    for word in (0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 2**40, 2**64 - 1):
        words = np.full((1, size), 2**64 - 1, dtype=np.uint64)  # each stays in its place
        words[0, -1] = word
        orders = np.empty((1, size), dtype=np.int64)
        _shuffle(orders, words)
        assert orders[0, -1] == word * size >> 64


def test_the_generator_alone_decides():
    first, second = (permutations(np.random.default_rng(3), 2, 50) for _ in range(2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first[0], first[1])
