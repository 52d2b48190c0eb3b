"""A few quantities of every draw, or of some draws where there are many, for pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.command_line.summary import Summary
from pyro_fnbg.core.checks import shown

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["MAX_CHAINS", "Quantity", "coordinates", "log_density", "worst_prediction"]

# Of more chains or draws than these some are looked at
MAX_CHAINS, MAX_DRAWS = 20, 5_000
# Coordinates that are looked at, each of a site of its own
MAX_COORDINATES = 3


class Quantity(NamedTuple):
    """Hold a number of some draws.

    Attributes:
        label: What it is.
        axis: The same in a word or two.
        values: The numbers, shape ``(chains, draws)``.
        every: Of so many draws, one after the other, each is the last.
    """

    label: str
    axis: str
    values: NDArray[np.float64]
    every: int


def log_density(summary: Summary) -> Quantity:
    """Return the log density of draws, on all data or on their batches."""
    stats = summary.contents.sample_stats
    name, label = (
        ("lp", "log density") if "lp" in stats else ("batch_log_density", "log density on a batch")
    )
    return _of_draws(label, label, stats[name], ())


def coordinates(summary: Summary) -> Iterator[Quantity]:
    """Yield the middle coordinate of some sites, in the order of the model."""
    sites = {str(n): one for n, one in summary.contents.posterior.items() if one[0, 0].size}
    chosen = np.unique(np.linspace(0, len(sites) - 1, MAX_COORDINATES).round().astype(int))
    for place in chosen if sites else ():
        name = list(sites)[place]
        index = tuple(size // 2 for size in sites[name].shape[2:])
        entry = f"[{','.join(map(str, index))}]" if index else ""
        yield _of_draws(f"{shown(name)[1:-1]}{entry}", "value", sites[name], index)


def worst_prediction(summary: Summary) -> Quantity | None:
    """Return the stored prediction with the largest R-hat, if there is any."""
    if summary.diagnosed is None:
        return None
    r_hat = summary.diagnosed[0].estimates["r_hat"]
    (values,) = summary.contents.predictions.values()
    place = int(np.nan_to_num(r_hat.values, nan=-1.0).argmax())
    row, *rest = map(int, np.unravel_index(place, r_hat.shape))
    row = int(summary.rows_diagnosed[row])
    what = f"{values.name} of {values.dims[-1]} {rest[0]}" if rest else str(values.name)
    return _of_draws(f"{what} in row {row}", str(values.name), values, (row, *rest))


def _of_draws(label: str, axis: str, values: xr.DataArray, index: tuple[int, ...]) -> Quantity:
    """Read one number of some draws."""
    num_chains = min(values.sizes["chain"], MAX_CHAINS)
    num_draws = values.sizes["draw"]
    every = -(-num_draws // MAX_DRAWS)
    wanted = np.arange(every - 1, num_draws, every)
    found = values[(slice(num_chains), wanted, *index)].values.astype(np.float64)
    return Quantity(label, axis, found, every)
