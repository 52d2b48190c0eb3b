"""Stores as ArviZ wants them, read as far as they are looked at."""

from __future__ import annotations

import os
from typing import Any

from pyro_fnbg.results.export import assemble
from pyro_fnbg.stores.contents import Contents
from pyro_fnbg.stores.hierarchy import as_store

__all__ = ["open_store"]


def open_store(store: str | os.PathLike[str]) -> Any:
    """Open the draws of a store, of a run that goes on, has ended or was killed.

    Numbers are read when they are looked at. ``posterior`` and ``sample_stats`` are as in
    ``to_arviz``, with the same attributes, cut to the draws that every chain has; where chains were
    stopped one after the other, those are left out that would leave fewer draws in all. Draws that
    only a checkpoint has yet, since they fill no chunk of the arrays, are there too.
    ``chain_stats`` is of the last checkpoint, and missing before the first draw; how noisy
    decisions are is measured when a run ends, and missing before. ``observed_data`` was read from
    the model when the run began.

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
    return assemble(Contents.read(as_store(store)).groups())
