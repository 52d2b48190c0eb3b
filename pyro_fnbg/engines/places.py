"""Where the blocks of a partition lie in a feedforward network.

Layers count from 1, nodes and inputs from 0, as in ``Network.places``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.engines.network import Network

__all__ = ["Group", "Node", "Place", "first_layer_groups", "group_products", "locate"]


class Node(NamedTuple):
    """Say what a block has of its node.

    Attributes:
        number: The node in its layer.
        inputs: Inputs of the block's weights: an index, and a slice where one will do.
        weights: Flat coordinates of these weights, in the same order.
        bias: Flat coordinate of the node's bias; None if the block does not have it.
    """

    number: int
    inputs: slice | Tensor
    weights: slice | Tensor
    bias: int | None


class Place(NamedTuple):
    """Say where in the network a block lies.

    Attributes:
        coordinates: Its flat coordinates.
        layer: Its lowest layer; rho + 1 for the observation scale alone.
        node: Its node; None if it has several, or the observation scale.
    """

    coordinates: Tensor
    layer: int
    node: Node | None


class Group(NamedTuple):
    """Gather blocks inside single nodes of the first layer, for one batched product.

    Nodes that are cut alike have a block each for every set of inputs. A group takes all sets of
    one size with one number of blocks, so that nothing need be padded.

    Attributes:
        blocks: Number of each block, set by set.
        inputs: The sets of inputs, one after the other: an index, and a slice where one will do.
        weights: Flat coordinates of the weights, shape ``(sets, blocks a set, inputs a set)``.
    """

    blocks: tuple[int, ...]
    inputs: slice | Tensor
    weights: Tensor


def locate(network: Network, coordinates: Tensor) -> Place:
    """Find a block in the network; index tensors are made where its inputs are."""
    device = network.data.inputs.device
    layer, number = network.node_of(coordinates)
    if number is None:
        return Place(coordinates.to(device), layer, None)
    inputs, weights, bias = _entries(network, coordinates)
    node = Node(number, _index(inputs, device), _index(weights, device), bias)
    return Place(coordinates.to(device), layer, node)


def first_layer_groups(network: Network, places: Sequence[Place]) -> tuple[Group, ...]:
    """Group the blocks inside single nodes of the first layer by the inputs of their weights."""
    device = network.data.inputs.device
    sets: dict[tuple[int, ...], list[tuple[int, list[int]]]] = defaultdict(list)
    for block, place in enumerate(places):
        if place.layer == 1 and place.node is not None:
            inputs, weights, _ = _entries(network, place.coordinates.cpu())
            sets[tuple(inputs)].append((block, weights))
    alike = defaultdict(list)
    for inputs_of_set, members in sets.items():
        alike[len(inputs_of_set), len(members)].append((inputs_of_set, members))
    return tuple(
        Group(
            blocks=tuple(block for _, members in group for block, _ in members),
            inputs=_index([entry for inputs, _ in group for entry in inputs], device),
            weights=torch.tensor(
                [[weights for _, weights in members] for _, members in group],
                dtype=torch.long,
                device=device,
            ),
        )
        for group in alike.values()
    )


def group_products(group: Group, inputs: Tensor, increment: Tensor) -> tuple[Tensor, ...]:
    """Multiply the increments of each block's weights by their inputs, in one batched product.

    Args:
        group: The blocks.
        inputs: Inputs of n rows, shape ``(C, inputs, n)``, or ``(1, inputs, n)`` for all chains.
        increment: Displacement of each coordinate, shape ``(C, num_params)``.

    Returns:
        The change of the node's pre-activation, bias aside, by block, each of shape ``(C, n)``.
    """
    sets, blocks_a_set, size = group.weights.shape
    # Chains that share their inputs stand next to the blocks of a set, and copy nothing
    own = len(inputs)
    sharing = len(increment) // own
    fed = inputs[:, group.inputs].unflatten(1, (sets, size)).flatten(0, 1)
    moves = increment[:, group.weights].unflatten(0, (own, sharing)).permute(0, 2, 3, 1, 4)
    products = moves.reshape(own * sets, blocks_a_set * sharing, size) @ fed
    by_block = products.view(own, sets * blocks_a_set, sharing, -1).transpose(0, 1).flatten(1, 2)
    return tuple(by_block)


def _entries(network: Network, coordinates: Tensor) -> tuple[list[int], list[int], int | None]:
    """Return inputs and coordinates of a block's weights, in input order, and its bias.

    The block must lie inside one node.
    """
    inputs = network.places[coordinates, 2].tolist()
    ordered = sorted(zip(inputs, coordinates.tolist(), strict=True))
    weights = [entry for entry in ordered if entry[0] >= 0]
    bias = ordered[0][1] if len(weights) < len(ordered) else None
    return [entry[0] for entry in weights], [entry[1] for entry in weights], bias


def _index(numbers: list[int], device: torch.device) -> slice | Tensor:
    """Make an index; a slice, which copies nothing, if the numbers are consecutive."""
    start = numbers[0] if numbers else 0
    if numbers == list(range(start, start + len(numbers))):
        return slice(start, start + len(numbers))
    return torch.tensor(numbers, device=device)
