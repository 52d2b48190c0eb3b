"""Rescaling of hidden relu nodes: the function stays, the priors alone decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pyro_fnbg.core.noise import ChainKey, Stream, noise_of_sweeps
from pyro_fnbg.core.prior_terms import PriorTerms
from pyro_fnbg.core.priors import ParameterPriors

__all__ = ["RescaledNodes", "Rescaling", "RescalingNoise"]

# Proposal scale of one coordinate over its standard deviation (Gelman, Roberts and Gilks, 1996)
BEST_SCALE = 2.4


class RescaledNodes(NamedTuple):
    """Say where the parameters of a layer's nodes are.

    Attributes:
        layer: Number of the layer, from 1.
        incoming: Flat coordinates of each node's weights and bias, shape ``(nodes, inputs + 1)``;
            without the last column where the layer has no biases.
        outgoing: Those of the weights of the layer above for it, shape ``(nodes, outputs)``.
    """

    layer: int
    incoming: Tensor
    outgoing: Tensor


class RescalingNoise(NamedTuple):
    """Hold the noise of a sweep's rescalings, or of K sweeps with a dimension for them in front.

    Attributes:
        log_factors: Logarithm of the factor proposed for each node, double precision, shape
            ``(nodes,)``, layer by layer.
        factors: The factors.
        log_u: Logarithms of uniforms, shape ``(nodes,)``.
    """

    log_factors: Tensor
    factors: Tensor
    log_u: Tensor

    @staticmethod
    def of_chains(chains: Sequence[RescalingNoise]) -> RescalingNoise:
        """Put the noise of chains side by side."""
        return RescalingNoise(*map(torch.stack, zip(*chains, strict=True)))

    def at(self, *index: int | slice) -> RescalingNoise:
        """Take an entry of every tensor, by the first dimensions."""
        return RescalingNoise(*(values[index] for values in self))

    def to(self, device: torch.device) -> RescalingNoise:
        """Return the same on a device."""
        return RescalingNoise(*(values.to(device) for values in self))


class _Layer(NamedTuple):
    """Hold what the rescaling of a layer's nodes needs.

    Attributes:
        own: Where the layer's nodes are among all that are rescaled.
        coordinates: Flat coordinates that change, node by node, shape ``(n,)``.
        owners: Number in the layer of the node that each belongs to.
        is_incoming: Whether each is multiplied by the factor; else it is divided.
        exponents: Of the factor in each node's Jacobian determinant, shape ``(nodes,)``.
        log_priors: Scores the coordinates.
    """

    own: slice
    coordinates: Tensor
    owners: Tensor
    is_incoming: Tensor
    exponents: Tensor
    log_priors: PriorTerms


class Rescaling:
    r"""Multiply a relu node's weights and bias by c, and divide the weights that it feeds by c.

    max(0, c v) = c max(0, v) for c > 0, so the network computes the same function, and the
    likelihood of all data, of a batch, of any power, is the same. For each node in turn, with
    log c ~ Normal(0, t\ :sup:`2`), the candidate is accepted with probability

        min(1, prior(candidate) / prior(current) c\ :sup:`inputs + 1 - outputs`),

    where the power of c is the Jacobian determinant of the map (without a bias, inputs - outputs).
    That leaves the prior times any such likelihood as it is, exactly, whatever the families of
    priors; a scale of priors that is sampled stays where it is. Nodes of a layer share no
    coordinate, and given scales their priors are independent, so that all of a layer are decided
    upon together.

    Under a Normal prior, log c has a standard deviation of about 1 / sqrt(2 n), where n is the
    number of coordinates that change; t is 2.4 times that, and is not tuned.

    Args:
        nodes: The nodes of each layer, from the first layer up.
        priors: The priors of all coordinates, none of the nodes' own of the family ``OTHER``.
        device: Where the positions will be.

    Attributes:
        nodes: As given.
        spreads: Standard deviation t of each node's log factor, layer by layer.
    """

    def __init__(
        self, nodes: Sequence[RescaledNodes], priors: ParameterPriors, device: torch.device
    ) -> None:
        self.nodes, self._priors = tuple(nodes), priors
        self._layers, spreads, first = list[_Layer](), list[Tensor](), 0
        for layer in nodes:
            own = torch.cat([layer.incoming, layer.outgoing], -1)
            (count, size), inputs = own.shape, layer.incoming.shape[-1]
            is_incoming = (torch.arange(size) < inputs).expand(count, -1).reshape(-1)
            coordinates, owners = own.reshape(-1), torch.arange(count).repeat_interleave(size)
            self._layers.append(
                _Layer(
                    slice(first, first + count),
                    coordinates.to(device),
                    owners.to(device),
                    is_incoming.to(device),
                    torch.full((count,), 2.0 * inputs - size, dtype=torch.float64, device=device),
                    PriorTerms(priors, device, coordinates),
                )
            )
            spreads.append(torch.full((count,), BEST_SCALE / (2 * size) ** 0.5).double())
            first += count
        self.spreads = torch.cat(spreads)

    def to(self, device: torch.device) -> Self:
        """Return the same for positions on a device."""
        return type(self)(self.nodes, self._priors, device)

    def noise(self, key: ChainKey, first: int, count: int) -> RescalingNoise:
        """Draw the noise of a chain's sweeps from number ``first`` on; see ``noise_of_sweeps``."""
        num_nodes = len(self.spreads)
        z, log_u = noise_of_sweeps(key, first, count, num_nodes, num_nodes, Stream.RESCALING)
        log_factors = self.spreads * z
        # By NumPy: an exponential of torch's may differ by where a number is among others
        return RescalingNoise(log_factors, torch.from_numpy(np.exp(log_factors.numpy())), log_u)

    def __call__(self, position: Tensor, noise: RescalingNoise) -> Tensor:
        """Return where a sweep's rescalings lead.

        Args:
            position: Unconstrained parameters, shape ``(..., num_params)``.
            noise: The noise of one sweep, shape ``(..., nodes)``.
        """
        for layer in self._layers:
            candidate, changes = _rescaled(layer, position, noise.factors)
            log_ratios = changes + layer.exponents * noise.log_factors[..., layer.own]
            # A ratio that is not a number refuses
            is_accepted = (noise.log_u[..., layer.own] < log_ratios)[..., layer.owners]
            before, after = position[..., layer.coordinates], candidate[..., layer.coordinates]
            chosen = torch.where(is_accepted, after, before)
            position = position.index_copy(-1, layer.coordinates, chosen)
        return position

    def by_layer(self, position: Tensor, factors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Rescale all nodes of a layer at once, one layer after the other, from one position.

        Args:
            position: Unconstrained parameters, shape ``(..., num_params)``.
            factors: The factor of each node, shape ``(..., nodes)``.

        Yields:
            Where that leads, and the change of each node's log prior, shape ``(..., nodes)``.
        """
        for layer in self._layers:
            yield _rescaled(layer, position, factors)


def _rescaled(layer: _Layer, position: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Rescale all nodes of a layer; return the change of each node's log prior, too."""
    before, by = position[..., layer.coordinates].double(), factors[..., layer.own]
    by = by[..., layer.owners]
    after = torch.where(layer.is_incoming, before * by, before / by).to(position.dtype)
    candidate = position.index_copy(-1, layer.coordinates, after)
    changes = layer.log_priors(candidate) - layer.log_priors(position)
    nothing = changes.new_zeros(*changes.shape[:-1], len(layer.exponents))
    return candidate, nothing.index_add(-1, layer.owners, changes)
