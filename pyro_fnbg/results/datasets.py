"""Arrays with named dimensions and labels, as ArviZ wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

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
        TypeError: If names or labels are no list.
        ValueError: If there are not as many as the dimensions or places, or names clash.
    """
    import xarray as xr

    variables, sizes = {}, dict[str, int]()
    for name, array in arrays.items():
        own = array.shape[len(first_dims) :]
        own_names = dims.get(name, [f"{name}_dim_{i}" for i in range(len(own))])
        check_names(f"dims[{name!r}]", own_names, "names of dimensions")
        names = (*first_dims, *own_names)
        if len(names) != array.ndim or len(set(names)) < len(names):
            raise ValueError(
                f"dims[{name!r}] must name the {len(own)} dimensions of shape {own}, each "
                f"otherwise, got {shown(own_names)}"
            )
        variables[name] = (names, array)
        sizes |= zip(names, array.shape, strict=True)
    if shared := sorted(variables.keys() & sizes.keys()):
        raise ValueError(
            f"sites {shared} have the names of dimensions {list(sizes)}, which xarray does not "
            "allow: give other names to the sites, or by dims= to dimensions of the model's own"
        )
    labels = {dim: coords.get(dim, np.arange(size)) for dim, size in sizes.items()}
    for dim, size in sizes.items():
        if np.shape(_labels(dim, labels[dim])) != (size,):
            raise ValueError(f"coords[{dim!r}] must have {size} labels, got {shown(labels[dim])}")
    return xr.Dataset(variables, coords=labels)


def _labels(dim: str, labels: object) -> NDArray[Any]:
    """Return labels as xarray takes them, or say that it would not."""
    try:
        if isinstance(labels, str) or not isinstance(labels, Sequence | np.ndarray | Tensor):
            raise TypeError
        return np.asarray(labels)
    except (RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"coords[{dim!r}] must be a list of labels, got {shown(labels)}") from error
