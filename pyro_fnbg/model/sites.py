"""What a Pyro model consists of: its latent sites, its plates and its observed data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_fnbg.core.blocks import first_few
from pyro_fnbg.core.explaining import explain
from pyro_fnbg.core.layout import Layout, Site
from pyro_fnbg.model.bound import BoundModel, running_again
from pyro_fnbg.model.impossible import drawn_again
from pyro_fnbg.model.supports import (
    KnownSupport,
    bijection_of,
    check_support,
    is_point_mass,
    is_real_space,
    known_support,
    sampled_support,
)

__all__ = [
    "DataPlate",
    "ModelSites",
    "PlateRows",
    "inspect_model",
    "prior_draws",
    "seeded",
]


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
        supports: Supports of the latent and the observed sites, as found.
        observed: Names of the observed sites that count (factors included, masked ones not).
        plates: The plates that hold observed sites, or are subsampled, by name.
        latents_in_plate: Latent sites inside each plate, by the plate's name.
        observed_in_plate: Observed sites inside each plate, likewise.
        unsized_plates: Plates that hold observed sites, and have no size.
    """

    layout: Layout
    constrain: dict[str, Any]
    real_sites: frozenset[str]
    supports: dict[str, KnownSupport]
    observed: tuple[str, ...]
    plates: dict[str, DataPlate] = field(default_factory=dict)
    latents_in_plate: dict[str, list[str]] = field(default_factory=dict)
    observed_in_plate: dict[str, list[str]] = field(default_factory=dict)
    unsized_plates: tuple[str, ...] = ()

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
    """Record each plate's size, its rows at a time and whether the model fixed its rows.

    And vectors and matrices that are sampled inside plates.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, tuple[int, int, bool]] = {}
        self.weights_in_plate: list[str] = []
        self.last = ""

    def _pyro_sample(self, message: Any) -> None:
        fn, self.last = message["fn"], message["name"]
        depth = max((-(f.dim or 0) for f in message["cond_indep_stack"]), default=math.inf)
        shape = [*getattr(fn, "batch_shape", ()), *getattr(fn, "event_shape", ())]
        if len(shape) > depth and not message["is_observed"]:
            self.weights_in_plate.append(self.last)
        if site_is_subsample(message):
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


def inspect_model(bound: BoundModel) -> ModelSites:
    """Run the model once from the prior and describe its sites.

    Raises:
        ValueError: If there is nothing to sample or a latent site cannot be sampled; names it.
    """
    with _IndexSites() as index_sites:
        try:
            trace = bound.prior_trace()
        except NotImplementedError as error:
            explain(
                error,
                f"at or after site {index_sites.last!r}: FNBG draws from the prior, to start and "
                "to scale its proposals, so every latent site needs a distribution with sample()",
            )
            raise
        except Exception as error:
            # Whose words are the model's own, or those of what it calls
            explain(error, f"FNBG ran the model with {bound.described()}")
            if index_sites.weights_in_plate:
                explain(
                    error,
                    f"weights {first_few(index_sites.weights_in_plate)} were sampled inside a "
                    "plate, so every row has weights of its own, with a dimension more: call the "
                    "network outside the plate, on x[rows] that were taken inside it, and enter "
                    "the plate again for the response",
                )
            raise
    latents: dict[str, Any] = {}
    observed: dict[str, Any] = {}
    for name, site in trace.nodes.items():
        if site["type"] != "sample" or name in index_sites.found:
            continue
        if site["is_observed"]:
            if not site["infer"].get("_deterministic") and site["mask"] is not False:
                observed[name] = site
        else:
            latents[name] = site
    _check_latents(latents, observed)
    supports = {name: known_support(site["fn"]) for name, site in (latents | observed).items()}
    sites, constrain = [], {}
    for name, site in latents.items():
        constrain[name] = bijection_of(site)
        value = constrain[name].inv(site["value"])
        sites.append(Site(name, tuple(value.shape), value.dtype, value.device))
    plates = _data_plates(observed, index_sites.found)
    real_sites = frozenset(
        name for name, site in latents.items() if is_real_space(sampled_support(site["fn"]))
    )
    layout = Layout(tuple(sites))
    if layout.num_params == 0:
        raise ValueError(f"the latent sites {sorted(latents)} are empty: nothing to sample")
    inside = _by_plate(observed)
    return ModelSites(
        layout,
        constrain,
        real_sites,
        supports,
        tuple(observed),
        plates,
        latents_in_plate=_by_plate(latents),
        observed_in_plate=inside,
        unsized_plates=tuple(name for name in inside if name not in index_sites.found),
    )


def _by_plate(sites: Mapping[str, Any]) -> dict[str, list[str]]:
    """Name the sites inside each plate."""
    found: dict[str, list[str]] = {}
    for name, site in sites.items():
        for frame in site["cond_indep_stack"]:
            found.setdefault(frame.name, []).append(name)
    return found


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
                "continuous sites only; sum the site out of the model, or if it is the response, "
                "pass its data to run()"
            )
        if is_point_mass(site["fn"]):
            raise ValueError(
                f"latent site {name!r} has all its mass on one value (Delta), so no step can be "
                f"accepted: write pyro.deterministic({name!r}, value), or give the site data"
            )
        if site["value"].dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"latent site {name!r} has values of type {site['value'].dtype}, must be "
                "torch.float32 or torch.float64: half precision would round steps and log ratios "
                "away; build the site's distribution from tensors of these types"
            )
    if not observed and all(site["mask"] is False for site in latents.values()):
        raise ValueError(
            f"masks hide every site of the model, {sorted(latents)} among them: it has no density "
            "to sample from; unmask the priors or the data"
        )
    if not observed:
        warnings.warn(
            "the model has no observed data and no factor, so the chain samples the prior of "
            f"{sorted(latents)}; if one of these is the response, pass its data to run()",
            UserWarning,
            stacklevel=2,
        )


class _AllSampled(BaseException):
    """Leave a model that has sampled every latent site; no error, so no model catches it."""


class _LatentSites(poutine.messenger.Messenger):
    """Record the latent sites of a run, and leave the model once all the expected are there."""

    def __init__(self, expected: Iterable[str]) -> None:
        super().__init__()
        self._expected = frozenset(expected)
        self.found: dict[str, tuple[Any, Tensor]] = {}

    def _pyro_post_sample(self, message: Any) -> None:
        if message["is_observed"] or site_is_subsample(message):
            return
        self.found[message["name"]] = message["fn"], message["value"]
        if self._expected <= self.found.keys():
            raise _AllSampled


def prior_draws(
    bound: BoundModel, sites: ModelSites, plate_rows: PlateRows, num_draws: int
) -> Tensor:
    """Draw unconstrained positions from the prior, shape ``(num_draws, num_params)``.

    Each run ends with the last latent site, so it costs no likelihood, and is made again where the
    sites drawn are impossible before that. The draws double as a check that the structure of the
    model up to there does not depend on its values.

    Raises:
        ValueError: If the set of latent sites, the shape or the support of one changes between
            draws; names the site.
    """
    shapes = {site.name: site.shape for site in sites.layout.sites}
    # One piece of memory: draws that are gathered and then stacked take twice as much
    some = sites.layout.sites[0]
    positions = torch.empty(
        num_draws, sites.layout.num_params, dtype=sites.layout.dtype, device=some.device
    )

    def drawn_sites() -> dict[str, tuple[Any, Tensor]]:
        latents = _LatentSites(shapes)
        with suppress(_AllSampled), plate_rows, latents:
            bound.run()
        return latents.found

    for number in range(num_draws):
        with running_again():
            found = drawn_again(drawn_sites)
        changed = sorted(found.keys() ^ shapes.keys())
        if changed:
            raise ValueError(
                f"the set of latent sites depends on sampled values: {changed} came or went "
                "between two runs of the model; FNBG needs the same sites every time"
            )
        values = {}
        for name, (fn, value) in found.items():
            check_support(name, sites.supports[name], fn)
            values[name] = sites.constrain[name].inv(value)
            if tuple(values[name].shape) != shapes[name]:
                raise ValueError(
                    f"the shape of latent site {name!r} depends on another site or on chance: "
                    f"unconstrained, it was {shapes[name]} and is now {tuple(values[name].shape)}"
                )
        positions[number] = sites.layout.flatten(values)
    return positions
