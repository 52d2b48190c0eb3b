"""An exact draw of the variances of Normal priors, where their own priors are inverse gamma."""

from __future__ import annotations

from typing import Self

import torch
from scipy.special import gammainccinv, gammaincinv, ndtr
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.moves.base import Displacement
from pyro_fnbg.core.moves.draws import ExactDraw, NoState
from pyro_fnbg.core.priors import Variances
from pyro_fnbg.core.step import Propose, State, decide

__all__ = ["Conjugate"]


class Conjugate(ExactDraw):
    r"""Draw a block of log variances from its conditional given the parameters that they scale.

    The conditional of each variance is InverseGamma(a + n / 2, b + S / 2), see ``Variances``: a
    Gibbs step, exact, whose candidate is always accepted (its log ratio is 0). Batches and powers
    of the likelihood do not matter, since the conditional does not depend on the data.

    All noise is known before the sweep here, too: a gamma variate g of shape a + n / 2, the value
    of its quantile function at the normal distribution function of z, depends on nothing else. The
    displacement that is known beforehand is -log g, and the step adds log(b + S / 2) from where the
    parameters then are. Both tails of g are exact, by the quantile function of the nearer one.

    Args:
        partition: All blocks.
        blocks: Numbers of the move's own blocks, in order.
        variances: Conditionals of the coordinates of these blocks, and maybe of others.

    References:
        Neal (1996), "Bayesian learning for neural networks", section 3.2.3.
    """

    name = "conjugate"

    def __init__(self, partition: Partition, blocks: Tensor, variances: Variances) -> None:
        super().__init__(partition, blocks)
        self.shapes = variances.shapes[torch.searchsorted(variances.coordinates, self.coordinates)]
        self.conditionals = {
            block: _of_block(variances, partition.indices[block]) for block in blocks.tolist()
        }

    def to(self, device: torch.device) -> Self:
        """Return the same move with its tensors on a device."""
        moved = super().to(device)
        moved.conditionals = {
            block: Variances(*(values.to(device) for values in own))
            for block, own in self.conditionals.items()
        }
        return moved

    def displace(self, state: NoState, position: Tensor, z: Tensor) -> Displacement:
        """Return minus the logarithm of a gamma variate for each coordinate."""
        return Displacement(self.minus_log_gammas(z).to(position.dtype), None)

    def minus_log_gammas(self, z: Tensor) -> Tensor:
        """Turn standard normal numbers ``(..., coordinates)`` into -log g, in double precision."""
        normal, shapes = z.cpu().numpy(), self.shapes.cpu().numpy()
        tail = ndtr(-abs(normal))
        below, above = gammaincinv(shapes, tail), gammainccinv(shapes, tail)
        gammas = torch.from_numpy(below).where(z.cpu() < 0, torch.from_numpy(above))
        return -gammas.log().to(z.device)

    def step(
        self, propose: Propose[State], state: State, block: int, known: Displacement, log_u: Tensor
    ) -> tuple[State, Tensor, Tensor]:
        """Take the draw: a step whose ratio is 1, whatever the densities."""
        own, position = self.conditionals[block], state[0]
        values = self.draw(position, block, known.increment[..., own.coordinates])
        proposal = propose(state, block, values)
        return decide(state, proposal.candidate, torch.zeros_like(log_u), log_u)

    def draw(self, position: Tensor, block: int, minus_log_gammas: Tensor) -> Tensor:
        """Return the log variances of a block, given all parameters.

        Args:
            position: Unconstrained parameters, shape ``(..., num_params)``.
            block: Number of the block in the partition.
            minus_log_gammas: -log g of each of its coordinates, in their order.
        """
        return (self._rates(position, block).log() + minus_log_gammas).to(position.dtype)

    def log_density(self, position: Tensor, block: int) -> Tensor:
        """Score a block's log variances by their conditional, up to a constant, shape ``(...)``."""
        own = self.conditionals[block]
        logs = position[..., own.coordinates].double()
        terms = -own.shapes * logs - self._rates(position, block) * (-logs).exp()
        return terms.sum(-1)

    def _rates(self, position: Tensor, block: int) -> Tensor:
        """Return b + S / 2 of each coordinate of a block."""
        own = self.conditionals[block]
        squares = (position[..., own.members].double() - own.locs).square()
        sums = squares.new_zeros(*squares.shape[:-1], len(own.rates))
        return own.rates + 0.5 * sums.index_add(-1, own.owners, squares)


def _of_block(variances: Variances, coordinates: Tensor) -> Variances:
    """Take the conditionals of a block's coordinates, in their order."""
    places = torch.searchsorted(variances.coordinates, coordinates)
    is_own = torch.isin(variances.owners, places)
    order = torch.full((len(variances.coordinates),), -1).index_copy(
        0, places, torch.arange(len(places))
    )
    return Variances(
        coordinates,
        variances.shapes[places],
        variances.rates[places],
        variances.members[is_own],
        order[variances.owners[is_own]],
        variances.locs[is_own],
    )
