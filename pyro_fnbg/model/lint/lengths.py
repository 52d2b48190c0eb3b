"""Whether arguments of a model are longer than the model reads them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_fnbg.model.bound import BoundModel, Model
from pyro_fnbg.model.sites import ModelSites, seeded

__all__ = ["warn_of_unused_rows"]


def warn_of_unused_rows(bound: BoundModel, sites: ModelSites) -> None:
    """Warn of an argument whose last rows do nothing, while another has one for each of a plate's.

    Taking ``y[rows]`` of too long a ``y`` raises no error, and pairs ``x`` with the wrong rows.
    """
    arguments = bound.named_arguments()
    lengths = {
        name: len(value)
        for name, value in arguments.items()
        if isinstance(value, Tensor) and value.dim() > 0
    }
    for plate in sites.plates.values():
        fitting = [name for name, length in lengths.items() if length == plate.size]
        for name, length in lengths.items():
            if not fitting or length <= plate.size:
                continue
            scores = _total_scores(bound.model, arguments)
            changed = arguments | {name: _changed(arguments[name], plate.size)}
            if scores is not None and scores == _total_scores(bound.model, changed):
                warnings.warn(
                    f"the last {length - plate.size} of the {length} rows of the model's argument "
                    f"{name!r} do nothing: plate {plate.name!r} has {plate.size} rows, as "
                    f"{fitting[0]!r} has; if rows belong together, give both as many",
                    UserWarning,
                    stacklevel=2,
                )


def _changed(value: Tensor, first: int) -> Tensor:
    """Change the rows from one on, so that a model which reads them cannot but show it."""
    changed, dtype = value.clone(), value.dtype
    if dtype is torch.bool:
        changed[first:] = ~changed[first:]
    else:
        is_whole = not (dtype.is_floating_point or dtype.is_complex)
        changed[first:] = torch.iinfo(dtype).max if is_whole else math.nan
    return changed


def _total_scores(model: Model, arguments: Mapping[str, Any]) -> dict[str, float] | None:
    """Score the observed sites with arguments by name; None where the model cannot run."""
    try:
        # On one seed all runs draw the same parameters, and the same rows
        with seeded(0), pyro.validation_enabled(False):
            trace = BoundModel(model, (), arguments).trace()
            trace.compute_log_prob()
    except Exception:
        return None
    return {
        name: float(site["log_prob_sum"])
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and site["is_observed"]
    }
