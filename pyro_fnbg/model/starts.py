"""Where a chain starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro.infer.autoguide.initialization import InitMessenger
from torch import Tensor

from pyro_fnbg.core.checks import shown
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.impossible import is_impossible
from pyro_fnbg.model.sites import ModelSites, PlateRows
from pyro_fnbg.model.supports import is_off_interval, sampled_support

__all__ = ["check_mapping", "drawn_position", "given_position", "params_by_chain"]

# Positions that are drawn, at most, until one has a finite log density
MAX_TRIES = 100


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
    check_mapping(initial_params)
    if num_chains == 1:
        return [initial_params]
    for name, value in initial_params.items():
        if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != num_chains:
            found = tuple(value.shape) if isinstance(value, Tensor) else shown(value)
            raise ValueError(
                f"initial_params[{name!r}] must be a tensor with one entry in front for each of "
                f"{num_chains} chains, got {found}"
            )
    return [
        {name: value[chain] for name, value in initial_params.items()}
        for chain in range(num_chains)
    ]


def check_mapping(initial_params: object) -> None:
    """Refuse initial values that are no mapping, with a TypeError."""
    if not isinstance(initial_params, Mapping):
        raise TypeError(
            f"initial_params must map sites to tensors, got {type(initial_params).__name__}"
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
    types = {site.name: site.dtype for site in sites.layout.sites}
    missing = [name for name in expected if name not in values]
    unknown = [name for name in values if name not in expected]
    if missing or unknown:
        raise ValueError(
            f"initial_params must name the latent sites {sorted(expected)}: "
            f"missing {missing}, unknown {shown(unknown)}"
        )
    for name, shape in expected.items():
        value = values[name]
        if not isinstance(value, Tensor):
            raise ValueError(
                f"initial_params[{name!r}] must be a tensor, got {type(value).__name__}"
            )
        if tuple(value.shape) != shape:
            raise ValueError(
                f"initial_params[{name!r}] must have the unconstrained shape {shape}, "
                f"got {tuple(value.shape)}"
            )
        if not bool(torch.isfinite(value.to(types[name])).all()):
            raise ValueError(
                f"initial_params[{name!r}] must be finite as {types[name]}, got {shown(value)}"
            )
    position = sites.layout.flatten(
        {site.name: values[site.name].to(site.device) for site in sites.layout.sites}
    )
    advice = "give values of positive probability (in unconstrained space)"
    try:
        at_fault = _impossible_sites(density, position, rows)
    except Exception as error:
        if is_impossible(error):
            raise ValueError(
                f"initial_params={shown(dict(values))} are where the model cannot be evaluated "
                f"({type(error).__name__}): {advice}"
            ) from error
        raise
    if at_fault:
        raise ValueError(f"initial_params have no finite log density at sites {at_fault}: {advice}")
    return position


def drawn_position(
    bound: BoundModel,
    init_strategy: Callable[..., Any],
    sites: ModelSites,
    density: ModelDensity,
    rows: Tensor | None,
    plate_rows: PlateRows,
) -> Tensor:
    """Draw initial values until their log density on the first batch is finite.

    Raises:
        ValueError: If none of 100 tries is; names the sites at fault in the last, or the model's
            error there.
    """

    def checked_strategy(site: Any) -> Tensor | None:
        value = init_strategy(site)
        if value is not None and not (isinstance(value, Tensor) and value.is_floating_point()):
            raise TypeError(
                f"init_strategy must return a floating-point tensor for latent site "
                f"{site['name']!r}, got {shown(value)}"
            )
        return value

    at_fault: str
    failure: Exception | None
    for _ in range(MAX_TRIES):
        try:
            with plate_rows, InitMessenger(checked_strategy):
                trace = bound.trace()
            position = _traced_position(trace, sites)
            names = _impossible_sites(density, position, rows)
        except Exception as error:
            if not is_impossible(error):
                raise
            at_fault, failure = f"the model raised {type(error).__name__}", error
        else:
            at_fault, failure = f"sites {names} had none", None
            if not names and bool(torch.isfinite(position).all()):
                return position
    raise ValueError(
        f"no initial position with a finite log density in {MAX_TRIES} tries; in the last, "
        f"{at_fault}: check the data and the priors, or give initial_params"
    ) from failure


def _traced_position(trace: Any, sites: ModelSites) -> Tensor:
    """Flatten the values that a strategy gave the latent sites of a trace, once they fit."""
    for name in sites.constrain:
        fn, value = trace.nodes[name]["fn"], trace.nodes[name]["value"]
        if is_off_interval(fn, value):
            raise ValueError(
                f"init_strategy gave latent site {name!r} values outside its interval "
                f"{sampled_support(fn)}, got {value.tolist()}"
            )
    values = sites.unconstrain({n: trace.nodes[n]["value"] for n in sites.constrain})
    for site in sites.layout.sites:
        if tuple(values[site.name].shape) != site.shape:
            raise ValueError(
                f"init_strategy gave latent site {site.name!r} the unconstrained shape "
                f"{tuple(values[site.name].shape)}, must be {site.shape}"
            )
    return sites.layout.flatten(values)


def _impossible_sites(density: ModelDensity, position: Tensor, rows: Tensor | None) -> list[str]:
    """Name the sites whose log density is not finite."""
    terms = density.possible_terms(position, rows)
    return [name for name, term in terms.items() if not bool(torch.isfinite(term).all())]
