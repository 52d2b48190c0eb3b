"""Whether a model follows the rows of its plate, and can score each of them."""

from __future__ import annotations

import pyro
import torch
from torch import Tensor

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.core.explaining import explain
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.rows import all_rows, observed_in_plate
from pyro_fnbg.model.sites import PlateRows, seeded

__all__ = ["check_no_broken_rows", "check_rows_followed"]

# A model's own small subsample of large data would take too long to check in full
MAX_CHECKED_BATCHES = 5_000


def check_rows_followed(bound: BoundModel, plan: BatchPlan, rows: Tensor) -> None:
    """Check on one batch that the model takes the rows that its plate is given.

    Raises:
        ValueError: If an observed site in the plate scores another number of rows than the batch
            has, or other rows, or a row otherwise beside other rows; names the site.
    """
    advice = _advice(bound, plan, len(rows))

    def scores(order: Tensor) -> dict[str, tuple[Tensor, int]]:
        return _scores(bound, plan, order, advice)

    exchanged = _exchanged(rows, plan.num_rows)
    kept = int((exchanged == rows).sum())
    reverse, beside_others = scores(rows.flip(0)), scores(exchanged)
    for name, (score, dim) in scores(rows).items():
        if not _agree(score, reverse[name][0].flip(dim)):
            raise ValueError(
                f"observed site {name!r} does not score its rows by their numbers (in reverse "
                f"order they score otherwise): {advice}"
            )
        if not _agree(score.narrow(dim, 0, kept), beside_others[name][0].narrow(dim, 0, kept)):
            raise ValueError(
                f"observed site {name!r} scores a row otherwise where other rows stand beside it "
                f"in the batch of {len(rows)}, as a model does that standardises its batch (batch "
                "normalisation in training mode, x - x.mean()): standardise all rows before run(), "
                "or call eval() on the network"
            )


def _advice(bound: BoundModel, plan: BatchPlan, batch_size: int) -> str:
    """Say what a model must do with the rows of a batch, and in which lines."""
    names = [
        name
        for name, value in bound.named_arguments().items()
        if name.isidentifier() and isinstance(value, Tensor) and value.dim() > 0
        if len(value) == plan.num_rows
    ] or ["x", "y"]
    taken = ", ".join(f"{name}[rows]" for name in names)
    return (
        f"plate {plan.plate!r} was given {batch_size} of its {plan.num_rows} rows, and the model "
        "must use just those: take x[rows] and y[rows] in 'with pyro.plate(...) as rows', or "
        "pyro.subsample(x, event_dim=...) inside it. Lines that do so, with the network between "
        "them, outside the plate:\n"
        f"    plate = pyro.plate({plan.plate!r}, {plan.num_rows})\n"
        f"    with plate as rows:\n"
        f"        {', '.join(names)} = {taken}\n"
        f"    with plate:  # and the observed site, as before"
    )


def _scores(
    bound: BoundModel, plan: BatchPlan, order: Tensor, advice: str
) -> dict[str, tuple[Tensor, int]]:
    """Score each observed site of the plate on a batch, and tell the rows' dimension."""
    try:
        # On one seed all runs draw the same parameters from the prior
        with seeded(0), pyro.validation_enabled(False), PlateRows(plan.plate, order):
            trace = bound.prior_trace(is_scored=True)
    except Exception as error:
        # The model's own words stay; a batch that it cannot take shows in many ways
        explain(error, f"FNBG ran the model on a batch: {advice}")
        raise
    found = {}
    for name, site, dim in observed_in_plate(trace, plan.plate):
        score = site["log_prob"]
        if score.dim() < -dim or score.shape[dim] != len(order):
            raise ValueError(
                f"observed site {name!r} scores shape {tuple(score.shape)}, not {len(order)} "
                f"rows on dimension {dim}: {advice}"
            )
        found[name] = score, dim
    return found


def _agree(score: Tensor, other: Tensor) -> bool:
    return torch.allclose(score, other, rtol=1e-3, atol=1e-4, equal_nan=True)


def _exchanged(rows: Tensor, num_rows: int) -> Tensor:
    """Put rows outside a batch in the place of up to half of its own, the last ones."""
    is_outside = torch.ones(num_rows, dtype=torch.bool)
    is_outside[rows] = False
    others = is_outside.nonzero().reshape(-1)[: len(rows) // 2].to(rows)
    return torch.cat([rows[: len(rows) - len(others)], others])


def check_no_broken_rows(bound: BoundModel, plan: BatchPlan, num_rows: int) -> None:
    """Check that no row's log density is NaN, ``num_rows`` at a time, at two draws of the prior.

    A chain on batches would stand still, unseen, on every batch that holds such a row.

    Raises:
        ValueError: Naming the site and the rows.
    """
    if plan.plate is None or plan.num_rows / num_rows > MAX_CHECKED_BATCHES:
        return
    broken: dict[str, Tensor] = {}
    for _ in range(2):
        found: dict[str, list[Tensor]] = {}
        with pyro.validation_enabled(False):
            for trace, known in all_rows(bound, plan.plate, plan.num_rows, num_rows, True):
                for name, site, dim in observed_in_plate(trace, plan.plate):
                    is_nan = site["log_prob"].isnan().movedim(dim, 0).reshape(num_rows, -1).any(1)
                    found.setdefault(name, []).append(is_nan[known:])
        joined = {name: torch.cat(pieces).cpu() for name, pieces in found.items()}
        broken = {name: broken.get(name, is_nan) & is_nan for name, is_nan in joined.items()}
        if not any(bool(is_nan.any()) for is_nan in broken.values()):
            return
    for name, is_nan in broken.items():
        at = is_nan.nonzero().reshape(-1).tolist()
        if at:
            raise ValueError(
                f"observed site {name!r} has log density NaN in {len(at)} of {plan.num_rows} "
                f"rows, whatever the parameters; the first rows are {at[:5]}: mend the data, or "
                "mask these rows"
            )
