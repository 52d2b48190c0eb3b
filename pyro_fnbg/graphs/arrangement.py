"""What stands for values that depend on latent sites, while a computation is followed.

Each element has a number that says which it is, and views act on these numbers as they do on the
values: so it does not matter how a model arranges them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "PIECES",
    "VIEWS",
    "Entries",
    "Values",
    "is_unknown",
    "numbers_of",
    "viewed",
    "with_numbers",
]

aten = torch.ops.aten

# Operations that arrange elements anew, and those that return several such values
VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.expand.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.index.Tensor,
}
PIECES = {aten.unbind.int, aten.split.Tensor, aten.split_with_sizes.default}


class Entries(NamedTuple):
    """Stand for numbers that are entries of latent sites, or made of one each.

    Attributes:
        coordinates: Flat coordinate of each.
        power: Which power of the exponential each is; 0 where it is the entry itself.
    """

    coordinates: Tensor
    power: float = 0.0


class Values(NamedTuple):
    """Stand for values of the nodes of a layer, or what is made of them.

    Attributes:
        layer: The layer, from 1 on.
        codes: Of each element, its row times the layer's width, plus its node.
        has_bias: Whether the layer's biases are in them.
        activation: The layer's activation, if it is in them.
        form: What is made of them: "values", "above zero", "log sums" of a row's exponentials,
            "log shares" of these sums, "exponentials", or "softplus".
        added: To what is made of them.
    """

    layer: int
    codes: Tensor
    has_bias: bool = False
    activation: str = ""
    form: str = "values"
    added: float = 0.0


def is_unknown(value: Any) -> bool:
    """Whether a value, or one of several, depends on a latent site."""
    values = value if isinstance(value, list) else [value]
    return any(isinstance(one, Entries | Values) for one in values)


def numbers_of(value: Any) -> Tensor:
    """Return what views act on."""
    if isinstance(value, Entries):
        return value.coordinates
    numbers: Tensor = value.codes if isinstance(value, Values) else value
    return numbers


def with_numbers(value: Any, numbers: Tensor) -> Any:
    """Replace what views act on."""
    if isinstance(value, Entries):
        return value._replace(coordinates=numbers)
    return value._replace(codes=numbers) if isinstance(value, Values) else numbers


def viewed(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a view."""
    return with_numbers(value, function(numbers_of(value)))
