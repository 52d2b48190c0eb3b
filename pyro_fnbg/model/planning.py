"""From what the user asks and what the model has to a plan of batches, or a refusal."""

from __future__ import annotations

from pyro_fnbg.core.batches import BATCH_ORDERS, BatchPlan
from pyro_fnbg.core.checks import as_finite, check_choice, check_count, shown
from pyro_fnbg.model.sites import DataPlate, ModelSites

__all__ = ["check_batch_arguments", "make_plan"]

NO_PLATE = BatchPlan(plate=None, num_rows=1, batch_size=1, order="full", factor=1.0)


def make_plan(
    sites: ModelSites,
    batch_size: int | None,
    batch_order: str,
    batch_plate: str | None,
    likelihood_scale: str | float | None,
) -> BatchPlan:
    """Decide which plate is batched, in what size and order, and how its likelihood counts.

    Left out, the likelihood scale follows who asks for batches: ``batch_size`` means "batch"
    (factor 1), a model's own ``subsample_size`` means "full" (N / n), as everywhere in Pyro.

    Raises:
        ValueError: If the wishes contradict each other or the model; names both.
    """
    wanted = batch_size is not None or likelihood_scale is not None
    plate = _choose_plate(sites, batch_plate, wanted)
    if plate is None:
        if batch_order == "stratified":
            raise ValueError("batch_order='stratified' needs batch_size, got batch_size=None")
        only = next(iter(sites.plates.values())) if len(sites.plates) == 1 else None
        if only is None or only.is_sequential or only.is_fixed:
            return NO_PLATE
        return BatchPlan(only.name, only.size, only.size, "full", 1.0)
    size = _batch_size(plate, batch_size)
    if size == plate.size or plate.is_fixed:
        order = "full"
    elif batch_order == "full":
        raise ValueError(
            f"batch_order='full' takes all {plate.size} rows of plate {plate.name!r}, "
            f"but the batch size is {size}: leave one of the two out"
        )
    else:
        order = batch_order
    inside = sites.latents_in_plate.get(plate.name, [])
    if order != "full" and inside:
        raise ValueError(
            f"latent sites {inside} are inside plate {plate.name!r}: a minibatch of its rows would "
            "leave out parameters; move them out of the plate, or sample with the full data"
        )
    default = "full" if plate.is_subsampled or plate.is_fixed else "batch"
    scale = default if likelihood_scale is None else likelihood_scale
    factor = float({"batch": 1.0, "full": plate.size / size}.get(str(scale), scale))
    own = sites.observed_in_plate.get(plate.name, [])
    others = tuple(name for name in sites.observed if name not in own)
    return BatchPlan(plate.name, plate.size, size, order, factor, others)


def check_batch_arguments(
    batch_size: int | None,
    batch_order: str,
    batch_plate: str | None,
    likelihood_scale: str | float | None,
) -> None:
    """Check what can be checked without a model.

    Raises:
        ValueError: Naming the argument, its value and what is allowed.
    """
    check_choice("batch_order", batch_order, BATCH_ORDERS)
    if batch_size is not None:
        check_count("batch_size", batch_size, 1)
    if batch_plate is not None and not isinstance(batch_plate, str):
        raise ValueError(f"batch_plate must be the name of a plate, got {shown(batch_plate)}")
    number = as_finite(likelihood_scale)
    is_word = isinstance(likelihood_scale, str) and likelihood_scale in ("batch", "full")
    is_positive = number is not None and number > 0
    if likelihood_scale is not None and not is_word and not is_positive:
        raise ValueError(
            "likelihood_scale must be 'batch', 'full' or a positive number, "
            f"got {shown(likelihood_scale)}"
        )


def _choose_plate(sites: ModelSites, name: str | None, wanted: bool) -> DataPlate | None:
    """Find the plate to be batched; None if none was asked for."""
    plates = sites.plates
    unsized = list(sites.unsized_plates)
    needs_size = f" with a size: give {unsized} one, pyro.plate(name, len(x))" if unsized else ""
    subsampled = [plate.name for plate in plates.values() if plate.is_subsampled]
    if name is not None:
        if name not in plates:
            raise ValueError(
                f"batch_plate={name!r} is no plate around an observed site: there are "
                f"{sorted(plates) or 'none'}{needs_size}"
            )
    elif subsampled:
        name = subsampled[0]
    elif not wanted:
        return None
    elif not sites.observed:
        raise ValueError(
            "batch_size and likelihood_scale need observed data, and the model has none: pass the "
            "response to run()"
        )
    elif not plates:
        raise ValueError(
            "batch_size and likelihood_scale need the data's rows in a pyro.plate, and observed "
            f"sites {list(sites.observed)} are in none{needs_size}"
        )
    elif len(plates) > 1:
        raise ValueError(
            f"the observed sites are in several plates, {sorted(plates)}: name the one whose rows "
            "are the data with batch_plate="
        )
    else:
        name = next(iter(plates))
    others = [other for other in subsampled if other != name]
    if others:
        raise ValueError(
            f"plates {others} are subsampled besides {name!r}: FNBG supplies the rows of one "
            "plate; leave out subsample_size on the others"
        )
    if plates[name].is_sequential:
        raise ValueError(
            f"plate {name!r} is sequential (the model loops over it), so its rows cannot be "
            "batched: write it as 'with pyro.plate(...)'"
        )
    return plates[name]


def _batch_size(plate: DataPlate, batch_size: int | None) -> int:
    if batch_size is None:
        return plate.num_rows
    if batch_size > plate.size:
        raise ValueError(
            f"batch_size must be 1..{plate.size}, the rows of plate {plate.name!r}, "
            f"got {shown(batch_size)}"
        )
    if plate.is_fixed:
        raise ValueError(
            f"batch_size={batch_size} was given, but the model itself fixes the rows of plate "
            f"{plate.name!r} (subsample=...): leave one of the two out"
        )
    if plate.is_subsampled and batch_size != plate.num_rows:
        raise ValueError(
            f"batch_size={batch_size} was given, but plate {plate.name!r} has "
            f"subsample_size={plate.num_rows}: leave one of the two out"
        )
    return int(batch_size)
