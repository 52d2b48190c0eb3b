"""The one interface of all engines."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

__all__ = ["Engine", "SweepResults"]


class SweepResults(NamedTuple):
    """Report K sweeps of C chains.

    Attributes:
        positions: Position after each sweep, shape ``(C, K, num_params)``.
        log_ratios: Log acceptance ratios, shape ``(C, K, num_blocks)``; minus infinity for
            candidates of probability zero, NaN for candidates whose density is NaN or infinite.
        accepted: Decisions, shape ``(C, K, num_blocks)``.
        log_densities: Log density of each position on its sweep's batch, shape ``(C, K)``.
    """

    positions: Tensor
    log_ratios: Tensor
    accepted: Tensor
    log_densities: Tensor


class Engine(Protocol):
    """Run sweeps. The same noise gives the same decisions in every engine (double precision)."""

    name: str

    def sweeps(
        self, positions: Tensor, rows: Tensor | None, z: Tensor, log_u: Tensor, scales: Tensor
    ) -> SweepResults:
        """Run K sweeps of C chains, each chain from its own position.

        Args:
            positions: Unconstrained parameters, shape ``(C, num_params)``.
            rows: Rows of each sweep's batch, shape ``(C, K, batch_size)``; None stands for all
                rows in every sweep.
            z: Standard normal noise in flat order, shape ``(C, K, num_params)``, double precision.
            log_u: Logarithms of uniforms in block order, shape ``(C, K, num_blocks)``.
            scales: Proposal standard deviation of each block, shape ``(C, num_blocks)``.
        """
        ...
