"""From the sites of a model to blocks: layers, their nodes, and parts of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from pyro_fnbg.core.blocks import Block, Partition, first_few
from pyro_fnbg.core.checks import is_count, shown
from pyro_fnbg.core.layout import Layout, Site

__all__ = ["check_blocks", "make_partition"]

BLOCK_KINDS = ("site", "layer", "node")


@dataclass(frozen=True)
class _Layer:
    """A weight site with its bias, or any other site by itself, cut into nodes."""

    name: str
    nodes: tuple[tuple[int, ...], ...]
    is_split: bool  # False for a scalar or a vector, which is a single block without nodes


def make_partition(
    layout: Layout,
    blocks: str | Partition | Callable[[Layout], Partition] = "node",
    parts: int | Mapping[int, int] | None = None,
    max_block_size: int | None = None,
    scales: Mapping[str, bool] | None = None,
    known: Sequence[tuple[str, Tensor]] = (),
) -> Partition:
    """Cut the sites of a model into blocks.

    Layers that are known come first. Of the other sites, names and shapes decide:

    A site ``X.weight`` of shape ``(K, ...)`` and its sibling ``X.bias`` of shape ``(K,)`` form one
    layer of K nodes, each a row of weights followed by its bias. A site of two or more dimensions
    without such a sibling is a layer whose nodes are its rows. A vector or a scalar is a layer of
    one block. Layers follow the trace order of the sites and count from 1; sites that hold scales
    of priors come after all others.

    Args:
        layout: The sites, in unconstrained space.
        blocks: "node" (one block a node), "layer", "site", a partition, or a callable that makes
            one from the layout.
        parts: Split each node into this many contiguous parts whose sizes differ by at most one,
            larger ones first; one number for every layer, or a mapping from layers to numbers.
        max_block_size: Split each node into as few parts as keep blocks within this size.
        scales: Names of sites that hold scales of priors, and whether one's entries are to share a
            block; otherwise "node" makes a block of each.
        known: Layers that are known from what the model computes, which names and shapes need not
            tell: name, and flat coordinates of the nodes, shape ``(nodes, parameters)``.

    Returns:
        The partition, in the order layer, node, part.

    Raises:
        ValueError: If the arguments contradict each other or do not fit the sites.

    References:
        Papamarkou (2023), "Approximate blocked Gibbs sampling for Bayesian neural networks".

    Example:
        >>> layout = Layout((Site("layer1.weight", (2, 3)), Site("layer1.bias", (2,))))
        >>> for block in make_partition(layout, parts=2).blocks:
        ...     print(block.name, block.index)
        layer1.node1.part1 (0, 1)
        layer1.node1.part2 (2, 6)
        layer1.node2.part1 (3, 4)
        layer1.node2.part2 (5, 7)
    """
    check_blocks(blocks, parts, max_block_size)
    if callable(blocks):
        blocks = blocks(layout)
        if not isinstance(blocks, Partition):
            raise TypeError(f"the callable blocks must return a Partition, got {type(blocks)}")
    if isinstance(blocks, Partition):
        if blocks.num_params != layout.num_params:
            raise ValueError(
                f"the partition covers {blocks.num_params} parameters, "
                f"but the model has {layout.num_params}: {_site_list(layout)}"
            )
        return blocks
    scales = scales or {}
    layers = _layers(layout, scales, known)
    if blocks == "node":
        found = _node_blocks(layers, _parts_by_layer(layers, parts, max_block_size))
    elif blocks == "layer":
        found = [
            Block(layer.name, tuple(np.concatenate(layer.nodes).tolist()), number)
            for number, layer in enumerate(layers, 1)
        ]
    else:
        found = _site_blocks(layout, layers, scales)
    names_of_layers = tuple(layer.name for layer in layers)
    for name, is_shared in scales.items():
        names_of_layers += (name,)
        is_whole = is_shared or blocks != "node"
        found += _scale_blocks(layout, name, len(names_of_layers), is_whole)
    names = Counter(block.name for block in found)
    unique = [
        replace(block, name=f"{block.name}#{block.layer}") if names[block.name] > 1 else block
        for block in found
    ]
    return Partition(tuple(unique), layout.num_params, names_of_layers)


def check_blocks(
    blocks: str | Partition | Callable[[Layout], Partition],
    parts: int | Mapping[int, int] | None,
    max_block_size: int | None,
) -> None:
    """Check what can be checked without a model.

    Raises:
        ValueError: Naming the argument, its value and what is allowed.
    """
    is_word = isinstance(blocks, str) and blocks in BLOCK_KINDS
    if not is_word and not isinstance(blocks, Partition) and not callable(blocks):
        raise ValueError(
            f"blocks must be one of {BLOCK_KINDS}, a Partition or a callable, got {shown(blocks)}"
        )
    splits = parts is not None or max_block_size is not None
    if splits and not (isinstance(blocks, str) and blocks == "node"):
        raise ValueError(
            f"parts and max_block_size split nodes, so they need blocks='node', got {shown(blocks)}"
        )
    if parts is not None and max_block_size is not None:
        raise ValueError(
            f"give parts or max_block_size, not both: got parts={shown(parts)} and "
            f"max_block_size={shown(max_block_size)}"
        )
    if max_block_size is not None:
        _check_positive_integer("max_block_size", max_block_size)
    if isinstance(parts, Mapping):
        # True and 1.0 would be found under 1
        if not all(is_count(layer, 0) for layer in parts):
            raise ValueError(
                f"parts must map layers, numbered from 1, to numbers of parts, got {shown(parts)}"
            )
        for number in parts.values():
            _check_positive_integer("parts", number)
    elif parts is not None:
        _check_positive_integer("parts", parts)


def _layers(
    layout: Layout, left_out: Container[str], known: Sequence[tuple[str, Tensor]]
) -> list[_Layer]:
    """Pair weights with biases and cut each pair, and each other site, into nodes."""
    sites = {site.name: site for site in layout.sites}
    coordinates = {
        name: np.arange(offset, offset + sites[name].size)
        for name, offset in layout.offsets().items()
    }
    layers = [_Layer(name, tuple(map(tuple, own.tolist())), is_split=True) for name, own in known]
    in_known = {entry for layer in layers for node in layer.nodes for entry in node}
    placed = {name for name, own in coordinates.items() if in_known.issuperset(own.tolist())}
    for site in layout.sites:
        if site.name in placed or site.name in left_out:
            continue
        weight, bias = _weight_and_bias(site, sites)
        if weight is not None and bias is not None:
            rows = coordinates[weight.name].reshape(weight.shape[0], -1)
            nodes = np.column_stack([rows, coordinates[bias.name]])
            placed |= {weight.name, bias.name}
            name = weight.name.removesuffix("weight").removesuffix(".") or weight.name
            layers.append(_Layer(name, tuple(map(tuple, nodes.tolist())), is_split=True))
            continue
        placed.add(site.name)
        if site.size == 0:
            continue
        is_split = len(site.shape) >= 2
        rows = coordinates[site.name].reshape(site.shape[0] if is_split else 1, -1)
        name = site.name.removesuffix(".weight") if is_split else site.name
        layers.append(_Layer(name, tuple(map(tuple, rows.tolist())), is_split))
    return _with_unique_names(layers)


def _weight_and_bias(site: Site, sites: Mapping[str, Site]) -> tuple[Site | None, Site | None]:
    """Find the pair to which a site belongs; either may be None."""
    for kind in ("weight", "bias"):
        if site.name == kind or site.name.endswith("." + kind):
            prefix = site.name.removesuffix(kind)
            weight, bias = sites.get(prefix + "weight"), sites.get(prefix + "bias")
            fits = weight is not None and bias is not None and bias.shape == weight.shape[:1]
            return (weight, bias) if fits and bias is not None and bias.size else (None, None)
    return None, None


def _with_unique_names(layers: list[_Layer]) -> list[_Layer]:
    """Append the layer's number where two layers would share a name."""
    counts = Counter(layer.name for layer in layers)
    return [
        layer
        if counts[layer.name] == 1
        else _Layer(f"{layer.name}#{number}", layer.nodes, layer.is_split)
        for number, layer in enumerate(layers, 1)
    ]


def _parts_by_layer(
    layers: Sequence[_Layer], parts: int | Mapping[int, int] | None, max_block_size: int | None
) -> list[int]:
    """Number of parts of each node, one entry a layer."""
    widths = [max(len(node) for node in layer.nodes) for layer in layers]
    if max_block_size is not None:
        return [-(-width // int(max_block_size)) for width in widths]
    if parts is None:
        return [1] * len(layers)
    if isinstance(parts, Mapping):
        unknown = [layer for layer in parts if layer not in range(1, len(layers) + 1)]
        if unknown:
            raise ValueError(
                f"parts names layers {first_few(unknown)}, but layers are 1..{len(layers)}"
            )
        numbers = [parts.get(layer, 1) for layer in range(1, len(layers) + 1)]
    else:
        numbers = [parts] * len(layers)
    for layer, width, number in zip(layers, widths, numbers, strict=True):
        if number > width:
            raise ValueError(
                f"parts={number} for layer {layer.name!r}, whose nodes have {width} parameters: "
                f"allowed are 1..{width}"
            )
    return numbers


def _check_positive_integer(name: str, value: object) -> None:
    if not is_count(value, 1):
        raise ValueError(f"{name} must be a positive integer, got {shown(value)}")


def _node_blocks(layers: Sequence[_Layer], parts: Sequence[int]) -> list[Block]:
    blocks = []
    for number, (layer, layer_parts) in enumerate(zip(layers, parts, strict=True), 1):
        for node_number, node in enumerate(layer.nodes, 1):
            name = f"{layer.name}.node{node_number}" if layer.is_split else layer.name
            # array_split gives contiguous pieces that differ by at most one, larger ones first
            for part, piece in enumerate(np.array_split(np.array(node), layer_parts), 1):
                part_name = f"{name}.part{part}" if layer_parts > 1 else name
                node_in_layer = node_number if layer.is_split else None
                blocks.append(Block(part_name, tuple(piece.tolist()), number, node_in_layer))
    return blocks


def _site_blocks(layout: Layout, layers: Sequence[_Layer], left_out: Container[str]) -> list[Block]:
    layer_of = {c: j for j, layer in enumerate(layers, 1) for node in layer.nodes for c in node}
    offsets = layout.offsets()
    return [
        Block(
            site.name,
            tuple(range(offsets[site.name], offsets[site.name] + site.size)),
            layer_of[offsets[site.name]],
        )
        for site in layout.sites
        if site.size and site.name not in left_out
    ]


def _scale_blocks(layout: Layout, name: str, layer: int, is_whole: bool) -> list[Block]:
    """Make one block of a site's entries, or of each entry."""
    size = next(site.size for site in layout.sites if site.name == name)
    start = layout.offsets()[name]
    if is_whole:
        return [Block(name, tuple(range(start, start + size)), layer)]
    entries = range(start, start + size)
    return [Block(layout.coordinate_name(entry), (entry,), layer) for entry in entries]


def _site_list(layout: Layout) -> str:
    return ", ".join(f"{site.name} {site.shape}" for site in layout.sites)
