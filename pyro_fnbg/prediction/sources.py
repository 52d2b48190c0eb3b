"""Where responses come from: a network that the model states, or the model itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_fnbg.core.checks import shown
from pyro_fnbg.networks.architecture import Architecture, activated
from pyro_fnbg.networks.mlp import BayesianMLP
from pyro_fnbg.networks.statement import ACTIVATIONS, Feedforward, NotFeedforward
from pyro_fnbg.prediction.recognition import Place, recognised
from pyro_fnbg.prediction.responses import Response, stated_response
from pyro_fnbg.prediction.samples import (
    count_draws,
    first_response,
    response_under,
    some_draws,
)

__all__ = ["Source", "find_source", "states_its_network"]

# Draws at which a network that a model states is compared with the model, at most: where outputs
# are large, probabilities of one draw hardly tell
_CHECKED_DRAWS = 10
# At most so many rows and numbers are evaluated together: a product of matrices gains no more by
# more rows, and the numbers (4 MB in float32) stay in a cache
MAX_ROWS, MAX_NUMBERS = 1024, 2**20
# Activations whose small changes stay small
_CONTINUOUS = ("sigmoid", "tanh", "relu", "identity")


@dataclass(frozen=True)
class Source(ABC):
    """Give the responses of rows under draws.

    Attributes:
        samples: Draws by site name.
        num_draws: Number of draws.
        num_rows: Number of rows.
        first: The response of all rows under the first draw, by the model itself.
    """

    samples: Mapping[str, Tensor]
    num_draws: int
    num_rows: int
    first: Response

    # Whether rows can be evaluated apart, and on several threads. A model may look at all rows, and
    # Pyro's handlers are the same for all threads
    is_divisible: ClassVar[bool] = False

    @abstractmethod
    def chunk(self, max_numbers: int) -> tuple[int, int]:
        """Return how many draws and rows to evaluate at a time, within so many numbers."""

    @abstractmethod
    def response(self, draws: slice, rows: slice) -> Response:
        """Return the response of some rows under some draws, no more than a chunk of them."""


@dataclass(frozen=True)
class StatedSource(Source):
    """Evaluate a stated network for many draws at a time.

    Attributes:
        net: The network.
        inputs: Its inputs, rows first.
        places: Where its parameters are, if they are not sites of their own.
    """

    net: Architecture
    inputs: Tensor
    places: Mapping[str, Place] | None = None
    is_divisible: ClassVar[bool] = True

    def chunk(self, max_numbers: int) -> tuple[int, int]:
        """Return how many draws and rows to evaluate at a time, within so many numbers.

        Rows come first: the more there are, the faster is the product of matrices, up to a point.
        """
        # Two layers are held at a time, and the inputs of the rows may be copied
        width, num_inputs = 2 * max(self.net.widths[1:]), self.net.widths[0]
        rows = min(self.num_rows, MAX_ROWS, max(1, max_numbers // max(width, num_inputs)))
        return min(self.num_draws, max(1, min(max_numbers, MAX_NUMBERS) // (width * rows))), rows

    def response(self, draws: slice, rows: slice) -> Response:
        """Return the response of some rows under some draws."""
        parameters: Mapping[str, Tensor] = some_draws(self.samples, draws)
        if self.places is not None:
            parameters = {name: place.of(parameters) for name, place in self.places.items()}
        likelihood = self.net.likelihood
        site = likelihood.scale_site
        scales = likelihood.fixed_scale if site is None else parameters[site]
        return stated_response(self.net, _outputs(self.net, parameters, self.inputs[rows]), scales)


@dataclass(frozen=True)
class ModelSource(Source):
    """Run the model itself, once a draw.

    Attributes:
        model: The model.
        x: Its inputs, rows first.
        site: Name of the response.
    """

    model: Callable[..., Any]
    x: Tensor
    site: str

    def chunk(self, max_numbers: int) -> tuple[int, int]:
        """Return one draw and all rows: what the model itself holds is not known."""
        return 1, self.num_rows

    def response(self, draws: slice, rows: slice) -> Response:
        """Return the response of some rows under one draw."""
        return response_under(self.model, self.samples, draws.start, self.x[rows], self.site)


def find_source(model: Callable[..., Any], samples: Mapping[str, Tensor], x: Tensor) -> Source:
    """Find the fastest way to a model's responses, and check the samples.

    Raises:
        TypeError: As `predict` says.
        ValueError: As `predict` says.
    """
    if not callable(model) or isinstance(model, MCMCKernel):
        raise TypeError(f"model must be a callable with Pyro sample statements, got {shown(model)}")
    num_draws = count_draws(samples)
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch tensor, rows first; got {type(x).__name__}")
    if x.dim() == 0 or len(x) == 0:
        raise ValueError(f"x must have one or more rows, got shape {tuple(x.shape)}")
    site, first = first_response(model, samples, x)
    itself = ModelSource(samples, num_draws, len(x), first, model, x, site)
    statement = _statement(model, x)
    if statement is not None and (stated := _read(statement, samples)) is not None:
        source = StatedSource(samples, num_draws, len(x), first, *stated)
        # The statement of the package's own model is tested; a subclass may compute something else
        _check_statement(source, itself, 1 if type(model) is BayesianMLP else _CHECKED_DRAWS)
        return source
    return _recognised_source(itself) or itself


def _recognised_source(itself: ModelSource) -> StatedSource | None:
    """Look for a network in a run of a model that states none, if there are draws to gain from it.

    It is compared with the model as a statement is; but where they differ it was our mistake.
    """
    if itself.num_draws <= _CHECKED_DRAWS:
        return None
    found = recognised(itself.model, itself.samples, itself.x, itself.site)
    if found is None:
        return None
    shared = itself.samples, itself.num_draws, itself.num_rows, itself.first
    source = StatedSource(*shared, found.net, found.inputs, found.places)
    try:
        _check_statement(source, itself, _CHECKED_DRAWS)
    except ValueError:
        return None
    return source


def _outputs(net: Architecture, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Compute the outputs of many draws at once, shape ``(draws, outputs, rows)``.

    All draws share their inputs, so the first layer is one product of large matrices, which is
    most of the work; and rows that lie last make long vectors of all that follows.
    """
    values = x.mT
    activations = (*net.activations, "identity")
    for number, (layer, activation) in enumerate(zip(net.layers, activations, strict=True), 1):
        weights = parameters[f"{layer}.weight"]
        if number == 1:
            values = (weights.reshape(-1, weights.shape[-1]) @ values).view(
                *weights.shape[:2], len(x)
            )
        else:
            values = torch.bmm(weights, values)
        if net.has_bias[number - 1]:
            values += parameters[f"{layer}.bias"].unsqueeze(-1)
        if isinstance(activation, str):
            values = ACTIVATIONS[activation](values)
        else:
            # A user's callable sees rows before nodes, as in the model
            values = activated(activation, number, values.mT).mT
    return values


def _check_statement(source: StatedSource, itself: ModelSource, num_checked: int) -> None:
    """Compare a stated network with the model.

    Raises:
        ValueError: If it does not compute what the model does.
    """
    # Rounding may move a unit that steps in a few rows, and in no draw in many
    steps = not all(activation in _CONTINUOUS for activation in source.net.activations)
    allowed = source.num_rows // 100 if steps else 0
    if len(source.inputs) != source.num_rows:
        raise ValueError(
            "the model's feedforward() does not state what the model computes: its inputs are of "
            f"{len(source.inputs)}, not of the {source.num_rows} rows of x"
        )
    wrong: list[int] = []
    num_missed = 0
    for draw in sorted({source.num_draws * place // num_checked for place in range(num_checked)}):
        one, rows = slice(draw, draw + 1), slice(None)
        expected = source.first if draw == 0 else itself.response(one, rows)
        found = _differing_rows(source, one, expected)
        if found and not steps:
            # Where terms cancel, layers magnify rounding to anything
            found = _differing_in_double(source, itself, one, found)
        num_missed += len(found) > allowed
        wrong = wrong or found
    if num_missed > steps:
        raise ValueError(
            "the model's feedforward() does not state what the model computes: the response in "
            f"{len(wrong)} of the {source.num_rows} rows of x differs, first in row {wrong[0]}"
        )


def _differing_rows(source: StatedSource, draw: slice, expected: Response) -> list[int]:
    """Return the rows in which a stated network differs from the model by more than rounding."""
    found = source.response(draw, slice(None))
    if type(found) is not type(expected):
        return list(range(source.num_rows))
    rows: list[int] = found.differing_rows(cast("Any", expected)).nonzero().flatten().tolist()
    return rows


def _differing_in_double(
    source: StatedSource, itself: ModelSource, draw: slice, rows: list[int]
) -> list[int]:
    """Return the rows that differ in double precision too, where the model can be run so."""
    one = {name: _as_double(values) for name, values in some_draws(itself.samples, draw).items()}
    try:
        _, expected = first_response(itself.model, one, _as_double(itself.x))
    except Exception:  # whatever a model raises that is of one precision
        return rows
    double = replace(source, samples=one, inputs=_as_double(source.inputs))
    return _differing_rows(double, slice(0, 1), expected)


def _as_double(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values


def states_its_network(model: Callable[..., Any], x: object) -> bool:
    """Whether a model states a network, given its inputs alone."""
    return _statement(model, x) is not None


def _statement(model: Callable[..., Any], x: object) -> Feedforward | None:
    state = getattr(model, "feedforward", None)
    try:
        statement = None if state is None else state(x)
    except Exception:
        # What a run is given besides x, such as labels, is not known here
        return None
    return statement if isinstance(statement, Feedforward) else None


def _read(
    statement: Feedforward, samples: Mapping[str, Tensor]
) -> tuple[Architecture, Tensor] | None:
    """Read the network and its inputs from a statement, if it can be used."""
    one = some_draws(samples, slice(0, 1))
    shapes = {name: tuple(value.shape[1:]) for name, value in one.items()}
    try:
        net = Architecture.from_statement(statement, shapes)
    except NotFeedforward:
        return None
    weights = [one[name] for name in net.parameter_shapes]
    if len({weight.dtype for weight in weights}) > 1:
        return None
    net.check_inputs(statement.inputs, weights[0].dtype, weights[0].device)
    return net, statement.inputs
