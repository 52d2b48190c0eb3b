"""From a finished run to ArviZ: draws, statistics, data and what the chain targets."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyro
import torch
from numpy.typing import NDArray
from pyro import poutine
from torch import Tensor

from pyro_fnbg.chains.report import ChainReport
from pyro_fnbg.core.checks import check_flag, shown
from pyro_fnbg.core.explaining import explain
from pyro_fnbg.kernel import FNBG
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.rows import observed_values
from pyro_fnbg.model.sites import DataPlate, seeded
from pyro_fnbg.prediction.samples import LazySamples
from pyro_fnbg.results.attributes import (
    BATCH_NOISE,
    measured_attributes,
    origin,
    run_attributes,
    streams,
)
from pyro_fnbg.results.datasets import check_known, dataset
from pyro_fnbg.results.estimates import has_arviz_1, import_arviz
from pyro_fnbg.results.pointwise import (
    check_predicts_all_rows,
    check_targets_posterior,
    pointwise_log_likelihoods,
    posterior_responses,
)
from pyro_fnbg.stock.finished import bound_model, diagnostics_by_chain, samples_by_chain

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["as_arrays", "assemble", "chain_statistics", "read_data", "to_arviz", "to_groups"]

SAMPLE_DIMS = ("chain", "draw")


def to_arviz(
    mcmc: Any,
    *,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    observed_data: bool = True,
    log_likelihood: bool = False,
    posterior_predictive: bool = False,
    chain_stats: bool = True,
) -> Any:
    r"""Convert a finished run of ``FNBG`` to what the installed ArviZ works on.

    The conversion is exact; whether the draws are is in the attribute ``target``. The draws are
    not copied, so changing them in place changes those of ``mcmc``; those of a run with a store are
    read when they are looked at.

    ``posterior`` has the constrained draws, ``(chain, draw, *site shape)``, under the sites' names.

    ``sample_stats`` has, for every draw, ``(chain, draw)``:

    - ``acceptance_rate``: mean of min(1, ratio) over the sweep's blocks;
    - ``layer_acceptance_rate``: the same by layer, with one more dimension ``layer``;
    - ``batch_log_density``: log density of the draw on the sweep's batch, scaled as in the run. On
      different batches it differs for one and the same position, so it says little of convergence;
    - ``lp``: the same number where the chain targets the model's posterior exactly, and left out
      elsewhere. It is the joint log density of *unconstrained* parameters, log Jacobians included.

    ``chain_stats`` has, of the draws of a chain as a whole:

    - ``acceptance_rate``, ``proposal_scale``, ``non_finite_candidates``: the share of accepted
      candidates, the final standard deviation of the proposals, and the number of candidates whose
      log density was NaN or plus infinity, ``(chain, block)``;
    - with minibatches, ``log_ratio_sd_across_batches`` and ``share_reversed_by_another_batch``:
      how noisy the decisions are, ``(chain, layer)``.

    ``observed_data`` has the values of the model's observed sites, all rows of them. On request,
    ``log_likelihood`` has the log likelihood of each of these values under each draw, for
    ``arviz.loo``, and ``posterior_predictive`` values drawn anew under each draw, for
    ``arviz.plot_ppc``.

    The posterior (and the whole, as ``.attrs``) says in its attributes what the chain targets: the
    size of batches, the rows, the likelihood's factor and nominal temperature with the measured
    noise of the decisions, averaged over blocks and chains, the sweeps a draw, whether the run came
    to its end, the seed and the versions; and in ``stuck_blocks`` the blocks that hardly moved in
    some chain, if there are any.

    Args:
        mcmc: A ``MultiChainMCMC``, or a ``pyro.infer.MCMC`` with an ``FNBG`` kernel, after ``run``.
        coords: Labels along a dimension, by its name.
        dims: Names of a site's own dimensions, by site; left out, ``site_dim_0`` and so on.
        observed_data: Whether to run the model, without touching the global random state, to read
            its data: once, or N / n times if it has a ``subsample_size`` n of its own.
        log_likelihood: Whether to compute the log likelihoods: chains x draws x rows numbers. For
            chains only that target the posterior.
        posterior_predictive: Whether to draw responses: as many.
        chain_stats: Whether to have that group. ``arviz.concat`` of runs, draw after draw, refuses
            what has no draws.

    Returns:
        An ``arviz.InferenceData`` with ArviZ 0.x, an ``xarray.DataTree`` with ArviZ 1.x.

    Raises:
        TypeError: If ``mcmc`` is something else or has another kernel, or if ``coords`` or
            ``dims`` hold something else than lists.
        RuntimeError: If it has not run to the end yet.
        ValueError: If ``coords`` or ``dims`` do not fit, or if log likelihoods are asked of a run
            that targets something else than the posterior.

    Example:
        >>> from pyro.infer import MCMC
        >>> from pyro_fnbg.networks.mlp import BayesianMLP
        >>> model = BayesianMLP([2, 3, 1], likelihood="bernoulli")
        >>> mcmc = MCMC(FNBG(model, batch_size=5), num_samples=8, disable_progbar=True)
        >>> mcmc.run(torch.randn(20, 2), torch.arange(20) % 2)
        >>> idata = to_arviz(mcmc)
        >>> dict(idata["posterior"]["layer1.weight"].sizes)
        {'chain': 1, 'draw': 8, 'layer1.weight_dim_0': 3, 'layer1.weight_dim_1': 2}
        >>> idata["sample_stats"]["layer_acceptance_rate"].coords["layer"].values.tolist()
        ['layer1', 'layer2']
        >>> idata["posterior"].attrs["nominal_likelihood_temperature"]
        4.0
    """
    return assemble(
        to_groups(
            mcmc,
            coords=coords,
            dims=dims,
            observed_data=observed_data,
            log_likelihood=log_likelihood,
            posterior_predictive=posterior_predictive,
            chain_stats=chain_stats,
        )
    )


def to_groups(
    mcmc: Any,
    *,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    observed_data: bool = True,
    log_likelihood: bool = False,
    posterior_predictive: bool = False,
    chain_stats: bool = True,
) -> dict[str, xr.Dataset]:
    """Make the groups of ``to_arviz``, without ArviZ; arguments and errors are as there.

    A group can be empty here; ``assemble`` leaves it out.

    Example:
        >>> from pyro.infer import MCMC
        >>> from pyro_fnbg.networks.mlp import BayesianMLP
        >>> model = BayesianMLP([2, 3, 1], likelihood="bernoulli")
        >>> mcmc = MCMC(FNBG(model), num_samples=8, disable_progbar=True)
        >>> mcmc.run(torch.randn(20, 2), torch.arange(20) % 2)
        >>> [name for name, group in to_groups(mcmc).items() if group]
        ['posterior', 'sample_stats', 'chain_stats', 'observed_data']
    """
    reports = _checked_reports(mcmc)
    check_flag("observed_data", observed_data)
    check_flag("log_likelihood", log_likelihood)
    check_flag("posterior_predictive", posterior_predictive)
    check_flag("chain_stats", chain_stats)
    if log_likelihood:
        check_targets_posterior(reports[0])
    if posterior_predictive:
        check_predicts_all_rows(reports[0])
    for name, value in (("coords", coords), ("dims", dims)):
        if value is not None and not isinstance(value, Mapping):
            raise TypeError(f"{name} must map names to lists, or be None; got {shown(value)}")
    coords, dims = coords or {}, dims or {}
    samples = samples_by_chain(mcmc)
    values = (
        {name: samples.by_chain(name) for name in samples}
        if isinstance(samples, LazySamples)
        else as_arrays(samples)
    )
    needs_data = observed_data or log_likelihood or posterior_predictive
    bound = bound_model(mcmc)
    observed: Mapping[str, Tensor] = {}
    if needs_data:
        try:
            observed = read_data(bound, reports[0].plates)
        except Exception as error:
            explain(
                error, "to_arviz ran the model to read its data; observed_data=False leaves it out"
            )
            raise
    data = as_arrays(observed) if observed_data else {}
    check_known("dims", dims, {*values, *observed})
    likelihoods = pointwise_log_likelihoods(bound, samples, observed) if log_likelihood else {}
    # An event of several numbers has one likelihood
    row_dims = {
        name: names[: likelihoods[name].ndim - 2]
        for name, names in dims.items()
        if name in likelihoods
    }
    responses = posterior_responses(bound, samples, observed) if posterior_predictive else {}
    # ArviZ draws bars of whole numbers and curves of others: it compares what is of one type
    are_whole = {name: found.dtype for name, found in responses.items() if found.dtype.kind == "i"}
    data |= {name: data[name].astype(dtype) for name, dtype in are_whole.items() if name in data}
    made = origin()
    attributes = _run_attributes(mcmc, reports) | made
    groups = {
        "posterior": dataset(values, SAMPLE_DIMS, dims, coords).assign_attrs(attributes),
        "sample_stats": _sample_stats(reports, coords).assign_attrs(made),
        "chain_stats": chain_statistics(reports, coords).assign_attrs(made),
        "observed_data": dataset(data, (), dims, coords).assign_attrs(made),
        "log_likelihood": dataset(likelihoods, SAMPLE_DIMS, row_dims, coords).assign_attrs(made),
        "posterior_predictive": dataset(responses, SAMPLE_DIMS, dims, coords).assign_attrs(made),
    }
    check_known("coords", coords, {dim for group in groups.values() for dim in group.dims})
    return groups if chain_stats else {n: g for n, g in groups.items() if n != "chain_stats"}


def _checked_reports(mcmc: Any) -> list[ChainReport]:
    """Return the chains' reports, if this is the finished run of an ``FNBG`` kernel."""
    if not hasattr(mcmc, "kernel") or not hasattr(mcmc, "get_samples"):
        raise TypeError(
            "mcmc must be an MCMC that has run with an FNBG kernel and kept its draws, "
            f"got {type(mcmc).__name__}"
        )
    if not isinstance(mcmc.kernel, FNBG):
        raise TypeError(
            f"mcmc must be a run of the kernel FNBG, got one of {type(mcmc.kernel).__name__}; "
            "ArviZ 0.x converts Pyro's own kernels with arviz.from_pyro"
        )
    found = diagnostics_by_chain(mcmc)
    if found is None:
        raise RuntimeError("mcmc has no finished run to convert: call mcmc.run(...) first")
    reports = [diagnostics.report for diagnostics in found]
    keys = [report.key for report in reports]
    # Chains of a run share its seed and number themselves, unless one began a stream of its own
    if any(
        two.chain > 0 and not (two.seed == one.seed and two.chain > one.chain)
        for one, two in pairwise(keys)
    ):
        raise RuntimeError(
            "the last run of mcmc broke off: it left the draws of an earlier run with reports of "
            "its own; call mcmc.run(...) again"
        )
    return reports


def _sample_stats(reports: list[ChainReport], coords: Mapping[str, Sequence[Any]]) -> xr.Dataset:
    """Gather what the chains know of every draw."""
    found = {
        name: np.stack([one.statistics[name] for one in reports]) for name in reports[0].statistics
    }
    if reports[0].plan.is_exact:
        found["lp"] = found["batch_log_density"]
    dims = {"layer_acceptance_rate": ["layer"]}
    return dataset(found, SAMPLE_DIMS, dims, {**coords, "layer": reports[0].layer_names})


def chain_statistics(
    reports: Sequence[ChainReport], coords: Mapping[str, Sequence[Any]]
) -> xr.Dataset:
    """Gather what is known of the draws of each chain as a whole, by block and by layer."""
    first = reports[0]
    of_blocks = {
        "acceptance_rate": [one.acceptance_rates for one in reports],
        **{_variable(name): [one.learnt[name] for one in reports] for name in first.learnt},
        "non_finite_candidates": [one.non_finite for one in reports],
    }
    of_layers = {
        BATCH_NOISE[name]: [list(one.by_layer(one.batch_noise[name]).values()) for one in reports]
        for name in first.batch_noise
    }
    found = {name: np.array(values) for name, values in (of_blocks | of_layers).items()}
    dims = dict.fromkeys(of_blocks, ["block"]) | dict.fromkeys(of_layers, ["layer"])
    labels = {"layer": first.layer_names, "block": list(first.blocks)}
    return dataset(found, ("chain",), dims, {**coords, **labels})


def _variable(name: str) -> str:
    """Turn the words for what a move tells of its state into the name of a variable."""
    return name.replace(" ", "_")


def _run_attributes(mcmc: Any, reports: list[ChainReport]) -> dict[str, Any]:
    """Say what the chains target, and what they found on the way."""
    first, keys = reports[0], [one.key for one in reports]
    told = run_attributes(first.plan, first.warmup_steps, first.thin)
    is_complete = {"is_complete": int(getattr(mcmc, "is_complete", True))}
    return told | is_complete | streams(keys) | measured_attributes(reports)


def read_data(bound: BoundModel, plates: Mapping[str, DataPlate]) -> dict[str, Tensor]:
    """Read the values of the model's observed sites, all rows of them."""
    # As in the run: no outer handlers, and no validation of values or of the prior's draws
    with (
        seeded(0),
        torch.no_grad(),
        poutine.block(),
        pyro.validation_enabled(False),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # the run has given the same warnings
        return observed_values(bound, plates)


def as_arrays(values: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Convert tensors, which stay as they are."""
    return {name: value.detach().cpu().numpy() for name, value in values.items()}


def assemble(groups: Mapping[str, xr.Dataset]) -> Any:
    """Put the groups that are not empty into what the installed ArviZ works on."""
    attributes = groups["posterior"].attrs
    filled = {name: group for name, group in groups.items() if group}
    if has_arviz_1():
        import xarray as xr

        return xr.DataTree.from_dict({"/": xr.Dataset(attrs=attributes), **filled})
    return import_arviz().InferenceData(attrs=attributes, **filled)
