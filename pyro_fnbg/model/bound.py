"""A Pyro model with the arguments of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyro import poutine
from torch import Tensor, nn

from pyro_fnbg.core.explaining import explain
from pyro_fnbg.model.impossible import drawn_again

__all__ = ["BoundModel", "Model", "running_again"]

Model = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class BoundModel:
    """Hold a model and what it is called with.

    Attributes:
        model: The Pyro model.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Example:
        >>> bound = BoundModel(lambda x, scale: None, (Tensor([1.0, 2.0]),), {"scale": 3})
        >>> bound.described()
        'x: tensor of shape (2,) and type torch.float32, scale: int'
    """

    model: Model
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Run the model once, under the handlers that are in place."""
        self.model(*self.args, **self.kwargs)

    def trace(self) -> Any:
        """Run the model once, under the handlers that are in place, and return its trace."""
        return poutine.trace(self.model).get_trace(*self.args, **self.kwargs)

    def prior_trace(self, is_scored: bool = False) -> Any:
        """Trace a run whose latent sites are drawn, again where those drawn are impossible.

        Args:
            is_scored: Whether to compute the log density of every site, too.
        """

        def run() -> Any:
            trace = self.trace()
            if is_scored:
                trace.compute_log_prob()
            return trace

        return drawn_again(run)

    def named_arguments(self) -> dict[str, Any]:
        """Give every argument its name; those that the model does not take have numbers."""
        try:
            # A module's call takes anything, and hands it to forward
            model = self.model
            called: Model = model.forward if isinstance(model, nn.Module) else model
            call = inspect.signature(called).bind_partial(*self.args, **self.kwargs)
        except (TypeError, ValueError):
            numbered = {f"number {place}": value for place, value in enumerate(self.args, 1)}
            return numbered | dict(self.kwargs)
        return dict(call.arguments)

    def arguments_of_run(self) -> dict[str, object]:
        """Give every argument the name by which errors call it: it was given to ``run``."""
        named: dict[str, object] = {
            f"argument {place} of run": value for place, value in enumerate(self.args)
        }
        return named | {f"argument {name!r} of run": v for name, v in self.kwargs.items()}

    def described(self) -> str:
        """Describe the arguments: types, and shapes of tensors."""
        words = [f"{name}: {_described(value)}" for name, value in self.named_arguments().items()]
        return ", ".join(words) or "no arguments"


@contextmanager
def running_again() -> Iterator[None]:
    """Say in an error of a model that it ran before."""
    try:
        yield
    except Exception as error:
        explain(
            error,
            "the model ran with the same arguments before, at other values of its latent sites "
            "(data that it can read only once, such as an iterator, are gone by then)",
        )
        raise


def _described(value: object) -> str:
    kind = type(value).__name__
    if isinstance(value, Tensor):
        return f"tensor of shape {tuple(value.shape)} and type {value.dtype}"
    return f"{kind} of shape {value.shape}" if hasattr(value, "shape") else kind
