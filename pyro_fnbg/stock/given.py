"""What Pyro's ``MCMC`` sets on a kernel before ``setup``: initial values, and sites to keep."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from pyro_fnbg.core.checks import check_names
from pyro_fnbg.core.layout import Layout
from pyro_fnbg.model.starts import check_mapping

__all__ = ["GivenParams", "check_save_params", "sorted_names"]


class GivenParams(NamedTuple):
    """Hold the initial values that a user gave, until a chain takes them.

    Pyro sets the values of all chains on one kernel before any worker starts, each a slice of one
    tensor; values that share no memory with the last are a new statement.

    Attributes:
        chains: One entry, or one a chain of the run.
        workers: Number of workers that had been started when the first entry was set.
    """

    chains: tuple[Mapping[str, Tensor], ...] = ()
    workers: int = 0

    def add(self, params: Mapping[str, Tensor], workers: int) -> GivenParams:
        """Add a chain's values to those of the same run's earlier chains, or start anew.

        Raises:
            TypeError: If they are no mapping.
        """
        check_mapping(params)
        if self.chains and _share_memory(self.chains[-1], params):
            return GivenParams((*self.chains, params), self.workers)
        return GivenParams((params,), workers)

    def for_chain(
        self, chain: int | None, workers: int, is_afterwards: bool
    ) -> Mapping[str, Tensor] | None:
        """Find the values meant for a worker's chain, or for this process where it is None.

        Values of several chains were meant for the workers of one run alone: once as many have
        been started as there are entries, they are left over from a run that failed. Afterwards,
        when that run was a success, this process goes where its first chain started.
        """
        are_of_last_run = workers - self.workers == len(self.chains)
        if len(self.chains) <= 1 or (is_afterwards and are_of_last_run):
            return self.chains[0] if self.chains else None
        if chain is None or workers - self.workers >= len(self.chains):
            return None
        return self.chains[chain]


def _share_memory(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two dicts hold slices of the same tensors."""
    values = [(one[name], other[name]) for name in one] if one.keys() == other.keys() else []
    return bool(values) and all(
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
        for a, b in values
    )


def sorted_names(save_params: Sequence[str]) -> list[str]:
    """Return the names of sites whose draws are kept, in order.

    Raises:
        TypeError: If they are no list of names.
    """
    check_names("save_params", save_params, "latent sites")
    return sorted(save_params)


def check_save_params(
    save_params: Sequence[str] | None, layout: Layout, is_left_over: bool
) -> None:
    """Refuse unknown names, and warn of a choice that an earlier ``MCMC`` left on the kernel."""
    if save_params is None:
        return
    names = [site.name for site in layout.sites]
    unknown = sorted(set(save_params) - set(names))
    if unknown:
        raise ValueError(f"save_params names {unknown}, but the latent sites are {names}")
    if is_left_over:
        warnings.warn(
            f"this kernel still keeps the draws of {list(save_params)} alone, as an earlier MCMC "
            "asked by save_params: use a new kernel, or give MCMC save_params again",
            UserWarning,
            stacklevel=3,
        )
