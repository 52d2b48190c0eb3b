"""The network of an estimator: from its arguments to a ``BayesianMLP``, to words and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro.distributions import HalfNormal
from torch import Tensor
from torch.distributions import biject_to

from pyro_fnbg.core.checks import as_finite, check_choice, is_count, is_list, shown
from pyro_fnbg.networks.mlp import BayesianMLP
from pyro_fnbg.networks.statement import ACTIVATIONS

__all__ = [
    "SCALE_SITE",
    "as_words",
    "checked_hidden",
    "from_words",
    "network",
    "site_shapes",
    "unconstrained",
]

SCALE_SITE = "obs_scale"


def checked_hidden(hidden: object) -> tuple[int, ...]:
    """Return the widths of the hidden layers.

    Raises:
        ValueError: If they are none.
    """
    if not is_list(hidden) or not all(is_count(width, 1) for width in hidden):
        raise ValueError(
            "hidden must be a sequence of the hidden layers' numbers of nodes, such as (16,); "
            f"got {shown(hidden)}"
        )
    return tuple(map(int, hidden))


def network(
    widths: tuple[int, ...],
    activation: object,
    prior_scale: object,
    likelihood: str,
    observation_scale: float | str | None,
    dtype: torch.dtype,
) -> BayesianMLP:
    """Build the network of an estimator.

    Args:
        widths: Number of nodes per layer, inputs first.
        activation: Of all hidden layers, by name.
        prior_scale: Standard deviation of a bias, and of a weight times the root of the nodes
            below: one number, or one per layer.
        likelihood: "bernoulli", "categorical" or "normal".
        observation_scale: Of "normal": a number, "network", or None for one that is sampled, of
            prior HalfNormal(1).
        dtype: In which the parameters are.

    Raises:
        ValueError: If an argument is not allowed; names it.

    Example:
        >>> network((4, 2, 1), "tanh", 1.0, "bernoulli", 1.0, torch.float32).prior_scales
        (0.5, 0.7071067811865475)
    """
    check_choice("activation", activation, tuple(ACTIVATIONS))
    layers = len(widths) - 1
    entries = prior_scale if is_list(prior_scale) else [prior_scale] * layers
    scales = [scale for scale in map(as_finite, entries) if scale is not None and scale > 0]
    if not len(entries) == len(scales) == layers:
        raise ValueError(
            f"prior_scale must be a positive finite number, or {layers}, one per layer; "
            f"got {shown(prior_scale)}"
        )
    weights = [scale / below**0.5 for scale, below in zip(scales, widths, strict=False)]
    words = {"widths": widths, "prior_scale": weights, "bias_prior_scale": scales}
    words |= {"activation": [activation] * (layers - 1), "likelihood": likelihood}
    return from_words(words | {"observation_scale": observation_scale}, dtype)


def as_words(model: BayesianMLP) -> dict[str, Any]:
    """Describe the network of an estimator in what JSON can hold."""
    is_sampled = SCALE_SITE in site_shapes(model)
    return {
        "widths": model.widths,
        "prior_scale": model.prior_scales,
        "bias_prior_scale": model.bias_prior_scales,
        "activation": model.activations,
        "likelihood": model.likelihood,
        "observation_scale": None if is_sampled else model.observation_scale,
    }


def from_words(words: Mapping[str, Any], dtype: torch.dtype) -> BayesianMLP:
    """Build the network that words describe."""
    scale = words["observation_scale"]
    if scale is None:  # in the parameters' type, so that all draws have one
        scale = HalfNormal(torch.ones((), dtype=dtype))
    return BayesianMLP(**{**words, "observation_scale": scale})


def site_shapes(model: BayesianMLP) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all latent sites by name."""
    is_sampled = not isinstance(model.observation_scale, float | str)
    return model.parameter_shapes | ({SCALE_SITE: ()} if is_sampled else {})


def unconstrained(model: BayesianMLP, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Map values of the latent sites to unconstrained ones."""
    found = dict(values)
    if SCALE_SITE in found:
        support: Any = model.observation_scale
        found[SCALE_SITE] = biject_to(support.support).inv(found[SCALE_SITE])
    return found
