"""The feedforward engine: the pre-activations of the batch are part of the state.

A block inside one node changes one row of its layer, and adds a multiple of the change to each row
of the layer above; only what is above that is computed anew. Any other block is computed anew from
the lowest layer it touches. All chains take each step together, and no step waits for the device.

Layers count from 1, nodes and inputs from 0, as in ``Network.places``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pyro
import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.moves.base import Move
from pyro_fnbg.core.moves.conjugate import Conjugate
from pyro_fnbg.core.moves.gibbs import Gibbs
from pyro_fnbg.core.moves.joint import JointMoves, stacked
from pyro_fnbg.core.prior_terms import PriorTerms
from pyro_fnbg.core.step import Proposal, accept_prob, displaced, sweep, tiled_sum
from pyro_fnbg.engines.base import Engine, Record, SweepInputs
from pyro_fnbg.engines.network import Network
from pyro_fnbg.engines.network_density import NetworkDensity
from pyro_fnbg.engines.places import Node, first_layer_groups, group_products, locate

__all__ = ["FeedforwardEngine", "NetworkState"]


class NetworkState(NamedTuple):
    """Hold C chains on their batches of n rows.

    Attributes:
        position: Unconstrained parameters, shape ``(C, num_params)``.
        log_lik: Log likelihood of each row times the factor, in double precision, ``(C, n)``.
        pre: Pre-activations of layers 1..rho, shape ``(C, nodes, n)``; the last are the outputs.
            Activations are cheaper to compute again than to keep.
    """

    position: Tensor
    log_lik: Tensor
    pre: tuple[Tensor, ...]


class _Sweep(NamedTuple):
    """Hold what is known of a sweep before its first decision.

    Attributes:
        inputs: Shape ``(C, inputs, n)``; a view of the same memory where all chains see all rows.
        labels: Shape ``(C or 1, columns, n)``.
        increment: Displacement of each coordinate, shape ``(C, num_params)``.
        products: By the number of each block inside a node of the first layer, its weights'
            increments times their inputs, shape ``(C, n)``.
        log_priors: Log prior of each block's coordinates, current and displaced, ``(2, C, size)``.
    """

    inputs: Tensor
    labels: Tensor
    increment: Tensor
    products: dict[int, Tensor]
    log_priors: Sequence[Tensor]


class FeedforwardEngine(Engine):
    """Sweep over the blocks of a feedforward network, all chains at once, on the CPU or a GPU.

    The same noise gives the decisions of the trace engine, up to rounding: blocks add to what was
    computed from the position at the start of the sweep. Most of the memory goes to the first
    layer: chains x its blocks x batch size numbers.

    Args:
        network: What the model states of itself.
        partition: The blocks in sweep order.
        moves: The move of each block.
    """

    name = "feedforward"
    is_compiled = False
    joins_chains = True

    def __init__(self, network: Network, partition: Partition, moves: JointMoves) -> None:
        device = network.data.inputs.device
        self._device, self._moves = device, moves.to(device)
        self._network, self._architecture = network, network.architecture
        self._density = NetworkDensity(network)
        self._places = [locate(network, index) for index in partition.indices]
        self._groups = first_layer_groups(network, self._places)
        # Coordinates block after block, and where one block ends
        self._order = torch.cat(partition.indices).to(device)
        self._sizes = partition.sizes.tolist()
        # Where a scale of priors is sampled, these change with it as with a block's own coordinates
        self._shared_priors: dict[int, Callable[[Tensor], Tensor]] = {}
        for block, index in enumerate(partition.indices):
            terms = network.priors.terms_of(index)
            if terms is not None:
                has_scale = network.scale_coordinate in index.tolist()
                known = PriorTerms(network.priors, device, terms)
                self._shared_priors[block] = self._density.log_prior if has_scale else known

    @staticmethod
    def knows(move: Move) -> bool:
        """Whether a move takes one decision on what is known beforehand, or an exact draw."""
        return type(move).step in (Move.step, Conjugate.step, Gibbs.step)

    def run(self, inputs: SweepInputs) -> Record:
        """Run sweeps on given noise and batches; see ``Engine.run``."""
        positions, rows, z, log_u, adaptation, gains, rescaling = inputs.to(self._device)
        results, learnt = [], [adaptation]
        # A distribution that checks its arguments makes the host wait for the device
        with torch.no_grad(), pyro.validation_enabled(False):
            for number in range(z.shape[1]):
                displacement = self._moves.displace(learnt[-1], positions, z[:, number])
                batch = None if rows is None else rows[:, number]
                known = self._prepare(positions, batch, displacement.increment)
                evaluate, propose = partial(self._evaluate, known), partial(self._propose, known)
                step = self._moves.steps(propose, displacement, log_u[:, number])
                state, info = sweep(positions, evaluate, step, len(self._sizes))
                positions = state.position
                if rescaling is not None and self._moves.rescaling is not None:
                    # The likelihoods of all rows stay
                    positions = self._moves.rescaling(positions, rescaling.at(slice(None), number))
                terms = torch.cat([self._density.log_prior(positions), state.log_lik], -1)
                if gains is not None:
                    probs = accept_prob(info.log_ratios)
                    learnt.append(self._moves.adapt(learnt[-1], positions, probs, gains[number]))
                results.append((positions, *info, tiled_sum(terms)))
        found = [torch.stack(pieces, 1) for pieces in zip(*results, strict=True)]
        return Record(found[0], found[1], found[2], found[3], stacked(learnt[1:] or learnt, 1))

    def _prepare(self, position: Tensor, rows: Tensor | None, increment: Tensor) -> _Sweep:
        """Fetch the batch, and compute all that no decision changes.

        Each coordinate moves in one block only, so where a sweep would move it is known beforehand.
        """
        inputs, labels = self._density.batch(rows)
        products: dict[int, Tensor] = {}
        for group in self._groups:
            products |= zip(group.blocks, group_products(group, inputs.mT, increment), strict=True)
        log_priors = self._density.log_prior(torch.stack([position, position + increment]))
        log_priors_by_block = log_priors[..., self._order].split(self._sizes, -1)
        inputs_by_chain = inputs.mT.expand(len(position), -1, -1)
        return _Sweep(inputs_by_chain, labels, increment, products, log_priors_by_block)

    def _evaluate(self, known: _Sweep, position: Tensor) -> NetworkState:
        """Compute the state of a position from nothing."""
        return self._complete(known, position, ())

    def _propose(
        self, known: _Sweep, state: NetworkState, block: int, values: Tensor | None = None
    ) -> Proposal[NetworkState]:
        """Displace one block, and compute what changes with it."""
        place = self._places[block]
        position = displaced(state.position, place.coordinates, known.increment, values)
        if place.layer > self._architecture.num_layers + 1:
            # Scales of priors, which no row sees
            candidate = state._replace(position=position)
        elif place.node is None or values is not None:
            candidate = self._complete(known, position, state.pre[: place.layer - 1])
        else:
            change = self._change(known, state, block, place.layer, place.node)
            pre = self._move_node(state, place.layer, place.node.number, change)
            candidate = self._complete(known, position, pre)
        if values is None and block not in self._shared_priors:
            before, after = known.log_priors[block]
        else:
            score = self._shared_priors.get(block, self._density.log_prior)
            before, after = score(torch.stack([state.position, position]))
        return Proposal(
            candidate,
            torch.cat([after, candidate.log_lik], -1),
            torch.cat([before, state.log_lik], -1),
        )

    def _change(
        self, known: _Sweep, state: NetworkState, block: int, layer: int, node: Node
    ) -> Tensor:
        """Compute by how much a block would change its node's pre-activation, ``(C, 1, n)``."""
        if layer == 1:
            change = known.products[block].unsqueeze(1)
        else:
            fed = self._density.activations[layer - 2](state.pre[layer - 2][:, node.inputs])
            change = known.increment[:, node.weights].unsqueeze(1) @ fed
        if node.bias is not None:
            change = change + known.increment[:, node.bias, None, None]
        return change

    def _move_node(
        self, state: NetworkState, layer: int, node: int, change: Tensor
    ) -> tuple[Tensor, ...]:
        """Change one row of a layer, and each row of the layer above by a multiple.

        Returns:
            The candidate's pre-activations, as far up as they are known by that.
        """
        below, own, above = state.pre[: layer - 1], state.pre[layer - 1], state.pre[layer:]
        row = own[:, node : node + 1]
        moved = row + change
        pre = (*below, torch.slice_scatter(own, moved, 1, node, node + 1))
        if not above:
            return pre
        activation = self._density.activations[layer - 1]
        outgoing = self._density.weight(state.position, layer + 1)[..., node : node + 1]
        return (*pre, torch.addcmul(above[0], outgoing, activation(moved) - activation(row)))

    def _complete(self, known: _Sweep, position: Tensor, pre: tuple[Tensor, ...]) -> NetworkState:
        """Compute a state from the position and the pre-activations of its lowest layers."""
        pre = self._density.pre_activations(position, known.inputs, pre)
        return NetworkState(position, self._density.log_lik(position, pre[-1], known.labels), pre)
