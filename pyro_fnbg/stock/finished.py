"""What a finished run has kept: Pyro's ``MCMC``, which only private names tell, and a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from pyro_fnbg.chains.report import ChainReport, Diagnostics
from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.model.bound import BoundModel

__all__ = ["Loaded", "bound_model", "diagnostics_by_chain", "samples_by_chain"]


class Loaded(NamedTuple):
    """Hold what a kernel that was pickled after a run still tells of it.

    Attributes:
        partition: The blocks.
        report: What was told of the chain.
    """

    partition: Partition
    report: ChainReport


def diagnostics_by_chain(mcmc: Any) -> Sequence[Diagnostics] | None:
    """Return what every chain told at its end; None if there is no such run, or not any more.

    Pyro has diagnostics of the first chains, but no draws, of a run that broke off.
    """
    found = mcmc._diagnostics
    if getattr(mcmc, "_samples", ()) is None or not found or not all(found):
        return None
    return list(found)


def samples_by_chain(mcmc: Any) -> Mapping[str, Tensor]:
    """Return the constrained draws by site, ``(chains, draws, *site shape)``, as they are kept."""
    found: Mapping[str, Tensor] = mcmc._samples
    return found


def bound_model(mcmc: Any) -> BoundModel:
    """Return the model with the arguments of the last run."""
    return BoundModel(mcmc.kernel.model, mcmc._args, mcmc._kwargs)
