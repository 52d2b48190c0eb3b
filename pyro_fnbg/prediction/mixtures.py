"""Quantiles of mixtures over draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["normal_mixture_quantiles"]


def normal_mixture_quantiles(
    means: Tensor, scales: Tensor, levels: Sequence[float], max_numbers: int
) -> list[Tensor]:
    """Find quantiles of equally weighted mixtures of Normal distributions.

    Exact up to the root finder's tolerance, far below the rounding of float32.

    Args:
        means: Shape ``(draws, mixtures)``.
        scales: Standard deviations, broadcast with the means.
        levels: Of the quantiles, between 0 and 1.
        max_numbers: How many numbers may be held at a time.

    Returns:
        For each level, a tensor of shape ``(mixtures,)``, in double precision.

    Example:
        >>> means, scales = torch.tensor([[-1.0], [1.0]]), torch.tensor([[1e-3], [1e-3]])
        >>> normal_mixture_quantiles(means, scales, [0.25, 0.75], 1000)
        [tensor([-1.], dtype=torch.float64), tensor([1.], dtype=torch.float64)]
    """
    at_a_time = max(1, max_numbers // (4 * len(means)))
    pieces = zip(
        means.split(at_a_time, 1), scales.expand(means.shape).split(at_a_time, 1), strict=True
    )
    found = []
    for some_means, some_scales in pieces:
        columns = some_means.double().cpu(), some_scales.double().cpu()
        found.append(torch.stack([_quantiles(*columns, level) for level in levels]))
    return list(torch.cat(found, 1))


def _quantiles(means: Tensor, scales: Tensor, level: float) -> Tensor:
    from scipy.optimize.elementwise import find_root

    def above(values: NDArray[Any], places: NDArray[Any]) -> NDArray[Any]:
        """Return by how much the mixtures' distribution functions exceed the level."""
        columns = torch.from_numpy(places.astype(np.int64).ravel())
        points = torch.from_numpy(values.ravel())
        below = torch.special.ndtr((points - means[:, columns]) / scales[:, columns])
        found: NDArray[Any] = (below.mean(0) - level).numpy().reshape(values.shape)
        return found

    # A standard deviation of 0 is a point
    scales = scales.clamp_min(torch.finfo(scales.dtype).tiny)
    # A mixture's quantile lies between the least and the largest of its parts'
    of_parts = means + scales * torch.special.ndtri(torch.tensor(level, dtype=torch.float64))
    lowest, highest = of_parts.amin(0), of_parts.amax(0)
    # A hair wider, since rounding may leave both ends on one side
    sizes = torch.maximum(lowest.abs(), highest.abs())
    rounding = 4 * torch.finfo(sizes.dtype).eps * sizes
    margin = 1e-9 * (scales.amin(0) + (highest - lowest)) + rounding
    places = np.arange(means.shape[1], dtype=np.float64)
    found = find_root(
        above, ((lowest - margin).numpy(), (highest + margin).numpy()), args=(places,)
    )
    # Where not even that is wide enough, the ends are one number but for rounding
    return torch.where(torch.from_numpy(found.success), torch.from_numpy(found.x), lowest)
