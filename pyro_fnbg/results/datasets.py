"""Arrays with named dimensions and labels, as ArviZ wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.core.checks import check_names, shown

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["check_known", "dataset"]


def check_known(argument: str, given: Mapping[str, Any], known: set[Any]) -> None:
    """Check that a mapping has entries for known names only.

    Raises:
        ValueError: Naming the argument, the unknown names and the known ones.
    """
    if unknown := [name for name in given if name not in known]:
        raise ValueError(f"{argument} has entries for {shown(unknown)}; there are {sorted(known)}")


def dataset(
    arrays: Mapping[str, NDArray[Any]],
    first_dims: tuple[str, ...],
    dims: Mapping[str, Sequence[str]],
    coords: Mapping[str, Sequence[Any]],
) -> xr.Dataset:
    """Name the dimensions as ArviZ does, and number the places along them.

    Args:
        arrays: Values by variable.
        first_dims: Names of the dimensions that all variables have in front.
        dims: Names of the other dimensions, by variable, in place of ArviZ's.
        coords: Labels of the places, by dimension, in place of numbers.

    Raises:
        ValueError: If there are not as many as the dimensions or places, or names clash.
    """
    import xarray as xr

    variables, sizes = {}, dict[str, int]()
    for name, array in arrays.items():
        own = array.shape[len(first_dims) :]
        names = dims.get(name, [f"{name}_dim_{place}" for place in range(len(own))])
        check_names(f"dims[{name!r}]", names, "names of dimensions")
        if len(names) != len(own):
            raise ValueError(f"dims[{name!r}] must name {len(own)} dimensions, got {shown(names)}")
        variables[name] = ((*first_dims, *names), array)
        sizes |= zip((*first_dims, *names), array.shape, strict=True)
    if shared := sorted(variables.keys() & sizes.keys()):
        raise ValueError(
            f"sites {shared} have the names of dimensions {list(sizes)}, which xarray does not "
            "allow: give other names to the sites, or by dims= to dimensions of the model's own"
        )
    labels = {dim: coords.get(dim, range(size)) for dim, size in sizes.items()}
    for dim, size in sizes.items():
        if np.shape(labels[dim]) != (size,):
            raise ValueError(f"coords[{dim!r}] must have {size} labels, got {shown(labels[dim])}")
    return xr.Dataset(variables, coords={dim: list(values) for dim, values in labels.items()})
