"""Supports that change from run to run, which Pyro's ``MCMC`` cannot follow in workers."""

from __future__ import annotations

from collections.abc import Mapping

from pyro_fnbg.model.sites import ModelSites
from pyro_fnbg.model.supports import KnownSupport

__all__ = ["check_supports_unchanged"]


def check_supports_unchanged(known: Mapping[str, KnownSupport], sites: ModelSites) -> None:
    """Check, in a worker, that sites have the supports of the kernel's last run, if any.

    Pyro's ``MCMC`` maps the draws of every run in workers back by the supports of its first: those
    of this kernel's last set-up in the parent.

    Raises:
        ValueError: If one has another support; names the sites and both supports.
    """
    changed = [
        f"{name!r} ({known[name].constraint} then, {sites.supports[name].constraint} now)"
        for name in sites.constrain
        if name in known and not known[name].equals(sites.supports[name])
    ]
    if changed:
        raise ValueError(
            f"the supports of latent sites {', '.join(changed)} are others than in this kernel's "
            "last run, and Pyro's MCMC would map the draws of workers by the old ones: make a new "
            "kernel and a new MCMC for these arguments"
        )
