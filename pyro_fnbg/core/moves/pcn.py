"""The preconditioned Crank-Nicolson move: a step that leaves a Normal prior as it is."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.moves.base import Displacement
from pyro_fnbg.core.moves.walk import ScaleState, Walk
from pyro_fnbg.core.priors import NormalPriors

__all__ = ["MAX_ODDS", "PCN"]

# Proposal scale over the prior's beyond which nothing changes: rho is 0 up to rounding by then, and
# the square does not overflow where tuning finds no end
MAX_ODDS = 1e9


class PCN(Walk):
    r"""Draw a block towards its prior and add what keeps the prior: w' = m + rho (w - m) + xi.

    The noise xi = sqrt(1 - rho\ :sup:`2`) s z has the prior's own standard deviations s, so prior
    and proposal are in detailed balance and the likelihood alone decides: however large a block is,
    its prior never refuses a candidate. Exact for blocks whose priors are Normal
    distributions of their own (depending on no other site).

    What warmup tunes is a proposal scale as for ``Walk``, in the units of the parameters: with the
    ratio o of that scale to the prior's (the root mean square of s over the block),
    rho = 1 / sqrt(1 + o\ :sup:`2`). Where it is small, both moves step as far; where it is large,
    rho is nearly 0 and a candidate is a draw from the prior.

    Args:
        partition: All blocks.
        blocks: Numbers of the move's own blocks, in order.
        scales: Their proposal scales before the first sweep, shape ``(blocks,)``.
        targets: Acceptance probabilities that tuning aims at, shape ``(blocks,)``.
        priors: The priors of all coordinates; those of the move's blocks are Normal.

    References:
        Cotter, Roberts, Stuart and White (2013), "MCMC methods for functions: modifying old
        algorithms to make them faster"; Neal (1998), "Regression and classification using Gaussian
        process priors".
    """

    name = "pcn"

    def __init__(
        self,
        partition: Partition,
        blocks: Tensor,
        scales: Tensor,
        targets: Tensor,
        priors: NormalPriors,
    ) -> None:
        super().__init__(partition, blocks, scales, targets)
        self.locs, self.spreads = priors.locs[self.coordinates], priors.scales[self.coordinates]
        squares = torch.zeros(len(blocks), dtype=torch.float64)
        squares = squares.index_add(0, self.owners, self.spreads.square())
        self.block_spreads = (squares / partition.sizes[blocks]).sqrt()

    def displace(self, state: ScaleState, position: Tensor, z: Tensor) -> Displacement:
        """Say where the move would go, and take the priors out of the ratios."""
        odds, rho = self._odds_and_rho(state)
        # 1 - rho, without the cancellation of small steps
        pull = (odds * rho).square() / (1 + rho)
        away = position.double() - self.locs
        noise = (odds * rho)[..., self.owners] * self.spreads * z
        increment = (noise - pull[..., self.owners] * away).to(position.dtype)
        moved = (position + increment).double() - self.locs
        terms = 0.5 * ((moved / self.spreads).square() - (away / self.spreads).square())
        nothing = torch.zeros_like(odds).expand(*terms.shape[:-1], -1)
        return Displacement(increment, nothing.index_add(-1, self.owners, terms))

    def report(self, state: ScaleState) -> Mapping[str, Tensor]:
        """Return the proposal scales, and the share of a block that each candidate keeps."""
        return {"proposal scale": state.scales, "rho": self._odds_and_rho(state)[1]}

    def _odds_and_rho(self, state: ScaleState) -> tuple[Tensor, Tensor]:
        odds = (state.scales / self.block_spreads).clamp(max=MAX_ODDS)
        return odds, 1 / (1 + odds * odds).sqrt()
