"""The one interface of all engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

__all__ = ["Engine", "SweepResults"]


class SweepResults(NamedTuple):
    """Report K sweeps of one chain.

    Attributes:
        positions: Position after each sweep, shape ``(K, num_params)``.
        log_ratios: Log acceptance ratios, shape ``(K, num_blocks)``; minus infinity for candidates
            of probability zero, NaN for candidates whose density is NaN or infinite.
        accepted: Decisions, shape ``(K, num_blocks)``.
        log_densities: Log density of each position on its sweep's batch, shape ``(K,)``.
    """

    positions: Tensor
    log_ratios: Tensor
    accepted: Tensor
    log_densities: Tensor


class Engine(Protocol):
    """Run sweeps. The same noise gives the same decisions in every engine (double precision)."""

    def sweeps(
        self,
        position: Tensor,
        rows: Sequence[Tensor | None],
        z: Tensor,
        log_u: Tensor,
        scales: Tensor,
    ) -> SweepResults:
        """Run K sweeps from a position.

        Args:
            position: Unconstrained parameters, shape ``(num_params,)``.
            rows: Rows of each sweep's batch, K entries; None stands for all rows.
            z: Standard normal noise in flat order, shape ``(K, num_params)``, double precision.
            log_u: Logarithms of uniforms in block order, shape ``(K, num_blocks)``.
            scales: Proposal standard deviation of each block, shape ``(num_blocks,)``.
        """
        ...
