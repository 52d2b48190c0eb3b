"""What the tables need to know of a model, and the data that several models take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor

from pyro_fnbg import BayesianMLP

__all__ = ["Case", "as_tensor", "diabetes", "generator", "standardised"]


@dataclass(frozen=True)
class Case:
    """Hold a model with its data.

    Attributes:
        model: The model.
        args: Its inputs and responses, each with one entry a row; responses come last.
        network: The ``BayesianMLP`` of the same shape, where the model is a feedforward network.
        same: From sites of the model to those of ``network`` that hold the same parameters, with
            " transposed" behind a weight matrix that the model stores as (inputs, nodes).
        identified: Latent sites that the data and the model say something about by themselves, not
            only together with others, and whose values can so be compared between samplers.
        narrow: Latent sites whose priors' scales are sampled, so that NUTS hardly gets to where
            these are small. It moves them in multiples of their scales instead: the same posterior.
        rows_to_agree: Rows that are left for the comparison with NUTS, so that it ends in minutes.
    """

    model: Callable[..., Any]
    args: tuple[Tensor, ...]
    network: BayesianMLP | None = None
    same: Mapping[str, str] = field(default_factory=dict)
    identified: tuple[str, ...] = ()
    narrow: tuple[str, ...] = ()
    rows_to_agree: int = 60

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.args[0])

    def first_rows(self, count: int) -> tuple[Tensor, ...]:
        """Return the arguments with their first rows only."""
        return tuple(each[:count] for each in self.args)


def as_tensor(values: Any) -> Tensor:
    """Turn numbers into a tensor of the default type."""
    return torch.as_tensor(np.asarray(values), dtype=torch.get_default_dtype())


def standardised(values: Any) -> Tensor:
    """Turn columns into ones of mean 0 and standard deviation 1; constant ones become 0."""
    values = np.asarray(values, dtype=np.float64)
    spread = values.std(0)
    return as_tensor((values - values.mean(0)) / np.where(spread > 0, spread, 1.0))


def diabetes() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's 442 patients: ten measurements, and how the disease went on."""
    inputs, responses = load_diabetes(return_X_y=True)
    return standardised(inputs), standardised(responses)


def generator(seed: int = 0) -> torch.Generator:
    """Return a source of random numbers for simulated data."""
    return torch.Generator().manual_seed(seed)
