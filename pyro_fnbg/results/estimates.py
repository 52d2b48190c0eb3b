"""What ArviZ says of draws, computed a few parameters at a time."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "KINDS",
    "Columns",
    "estimated",
    "has_arviz_1",
    "import_arviz",
    "site_estimates",
    "summary_table",
]

# Columns of ArviZ's summary: all, moments and intervals, or how well they are known
KINDS = ("all", "stats", "diagnostics")

# ArviZ's estimators need several times the memory of what they are given: they get at most so many
# numbers at a time
MAX_NUMBERS = 2**23
# What columns of ArviZ's summary begin with that say how well a parameter is known
ESTIMATES = ("mcse", "ess", "r_hat")


class Columns(Protocol):
    """Give some numbers of all draws, of a site whose draws are not in memory.

    Attributes:
        shape: ``(chains, draws, *site shape)``.
    """

    shape: torch.Size

    def columns(self, first: int, stop: int) -> NDArray[Any]:
        """Return some numbers of all draws, ``(chains, draws, numbers)``."""


def import_arviz() -> Any:
    """Import ArviZ, without the announcement of version 1 that 0.23 makes; both are served."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def has_arviz_1() -> bool:
    """Whether the installed ArviZ is of version 1 or later, told without importing it."""
    return int(version("arviz").partition(".")[0]) >= 1


def site_estimates(draws: Tensor | Columns) -> dict[str, Tensor]:
    """Estimate effective sample sizes and R-hat of one site's parameters.

    ``n_eff`` is ArviZ's bulk effective sample size, ``r_hat`` its rank-normalised split R-hat
    (Vehtari and others, 2021, "Rank-normalization, folding, and localization"); NaN where draws are
    too few or not finite, and for a parameter that never moved.

    Args:
        draws: Shape ``(chains, draws, *site shape)``.

    Returns:
        Tensors of the site's shape.
    """
    arviz = import_arviz()
    return estimated(draws, {"n_eff": arviz.ess, "r_hat": arviz.rhat})


def estimated(
    draws: Tensor | Columns, estimators: Mapping[str, Callable[[Any], Any]]
) -> dict[str, Tensor]:
    """Apply ArviZ's estimators to each number, with NaN for numbers that never moved.

    Args:
        draws: Shape ``(chains, draws, *shape)``.
        estimators: By name, functions of a mapping from one variable to its draws, as ArviZ's are.

    Returns:
        By the same names, tensors of that shape.
    """
    arviz = import_arviz()
    found: dict[str, list[NDArray[np.float64]]] = {name: [] for name in estimators}
    for _, columns in _chunks(draws):
        with _quiet(arviz):
            for name, function in estimators.items():
                values = np.atleast_1d(function({"x": columns})["x"]).astype(np.float64)
                found[name].append(np.where(_are_constant(columns), np.nan, values))
    shape = draws.shape[2:]
    return {
        name: torch.from_numpy(np.concatenate([np.empty(0), *pieces])).view(shape)
        for name, pieces in found.items()
    }


def summary_table(
    samples: Mapping[str, Tensor | Columns],
    prob: float,
    kind: str = "all",
    num_ends: int | None = None,
) -> pd.DataFrame:
    """Tabulate ArviZ's summary of every parameter, one row each.

    Args:
        samples: Draws by site, each of shape ``(chains, draws, *site shape)``.
        prob: Probability of the intervals.
        kind: Which columns: one of ``KINDS``.
        num_ends: Of more parameters than twice this number, tabulate so many at either end alone.
    """
    import pandas as pd

    arviz = import_arviz()
    options = {"ci_prob": prob} if has_arviz_1() else {"hdi_prob": prob}
    sizes = [draws.shape[2:].numel() for draws in samples.values()]
    shown = np.ones(sum(sizes), dtype=bool)
    if num_ends is not None:
        shown[num_ends : max(num_ends, len(shown) - num_ends)] = False
    tables = []
    for (name, draws), own in zip(
        samples.items(), np.split(shown, np.cumsum(sizes)[:-1]) if sizes else [], strict=True
    ):
        for first, all_columns in _chunks(draws, own):
            places = np.flatnonzero(own[first : first + all_columns.shape[-1]]).tolist()
            is_all = len(places) == all_columns.shape[-1]
            columns = all_columns if is_all else all_columns[..., places]
            with _quiet(arviz):
                table = arviz.summary({"x": columns}, kind=kind, **options)
            estimates = [name for name in table if str(name).startswith(ESTIMATES)]
            table.loc[_are_constant(columns), estimates] = np.nan
            table.index = [_parameter_name(name, draws.shape[2:], first + p) for p in places]
            tables.append(table)
    return pd.concat(tables) if tables else pd.DataFrame()


def _are_constant(columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Find parameters that never moved: ArviZ takes as many effective draws for them as there are.

    It does so where all draws are within the resolution of float64 numbers near 1.
    """
    lowest, highest = columns.min((0, 1)), columns.max((0, 1))
    with np.errstate(invalid="ignore"):  # draws that are infinite are no numbers either
        found: NDArray[np.bool_] = highest - lowest < np.finfo(np.float64).resolution
    return found


@contextmanager
def _quiet(arviz: Any) -> Generator[None]:
    """Leave out what ArviZ says, line by line, of draws too few, whose estimates are NaN."""
    # ArviZ 0.x has a logger of its own that no other module can find by name
    logger = getattr(arviz, "_log", logging.getLogger("arviz"))
    before = logger.disabled
    logger.disabled = True
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before


def _chunks(
    draws: Tensor | Columns, wanted: NDArray[np.bool_] | None = None
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield ``(chains, draws, some parameters)`` with the number of the first parameter.

    Args:
        draws: The draws of a site.
        wanted: Which of its parameters are; chunks that have none of these are not read.
    """
    num_draws = draws.shape[0] * draws.shape[1]
    num_columns = draws.shape[2:].numel() if num_draws else 0
    at_a_time = max(1, MAX_NUMBERS // max(1, num_draws))
    read = draws.columns if not isinstance(draws, Tensor) else _columns_in_memory(draws)
    for first in range(0, num_columns, at_a_time):
        stop = min(first + at_a_time, num_columns)
        if wanted is None or wanted[first:stop].any():
            yield first, read(first, stop)


def _columns_in_memory(draws: Tensor) -> Callable[[int, int], NDArray[Any]]:
    """Return what reads some numbers of all draws; only here may they have to be copied."""
    columns = draws.detach().flatten(2) if draws.dim() > 2 else draws.detach().unsqueeze(-1)
    return lambda first, stop: columns[..., first:stop].cpu().numpy()


def _parameter_name(site: str, shape: torch.Size, place: int) -> str:
    """Name a parameter by its place in the site, as ArviZ and Pyro do."""
    index = ", ".join(str(int(i)) for i in np.unravel_index(place, shape)) if shape else ""
    return f"{site}[{index}]" if shape else site
