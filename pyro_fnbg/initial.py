"""Where a chain starts, and whether the model is fit to be sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger
from torch import Tensor

from pyro_fnbg.density import ModelDensity
from pyro_fnbg.sites import Model, ModelSites, PlateRows

__all__ = ["check_density", "drawn_position", "given_position", "with_next_chains"]

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
    changed = sorted(set(first) ^ set(second) | (set(sites.observed) - set(first)))
    if changed:
        raise ValueError(
            f"sites {changed} came or went between two runs of the model: its sites must be the "
            "same every time (a one-shot iterator as data is empty after the first run)"
        )
    differing = [
        name
        for name, term in first.items()
        if term.shape != second[name].shape
        or not torch.allclose(term, second[name], rtol=1e-5, equal_nan=True)
    ]
    if differing:
        raise ValueError(
            f"the log density of {differing} differs between two runs at the same position and "
            "rows, so the model draws random numbers of its own (a minibatch, dropout): give the "
            "rows a pyro.plate and let FNBG(batch_size=...) draw the minibatches"
        )


def with_next_chains(
    given: list[Mapping[str, Tensor]], params: Mapping[str, Tensor]
) -> list[Mapping[str, Tensor]]:
    """Add a chain's initial values to those of the same run's earlier chains, or start anew.

    Pyro sets the values of all chains on one kernel before any worker starts, each a slice of one
    tensor; values that share no memory with the last are a new statement.
    """
    last = given[-1] if given else {}
    shares = bool(last) and last.keys() == params.keys()
    for name in last if shares else ():
        memory = [
            value.untyped_storage().data_ptr() if isinstance(value, Tensor) else None
            for value in (last[name], params[name])
        ]
        shares = shares and memory[0] is not None and memory[0] == memory[1]
    return [*given, params] if shares else [params]


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
        values = {name: trace.nodes[name]["value"] for name in sites.constrain}
        position = sites.layout.flatten(sites.unconstrain(values))
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
