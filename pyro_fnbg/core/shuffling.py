"""Shuffles and stratified batches: not compiled, they take as long as a small network's sweeps."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.core.compiling import kept_on_disk

__all__ = ["deal", "permutations", "systematic_sample"]


def permutations(rng: np.random.Generator, count: int, size: int) -> NDArray[np.int64]:
    """Return 0, ..., size - 1 in random orders, three times as fast as ``rng.permutation``.

    Each order has the same probability up to a relative 2**-63 x size.

    Returns:
        Shape ``(count, size)``.

    Example:
        >>> permutations(np.random.default_rng(0), 2, 5).sum(1)
        array([10, 10])
    """
    orders = np.empty((count, size), dtype=np.int64)
    _shuffle(orders, rng.bit_generator.random_raw((count, size)))
    return orders


@kept_on_disk
@numba.njit(nogil=True)
def _shuffle(orders: NDArray[np.int64], words: NDArray[np.uint64]) -> None:
    """Write permutations (Fisher and Yates), with 64 random bits for each exchange."""
    half = np.uint64(32)
    low_bits = np.uint64(0xFFFFFFFF)
    for number in range(len(orders)):
        order = orders[number]
        for place in range(len(order)):
            order[place] = place
        for last in range(len(order) - 1, 0, -1):
            # The upper half of word x count, by halves: uniform on 0..last
            count, word = np.uint64(last + 1), words[number, last]
            upper = (word >> half) * count + (((word & low_bits) * count) >> half)
            other = np.int64(upper >> half)
            order[last], order[other] = order[other], order[last]


@kept_on_disk
@numba.njit(nogil=True)
def systematic_sample(
    probs: NDArray[np.float64], order: NDArray[np.int64], uniform: float, count: int
) -> NDArray[np.int64]:
    """Choose ``count`` items, item i with probability ``probs[i]``; the probabilities sum to it.

    Args:
        probs: Probabilities, at most 1.
        order: The items in random order.
        uniform: A random number.
        count: How many are chosen.

    Returns:
        1 for those that are chosen, 0 for others.
    """
    chosen = np.zeros(len(probs), dtype=np.int64)
    edges = np.cumsum(probs[order])
    at = 0
    for tick in range(count):
        place = (tick + uniform) * edges[-1] / count
        # Rounding may leave the last edge a hair below the last place
        while at < len(probs) - 1 and edges[at] <= place:
            at += 1
        # and, at the worst, no item after the one chosen last
        at = min(at, len(probs) - 1)
        chosen[order[at]] += 1
        at += 1
    return chosen


@kept_on_disk
@numba.njit(nogil=True)
def deal(
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    base: NDArray[np.int64],
    extras: NDArray[np.int64],
    uniforms: NDArray[np.float64],
    batches: NDArray[np.int64],
) -> None:
    """Write batches that hold every class ``base`` times, and once more as often as its extras say.

    Which classes have one more in a batch is drawn by systematic sampling, with probabilities equal
    to the extras that each has left over the batches left.

    Args:
        rows: The rows of all classes, one class after the other, each in random order.
        starts: Where each class starts in them.
        base: Rows of each class in every batch.
        extras: Batches that hold one more row of a class; over all classes as many as there are
            places left in the batches.
        uniforms: Random numbers, shape ``(batches, classes + 1)``.
        batches: Written, shape ``(batches, batch size)``.
    """
    num_batches, size = batches.shape
    num_classes = len(base)
    used, left = starts.copy(), extras.copy()
    for number in range(num_batches):
        order = np.argsort(uniforms[number, :num_classes])
        probs, uniform = left / (num_batches - number), uniforms[number, num_classes]
        chosen = systematic_sample(probs, order, uniform, size - base.sum())
        take = base + chosen
        left -= chosen
        filled = 0
        for label in range(num_classes):
            for _ in range(take[label]):
                batches[number, filled] = rows[used[label]]
                used[label] += 1
                filled += 1
