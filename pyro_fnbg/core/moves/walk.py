"""The Gaussian random walk, the move of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.moves.base import Displacement, Move
from pyro_fnbg.core.tuning import adapt

__all__ = ["ScaleState", "Walk"]


class ScaleState(NamedTuple):
    """Hold a proposal scale for each block, shape ``(..., blocks)``, double precision."""

    scales: Tensor


class Walk(Move):
    """Move a block by a Gaussian increment of one scale: theta* = theta + scale z.

    Symmetric, so the ratio of the densities decides. In warmup each scale follows the block's
    acceptance probability.

    Args:
        partition: All blocks.
        blocks: Numbers of the move's own blocks, in order.
        scales: Their proposal scales before the first sweep, shape ``(blocks,)``.
        targets: Acceptance probabilities that tuning aims at, shape ``(blocks,)``.
    """

    name = "walk"

    def __init__(
        self, partition: Partition, blocks: Tensor, scales: Tensor, targets: Tensor
    ) -> None:
        super().__init__(partition, blocks)
        self.first_scales, self.targets = scales, targets

    def start(self) -> ScaleState:
        """Return the scales before the first sweep."""
        return ScaleState(self.first_scales)

    def displace(self, state: ScaleState, position: Tensor, z: Tensor) -> Displacement:
        """Scale the noise, in double precision: every engine proposes the same candidates."""
        increment = (state.scales[..., self.owners] * z).to(position.dtype)
        return Displacement(increment, None)

    def adapt(
        self, state: ScaleState, position: Tensor, accept_probs: Tensor, gain: Tensor
    ) -> ScaleState:
        """Lengthen the steps that were accepted too often, and shorten those too rarely."""
        return ScaleState(adapt(state.scales, accept_probs, self.targets, gain))

    def report(self, state: ScaleState) -> Mapping[str, Tensor]:
        """Return the proposal scales."""
        return {"proposal scale": state.scales}
