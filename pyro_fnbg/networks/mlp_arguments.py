"""The arguments of ``BayesianMLP``: checked, and spread over the layers."""

from __future__ import annotations

from collections.abc import Sequence

from pyro.distributions.torch_distribution import TorchDistributionMixin

from pyro_fnbg.core.checks import as_finite, is_count, is_list, shown
from pyro_fnbg.networks.statement import ACTIVATIONS, Activation

__all__ = [
    "checked_activations",
    "checked_likelihood",
    "checked_observation_scale",
    "checked_widths",
    "double_only",
    "per_layer",
]

# Squares of numbers beyond these overflow in double precision, and those of scales underflow too
LARGEST, SMALLEST_SCALE = 1e150, 1e-150
# The same in single precision
LARGEST_SINGLE, SMALLEST_SINGLE_SCALE = 1e18, 1e-18


def checked_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """Return the widths, if they are two or more positive integers."""
    if not is_list(widths) or len(widths) < 2 or not all(is_count(width, 1) for width in widths):
        raise ValueError(f"widths must be two or more positive integers, got {shown(widths)}")
    return tuple(map(int, widths))


def per_layer(name: str, value: float | Sequence[float], layers: int) -> tuple[float, ...]:
    """Return one number a layer, of one number or one a layer."""
    is_scale = name.endswith("scale")
    lowest = SMALLEST_SCALE if is_scale else -LARGEST
    entries = value if is_list(value) else (value,) * layers
    numbers = [number for number in map(as_finite, entries) if number is not None]
    if not len(entries) == len(numbers) == layers or not all(
        lowest <= number <= LARGEST for number in numbers
    ):
        kind = "positive finite number" if is_scale else "finite number"
        raise ValueError(
            f"{name} must be a {kind}, or {layers}, one per layer; got {shown(value)} "
            f"(allowed are {lowest:g} to {LARGEST:g})"
        )
    return tuple(numbers)


def double_only(**numbers: Sequence[float]) -> str:
    """Say which argument, of numbers by argument, needs double precision; nothing if none does.

    Example:
        >>> double_only(prior_scale=(1.0, 1e30))
        'prior_scale is from 1e-18 to 1e+18 in single precision, got (1.0, 1e+30)'
        >>> double_only(prior_loc=(0.0,))
        ''
    """
    for name, values in numbers.items():
        lowest = SMALLEST_SINGLE_SCALE if name.endswith("scale") else -LARGEST_SINGLE
        if not all(lowest <= value <= LARGEST_SINGLE for value in values):
            return (
                f"{name} is from {lowest:g} to {LARGEST_SINGLE:g} in single precision, got {values}"
            )
    return ""


def checked_activations(
    activation: Activation | Sequence[Activation], hidden_layers: int
) -> tuple[Activation, ...]:
    """Return one activation a hidden layer, of one or one a hidden layer."""
    entries = activation if is_list(activation) else [activation] * hidden_layers
    known = all(
        callable(entry) or (isinstance(entry, str) and entry in ACTIVATIONS) for entry in entries
    )
    if not known or len(entries) != hidden_layers:
        raise ValueError(
            f"activation must be a callable or one of {', '.join(ACTIVATIONS)}, or a sequence of "
            f"{hidden_layers}, one per hidden layer; got {shown(activation)}"
        )
    return tuple(entries)


def checked_likelihood(likelihood: str, outputs: int) -> str:
    """Return the likelihood, if it fits the number of outputs."""
    allowed = ("bernoulli", "normal") if outputs == 1 else ("categorical", "normal")
    if not isinstance(likelihood, str) or likelihood not in allowed:
        raise ValueError(
            f"likelihood must be one of {allowed} where widths[-1] is {outputs}; "
            f"got {shown(likelihood)}"
        )
    return likelihood


def checked_observation_scale(
    given: float | TorchDistributionMixin, likelihood: str
) -> float | TorchDistributionMixin:
    """Return the observation scale, a number or a distribution."""
    scale = given
    if isinstance(scale, TorchDistributionMixin):
        lowest = getattr(scale.support, "lower_bound", -1.0)
        allowed = scale.shape() == () and not scale.support.is_discrete and bool(lowest >= 0)
        is_plain = False
    else:
        number = as_finite(scale)
        allowed = number is not None and SMALLEST_SCALE <= number <= LARGEST
        scale, is_plain = number or 0.0, number == 1.0
    if not allowed or (likelihood != "normal" and not is_plain):
        raise ValueError(
            "observation_scale must be a positive finite number or a scalar pyro.distributions "
            "object over positive numbers, and 1.0 unless likelihood is 'normal'; got "
            f"{shown(given)} (allowed are {SMALLEST_SCALE:g} to {LARGEST:g})"
        )
    return scale
