"""What is timed: networks, their data, batches and blocks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pyro_fnbg import FNBG, BayesianMLP, mnist, noisy_xor

__all__ = [
    "MEDIUM",
    "MNIST",
    "SMALL",
    "WIDE",
    "WIDE_THROUGHOUT",
    "XOR",
    "Work",
    "kernel_of",
    "model_of",
    "training_data",
]

# The folder that examples/mnist.py takes; without it, random numbers of MNIST's shape are used
DATA_FOLDER = os.environ.get("BENCH_DATA", "")


@dataclass(frozen=True)
class Work:
    """Hold a network with the batches and blocks to sample it by.

    Attributes:
        data: "xor" (simulated noisy XOR), "mnist" (MNIST, or its shape) or "random".
        widths: Units of each layer, the inputs first.
        batch_size: Rows in the batch of one sweep.
        parts: Parts of each node of the first layer.
        num_rows: Rows of random data.
        prior_scale: Standard deviation of the parameters' priors.
        scales: Proposal scale of each layer; none stands for tuned ones.
    """

    data: str
    widths: tuple[int, ...]
    batch_size: int
    parts: int = 1
    num_rows: int = 10_000
    prior_scale: float = 10**0.5
    scales: tuple[float, ...] = ()


# The paper's two sizes, with its proposal scales, and a network of 9 parameters
XOR = Work("xor", (2,) * 7 + (1,), batch_size=100, scales=(0.2,) * 7)
SMALL = Work("xor", (2, 2, 1), batch_size=100, scales=(0.2,) * 2)
MNIST = Work(
    "mnist",
    (784, 10, 10, 10, 10),
    batch_size=3000,
    parts=78,
    num_rows=60_000,
    scales=(1e-1, 1e-2, 1e-2, 1e-5**0.5),
)
# A wide network on MNIST, with as many blocks to a node, and one that is wide throughout
WIDE = Work(
    "mnist",
    (784, 100, 10),
    batch_size=3000,
    parts=78,
    num_rows=60_000,
    scales=(1e-1, 1e-2),
)
WIDE_THROUGHOUT = Work("random", (64, 256, 256, 10), batch_size=3000, num_rows=3000)
# What is neither tiny nor large
MEDIUM = Work("random", (50, 10, 10, 5), batch_size=500, prior_scale=1.0)


def model_of(work: Work) -> BayesianMLP:
    """Return the network as a Pyro model."""
    likelihood = "bernoulli" if work.widths[-1] == 1 else "categorical"
    return BayesianMLP(work.widths, prior_scale=work.prior_scale, likelihood=likelihood)


def kernel_of(work: Work, engine: str = "auto", **options: Any) -> FNBG:
    """Return a kernel for the network, with the scales given, or else with tuned ones."""
    scales: Mapping[str, Any] = {}
    if work.scales:
        scales = {"proposal_scale": list(work.scales), "adapt": False}
    parts = {1: work.parts} if work.parts > 1 else None
    return FNBG(
        model_of(work),
        engine=engine,
        parts=parts,
        batch_size=work.batch_size,
        likelihood_scale="batch",
        **scales,
        **options,
    )


def training_data(work: Work) -> tuple[Tensor, Tensor]:
    """Return the inputs and the labels."""
    if work.data == "xor":
        data = noisy_xor()
        return data.x_train, data.y_train
    if work.data == "mnist" and DATA_FOLDER:
        return _read_mnist()
    return _random_data(work.widths[0], work.widths[-1], work.num_rows)


@lru_cache(maxsize=1)
def _read_mnist() -> tuple[Tensor, Tensor]:
    images = mnist(DATA_FOLDER)
    return images.x_train, images.y_train


@lru_cache(maxsize=2)
def _random_data(inputs: int, classes: int, num_rows: int) -> tuple[Tensor, Tensor]:
    """Draw standard normal inputs, and let a random linear map say which class each row has."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, inputs, generator=generator)
    return x, (x @ torch.randn(inputs, classes, generator=generator)).argmax(-1)
