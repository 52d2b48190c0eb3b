"""Which rows of the data each sweep sees, and what a chain on such batches targets.

A sweep on a batch is exact for prior x that batch's likelihood, raised to the power of a factor.
With the full data and factor 1 that is the posterior. With a fresh batch of n of N rows every
sweep, the chain is a biased approximation, in general hotter, of prior x likelihood**(factor n /
N); the bias does not vanish with the length of the chain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyro_fnbg.core.blocks import first_few
from pyro_fnbg.core.noise import ChainKey, Stream, generator
from pyro_fnbg.core.shuffling import deal, permutations, systematic_sample

__all__ = ["BATCH_ORDERS", "EXACT_TARGET", "BatchPlan", "Batches"]

BATCH_ORDERS = ("shuffled", "stratified", "full")
# What a chain targets where nothing has to be said against it
EXACT_TARGET = "exact: the posterior of the model"

# Epochs that come from one generator, at most, and rows in them where they are more than one
GROUP_EPOCHS, GROUP_ROWS = 64, 2**16


@dataclass(frozen=True)
class BatchPlan:
    """State how batches are drawn and how their likelihood counts.

    Attributes:
        plate: Name of the plate whose rows are the data; None for a model without one.
        num_rows: N, the number of rows of the data.
        batch_size: n, the number of rows a sweep sees.
        order: "full" (every sweep sees all rows), "shuffled" (epochs without replacement) or
            "stratified" (the same, with the classes in their proportions).
        factor: Power of the batch's likelihood: 1 lets the batch stand in for the data, N / n
            estimates the full likelihood.
        others: Observed sites outside the plate, which count in full in every sweep.

    Example:
        >>> plan = BatchPlan("data", 60_000, batch_size=3_000, order="shuffled", factor=1.0)
        >>> plan.temperature
        20.0
        >>> BatchPlan("data", 100, 100, "full", 1.0).target
        'exact: the posterior of the model'
    """

    plate: str | None
    num_rows: int
    batch_size: int
    order: str
    factor: float
    others: tuple[str, ...] = ()

    @property
    def is_full(self) -> bool:
        """Whether every sweep sees all rows."""
        return self.order == "full"

    @property
    def temperature(self) -> float:
        """Nominal likelihood temperature N / (n factor); the prior is not tempered."""
        return self.num_rows / (self.batch_size * self.factor)

    @property
    def is_exact(self) -> bool:
        """Whether a chain targets the posterior of the model exactly."""
        return self.is_full and math.isclose(self.temperature, 1.0)

    @property
    def target(self) -> str:
        """Say in one line what the chain targets."""
        if self.is_exact:
            return EXACT_TARGET
        power = f"prior x likelihood^{1 / self.temperature:.4g}"
        if self.others:
            # The likelihood is that of the plate's rows
            power += f" x likelihood of {first_few(self.others)} outside plate {self.plate!r}"
        if self.is_full:
            return f"exact: {power} (batch likelihood times {self.factor:.4g}), not the posterior"
        return (
            f"approximate: {power}, with a fresh {self.order} batch of {self.batch_size} of "
            f"{self.num_rows} rows every sweep and the batch likelihood times {self.factor:.4g} "
            f"(nominal temperature {self.temperature:.4g}); the chain is in general hotter, and "
            "the bias does not vanish with length"
        )


class Batches:
    """Give every chain its batches, by sweep number.

    "shuffled" cuts a random permutation of all rows into batches of exactly n rows; what is left of
    an epoch waits for the next shuffle. "stratified" does the same with every class in proportion:
    its count in a batch is n times its share, rounded up or down at random, and no row comes twice
    in an epoch. Batches never depend on the state of the chain.

    Args:
        plan: The sizes and the order.
        labels: Class of each row, shape ``(num_rows,)``, for "stratified".

    Example:
        >>> plan = BatchPlan("data", num_rows=6, batch_size=2, order="shuffled", factor=1.0)
        >>> rows = Batches(plan).rows_of_sweeps(ChainKey(seed=0, chain=0), first=0, count=3)
        >>> sorted(rows.flatten().tolist())
        [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, plan: BatchPlan, labels: Tensor | None = None) -> None:
        self._plan = plan
        self._classes: list[np.ndarray] = []
        if plan.order == "stratified":
            assert labels is not None
            codes = labels.cpu().numpy()
            self._classes = [np.flatnonzero(codes == code) for code in np.unique(codes)]
        # To make a generator takes as long as some hundred rows, so short epochs share one
        self._epochs_a_group = min(GROUP_EPOCHS, max(1, GROUP_ROWS // plan.num_rows))
        # The last group's number and rows of each chain, kept to save time; a chain is on one
        # thread at a time
        self._groups: dict[ChainKey, tuple[int, Tensor]] = {}

    def rows(self, key: ChainKey, sweep: int) -> Tensor | None:
        """Return the rows of a sweep's batch, shape ``(batch_size,)``; None means all rows."""
        rows = self.rows_of_sweeps(key, sweep, 1)
        return None if rows is None else rows[0]

    def rows_of_sweeps(self, key: ChainKey, first: int, count: int) -> Tensor | None:
        """Return the rows of sweeps' batches, shape ``(count, batch_size)``; None means all."""
        if self._plan.is_full:
            return None
        per_group = self._epochs_a_group * (self._plan.num_rows // self._plan.batch_size)
        rows, done = torch.empty((count, self._plan.batch_size), dtype=torch.long), 0
        while done < count:
            number, skipped = divmod(first + done, per_group)
            group = self._groups.get(key)
            if group is None or group[0] != number:
                rng = generator(key, Stream.EPOCH, number)
                group = self._groups[key] = (number, self._draw_epochs(rng, self._epochs_a_group))
            taken = min(per_group - skipped, count - done)
            rows[done : done + taken] = group[1][skipped : skipped + taken]
            done += taken
        return rows

    def independent_rows(self, key: ChainKey, number: int) -> Tensor:
        """Return a batch from a shuffle of its own, which no sweep uses."""
        return self._draw_epochs(generator(key, Stream.PROBE_EPOCH, number), 1)[0]

    def _draw_epochs(self, rng: np.random.Generator, count: int) -> Tensor:
        """Draw the rows of whole epochs, shape ``(batches, batch_size)``."""
        size, num_rows = self._plan.batch_size, self._plan.num_rows
        num_batches = num_rows // size
        if self._plan.order == "stratified":
            epochs = [
                _stratified_epoch(rng, self._classes, num_batches, size) for _ in range(count)
            ]
            return torch.from_numpy(np.concatenate(epochs))
        orders = permutations(rng, count, num_rows)[:, : num_batches * size]
        return torch.from_numpy(orders.reshape(-1, size))


def _stratified_epoch(
    rng: np.random.Generator, classes: list[np.ndarray], num_batches: int, size: int
) -> np.ndarray:
    """Deal the rows of each class over the batches of an epoch.

    Every batch gets the whole part of each class's quota, and the places left go one each to
    classes drawn with probabilities equal to what each still has to place over the batches left.
    Those are at most 1 and sum to a whole number, so systematic sampling fills every batch exactly
    and every class's total is its quota over the epoch, rounded up or down.
    """
    sizes = np.array([len(rows) for rows in classes])
    quotas = sizes * (size / sizes.sum())
    base = np.floor(quotas + 1e-9).astype(np.int64)
    totals_left = num_batches * (size - base.sum())
    extra_shares = num_batches * np.clip(quotas - base, 0.0, None)
    whole = np.floor(extra_shares + 1e-9).astype(np.int64)
    extras = whole + systematic_sample(
        extra_shares - whole, rng.permutation(len(classes)), rng.random(), totals_left - whole.sum()
    )
    shuffled = np.concatenate([rows[permutations(rng, 1, len(rows))[0]] for rows in classes])
    starts = np.cumsum(sizes) - sizes
    batches = np.empty((num_batches, size), dtype=np.int64)
    deal(shuffled, starts, base, extras, rng.random((num_batches, len(classes) + 1)), batches)
    return batches
