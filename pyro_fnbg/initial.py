"""Where a chain starts, and whether the model is fit to be sampled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger
from torch import Tensor

from pyro_fnbg.density import ModelDensity
from pyro_fnbg.layout import Layout
from pyro_fnbg.sites import Model, ModelSites, PlateRows

__all__ = [
    "GivenParams",
    "check_density",
    "check_save_params",
    "drawn_position",
    "given_position",
    "params_by_chain",
]

MAX_TRIES = 100


def check_density(
    density: ModelDensity, sites: ModelSites, position: Tensor, rows: Tensor | None
) -> None:
    """Check that the log density is a function of the position and the rows alone.

    The two evaluations follow each other on one random stream: a model that draws its own
    minibatch, dropout or other noise then gives two values.

    Raises:
        ValueError: If observed data disappeared since the first run of the model, or a site's log
            density differs between two evaluations; names the sites.
    """
    first = density.site_terms(position, rows)
    second = density.site_terms(position, rows)
    lost = sorted(set(sites.observed) - set(first))
    if lost:
        raise ValueError(
            f"sites {lost} came or went between two runs of the model: its sites must be the "
            "same every time (a one-shot iterator as data is empty after the first run)"
        )
    differing = [
        name
        for name, term in first.items()
        if not torch.allclose(term, second[name], rtol=1e-5, equal_nan=True)
    ]
    if differing:
        raise ValueError(
            f"the log density of {differing} differs between two runs at the same position and "
            "rows, so the model draws random numbers of its own (a minibatch, dropout): give the "
            "rows a pyro.plate and let FNBG(batch_size=...) draw the minibatches"
        )


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
        """Add a chain's values to those of the same run's earlier chains, or start anew."""
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


def params_by_chain(
    initial_params: Mapping[str, Tensor] | None, num_chains: int
) -> list[Mapping[str, Tensor] | None]:
    """Split initial values with a dimension for chains into those of each; one chain has none.

    Raises:
        TypeError: If they are no mapping.
        ValueError: If a site's do not have an entry for each chain.
    """
    if initial_params is None:
        return [None] * num_chains
    if not isinstance(initial_params, Mapping):
        raise TypeError(
            f"initial_params must map sites to tensors, got {type(initial_params).__name__}"
        )
    if num_chains == 1:
        return [initial_params]
    for name, value in initial_params.items():
        if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != num_chains:
            found = tuple(value.shape) if isinstance(value, Tensor) else repr(value)
            raise ValueError(
                f"initial_params[{name!r}] must be a tensor with one entry in front for each of "
                f"{num_chains} chains, got {found}"
            )
    return [
        {name: value[chain] for name, value in initial_params.items()}
        for chain in range(num_chains)
    ]


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


def _share_memory(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two dicts hold slices of the same tensors."""
    values = [(one[name], other[name]) for name in one] if one.keys() == other.keys() else []
    return bool(values) and all(
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
        for a, b in values
    )


def given_position(
    values: Mapping[str, Tensor],
    sites: ModelSites,
    density: ModelDensity,
    rows: Tensor | None,
) -> Tensor:
    """Check a user's initial values, which are unconstrained, and flatten them.

    Raises:
        ValueError: If a site is missing, unknown, of the wrong shape or not finite, or if the
            position has probability zero on the first batch; names the sites.
    """
    expected = {site.name: site.shape for site in sites.layout.sites}
    missing, unknown = sorted(set(expected) - set(values)), sorted(set(values) - set(expected))
    if missing or unknown:
        raise ValueError(
            f"initial_params must name the latent sites {sorted(expected)}: "
            f"missing {missing}, unknown {unknown}"
        )
    for name, shape in expected.items():
        value = values[name]
        if not isinstance(value, Tensor):
            raise ValueError(f"initial_params[{name!r}] must be a tensor, got {type(value)}")
        if tuple(value.shape) != shape:
            raise ValueError(
                f"initial_params[{name!r}] must have the unconstrained shape {shape}, "
                f"got {tuple(value.shape)}"
            )
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"initial_params[{name!r}] must be finite, got {value}")
    position = sites.layout.flatten(values)
    at_fault = _impossible_sites(density, position, rows)
    if at_fault:
        raise ValueError(
            f"initial_params have no finite log density at sites {at_fault}: "
            "give values of positive probability (in unconstrained space)"
        )
    return position


def drawn_position(
    model: Model,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    init_strategy: Callable[..., Any],
    sites: ModelSites,
    density: ModelDensity,
    rows: Tensor | None,
    plate_rows: PlateRows,
) -> Tensor:
    """Draw initial values until their log density on the first batch is finite.

    Raises:
        ValueError: If none of 100 tries is; names the sites at fault in the last.
    """
    at_fault: list[str] = []
    for _ in range(MAX_TRIES):
        with plate_rows, InitMessenger(init_strategy):
            trace: Any = poutine.trace(model).get_trace(*args, **kwargs)
        values = sites.unconstrain({n: trace.nodes[n]["value"] for n in sites.constrain})
        for site in sites.layout.sites:
            if tuple(values[site.name].shape) != site.shape:
                raise ValueError(
                    f"init_strategy gave latent site {site.name!r} the unconstrained shape "
                    f"{tuple(values[site.name].shape)}, must be {site.shape}"
                )
        position = sites.layout.flatten(values)
        at_fault = _impossible_sites(density, position, rows)
        if not at_fault and bool(torch.isfinite(position).all()):
            return position
    raise ValueError(
        f"no initial position with a finite log density in {MAX_TRIES} tries; in the last, sites "
        f"{at_fault} had none: check the data and the priors, or give initial_params"
    )


def _impossible_sites(density: ModelDensity, position: Tensor, rows: Tensor | None) -> list[str]:
    """Name the sites whose log density is not finite."""
    terms = density.site_terms(position, rows)
    return [name for name, term in terms.items() if not bool(torch.isfinite(term).all())]
