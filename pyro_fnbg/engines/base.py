"""The one interface of all engines."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from pyro_fnbg.core.tuning import Tuning

__all__ = ["Engine", "SweepResults"]


class SweepResults(NamedTuple):
    """Report K sweeps of C chains.

    Attributes:
        positions: Position after each sweep, shape ``(C, K, num_params)``.
        log_ratios: Log acceptance ratios, shape ``(C, K, num_blocks)``; minus infinity for
            candidates of probability zero, NaN for candidates whose density is NaN or infinite.
        accepted: Decisions, shape ``(C, K, num_blocks)``.
        log_densities: Log density of each position on its sweep's batch, shape ``(C, K)``.
        scales: Proposal scales after each sweep, shape ``(C, K, num_blocks)``.
    """

    positions: Tensor
    log_ratios: Tensor
    accepted: Tensor
    log_densities: Tensor
    scales: Tensor

    def of_chain(self, chain: int) -> SweepResults:
        """Return one chain's results, without the dimension for chains."""
        return SweepResults(*(values[chain] for values in self))

    def of_sweeps(self, first: int, stop: int) -> SweepResults:
        """Return some sweeps of one chain's results, which have no dimension for chains."""
        return SweepResults(*(values[first:stop] for values in self))


class Engine(Protocol):
    """Run sweeps. The same noise gives the same decisions in every engine (double precision).

    Attributes:
        name: The engine's name.
        is_compiled: Whether sweeps take so little time that Python is in the way: then it pays to
            ask for many at a time, and calls on several threads run side by side.
        joins_chains: Whether several chains are faster in one call than in one each.
    """

    name: str
    is_compiled: bool
    joins_chains: bool

    def sweeps(
        self,
        positions: Tensor,
        rows: Tensor | None,
        z: Tensor,
        log_u: Tensor,
        scales: Tensor,
        tuning: Tuning | None = None,
    ) -> SweepResults:
        """Run K sweeps of C chains, each chain from its own position.

        Args:
            positions: Unconstrained parameters, shape ``(C, num_params)``.
            rows: Rows of each sweep's batch, shape ``(C, K, batch_size)``; None stands for all
                rows in every sweep.
            z: Standard normal noise in flat order, shape ``(C, K, num_params)``, double precision.
            log_u: Logarithms of uniforms in block order, shape ``(C, K, num_blocks)``.
            scales: Proposal standard deviation of each block, shape ``(C, num_blocks)``.
            tuning: How the scales move after each sweep; None leaves them as they are.
        """
        ...
