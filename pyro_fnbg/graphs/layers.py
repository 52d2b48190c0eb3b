"""Read layers of a network from a captured computation.

The computation is followed operation by operation. What depends on no latent site is computed; in
place of anything else goes what is known of it: which flat coordinate each element is, or which
node's value in which row. Views act on these numbers as they do on the values, so weights may have
any shape. An affine map by sites starts a layer, and only that layer's values may be used from then
on; an operation that is no part of a chain of layers ends the reading.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from pyro_fnbg.graphs.arrangement import (
    PIECES,
    VIEWS,
    Entries,
    Values,
    is_unknown,
    numbers_of,
    viewed,
    with_numbers,
)
from pyro_fnbg.graphs.capture import ancestors, computed

__all__ = [
    "SCALES",
    "Chain",
    "Inputs",
    "Layer",
    "NotAChain",
    "read_chain",
    "read_entries",
    "value_on",
]

aten = torch.ops.aten

ACTIVATIONS = {
    aten.relu.default: "relu",
    aten.tanh.default: "tanh",
    aten.sigmoid.default: "sigmoid",
}
# What positive numbers are made of outputs by
SCALES = ("softplus", "exponentials")


class NotAChain(ValueError):
    """Say why a computation is no chain of layers, though nothing is wrong with it."""


@dataclass(frozen=True)
class Layer:
    """Describe a layer.

    Attributes:
        weights: Flat coordinates, shape ``(nodes, nodes below)``.
        biases: Flat coordinates, shape ``(nodes,)``, if it has any.
        activation: Its activation, if it has been met; "identity" where there is none.
    """

    weights: Tensor
    biases: Tensor | None = None
    activation: str = ""

    def is_state_of(self, values: Values) -> bool:
        """Whether values of this layer are its latest."""
        found = (values.has_bias, values.activation)
        return found == (self.biases is not None, self.activation)


class Inputs(NamedTuple):
    """Say what the first layer is applied to.

    Attributes:
        node: A value of the graph.
        as_rows: From that value to shape ``(rows, inputs)``.
    """

    node: fx.Node
    as_rows: Callable[[Tensor], Tensor]


class Chain(NamedTuple):
    """Hold layers that follow each other.

    Attributes:
        layers: First to last.
        inputs: What the first is applied to.
        num_rows: Number of rows.
        found: What was asked for: tensors that depend on no site, `Entries` or `Values`.
    """

    layers: tuple[Layer, ...]
    inputs: Inputs
    num_rows: int
    found: tuple[Any, ...]


def read_chain(
    graph: fx.GraphModule,
    wanted: Sequence[fx.Node],
    sites: Sequence[Tensor],
    rows: Tensor | None,
) -> Chain:
    """Follow a captured computation to some of its values.

    Args:
        graph: The computation.
        wanted: The values.
        sites: Flat coordinates of the latent sites, in their shapes, in the placeholders' order.
        rows: A batch, if there are batches.

    Raises:
        NotAChain: If these values are not made of a chain of layers.
    """
    reader = _Reader()
    known = reader.follow(graph, wanted, sites, rows)
    if not reader.layers or reader.inputs is None:
        raise NotAChain("its likelihood has no layers")
    for node in wanted:
        found = known[node]
        if isinstance(found, Values):
            reader.check_last(found)
    return Chain(
        tuple(reader.layers),
        reader.inputs,
        reader.num_rows,
        tuple(known[node] for node in wanted),
    )


def read_entries(
    graph: fx.GraphModule, wanted: fx.Node, sites: Sequence[Tensor], rows: Tensor | None
) -> Entries | None:
    """Return which entries of latent sites a value is made of; None if it is made of anything else.

    See ``read_chain``.
    """
    try:
        found = _Reader().follow(graph, [wanted], sites, rows)[wanted]
    except NotAChain:
        return None
    return found if isinstance(found, Entries) else None


def value_on(graph: fx.GraphModule, wanted: fx.Node, rows: Tensor | None) -> Tensor:
    """Compute a value that depends on no latent site on a batch."""
    known: dict[fx.Node, Any] = {}
    for node in ancestors(graph, [wanted]):
        known[node] = rows if node.op == "placeholder" else computed(graph, node, known)
    found: Tensor = known[wanted]
    return found


class _Reader:
    """Keep the layers found so far."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.inputs: Inputs | None = None
        self.num_rows = 0

    def follow(
        self,
        graph: fx.GraphModule,
        wanted: Iterable[fx.Node],
        sites: Sequence[Tensor],
        rows: Tensor | None,
    ) -> dict[fx.Node, Any]:
        """Return what is known of some values, and all that they are computed from."""
        given = [*map(Entries, sites), *([] if rows is None else [rows])]
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        known: dict[fx.Node, Any] = dict(zip(placeholders, given, strict=True))
        for node in ancestors(graph, wanted):
            if node in known:
                continue
            unknown = [is_unknown(known[one]) for one in node.all_input_nodes]
            if any(unknown):
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
                known[node] = self._read(node, args, kwargs, is_of_one=sum(unknown) == 1)
            else:
                known[node] = computed(graph, node, known)
        return known

    def _read(self, node: fx.Node, args: Any, kwargs: Any, is_of_one: bool) -> Any:
        """Return what is known of the value of an operation on what depends on latent sites."""
        target: Any = node.target
        first = args[0]
        if target in VIEWS and is_of_one and isinstance(first, Entries | Values):
            return viewed(lambda numbers: target(numbers, *args[1:], **kwargs), first)
        if target in PIECES and isinstance(first, Entries | Values):
            pieces = target(numbers_of(first), *args[1:], **kwargs)
            return [with_numbers(first, piece) for piece in pieces]
        if target == operator.getitem:
            return first[args[1]]
        if target in (aten.mm.default, aten.mv.default, aten.bmm.default) and not kwargs:
            return self._product(node.args, *args)
        if target == aten.addmm.default and not kwargs:
            return self._with_biases(self._product(node.args[1:], *args[1:]), first)
        if target == aten.add.Tensor and not kwargs:
            return self._sum(*args)
        if isinstance(first, Entries):
            if target == aten.exp.default and not first.power:
                return first._replace(power=1.0)
            if target == aten.sqrt.default and first.power:
                return first._replace(power=first.power / 2)
            # A step from the real line to numbers above a bound
            if target == aten.mul.Tensor and isinstance(args[1], int | float) and args[1] == 1:
                return first
        elif isinstance(first, Values):
            is_copy = target == aten._to_copy.default
            found = None if kwargs and not is_copy else self._made_of(target, args)
            if found is not None:
                return found
        raise NotAChain(f"{target} is no part of a chain of layers")

    def _made_of(self, target: Any, args: Any) -> Values | None:
        """Apply an operation to values of the last layer, if it may be applied."""
        values: Values = args[0]
        self.check_last(values)
        if values.form == "above zero":
            is_step = target == aten._to_copy.default
            return self._activated(values._replace(form="values"), "step") if is_step else None
        if target == aten.sub.Tensor:
            return self._log_shares(values, args[1])
        if target == aten.logsumexp.default and args[2:] == (True,):
            is_whole = values.form in ("values", "log shares") and self._is_by_row(values, *args[1])
            # One a row, with the code of the row's first value
            return values._replace(form="log sums", codes=values.codes[:, :1]) if is_whole else None
        if values.form != "values":
            return None
        if target == aten.softplus.default and len(args) == 1:
            return values._replace(form="softplus")
        if target == aten.exp.default:
            return values._replace(form="exponentials")
        if target == aten._log_softmax.default:
            return values._replace(form="log shares") if self._is_by_row(values, args[1]) else None
        if values.activation or values.codes.numel() < self.num_rows * self.width:
            return None
        if target == aten.gt.Scalar and args[1] == 0:
            return values._replace(form="above zero")
        is_relu = target in (aten.clamp.default, aten.clamp_min.default) and args[1:] == (0,)
        name = "relu" if is_relu else ACTIVATIONS.get(target)
        return None if name is None else self._activated(values, name)

    def _log_shares(self, values: Values, sums: Any) -> Values | None:
        """Subtract the logarithm of a row's sum of exponentials, which may be zero by then."""
        are_sums = isinstance(sums, Values) and sums.form == "log sums"
        if not are_sums or values.form not in ("values", "log shares"):
            return None
        is_own = torch.equal(values.codes[:, :1], sums.codes)
        return values._replace(form="log shares") if is_own else None

    def _activated(self, values: Values, name: str) -> Values:
        self.layers[-1] = replace(self.layers[-1], activation=name)
        return values._replace(activation=name)

    def _is_by_row(self, values: Values, *dims: int) -> bool:
        """Whether an operation along some dimensions is over all nodes of each row."""
        codes, nodes = values.codes, torch.arange(self.width)
        is_whole = codes.shape[1:] == nodes.shape and torch.equal(codes, codes[:, :1] + nodes)
        return is_whole and bool((codes[:, 0] % self.width == 0).all()) and dims in ((1,), (-1,))

    def _all_codes(self) -> Tensor:
        return torch.arange(self.num_rows * self.width).view(self.num_rows, self.width)

    @property
    def width(self) -> int:
        """Number of nodes of the last layer."""
        return len(self.layers[-1].weights)

    def _sum(self, first: Any, second: Any) -> Any:
        if isinstance(first, Entries) and isinstance(second, float) and second == 0:
            return first  # the last of the steps from the real line to numbers above a bound
        if isinstance(first, Entries):
            first, second = second, first
        if isinstance(first, Values) and isinstance(second, Entries):
            return self._with_biases(first, second)
        is_scale = isinstance(first, Values) and first.form in SCALES and not first.added
        if is_scale and isinstance(second, int | float):
            return first._replace(added=float(second))
        raise NotAChain("a sum is of something else than a layer and its biases")

    def _with_biases(self, values: Values, biases: Any) -> Values:
        self.check_last(values)
        if not isinstance(biases, Entries) or biases.power:
            raise NotAChain("what is added to a layer is no latent site")
        if values.has_bias or values.activation or values.form != "values":
            raise NotAChain("a latent site is added to a layer that is complete")
        width = self.width
        try:
            spread = biases.coordinates.expand(values.codes.shape).reshape(-1)
        except RuntimeError:
            raise NotAChain("biases make a layer larger") from None
        nodes = values.codes.reshape(-1) % width
        by_node = torch.full((width,), -1).index_copy(0, nodes, spread)
        if not torch.equal(by_node[nodes], spread) or bool((by_node < 0).any()):
            raise NotAChain("a latent site adds to rows, not to nodes")
        self.layers[-1] = replace(self.layers[-1], biases=by_node)
        return values._replace(has_bias=True)

    def _product(self, nodes: Sequence[Any], left: Any, right: Any) -> Values:
        """Start a layer by a product of inputs or values with weights, on either side."""
        is_batch, is_vector = numbers_of(left).dim() == 3, numbers_of(right).dim() == 1

        def as_matrix(numbers: Tensor) -> Tensor:
            if numbers.dim() == 1:
                return numbers.unsqueeze(-1)
            return numbers.squeeze(0) if numbers.dim() == 3 else numbers

        left, right = viewed(as_matrix, left), viewed(as_matrix, right)
        if numbers_of(left).dim() != 2:
            raise NotAChain("a product is of several matrices")
        if isinstance(left, Entries) and not isinstance(right, Entries):
            below = viewed(lambda numbers: numbers.mT, right)
            codes = self._layer(Inputs(nodes[1], lambda x: as_matrix(x).mT), below, left).mT
        elif isinstance(right, Entries) and not isinstance(left, Entries):
            weights = viewed(lambda numbers: numbers.mT, right)
            codes = self._layer(Inputs(nodes[0], as_matrix), left, weights)
        else:
            raise NotAChain("a product is of something else than a layer and weights")
        if is_vector:
            codes = codes.squeeze(-1)
        return Values(len(self.layers), codes.unsqueeze(0) if is_batch else codes)

    def _layer(self, inputs: Inputs, below: Tensor | Values, weights: Entries) -> Tensor:
        """Add a layer; return the codes of its values, shape ``(rows, nodes)``."""
        if weights.power:
            raise NotAChain("weights are made of a latent site")
        if isinstance(below, Values):
            self.check_last(below)
            if below.form != "values" or not torch.equal(below.codes, self._all_codes()):
                raise NotAChain("a layer sees a part of the layer below, or in another order")
            if not below.activation:
                self.layers[-1] = replace(self.layers[-1], activation="identity")
        elif self.layers:
            raise NotAChain("the data enter above the first layer")
        else:
            self.num_rows, self.inputs = len(below), inputs
        self.layers.append(Layer(weights.coordinates))
        return self._all_codes()

    def check_last(self, values: Values) -> None:
        """Check that values are the latest of the last layer.

        Raises:
            NotAChain: If they are not.
        """
        if values.layer != len(self.layers) or not self.layers[-1].is_state_of(values):
            raise NotAChain("a layer's values are used in more than one place")
