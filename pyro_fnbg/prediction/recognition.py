"""Networks that a model does not state, but shows: layers that follow each other in a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pyro_fnbg.model.supports import without_events
from pyro_fnbg.networks.statement import Feedforward

__all__ = ["recognised"]

ACTIVATION_NAMES = {
    torch.sigmoid: "sigmoid",
    Tensor.sigmoid: "sigmoid",
    functional.sigmoid: "sigmoid",
    torch.tanh: "tanh",
    Tensor.tanh: "tanh",
    functional.tanh: "tanh",
    torch.relu: "relu",
    Tensor.relu: "relu",
    functional.relu: "relu",
}
LIKELIHOODS = ((Bernoulli, "bernoulli"), (Categorical, "categorical"), (Normal, "normal"))


class _Operation(NamedTuple):
    """Note what a function of torch was given and what it returned."""

    function: Callable[..., Any]
    given: tuple[Any, ...]
    returned: Any


class _Recorder(TorchFunctionMode):
    """Note all functions of torch that are called, as its users call them.

    What they were given is kept, so that no other object can take its identity.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[_Operation] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        returned = func(*args, **(kwargs or {}))
        self.operations.append(_Operation(func, (*args, *(kwargs or {}).values()), returned))
        return returned


def recognised(
    model: Callable[..., Any], draw: Mapping[str, Tensor], x: Tensor, site: str
) -> Feedforward | None:
    """Recognise a fully connected network in a run of a model under one draw.

    That is so where every layer is a call of ``torch.nn.functional.linear`` (as of
    ``torch.nn.Linear``) with sites ``NAME.weight`` and ``NAME.bias``, and nothing but an activation
    comes between one layer and the next. What follows the last layer is not looked at, so the
    statement must still be compared with the model.

    Args:
        model: The model.
        draw: Values of its latent sites, each an object of its own, which is known again.
        x: Its inputs.
        site: Name of the response.
    """
    recorder = _Recorder()
    try:
        with torch.random.fork_rng([x.device] if x.is_cuda else []), recorder:
            trace = poutine.trace(poutine.condition(model, dict(draw))).get_trace(x)
    except Exception:
        # The model runs, but not all code does that watches what it calls
        return None
    layers = _layers(recorder.operations, draw)
    response = without_events(cast("Any", trace.nodes[site]["fn"]))
    likelihoods = [name for kind, name in LIKELIHOODS if isinstance(response, kind)]
    scale = _scale(response.scale, draw) if isinstance(response, Normal) else 1.0
    if layers is None or not likelihoods or scale is None:
        return None
    names, activations, inputs = layers
    return Feedforward(inputs, names, activations, likelihoods[0], scale)


def _layers(
    operations: list[_Operation], values: Mapping[str, Tensor]
) -> tuple[list[str], list[str], Tensor] | None:
    """Return the layers' names, the activations between them and the inputs of the first."""
    site_of = {id(value): name for name, value in values.items()}
    consumers: dict[int, list[_Operation]] = {}
    for operation in operations:
        for value in operation.given:
            if isinstance(value, Tensor):
                consumers.setdefault(id(value), []).append(operation)
    linear = [one for one in operations if one.function is functional.linear]
    names, activations = [], []
    for number, operation in enumerate(linear):
        inputs, weight, bias = (*operation.given, None)[:3]
        name = site_of.get(id(weight), "").removesuffix(".weight")
        if not name or site_of.get(id(bias)) != (None if bias is None else f"{name}.bias"):
            return None
        names.append(name)
        if number == 0:
            continue
        # What the layer below returned goes to an activation alone, and that to this layer alone
        below = linear[number - 1].returned
        between = consumers.get(id(below), [])
        is_plain = between == [operation] and inputs is below
        if not is_plain:
            if len(between) != 1 or between[0].function not in ACTIVATION_NAMES:
                return None
            after = between[0].returned
            if inputs is not after or consumers.get(id(after)) != [operation]:
                return None
        activations.append("identity" if is_plain else ACTIVATION_NAMES[between[0].function])
    uses = sum(len(consumers.get(id(values[f"{name}.weight"]), [])) for name in names)
    # Weights that are used elsewhere, too, may be regularised, tied, or decide what is run
    return (names, activations, linear[0].given[0]) if names and uses == len(names) else None


def _scale(scale: Tensor, values: Mapping[str, Tensor]) -> float | str | None:
    """Return a Normal response's one standard deviation, or the site that it is."""
    if bool((scale != scale.flatten()[0]).any()):
        return None
    number = float(scale.flatten()[0])
    sites = [name for name, value in values.items() if value.dim() == 0 and float(value) == number]
    return sites[0] if sites else number
