"""A store as one netCDF file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyro_fnbg.stores.contents import Contents

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["export_netcdf"]

# Draws of one site are in memory up to so many bytes at a time
PIECE_BYTES = 32_000_000
# Bytes of a chunk of the file, about
CHUNK_BYTES = 1_000_000


def export_netcdf(contents: Contents, path: Path) -> None:
    """Write all groups of a store to a netCDF file, in place of what is at the path.

    Groups and attributes are those of ``open_store(...).to_netcdf``; a slash in the name of a site
    is written ``%2F``. Draws are copied some at a time, so memory does not grow with them.
    """
    import h5netcdf
    import xarray as xr

    groups = {name: _without_slashes(one) for name, one in contents.groups().items() if one}
    how: Any = {"engine": "h5netcdf", "format": "NETCDF4"}
    xr.Dataset(attrs=contents.attributes).to_netcdf(path, mode="w", **how)
    for name, group in groups.items():
        # xarray would read each variable as a whole: it writes what is beside the draws
        is_of_draws = "draw" in group.dims
        frame = group.isel(draw=slice(0)) if is_of_draws else group
        frame.to_netcdf(
            path,
            mode="a",
            group=name,
            unlimited_dims=["draw"] if is_of_draws else [],
            encoding={str(one): _chunks(group[one]) for one in group if is_of_draws},
            **how,
        )
    with h5netcdf.File(path, "a") as file:
        for name, group in groups.items():
            if "draw" in group.dims:
                _copy_draws(group, file.groups[name])


def _without_slashes(group: xr.Dataset) -> xr.Dataset:
    """Name variables and dimensions so that no name is a path."""
    names = {*group.variables, *group.dims}
    return group.rename({name: str(name).replace("/", "%2F") for name in names if "/" in str(name)})


def _chunks(values: xr.DataArray) -> dict[str, Any]:
    """Say how a variable of every draw lies in a file: draws of one chain side by side."""
    a_draw = values[:1, :1].nbytes
    if not a_draw:
        return {}
    draws = max(1, min(values.sizes["draw"], CHUNK_BYTES // a_draw))
    return {"chunksizes": (1, draws, *values.shape[2:])}


def _copy_draws(group: xr.Dataset, file: Any) -> None:
    """Copy what there is of every draw, some draws of a chain at a time."""
    num_draws = group.sizes["draw"]
    file.resize_dimension("draw", num_draws)
    file.variables["draw"][:] = group["draw"].values
    for name, values in group.items():
        at_a_time = max(1, PIECE_BYTES // max(1, values[:1, :1].nbytes))
        for chain in range(values.sizes["chain"]):
            for first in range(0, num_draws if values.size else 0, at_a_time):
                stop = min(first + at_a_time, num_draws)
                file.variables[name][chain, first:stop] = values[chain, first:stop].values
