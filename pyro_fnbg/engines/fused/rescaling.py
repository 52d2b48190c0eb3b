"""The rescaling of hidden relu nodes, compiled by Numba; see ``core.rescaling.Rescaling``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.engines.fused.elementwise import INLINE, compiled
from pyro_fnbg.engines.fused.memory import MoveData, Net, Noise, Work
from pyro_fnbg.engines.fused.priors import log_prior_at

__all__ = ["rescale"]

Array = NDArray[Any]


@compiled(**INLINE)
def rescale(net: Net, moves: MoveData, work: Work, position: Array, noise: Noise, k: int) -> None:
    """Rescale the relu nodes, one after the other, at the end of sweep ``k``.

    What is kept of the batch is left as it is: the likelihoods stay, and a sweep begins with the
    pre-activations of its position.
    """
    for node in range(noise.rescaling.shape[2]):
        middle, end = moves.rescaled[node, :2]
        coordinates, factor = moves.rescaled[node, 2 : 2 + end], noise.rescaling[1, k, node]
        log_ratio = noise.rescaling[0, k, node] * (2 * middle - end)
        for c in range(end):
            at = coordinates[c]
            value = np.float64(position[at])
            work.candidate[c] = value * factor if c < middle else value / factor
            log_ratio += log_prior_at(net, position, at, np.float64(work.candidate[c]))
            log_ratio -= log_prior_at(net, position, at, value)
        if noise.rescaling[2, k, node] < log_ratio:
            for c in range(end):
                position[coordinates[c]] = work.candidate[c]
