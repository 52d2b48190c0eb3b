"""An exact draw of the weights of an output node, where their conditional is Normal."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.moves.base import Displacement
from pyro_fnbg.core.moves.draws import ExactDraw, NoState
from pyro_fnbg.core.step import Propose, State, block_step, tiled_sum

__all__ = ["Gibbs"]


class Gibbs(ExactDraw):
    r"""Draw a block from its Normal conditional, given all other parameters and the batch.

    Where responses are Normal(v, s\ :sup:`2`) around an output v of a network, and its weights w
    have Normal(m, t\ :sup:`2`) priors, the log density is quadratic in w: with the node's inputs A,
    one column a weight and one of ones for the bias, and the power f of the likelihood, the
    conditional has the precision I / t\ :sup:`2` + f A'A / s\ :sup:`2`. It is that of the sweep's
    own batch, tempered as the batch is.

    This is the plain form, for engines that take no shortcut: it reads the quadratic off the log
    density, at (d + 1) (d + 2) / 2 points for d parameters, and knows nothing of a network. The
    draw then is a candidate like others, with the density of the current values as the correction,
    so its log ratio is 0 but for rounding, and rounding makes it no less exact.

    Args:
        partition: All blocks.
        blocks: Numbers of the move's own blocks, in order.

    Attributes:
        indices: By block, its coordinates in the order of its noise.

    References:
        Geman and Geman (1984), "Stochastic relaxation, Gibbs distributions, and the Bayesian
        restoration of images".
    """

    name = "gibbs"

    def __init__(self, partition: Partition, blocks: Tensor) -> None:
        super().__init__(partition, blocks)
        self.indices = {block: partition.indices[block] for block in blocks.tolist()}

    def to(self, device: torch.device) -> Self:
        """Return the same move with its tensors on a device."""
        moved = super().to(device)
        moved.indices = {block: index.to(device) for block, index in self.indices.items()}
        return moved

    def displace(self, state: NoState, position: Tensor, z: Tensor) -> Displacement:
        """Return the noise: where it leads depends on what earlier blocks of the sweep do."""
        return Displacement(z.to(position.dtype), None)

    def step(
        self, propose: Propose[State], state: State, block: int, known: Displacement, log_u: Tensor
    ) -> tuple[State, Tensor, Tensor]:
        """Draw a candidate, and decide upon it as upon others."""
        z = known.increment[..., self.indices[block]]
        values, correction = self.draw(propose, state, block, z)
        return block_step(state, propose(state, block, values), log_u, correction)

    def draw(
        self, propose: Propose[State], state: State, block: int, z: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw the values of a block from its conditional.

        Args:
            propose: From a state, a block's number and values to a candidate.
            state: The state on this sweep's batch.
            block: Number of the block in the partition.
            z: Standard normal numbers, one a coordinate.

        Returns:
            The values, and log q(current) - log q(values) of the conditional's density q; NaN where
            no density is finite, so that the candidate is refused.
        """
        current: Tensor = state[0][..., self.indices[block]]

        def change(values: Tensor) -> Tensor:
            proposal = propose(state, block, values)
            return tiled_sum(proposal.log_terms - proposal.current_log_terms)

        # From zero, not from the current values: the way back finds the same conditional
        zero = torch.zeros_like(current)
        units = torch.eye(current.shape[-1], dtype=current.dtype, device=current.device)
        at_zero = change(zero)
        above = torch.stack([change(zero + unit) for unit in units], -1)
        below = torch.stack([change(zero - unit) for unit in units], -1)
        precision = torch.diag_embed(2 * at_zero.unsqueeze(-1) - above - below)
        for i, one in enumerate(units):
            for j, other in enumerate(units[:i]):
                both = above[..., i] + above[..., j] - at_zero - change(zero + one + other)
                precision[..., i, j] = precision[..., j, i] = both
        root, failed = torch.linalg.cholesky_ex(precision)
        gradient = (above - below) / 2
        mean = torch.cholesky_solve(gradient.unsqueeze(-1), root).squeeze(-1)
        noise = z.double().unsqueeze(-1)
        away = torch.linalg.solve_triangular(root.mT, noise, upper=True).squeeze(-1)
        back = (root.mT @ (current.double() - mean).unsqueeze(-1)).square().sum((-1, -2))
        correction = 0.5 * (noise.square().sum((-1, -2)) - back)
        is_known = (failed == 0) & precision.isfinite().all(-1).all(-1)
        values = torch.where(is_known.unsqueeze(-1), mean + away, current.double())
        return values.to(current.dtype), torch.where(is_known, correction, torch.nan)
