"""Which rows of the data a fit sees, in which batches, and which it is judged by."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.core.batches import Batches, BatchPlan
from pyro_fnbg.core.noise import ChainKey, Stream, generator
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.lint.entry import check_rows
from pyro_fnbg.model.planning import make_plan
from pyro_fnbg.model.sites import ModelSites

__all__ = ["Rows", "split_rows"]

# Left out: rows of a batch, at most, and the share of all rows that is held out; of few rows it is
# more, so that not chance alone chooses by them
BATCH_SIZE, HELD_OUT, ENOUGH_HELD_OUT, MOST_HELD_OUT = 256, 0.1, 20, 1 / 3


class Rows(NamedTuple):
    """Say which rows a fit sees.

    Attributes:
        plan: The batches, whose likelihood stands for that of all rows.
        batch: The rows of a step, by its number; None stands for all.
        held_out: Rows that no batch has, in pieces that the model can take; none without.
    """

    plan: BatchPlan
    batch: Callable[[int], Tensor | None]
    held_out: tuple[Tensor, ...]

    @property
    def num_held_out(self) -> int:
        """Number of rows that are held out."""
        return sum(map(len, self.held_out))


def split_rows(
    bound: BoundModel,
    sites: ModelSites,
    batch_size: int | None,
    batch_plate: str | None,
    held_out: float | None,
    key: ChainKey,
) -> Rows:
    """Hold some rows out at random, and deal the others into batches.

    A model that cannot be given some of its rows sees all, unless batches or held-out rows were
    asked for.

    Args:
        bound: The model.
        sites: What set-up found in it.
        batch_size: Rows of a batch; left out, as many as the model takes at a time, or 256.
        batch_plate: The plate whose rows are the data, where there are several.
        held_out: Share of the rows; left out, a tenth and at least 20 rows, or a third of the rows
            where that is less.
        key: The random streams of the split and of the batches.

    Raises:
        ValueError: If what was asked for does not fit the model; names both.
    """
    try:
        return _split(bound, sites, batch_size, batch_plate, held_out, key)
    except Exception:
        # Without rows, with rows that belong together, or with rows that do not follow the plate
        if batch_size is not None or batch_plate is not None or held_out:
            raise
        return Rows(make_plan(sites, None, "shuffled", None, None), lambda step: None, ())


def _split(
    bound: BoundModel,
    sites: ModelSites,
    batch_size: int | None,
    batch_plate: str | None,
    held_out: float | None,
    key: ChainKey,
) -> Rows:
    wished = make_plan(sites, batch_size, "shuffled", batch_plate, "full")
    assert wished.plate is not None
    plate, num_rows = sites.plates[wished.plate], wished.num_rows
    if plate.is_fixed or sites.latents_in_plate.get(plate.name):
        raise ValueError(
            f"held_out must be 0 or left out: plate {plate.name!r} has rows that the model fixes, "
            f"or latent sites in it; got {held_out}"
        )
    # A model that takes its own number of rows takes no other
    piece = plate.num_rows if plate.is_subsampled else 1
    share = held_out
    if share is None:
        share = max(HELD_OUT, min(ENOUGH_HELD_OUT / num_rows, MOST_HELD_OUT))
    num_held_out = 0 if share == 0 else piece * max(1, round(share * num_rows / piece))
    num_fitted = num_rows - num_held_out
    if num_fitted < piece:
        raise ValueError(
            f"held_out={held_out} leaves too few of the {num_rows} rows of plate {plate.name!r} "
            "to fit: hold out fewer"
        )
    size = min(wished.batch_size, num_fitted)
    if batch_size is None and not plate.is_subsampled:
        size = min(BATCH_SIZE, num_fitted)
    order = torch.from_numpy(generator(key, Stream.FIT, 0).permutation(num_rows))
    fitted, left = order[:num_fitted].sort().values, order[num_fitted:].sort().values
    batches = Batches(BatchPlan(plate.name, num_fitted, size, "shuffled", 1.0))

    def batch(step: int) -> Tensor | None:
        if size == num_fitted:
            return fitted if num_held_out else None
        rows = batches.rows(key, step)
        return None if rows is None else fitted[rows]

    plan = BatchPlan(plate.name, num_rows, size, "shuffled", num_rows / size)
    check_rows(bound, sites, plan, batch(0))
    pieces = left.split(piece if plate.is_subsampled else max(1, num_held_out))
    return Rows(plan, batch, pieces if num_held_out else ())
