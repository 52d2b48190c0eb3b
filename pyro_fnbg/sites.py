"""What a Pyro model consists of: its latent sites, its plates and its observed data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.subsample_messenger import _Subsample
from torch import Tensor
from torch.distributions import biject_to, constraints

from pyro_fnbg.layout import Layout, Site
from pyro_fnbg.observations import check_observed

__all__ = [
    "DataPlate",
    "Model",
    "ModelSites",
    "PlateRows",
    "inspect_model",
    "prior_draws",
    "seeded",
]

Model = Callable[..., Any]


@dataclass(frozen=True)
class DataPlate:
    """Describe a plate that holds observed sites.

    Attributes:
        name: The plate's name.
        size: Number of rows of the data.
        num_rows: Number of rows the model itself takes at a time.
        is_fixed: Whether the model gives the rows itself.
        is_sequential: Whether the model loops over the rows.
    """

    name: str
    size: int
    num_rows: int
    is_fixed: bool
    is_sequential: bool

    @property
    def is_subsampled(self) -> bool:
        """Whether the model asks for a random subset of the rows."""
        return self.num_rows < self.size and not self.is_fixed


@dataclass(frozen=True)
class ModelSites:
    """Describe what set-up found in a model.

    Attributes:
        layout: The latent sites in trace order.
        constrain: Map from unconstrained to constrained values, for each latent site.
        real_sites: Latent sites on the whole real space, whose map is the identity.
        observed: Names of the observed sites that count (factors included, masked ones not).
        plates: The plates that hold observed sites, or are subsampled, by name.
        latents_in_plate: Latent sites inside each plate, by the plate's name.
    """

    layout: Layout
    constrain: dict[str, Any]
    real_sites: frozenset[str]
    observed: tuple[str, ...]
    plates: dict[str, DataPlate] = field(default_factory=dict)
    latents_in_plate: dict[str, list[str]] = field(default_factory=dict)

    def unconstrain(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Map constrained values to unconstrained ones."""
        return {name: bijection.inv(values[name]) for name, bijection in self.constrain.items()}


class PlateRows(poutine.messenger.Messenger):
    """Give a plate the rows it must use."""

    def __init__(self, plate: str | None, rows: Tensor | None) -> None:
        super().__init__()
        self._plate, self._rows = plate, rows

    def _pyro_sample(self, message: Any) -> None:
        if self._rows is not None and message["name"] == self._plate:
            message["value"] = self._rows


class _IndexSites(poutine.messenger.Messenger):
    """Record each plate's size, its rows at a time and whether the model fixed its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, tuple[int, int, bool]] = {}
        self.last = ""

    def _pyro_sample(self, message: Any) -> None:
        fn, self.last = message["fn"], message["name"]
        if isinstance(fn, _Subsample):
            fixed = message["value"] is not None
            rows = fn.subsample_size
            if rows is None:
                rows = len(message["value"]) if fixed else fn.size
            self.found[message["name"]] = (int(fn.size), min(int(rows), int(fn.size)), fixed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the context and give its stream back untouched."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(seed)
        yield


def inspect_model(model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModelSites:
    """Run the model once from the prior and describe its sites.

    Raises:
        ValueError: If there is nothing to sample, a latent site is discrete, or the data of an
            observed site do not fit its distribution; each names the site.
    """
    with _IndexSites() as index_sites:
        try:
            trace: Any = poutine.trace(model).get_trace(*args, **kwargs)
        except NotImplementedError as error:
            error.add_note(
                f"at or after site {index_sites.last!r}: FNBG draws from the prior, to start and "
                "to scale its proposals, so every latent site needs a distribution with sample()"
            )
            raise
    latents: dict[str, Any] = {}
    observed: dict[str, Any] = {}
    for name, site in trace.nodes.items():
        if site["type"] != "sample" or name in index_sites.found:
            continue
        if site["is_observed"]:
            if not site["infer"].get("_deterministic") and site["mask"] is not False:
                check_observed(site)
                observed[name] = site
        else:
            latents[name] = site
    _check_latents(latents, observed)
    sites, constrain = [], {}
    for name, site in latents.items():
        constrain[name] = biject_to(site["fn"].support)
        value = constrain[name].inv(site["value"])
        sites.append(Site(name, tuple(value.shape), value.dtype, value.device))
    in_plate: dict[str, list[str]] = {}
    for name, site in latents.items():
        for frame in site["cond_indep_stack"]:
            in_plate.setdefault(frame.name, []).append(name)
    plates = _data_plates(observed, index_sites.found)
    real_sites = frozenset(
        name for name, site in latents.items() if _is_real_space(site["fn"].support)
    )
    layout = Layout(tuple(sites))
    if layout.num_params == 0:
        raise ValueError(f"the latent sites {sorted(latents)} are empty: nothing to sample")
    return ModelSites(layout, constrain, real_sites, tuple(observed), plates, in_plate)


def _data_plates(
    observed: Mapping[str, Any], index_sites: Mapping[str, tuple[int, int, bool]]
) -> dict[str, DataPlate]:
    plates = {}
    for site in observed.values():
        for frame in site["cond_indep_stack"]:
            if frame.name in index_sites:
                sequential = frame.dim is None
                plates[frame.name] = DataPlate(
                    frame.name, *index_sites[frame.name], is_sequential=sequential
                )
    for name, found in index_sites.items():
        plate = DataPlate(name, *found, is_sequential=False)
        if plate.is_subsampled:
            plates.setdefault(name, plate)
    return plates


def _check_latents(latents: Mapping[str, Any], observed: Mapping[str, Any]) -> None:
    if not latents:
        raise ValueError(
            "the model has no latent sample site, so there is nothing to sample: "
            f"its observed sites are {sorted(observed)}"
        )
    for name, site in latents.items():
        if site["fn"].support.is_discrete:
            raise ValueError(
                f"latent site {name!r} is discrete ({type(site['fn']).__name__}): FNBG samples "
                "continuous sites only; sum the site out of the model, or give it data"
            )
    if not observed:
        warnings.warn(
            "the model has no observed data and no factor, so the chain samples the prior of "
            f"{sorted(latents)}; if one of these is the response, pass its data to run()",
            UserWarning,
            stacklevel=2,
        )


def prior_draws(
    model: Model,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    sites: ModelSites,
    plate_rows: PlateRows,
    num_draws: int,
) -> Tensor:
    """Draw unconstrained positions from the prior, shape ``(num_draws, num_params)``.

    The draws double as a check that the structure of the model does not depend on its values.

    Raises:
        ValueError: If the set of latent sites, the shape or the support of one changes between
            draws; names the site.
    """
    probes = {name: _support_probe(sites, name, c) for name, c in sites.constrain.items()}
    positions = torch.empty(0)
    for number in range(num_draws):
        with plate_rows:
            trace: Any = poutine.trace(model).get_trace(*args, **kwargs)
        latents = {
            name: site
            for name, site in trace.nodes.items()
            if site["type"] == "sample"
            and not site["is_observed"]
            and not isinstance(site["fn"], _Subsample)
        }
        changed = sorted(set(latents) ^ set(probes))
        if changed:
            raise ValueError(
                f"the set of latent sites depends on sampled values: {changed} came or went "
                "between two runs of the model; FNBG needs the same sites every time"
            )
        values = {}
        for name, site in latents.items():
            bijection = biject_to(site["fn"].support)
            probe = _support_probe(sites, name, bijection)
            if probe.shape != probes[name].shape or not torch.equal(probe, probes[name]):
                raise ValueError(
                    f"the support of latent site {name!r} depends on another site or on chance "
                    f"({site['fn'].support} here): FNBG needs a fixed support; write the site as a "
                    "function of one with a fixed support, such as a scaled unit interval"
                )
            values[name] = bijection.inv(site["value"])
        position = sites.layout.flatten(values)
        if number == 0:
            # One piece of memory: draws that are gathered and then stacked take twice as much
            positions = position.new_empty((num_draws, len(position)))
        positions[number] = position
    return positions


def _support_probe(sites: ModelSites, name: str, bijection: Any) -> Tensor:
    """Map one fixed unconstrained value, which tells two supports apart."""
    site = next(site for site in sites.layout.sites if site.name == name)
    value: Tensor = bijection(torch.full(site.shape, 0.5, dtype=site.dtype, device=site.device))
    return value


def _is_real_space(support: Any) -> bool:
    """Tell by the support, since a transform's codomain may claim more than it reaches."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real
