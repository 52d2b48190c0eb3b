"""Blocks of parameters that are proposed together, and partitions of all parameters into blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_fnbg.core.checks import check_count, check_names, is_list, shown

__all__ = ["Block", "Partition", "first_few"]

Item = TypeVar("Item")

# Items of a long list that an error shows
MAX_ITEMS = 8


@dataclass(frozen=True)
class Block:
    """Name a set of flat coordinates that one Metropolis step proposes together.

    Attributes:
        name: Unique name, for example ``"layer1.node3.part2"``.
        index: Flat coordinates, in the order weights, then bias.
        layer: Number of the layer, counted from 1; None when the block belongs to none.
        node: Number of the node in its layer, counted from 1; None when it spans several.
        move: Name of the move that proposes its candidates; None for the kernel's ``moves``.

    Raises:
        TypeError: If a name is no text.
        ValueError: If a coordinate is not a whole number, or the layer or the node is none that
            counts from 1.

    Example:
        >>> block = Block("layer1.node2", (2, 3, 5), layer=1, node=2)
        >>> block.size
        3
    """

    name: str
    index: tuple[int, ...]
    layer: int | None = None
    node: int | None = None
    move: str | None = None

    def __post_init__(self) -> None:
        """Take any sequence of whole numbers, arrays and tensors included."""
        if not isinstance(self.name, str):
            raise TypeError(f"name must be the name of a block, got {shown(self.name)}")
        if self.move is not None and not isinstance(self.move, str):
            raise TypeError(f"move must be the name of a move or None, got {shown(self.move)}")
        for argument, value in (("layer", self.layer), ("node", self.node)):
            if value is not None:
                check_count(f"{argument} of block {self.name!r}", value, 1)
                object.__setattr__(self, argument, int(value))
        index = _row_of_integers(self.index)
        if index is None:
            raise ValueError(
                f"block {self.name!r} must have a row of whole numbers as its index, "
                f"got {shown(self.index)}"
            )
        object.__setattr__(self, "index", tuple(index.tolist()))

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return len(self.index)


def _row_of_integers(value: object) -> NDArray[np.integer] | None:
    """Return a row of whole numbers of 64 bits; None for anything else."""
    try:
        row = np.asarray(value)
    # A ragged list, or a tensor that is not in memory
    except (RuntimeError, TypeError, ValueError):
        return None
    is_row = row.ndim == 1 and (row.size == 0 or np.issubdtype(row.dtype, np.integer))
    return row if is_row else None


@dataclass(frozen=True, repr=False)
class Partition:
    """Cover every parameter exactly once by blocks, in the order in which a sweep visits them.

    Attributes:
        blocks: The blocks in sweep order.
        num_params: Number of flat coordinates to be covered.
        layer_names: Name of each layer; layer ``j`` is ``layer_names[j - 1]``.

    Raises:
        TypeError: If the blocks are no sequence of ``Block``, or the names no sequence of texts.
        ValueError: If a coordinate is missing, doubled or out of range, a block is empty, a name
            occurs twice or a layer number has no name.

    Example:
        >>> Partition((Block("first", (0, 1)), Block("rest", (2,))), num_params=3).num_blocks
        2
        >>> Partition((Block("first", (0, 1)), Block("rest", (1,))), num_params=3)
        Traceback (most recent call last):
            ...
        ValueError: blocks must cover coordinates 0..2 exactly once: missing [2], doubled [1]
    """

    blocks: tuple[Block, ...]
    num_params: int
    layer_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that the blocks cover all coordinates exactly once."""
        if not is_list(self.blocks) or not all(isinstance(one, Block) for one in self.blocks):
            raise TypeError(f"blocks must be a sequence of Block, got {shown(self.blocks)}")
        check_count("num_params", self.num_params, 1)
        object.__setattr__(self, "num_params", int(self.num_params))
        check_names("layer_names", self.layer_names, "names of layers")
        object.__setattr__(self, "blocks", tuple(self.blocks))
        object.__setattr__(self, "layer_names", tuple(self.layer_names))
        empty = [block.name for block in self.blocks if not block.index]
        if empty:
            raise ValueError(
                f"blocks must hold at least one coordinate, got empty {first_few(empty)}"
            )
        counts = Counter(coordinate for block in self.blocks for coordinate in block.index)
        outside = sorted(c for c in counts if not 0 <= c < self.num_params)
        # No more than are shown: there may be as many as a mistyped number says
        missing = list(
            islice((c for c in range(self.num_params) if c not in counts), MAX_ITEMS + 1)
        )
        doubled = sorted(c for c, count in counts.items() if count > 1)
        faults = {"missing": missing, "doubled": doubled, "out of range": outside}
        if any(faults.values()):
            found = ", ".join(f"{kind} {first_few(at)}" for kind, at in faults.items() if at)
            raise ValueError(
                f"blocks must cover coordinates 0..{self.num_params - 1} exactly once: {found}"
            )
        names = Counter(block.name for block in self.blocks)
        repeated = [name for name, count in names.items() if count > 1]
        if repeated:
            raise ValueError(
                f"block names must be unique, got more than once: {first_few(repeated)}"
            )
        for block in self.blocks:
            if block.layer is not None and not 1 <= block.layer <= len(self.layer_names):
                raise ValueError(
                    f"block {block.name!r} is in layer {block.layer}, but layer_names has "
                    f"{len(self.layer_names)} entries (layers count from 1)"
                )

    def __repr__(self) -> str:
        sizes = sorted({int(size) for size in self.sizes})
        size = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        counts = Counter(self.layer_label(block) for block in self.blocks)
        layers = [f"{count} in {label}" for label, count in counts.items()]
        more = f" and {len(layers) - MAX_ITEMS} more layers" if len(layers) > MAX_ITEMS else ""
        return (
            f"<Partition of {self.num_params} parameters into {self.num_blocks} blocks of {size}: "
            f"{', '.join(layers[:MAX_ITEMS])}{more}>"
        )

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    @cached_property
    def sizes(self) -> Tensor:
        """Number of coordinates of each block, shape ``(num_blocks,)``."""
        return torch.tensor([block.size for block in self.blocks])

    @cached_property
    def indices(self) -> tuple[Tensor, ...]:
        """Flat coordinates of each block as tensors of shape ``(block_size,)``."""
        return tuple(torch.tensor(block.index) for block in self.blocks)

    @cached_property
    def block_of_coordinate(self) -> Tensor:
        """Block number of each flat coordinate, shape ``(num_params,)``."""
        owner = torch.empty(self.num_params, dtype=torch.long)
        for number, index in enumerate(self.indices):
            owner[index] = number
        return owner

    def layer_label(self, block: Block) -> str:
        """Name the layer of a block, or ``"no layer"``."""
        return "no layer" if block.layer is None else self.layer_names[block.layer - 1]

    def node_label(self, block: Block) -> str:
        """Name the node of a block, or its layer when the block spans several nodes."""
        layer = self.layer_label(block)
        return layer if block.node is None else f"{layer}.node{block.node}"

    def by_name(self, argument: str, given: Mapping[str, Item], allowed: str) -> list[Item | None]:
        """Spread what is given by name of a block or a layer over the blocks; None for the rest.

        A block's own name comes before that of its layer.

        Args:
            argument: Name of the argument that was given, for the error.
            given: The items.
            allowed: What they are, for the error.

        Raises:
            ValueError: If a name is none of these.
        """
        blocks = [block.name for block in self.blocks]
        known = {*blocks, *self.layer_names}
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(
                f"{argument} must map names of layers, {first_few(self.layer_names)}, or of "
                f"blocks, {first_few(blocks)}, to {allowed}; unknown are {first_few(unknown)} of "
                f"{shown(dict(given))}"
            )
        return [given.get(block.name, given.get(self.layer_label(block))) for block in self.blocks]


def first_few(items: Sequence[object]) -> str:
    """Show the first few of many items."""
    few = ", ".join(map(shown, items[:MAX_ITEMS]))
    return f"[{few}{', ...' if len(items) > MAX_ITEMS else ''}]"
