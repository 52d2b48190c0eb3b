"""Stores as ArviZ wants them, read as far as they are looked at."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from pyro_fnbg.chains.keeping import kept_chains
from pyro_fnbg.results.estimates import has_arviz_1
from pyro_fnbg.results.export import SAMPLE_DIMS, assemble
from pyro_fnbg.stores.archive import Archive
from pyro_fnbg.stores.hierarchy import POSTERIOR, SAMPLE_STATS, as_store
from pyro_fnbg.stores.tails import draws_by_chain

__all__ = ["open_store"]


def open_store(store: str | os.PathLike[str]) -> Any:
    """Open the draws of a store, of a run that goes on, has ended or was killed.

    Numbers are read when they are looked at. ``posterior`` and ``sample_stats`` are as in
    ``to_arviz``, with the same attributes, cut to the draws that every chain has; where chains were
    stopped one after the other, those are left out that would leave fewer draws in all. Draws that
    only a checkpoint has yet, since they fill no chunk of the arrays, are there too.

    Args:
        store: The path that ``MultiChainMCMC(..., store=)`` was given.

    Returns:
        An ``arviz.InferenceData`` with ArviZ 0.x, an ``xarray.DataTree`` with ArviZ 1.x, where a
        slash in the name of a site is written ``%2F``.

    Raises:
        FileNotFoundError: If there is no store.
        ValueError: If it was changed, or is of another format.

    Example:
        >>> import tempfile, torch
        >>> from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
        >>> model = BayesianMLP([2, 3, 1], likelihood="bernoulli")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mcmc = MultiChainMCMC(
        ...         FNBG(model), 8, num_chains=2, store=f"{folder}/run.zarr", disable_progbar=True
        ...     )
        ...     mcmc.run(torch.randn(20, 2), torch.arange(20) % 2)
        ...     dict(open_store(f"{folder}/run.zarr")["posterior"]["layer1.bias"].sizes)
        {'chain': 2, 'draw': 8, 'layer1.bias_dim_0': 3}
    """
    import xarray as xr

    from pyro_fnbg.stores.lazily import StoredArray

    archive = Archive(as_store(store), is_read_only=True)
    by_chain = draws_by_chain(archive)
    kept, num_draws = kept_chains([one.num_draws for one in by_chain])
    numbers = kept or list(range(archive.num_chains))
    chains = [by_chain[number] for number in numbers]
    labels = {"chain": numbers, "layer": archive.constants["layers"]}
    groups = {}
    for group in (POSTERIOR, SAMPLE_STATS):
        variables = {}
        for key, variable in archive.variables.items():
            if variable.group == group:
                values = StoredArray(chains, key, num_draws)
                dims = (*SAMPLE_DIMS, *variable.dims)
                # A DataTree allows no slash in a name
                name = variable.name.replace("/", "%2F") if has_arviz_1() else variable.name
                variables[name] = xr.Variable(dims, values.lazily())
        sizes = {str(dim): size for one in variables.values() for dim, size in one.sizes.items()}
        coords = {dim: labels.get(dim, np.arange(size)) for dim, size in sizes.items()}
        groups[group] = xr.Dataset(variables, coords)
    groups[POSTERIOR].attrs = archive.attributes
    return assemble(groups)
