"""Networks that a model does not state, but shows: layers that follow each other in a run.

A run of the model under one draw is watched, and whatever its own code does with a latent value, or
with something computed from one, must be a part of the network: a layer, an activation between two
layers, or another view of the last layer's output. Anything else could decide what the model
computes under other draws, so it is not recognised.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pyro_fnbg.model.supports import without_events
from pyro_fnbg.networks.statement import Feedforward
from pyro_fnbg.prediction.samples import under_draw

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
VIEWS = (Tensor.squeeze, torch.squeeze, Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten)
# Code that looks at what it is given, and changes nothing of it; and code that does what it is told
LOOKERS = ("torch.distributions", "pyro.distributions", "pyro.poutine", "pyro.primitives")
TOOLS = ("torch", "pyro.nn")
LIKELIHOODS = ((Bernoulli, "bernoulli"), (Categorical, "categorical"), (Normal, "normal"))


class _Operation(NamedTuple):
    """Note what a function of torch was given and what it returned."""

    function: Callable[..., Any]
    given: tuple[Any, ...]
    returned: Any


class _Recorder(TorchFunctionMode):
    """Note the functions of torch that the model's own code calls.

    What they were given is kept, so that no other object can take its identity.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[_Operation] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        returned = func(*args, **(kwargs or {}))
        if not _is_called_by_looker():
            given = (*args, *(kwargs or {}).values())
            self.operations.append(_Operation(func, given, returned))
        return returned


def _is_called_by_looker() -> bool:
    """Whether a function of torch was called by a distribution or by Pyro, not for the model."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(LOOKERS):
            return True
        if not name.startswith(TOOLS):
            return False
        frame = frame.f_back
    return False


def recognised(
    model: Callable[..., Any], draw: Mapping[str, Tensor], x: Tensor, site: str
) -> Feedforward | None:
    """Recognise a fully connected network in a run of a model under one draw.

    Layers are calls of ``torch.nn.functional.linear`` (as of ``torch.nn.Linear``) with sites
    ``NAME.weight`` and ``NAME.bias``. The statement must still be compared with the model, as one
    that a model makes of itself.

    Args:
        model: The model.
        draw: Values of its latent sites, each an object of its own, which is known again.
        x: Its inputs.
        site: Name of the response.
    """
    recorder = _Recorder()
    try:
        with recorder:
            trace = under_draw(model, draw, x)
    except Exception:
        # The model runs, but not all code does that watches what it calls
        return None
    network = _network(recorder.operations, draw)
    if network is None:
        return None
    names, activations, inputs, output = network
    response = without_events(cast("Any", trace.nodes[site]["fn"]))
    likelihoods = [name for kind, name in LIKELIHOODS if isinstance(response, kind)]
    scale = _scale(response.scale, draw, output) if isinstance(response, Normal) else 1.0
    # A distribution that was given probabilities has logits only once somebody asks for them
    is_of_logits = isinstance(response, Normal) or "logits" in vars(response)
    if not likelihoods or scale is None or not is_of_logits:
        return None
    return Feedforward(inputs, names, activations, likelihoods[0], scale)


def _network(
    operations: list[_Operation], draw: Mapping[str, Tensor]
) -> tuple[list[str], list[str], Tensor, Tensor] | None:
    """Follow latent values through a run.

    Returns:
        The layers' names, the activations between them, the inputs of the first and the output of
        the last; None if the model does anything else with what depends on the draw.
    """
    site_of = {id(value): name for name, value in draw.items()}
    latent = set(site_of)
    names: list[str] = []
    activations: list[str] = []
    # What the last layer so far returned, and that after an activation
    output = activated = None
    inputs = None
    for operation in operations:
        if not any(id(value) in latent for value in _tensors(operation.given)):
            continue
        latent.update(id(value) for value in _tensors([operation.returned]))
        if operation.function is functional.linear:
            below, weight, bias = (*operation.given, None)[:3]
            name = site_of.get(id(weight), "").removesuffix(".weight")
            is_named = name and name not in names
            if not is_named or site_of.get(id(bias)) != (None if bias is None else f"{name}.bias"):
                return None
            if output is None and id(below) not in latent:
                inputs = below
            elif output is not None and (below is activated or below is output):
                activations += ["identity"] if below is output else []
            else:
                return None
            names.append(name)
            output, activated = operation.returned, None
        elif operation.given[0] is output and operation.function in ACTIVATION_NAMES:
            # An activation in place returns what it was given
            if activated is not None or operation.returned is output:
                return None
            activations.append(ACTIVATION_NAMES[operation.function])
            activated = operation.returned
        elif operation.function not in VIEWS or activated is not None:
            return None
    if inputs is None or output is None or activated is not None:
        return None
    return names, activations, inputs, output


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield all tensors, those in lists and dicts as well."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())


def _scale(scale: Tensor, draw: Mapping[str, Tensor], output: Tensor) -> float | str | None:
    """Return a Normal response's one standard deviation, or the site that it is."""
    for name, value in draw.items():
        # The distribution has a view of what it was given, a number for each row
        if value.dim() == 0 and scale.data_ptr() == value.data_ptr():
            return name
    is_of_network = scale.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
    is_one = not bool((scale != scale.flatten()[0]).any())
    return float(scale.flatten()[0]) if is_one and not is_of_network else None
