"""``warm_start``: initial values for chains, from a fit of each to the model's own density."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from pyro_fnbg.core.bars import progress_bar
from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.core.checks import as_finite, check_count, check_flag, shown
from pyro_fnbg.core.layout import Layout
from pyro_fnbg.core.noise import ChainKey, Stream, generator
from pyro_fnbg.fitting.annealing import anneal
from pyro_fnbg.fitting.descent import descend
from pyro_fnbg.fitting.fit_report import FitReport, WarmStart
from pyro_fnbg.fitting.joint import (
    Density,
    JointDensity,
    StatedDensities,
    Terms,
    find_gradients,
    stated_densities,
    total,
)
from pyro_fnbg.fitting.random_start import random_start
from pyro_fnbg.fitting.splits import Rows, split_rows
from pyro_fnbg.model.bound import BoundModel, Model
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.lint.entry import checked_sites
from pyro_fnbg.model.planning import check_batch_arguments, make_plan
from pyro_fnbg.model.rows import observed_in_plate
from pyro_fnbg.model.sites import ModelSites, PlateRows, seeded
from pyro_fnbg.stock.seeds import next_key

__all__ = ["warm_start"]


def warm_start(
    model: Model,
    *args: Any,
    num_chains: int = 1,
    steps: int = 3_000,
    learning_rate: float = 0.01,
    batch_size: int | None = None,
    batch_plate: str | None = None,
    held_out: float | None = None,
    annealing_steps: int = 0,
    disable_progbar: bool = False,
    **kwargs: Any,
) -> WarmStart:
    """Fit a model once a chain, from different random starts, to start chains from the fits.

    Each chain raises the model's own log density, likelihood and priors, in unconstrained space,
    by AdamW on batches of rows; the values with the best likelihood of some held-out rows are
    returned.
    """
    _check_arguments(num_chains, steps, learning_rate, held_out, disable_progbar)
    check_count("annealing_steps", annealing_steps, 0)
    check_batch_arguments(batch_size, "shuffled", batch_plate, None)
    started = time.perf_counter()
    args = tuple(arg.detach() if isinstance(arg, Tensor) else arg for arg in args)
    bound = BoundModel(model, args, kwargs)
    seed = next_key(None, None).key.seed
    keys = [ChainKey(seed, chain) for chain in range(num_chains)]
    with poutine.block(), pyro.validation_enabled(False):
        with seeded(_seed(keys[0], Stream.MODEL, 0)), torch.no_grad():
            sites = checked_sites(bound)
            rows = split_rows(bound, sites, batch_size, batch_plate, held_out, keys[0])
        first = rows.batch(0)
        single = ModelDensity(bound, sites, rows.plan)
        joint = JointDensity(single)
        plate = rows.plan.plate
        starts = torch.stack([random_start(bound, sites, joint, plate, first, key) for key in keys])
        stated = stated_densities(bound, sites, rows.plan, joint, starts, first)
        gradients = find_gradients(single, starts, first)
        names = gradients.sites
        from_prior = tuple(name for name in sites.constrain if name not in names)
        if from_prior:
            _warn_of_prior(from_prior)
        is_fitted = _is_of(sites.layout, names)
        with progress_bar(
            num_chains * (steps + annealing_steps) if names else 0,
            not disable_progbar,
            desc="Fit",
            unit="step",
        ) as bar:
            fit = descend(
                joint if stated is None else stated.density,
                _held_out(bound, sites, rows, stated),
                rows,
                starts,
                is_fitted,
                steps if names else 0,
                learning_rate,
                bar.update,
            )
            annealed = None
            if annealing_steps and names:
                annealed = anneal(
                    _full_density(bound, sites, rows, starts),
                    fit.positions,
                    is_fitted,
                    annealing_steps,
                    torch.Generator().manual_seed(_seed(keys[0], Stream.FIT, 2)),
                    bar.update,
                )
    found = fit.positions if annealed is None else annealed.positions
    values = sites.layout.unflatten(found if num_chains > 1 else found[0])
    is_joint = stated is not None or joint.joins_chains
    report = FitReport(
        method=(
            f"AdamW of {num_chains} chain{'s' * (num_chains > 1)}, "
            + ("all in one run" if is_joint else "one run of the model each")
            + (", straight-through gradients of steps" if gradients.replaced else "")
        ),
        seconds=time.perf_counter() - started,
        num_steps=fit.num_steps,
        best_steps=fit.best_steps,
        losses=fit.course,
        batch_size=None if plate is None else rows.plan.batch_size,
        num_held_out=rows.num_held_out,
        from_prior=from_prior,
        num_setbacks=fit.num_setbacks,
        annealing=annealed,
    )
    return WarmStart({name: value.clone() for name, value in values.items()}, report)


def _seed(key: ChainKey, stream: Stream, number: int) -> int:
    return int(generator(key, stream, number).integers(2**63 - 1))


def _full_density(
    bound: BoundModel, sites: ModelSites, rows: Rows, starts: Tensor
) -> Callable[[Tensor], Tensor]:
    """Return the log density on all rows, of several chains.

    Raises:
        ValueError: If the model takes its own number of rows.
    """
    plate = sites.plates.get(rows.plan.plate or "")
    if plate is not None and plate.is_subsampled:
        raise ValueError(
            "annealing_steps must be 0 for a model that takes some of its rows at a time, since "
            f"they see all: plate {plate.name!r} takes {plate.num_rows} of {plate.size}"
        )
    plan = make_plan(sites, None, "shuffled", rows.plan.plate, None)
    joint = JointDensity(ModelDensity(bound, sites, plan))
    stated = stated_densities(bound, sites, plan, joint, starts, None)
    density = joint if stated is None else stated.density
    return lambda positions: density(positions, None)


def _held_out(
    bound: BoundModel, sites: ModelSites, rows: Rows, stated: StatedDensities | None
) -> Density | None:
    """Return what sums the log likelihood of a piece of the held-out rows."""
    if not rows.held_out:
        return None
    if stated is not None:
        return stated.log_likelihood
    piece = rows.held_out[0]
    plan = BatchPlan(rows.plan.plate, rows.plan.num_rows, len(piece), "shuffled", 1.0)
    with PlateRows(plan.plate, piece), torch.no_grad():
        names = {name for name, _, _ in observed_in_plate(bound.prior_trace(), plan.plate)}

    def likelihood(terms: Terms) -> Tensor:
        return total({name: term for name, term in terms.items() if name in names})

    return JointDensity(ModelDensity(bound, sites, plan), likelihood)


def _is_of(layout: Layout, names: list[str]) -> Tensor:
    """Tell which flat coordinates belong to some sites."""
    values = {
        site.name: torch.full(site.shape, float(site.name in names), dtype=site.dtype)
        for site in layout.sites
    }
    return layout.flatten(values) > 0


def _warn_of_prior(names: tuple[str, ...]) -> None:
    warnings.warn(
        f"the data have no gradient for sites {list(names)}, so their values were drawn from their "
        "priors: they may be below a step, or have no part in the likelihood",
        UserWarning,
        stacklevel=3,
    )


def _check_arguments(
    num_chains: int, steps: int, learning_rate: float, held_out: float | None, disable: bool
) -> None:
    """Check the arguments that need no model.

    Raises:
        ValueError: Naming the argument, its value and what is allowed.
    """
    check_count("num_chains", num_chains, 1)
    check_count("steps", steps, 1)
    check_flag("disable_progbar", disable)
    rate = as_finite(learning_rate)
    if rate is None or rate <= 0:
        raise ValueError(f"learning_rate must be a positive number, got {shown(learning_rate)}")
    share = as_finite(held_out)
    if held_out is not None and (share is None or not 0 <= share < 1):
        raise ValueError(
            f"held_out must be a share of the rows, from 0 to less than 1; got {shown(held_out)}"
        )
