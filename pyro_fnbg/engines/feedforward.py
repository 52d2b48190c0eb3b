"""The feedforward engine: the pre-activations of the batch are part of the state.

A block inside one node changes one row of its layer, and adds a multiple of the change to each row
of the layer above; only what is above that is computed anew. Any other block is computed anew from
the lowest layer it touches. All chains take each step together, and no step waits for the device.

Layers count from 1, nodes and inputs from 0, as in ``Network.places``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import pyro
import torch
from torch import Tensor
from torch.distributions import Normal, biject_to
from torch.nn.functional import binary_cross_entropy_with_logits

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.moves.base import Move
from pyro_fnbg.core.moves.joint import JointMoves, stacked
from pyro_fnbg.core.step import Proposal, accept_prob, sweep, tiled_sum
from pyro_fnbg.engines.base import Engine, Record, SweepInputs
from pyro_fnbg.engines.network import Network
from pyro_fnbg.engines.places import Node, first_layer_groups, group_products, locate
from pyro_fnbg.networks.counts import poisson_log_probs
from pyro_fnbg.networks.statement import ACTIVATIONS

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
        (inputs, labels), priors = network.data, network.priors
        device = inputs.device
        self._device, self._moves = device, moves.to(device)
        self._network, self._architecture = network, network.architecture
        self._inputs, self._labels = inputs, labels.reshape(len(labels), -1)
        self._activations = [ACTIVATIONS[name] for name in network.activations]
        self._prior_locs = priors.locs.to(device)
        self._prior_scales = priors.scales.to(device)
        self._log_normalizers = priors.log_normalizers.to(device)
        prior = priors.scale_prior
        self._bijection = None if prior is None else biject_to(prior.support)
        self._places = [locate(network, index) for index in partition.indices]
        self._groups = first_layer_groups(network, self._places)
        # Coordinates block after block, and where one block ends
        self._order = torch.cat(partition.indices).to(device)
        self._sizes = partition.sizes.tolist()

    @staticmethod
    def knows(move: Move) -> bool:
        """Whether a move takes one decision on a displacement known beforehand."""
        return type(move).step is Move.step

    def run(self, inputs: SweepInputs) -> Record:
        """Run sweeps on given noise and batches; see ``Engine.run``."""
        positions, rows, z, log_u, adaptation, gains = inputs.to(self._device)
        results, learnt = [], [adaptation]
        # A distribution that checks its arguments makes the host wait for the device
        with torch.no_grad(), pyro.validation_enabled(False):
            for number in range(z.shape[1]):
                displacement = self._moves.displace(learnt[-1], positions, z[:, number])
                batch = None if rows is None else rows[:, number]
                known = self._prepare(positions, batch, displacement.increment)
                evaluate, propose = partial(self._evaluate, known), partial(self._propose, known)
                corrections = displacement.log_corrections
                step = self._moves.steps(propose, corrections, log_u[:, number])
                state, info = sweep(positions, evaluate, step, len(self._sizes))
                positions = state.position
                terms = torch.cat([self._log_prior(positions), state.log_lik], -1)
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
        inputs, labels = self._inputs, self._labels
        if rows is None:
            inputs, labels = inputs.unsqueeze(0), labels.unsqueeze(0)
        else:
            inputs, labels = inputs[rows], labels[rows]
        products: dict[int, Tensor] = {}
        for group in self._groups:
            products |= zip(group.blocks, group_products(group, inputs.mT, increment), strict=True)
        log_priors = self._log_prior(torch.stack([position, position + increment]))
        log_priors_by_block = log_priors[..., self._order].split(self._sizes, -1)
        inputs_by_chain = inputs.mT.expand(len(position), -1, -1)
        return _Sweep(inputs_by_chain, labels.mT, increment, products, log_priors_by_block)

    def _evaluate(self, known: _Sweep, position: Tensor) -> NetworkState:
        """Compute the state of a position from nothing."""
        return self._complete(known, position, ())

    def _propose(self, known: _Sweep, state: NetworkState, block: int) -> Proposal[NetworkState]:
        """Displace one block, and compute what changes with it."""
        place = self._places[block]
        moves = known.increment[:, place.coordinates]
        position = state.position.index_add(-1, place.coordinates, moves)
        if place.node is None:
            pre = state.pre[: place.layer - 1]
        else:
            change = self._change(known, state, block, place.layer, place.node)
            pre = self._move_node(state, place.layer, place.node.number, change)
        candidate = self._complete(known, position, pre)
        current_log_prior, log_prior = known.log_priors[block]
        return Proposal(
            candidate,
            torch.cat([log_prior, candidate.log_lik], -1),
            torch.cat([current_log_prior, state.log_lik], -1),
        )

    def _change(
        self, known: _Sweep, state: NetworkState, block: int, layer: int, node: Node
    ) -> Tensor:
        """Compute by how much a block would change its node's pre-activation, ``(C, 1, n)``."""
        if layer == 1:
            change = known.products[block].unsqueeze(1)
        else:
            fed = self._activations[layer - 2](state.pre[layer - 2][:, node.inputs])
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
        activation = self._activations[layer - 1]
        outgoing = self._weight(state.position, layer + 1)[..., node : node + 1]
        return (*pre, torch.addcmul(above[0], outgoing, activation(moved) - activation(row)))

    def _complete(self, known: _Sweep, position: Tensor, pre: tuple[Tensor, ...]) -> NetworkState:
        """Compute a state from the position and the pre-activations of its lowest layers."""
        for layer in range(len(pre) + 1, self._architecture.num_layers + 1):
            fed = self._activations[layer - 2](pre[-1]) if pre else known.inputs
            weight, start = self._weight(position, layer), self._network.bias_starts[layer - 1]
            if start is None:
                pre += (weight @ fed,)
            else:
                bias = position[:, start : start + weight.shape[1], None]
                pre += (torch.baddbmm(bias, weight, fed),)
        return NetworkState(position, self._log_lik(position, pre[-1], known.labels), pre)

    def _weight(self, position: Tensor, layer: int) -> Tensor:
        """View a layer's weights, shape ``(C, nodes, nodes below)``."""
        fan_in, fan_out = self._architecture.widths[layer - 1 : layer + 1]
        start = self._network.weight_starts[layer - 1]
        return position[:, start : start + fan_in * fan_out].view(-1, fan_out, fan_in)

    def _log_lik(self, position: Tensor, outputs: Tensor, labels: Tensor) -> Tensor:
        """Score each row, as the distributions of the models do."""
        likelihood = self._architecture.likelihood
        if likelihood.name == "bernoulli":
            labels = labels.expand_as(outputs)
            terms = -binary_cross_entropy_with_logits(outputs, labels, reduction="none")
        elif likelihood.name == "categorical":
            chosen = outputs.gather(1, labels.expand(len(outputs), -1, -1))
            terms = chosen - outputs.logsumexp(1, keepdim=True)
        elif likelihood.name == "poisson":
            counts, logs, at_best = labels.split([outputs.shape[1], outputs.shape[1], 1], 1)
            terms = poisson_log_probs(outputs, counts, logs)
            terms = torch.cat([terms, at_best.expand(len(outputs), -1, -1)], 1)
        else:
            scale: Tensor | float = likelihood.fixed_scale
            if likelihood.has_network_scale:
                outputs, scale = likelihood.locations_and_scales(outputs, 1)
            elif self._bijection is not None:
                scale = self._bijection(position[:, self._network.scale_coordinate, None, None])
            if likelihood.name == "normal":
                terms = Normal(outputs, scale, validate_args=False).log_prob(labels)
            else:
                terms = likelihood.student_log_densities(outputs, scale, labels)
        return (terms * self._network.factor).double().sum(1)

    def _log_prior(self, position: Tensor) -> Tensor:
        """Score each coordinate in double precision, shape ``(..., num_params)``."""
        errors = (position.double() - self._prior_locs) / self._prior_scales
        terms = self._log_normalizers - 0.5 * errors.square()
        prior, at = self._network.priors.scale_prior, self._network.scale_coordinate
        if prior is None or at is None or self._bijection is None:
            return terms
        scale = self._bijection(position[..., at])
        jacobian = self._bijection.log_abs_det_jacobian(position[..., at], scale)
        term: Tensor = prior.log_prob(scale).double() + jacobian.double()
        return torch.select_scatter(terms, term, -1, at)
