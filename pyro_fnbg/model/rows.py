"""What a model observes in the rows of a plate: labels, and the values of its observed sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.sites import DataPlate, PlateRows

__all__ = ["all_rows", "observed_in_plate", "observed_labels", "observed_values"]


def observed_in_plate(trace: Any, plate: str | None) -> Iterator[tuple[str, Any, int]]:
    """Yield the observed sites in a plate of a trace: name, site and the plate's dimension."""
    for name, site in _observed(trace):
        for frame in site["cond_indep_stack"]:
            if frame.name == plate:
                yield name, site, frame.dim


def all_rows(
    bound: BoundModel, plate: str, size: int, num_rows: int, is_scored: bool = False
) -> Iterator[tuple[Any, int]]:
    """Trace the model on all rows of a plate, ``num_rows`` at a time, in order.

    Yields:
        A trace, and the number of its first rows that an earlier trace had already: every run
        takes equally many rows, since a model's own ``subsample_size`` admits no other number.
    """
    for start in range(0, size, num_rows):
        first = min(start, size - num_rows)
        with PlateRows(plate, torch.arange(first, first + num_rows)):
            yield bound.prior_trace(is_scored), start - first


def observed_labels(bound: BoundModel, plan: BatchPlan) -> Tensor:
    """Read the class of every row from the model's observed sites, shape ``(num_rows,)``.

    Raises:
        ValueError: If not exactly one observed site in the plate has whole numbers, one a row.
    """
    pieces: dict[str, list[Tensor]] = {}
    assert plan.plate is not None
    for trace, known in all_rows(bound, plan.plate, plan.num_rows, plan.batch_size):
        for name, site, _ in observed_in_plate(trace, plan.plate):
            if site["value"].numel() == plan.batch_size:
                pieces.setdefault(name, []).append(site["value"].reshape(-1)[known:])
    found = {name: torch.cat(values) for name, values in pieces.items()}
    whole = {name: v for name, v in found.items() if bool((v == v.round()).all())}
    if len(whole) != 1:
        raise ValueError(
            "batch_order='stratified' needs one observed site with whole-numbered labels, one a "
            f"row, in plate {plan.plate!r}; there are {sorted(whole)} among {sorted(found)}"
        )
    return next(iter(whole.values()))


def observed_values(bound: BoundModel, plates: Mapping[str, DataPlate]) -> dict[str, Tensor]:
    """Read the values of the model's observed sites, all rows of them.

    Runs the model once, or N / n times if it has a ``subsample_size`` n of its own.

    Args:
        bound: The model.
        plates: The plates that set-up found around its data, by name.
    """
    plate = next((plate for plate in plates.values() if plate.is_subsampled), None)
    if plate is None:
        return _data(bound.prior_trace())
    found: dict[str, Tensor] = {}
    pieces: dict[str, list[Tensor]] = {}
    axes: dict[str, int] = {}
    for trace, known in all_rows(bound, plate.name, plate.size, plate.num_rows):
        found |= _data(trace)
        for name, site, dim in observed_in_plate(trace, plate.name):
            axis = dim - site["fn"].event_dim
            value = found.get(name)
            # Data that are the same for all rows may lack the plate's dimension
            if value is not None and value.dim() >= -axis and value.shape[axis] == plate.num_rows:
                axes[name] = axis
                new = value.narrow(axis, known, plate.num_rows - known)
                pieces.setdefault(name, []).append(new)
    return found | {name: torch.cat(rows, axes[name]) for name, rows in pieces.items()}


def _data(trace: Any) -> dict[str, Tensor]:
    """Find the data among the sites: neither factors nor values that the model computed."""
    return {
        name: torch.as_tensor(site["value"])
        for name, site in _observed(trace)
        if not isinstance(site["fn"], dist.Unit)
    }


def _observed(trace: Any) -> Iterator[tuple[str, Any]]:
    """Yield the observed sites of a trace, but for values that the model computed."""
    for name, site in trace.nodes.items():
        is_observed = site["type"] == "sample" and site["is_observed"]
        if is_observed and not site["infer"].get("_deterministic"):
            yield name, site
