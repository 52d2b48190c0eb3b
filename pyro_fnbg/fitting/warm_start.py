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
from pyro_fnbg.core.tasks import torch_threads
from pyro_fnbg.fitting.annealing import anneal
from pyro_fnbg.fitting.descent import descend
from pyro_fnbg.fitting.fit_report import FitReport, WarmStart
from pyro_fnbg.fitting.joint import (
    Density,
    Gradients,
    JointDensity,
    Terms,
    find_gradients,
    network_densities,
    total,
)
from pyro_fnbg.fitting.random_start import at_medians, random_start
from pyro_fnbg.fitting.splits import Rows, split_rows
from pyro_fnbg.model.bound import BoundModel, Model
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.lint.entry import checked_sites
from pyro_fnbg.model.planning import check_batch_arguments, make_plan
from pyro_fnbg.model.rows import observed_in_plate
from pyro_fnbg.model.sites import ModelSites, PlateRows, seeded
from pyro_fnbg.stock.seeds import next_key

__all__ = ["warm_start"]

# Numbers in a step (chains times rows times parameters) below which torch's threads do not pay:
# alone they took 0.7 to 1 of the time of one thread, beside other work 2 to 3.5 times as long
MANY = 10_000_000


def warm_start(
    model: Model,
    *args: Any,
    num_chains: int = 1,
    steps: int = 5_000,
    learning_rate: float = 0.02,
    batch_size: int | None = None,
    batch_plate: str | None = None,
    held_out: float | None = None,
    annealing_steps: int = 0,
    disable_progbar: bool = False,
    **kwargs: Any,
) -> WarmStart:
    r"""Fit a model once for every chain, each from a random start, to start chains where fits end.

    An initialisation, and no more: the chains' warmup follows, and nothing of the fits enters the
    draws. Each chain raises the model's own log density (the likelihood of a batch times N/n, the
    priors, and the log Jacobians of constrained sites, as the sampler's) by AdamW in unconstrained
    space. So a fit goes towards a mode of *that* density, which depends on how the model is
    parametrised. The values with the best mean log likelihood of held-out rows are kept. For the
    chains, held-out rows are data again, as all others.

    Weights of networks start at random with variance 2 / inputs (He, Zhang, Ren and Sun, 2015), and
    their biases at 0: sites ``NAME.weight`` of two dimensions, with ``NAME.bias``. All others start
    at a draw from their priors. All chains take the same batches; at once where the model states
    that it is a network (see ``Feedforward``), or where ``torch.func.vmap`` can map a run of it,
    else one after the other.

    What has no gradient is not fitted. "step" activations of ``BayesianMLP``, and of networks that
    a model states, get the gradient of sigmoid(2 v) in place of their own (a straight-through
    estimator: Bengio, Leonard and Courville, 2013). Other sites that the data and the rest of the
    model have no gradient for stay where they were drawn from their priors, with a warning.
    Constrained sites that act through the priors of others alone, such as a sampled scale of
    weights, are held at the medians of their priors: as weights and their scale shrink together,
    the density often rises without end.

    Args:
        model: The Pyro model, as for ``FNBG``.
        *args: Its arguments.
        num_chains: Number of chains. Chain c is the same whatever their number, as long as products
            over more chains round alike.
        steps: Steps of each fit.
        learning_rate: The highest of AdamW: in the first tenth of the steps it rises to that, and
            then falls to 0 along a cosine.
        batch_size: Rows of a step's batch, of the plate around the observed site; left out, the
            model's own ``subsample_size``, else 256.
        batch_plate: Name of the plate whose rows are the data, where there are several.
        held_out: Share of the rows that no fit sees, and that choose among its places, which are
            looked at a hundred times; 0 for none: then it is the training loss that chooses. Left
            out, a tenth, but at least 20 rows, or a third where that is less; none where the model
            cannot be given some of its rows, such as one without a plate.
        annealing_steps: Steps after the fit that take each chain from a mode to where the
            posterior has its mass, by microcanonical Langevin dynamics on all rows that are hot at
            first (Robnik, De Luca, Silverstein and Seljak, 2023). Each takes about as long as a
            step of a fit whose batch has all rows.
        disable_progbar: Whether to show no progress bar.
        **kwargs: The model's keyword arguments; those with a name from above have to be given by
            position.

    Returns:
        Unconstrained initial values by site, finite and with a finite log density; with several
        chains, a dimension for them is in front. They are what ``initial_params`` of
        ``MultiChainMCMC`` and of Pyro's ``MCMC`` take. ``.report``, ``.seconds`` and ``.losses``
        say how they came about, and printing shows it.

    Raises:
        ValueError: If the model or an argument does not fit; the message names the value and what
            is allowed.

    References:
        Sommer, Wimmer, Papamarkou, Bothmann, Bischl and Ruegamer (2024), "Connecting the dots: is
        mode-connectedness the key to feasible sample-based inference in Bayesian neural networks?",
        whose chains start at the members of a deep ensemble.

    Example:
        >>> import pyro
        >>> from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
        >>> pyro.set_rng_seed(0)
        >>> x = torch.linspace(-2, 2, 50).unsqueeze(-1)
        >>> y = x.squeeze(-1).sin()
        >>> model = BayesianMLP([1, 3, 1], activation="tanh", likelihood="normal")
        >>> start = warm_start(model, x, y, num_chains=2, steps=50, disable_progbar=True)
        >>> start["layer1.weight"].shape
        torch.Size([2, 3, 1])
        >>> mcmc = MultiChainMCMC(
        ...     FNBG(model), 10, 10, initial_params=start, num_chains=2, disable_progbar=True
        ... )
        >>> mcmc.run(x, y)
    """
    _check_arguments(num_chains, steps, annealing_steps, learning_rate, held_out, disable_progbar)
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
            likelihood = _held_out(bound, sites, rows)
        single = ModelDensity(bound, sites, rows.plan)
        joint, first = JointDensity(single), rows.batch(0)
        starts = torch.stack(
            [random_start(bound, sites, joint, rows.plan.plate, first, key) for key in keys]
        )
        stated = network_densities(bound, sites, rows.plan, single, joint, starts, first)
        by_network = None if stated is None else stated.log_likelihood
        gradients = find_gradients(single, sites, starts, first, by_network)
        known = [*gradients.fitted, *gradients.held]
        from_prior = tuple(name for name in sites.constrain if name not in known)
        if from_prior:
            _warn_of_prior(from_prior)
        if gradients.held:
            is_held, at = _is_of(sites.layout, gradients.held), (rows.plan.plate, first)
            starts = at_medians(bound, sites, joint, at, starts, is_held, keys[0])
        if by_network is not None and likelihood is not None:
            likelihood = by_network
        is_fitted = _is_of(sites.layout, gradients.fitted)
        num_steps, num_annealing = (steps, annealing_steps) if gradients.fitted else (0, 0)
        on_all = _density_on_all(bound, sites, rows, starts) if num_annealing else None
        total_steps = num_chains * (num_steps + num_annealing)
        with (
            progress_bar(total_steps, not disable_progbar, desc="Fit", unit="step") as bar,
            torch_threads(_threads(rows.plan, starts)),
        ):
            fit = descend(
                joint if stated is None else stated.density,
                likelihood,
                rows,
                starts,
                is_fitted,
                num_steps,
                learning_rate,
                bar.update,
            )
            annealed = None
            if on_all is not None:
                noise = torch.Generator().manual_seed(_seed(keys[0], Stream.FIT, 2))
                # What would collapse at a mode does not where the mass is
                is_moved = _is_of(sites.layout, known)
                annealed = anneal(on_all, fit.positions, is_moved, num_annealing, noise, bar.update)
    report = FitReport(
        method=_method(num_chains, stated is not None or joint.joins_chains, gradients),
        seconds=time.perf_counter() - started,
        num_steps=num_steps,
        best_steps=fit.best_steps,
        losses=fit.course,
        batch_size=None if rows.plan.plate is None else rows.plan.batch_size,
        num_held_out=rows.num_held_out,
        from_prior=from_prior,
        at_median=tuple(gradients.held),
        num_setbacks=fit.num_setbacks,
        annealing=annealed,
    )
    found = fit.positions if annealed is None else annealed.positions
    values = sites.layout.unflatten(found if num_chains > 1 else found[0])
    return WarmStart({name: value.clone() for name, value in values.items()}, report)


def _threads(plan: BatchPlan, starts: Tensor) -> int:
    """Return how many of torch's threads a fit should have."""
    num_rows = 1 if plan.plate is None else plan.batch_size
    return 1 if starts.numel() * num_rows < MANY else torch.get_num_threads()


def _seed(key: ChainKey, stream: Stream, number: int) -> int:
    return int(generator(key, stream, number).integers(2**63 - 1))


def _density_on_all(
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
    single = ModelDensity(bound, sites, plan)
    joint = JointDensity(single)
    stated = network_densities(bound, sites, plan, single, joint, starts, None)
    density = joint if stated is None else stated.density
    return lambda positions: density(positions, None)


def _method(num_chains: int, is_joint: bool, gradients: Gradients) -> str:
    """Say in words how chains were fitted."""
    words = [f"AdamW of {num_chains} chain{'s' * (num_chains > 1)}"]
    words.append("all in one run" if is_joint else "one run of the model each")
    words += ["straight-through gradients of steps"] if gradients.replaced else []
    return ", ".join(words)


def _held_out(bound: BoundModel, sites: ModelSites, rows: Rows) -> Density | None:
    """Return what sums the log likelihood of a piece of the held-out rows."""
    if not rows.held_out:
        return None
    piece = rows.held_out[0]
    plan = BatchPlan(rows.plan.plate, rows.plan.num_rows, len(piece), "shuffled", 1.0)
    with PlateRows(plan.plate, piece):
        names = {name for name, _, _ in observed_in_plate(bound.prior_trace(), plan.plate)}

    def likelihood(terms: Terms) -> Tensor:
        return total({name: term for name, term in terms.items() if name in names})

    return JointDensity(ModelDensity(bound, sites, plan), likelihood)


def _is_of(layout: Layout, names: list[str]) -> Tensor:
    """Tell which flat coordinates belong to some sites."""
    values = {
        site.name: torch.full(
            site.shape, float(site.name in names), dtype=site.dtype, device=site.device
        )
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
    num_chains: int,
    steps: int,
    annealing_steps: int,
    learning_rate: float,
    held_out: float | None,
    disable: bool,
) -> None:
    """Check the arguments that need no model.

    Raises:
        ValueError: Naming the argument, its value and what is allowed.
    """
    check_count("num_chains", num_chains, 1)
    check_count("steps", steps, 1)
    check_count("annealing_steps", annealing_steps, 0)
    check_flag("disable_progbar", disable)
    rate = as_finite(learning_rate)
    if rate is None or rate <= 0:
        raise ValueError(f"learning_rate must be a positive number, got {shown(learning_rate)}")
    share = as_finite(held_out)
    if held_out is not None and (share is None or not 0 <= share < 1):
        raise ValueError(
            f"held_out must be a share of the rows, from 0 to less than 1; got {shown(held_out)}"
        )
