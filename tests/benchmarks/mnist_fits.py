"""What `mnist_scores` compares on MNIST: chains of FNBG, and Adam on the same network."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, fashion_mnist, mnist

__all__ = [
    "NETWORK",
    "AdamPlan",
    "ChainPlan",
    "Images",
    "cached",
    "fit_adam",
    "read_images",
    "run_chains",
]

NETWORK = BayesianMLP([784, 10, 10, 10, 10], prior_scale=10**0.5)


@dataclass(frozen=True)
class ChainPlan:
    """Say which chains are run for a seed.

    Attributes:
        held_out: Training rows that the chains do not see.
        num_chains: Number of chains.
        warmup: Sweeps of each chain that tune its proposals and are dropped.
        sweeps: Sweeps of each chain after them.
        thin: Sweeps a draw.
        batch_size: Rows in the batch of a sweep.
        parts: Parts of each node of the first layer.
    """

    held_out: int = 5_000
    num_chains: int = 4
    warmup: int = 1_000
    sweeps: int = 3_000
    thin: int = 10
    batch_size: int = 3_000
    parts: int = 78


@dataclass(frozen=True)
class AdamPlan:
    """Say which fits are made for a seed.

    Attributes:
        held_out: Training rows that no step sees: they choose step size and epoch.
        num_fits: Number of fits.
        epochs: Epochs of each.
        batch_size: Rows in a step.
        learning_rates: Step sizes, each of which is tried.
    """

    held_out: int = 5_000
    num_fits: int = 5
    epochs: int = 20
    batch_size: int = 128
    learning_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)


@dataclass(frozen=True)
class Images:
    """Hold images and labels, all standardised by the pixels of MNIST's training images."""

    x_train: Tensor
    y_train: Tensor
    x_held_out: Tensor
    y_held_out: Tensor
    x_test: Tensor
    y_test: Tensor
    x_elsewhere: Tensor


def read_images(folder: Path, num_held_out: int) -> Images:
    """Read both sets, and hold out training rows: the same for all contestants and seeds."""
    data, fashion = mnist(folder), fashion_mnist(folder)
    order = torch.randperm(len(data.x_train), generator=torch.Generator().manual_seed(0))
    held_out, rest = order[:num_held_out], order[num_held_out:]
    # Both sets have pixels of 0 and of 255, so this turns one set's units into the other's
    elsewhere = fashion.x_test - fashion.x_train.min()
    elsewhere *= (data.x_train.max() - data.x_train.min()) / (
        fashion.x_train.max() - fashion.x_train.min()
    )
    elsewhere += data.x_train.min()
    return Images(
        data.x_train[rest],
        data.y_train[rest],
        data.x_train[held_out],
        data.y_train[held_out],
        data.x_test,
        data.y_test,
        elsewhere,
    )


def cached(
    path: Path, plan: ChainPlan | AdamPlan, make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return what was made under the same plan before, or make and keep it."""
    if path.exists():
        found: dict[str, Any] = torch.load(path)
        if found["plan"] == asdict(plan):
            return found
    made = make() | {"plan": asdict(plan)}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    torch.save(made, unfinished)
    unfinished.replace(path)
    return made


def run_chains(images: Images, seed: int, plan: ChainPlan) -> dict[str, Any]:
    """Run the chains of one seed.

    Returns:
        Draws by site as ``(chains, draws, ...)``, the target in words, and seconds of the processor
        for all chains, set-up included.
    """
    pyro.set_rng_seed(seed)
    kernel = FNBG(
        NETWORK, parts={1: plan.parts}, batch_size=plan.batch_size, likelihood_scale="batch"
    )
    mcmc = MultiChainMCMC(
        kernel,
        num_samples=plan.sweeps // plan.thin,
        warmup_steps=plan.warmup,
        num_chains=plan.num_chains,
        thin=plan.thin,
        disable_progbar=True,
    )
    started = time.process_time()
    mcmc.run(images.x_train, images.y_train)
    seconds = time.process_time() - started
    samples = mcmc.get_samples(group_by_chain=True)
    return {"samples": samples, "target": kernel.target, "seconds": seconds}


def fit_adam(images: Images, seed: int, plan: AdamPlan) -> dict[str, Any]:
    """Fit the network to maximum likelihood by Adam, from several starts.

    Of each start, the step size and the epoch are taken whose held-out rows are most probable.

    Returns:
        Parameters by site as ``(fits, ...)``, those step sizes and epochs, and seconds of the
        processor for all fits, with those that were not taken.
    """
    started = time.process_time()
    fits = [
        min(
            (_fit(images, 1000 * seed + number, plan, rate) for rate in plan.learning_rates),
            key=lambda fit: fit.loss,
        )
        for number in range(plan.num_fits)
    ]
    return {
        "samples": {
            name: torch.stack([fit.params[name] for fit in fits]) for name in fits[0].params
        },
        "chosen": [(fit.learning_rate, fit.epoch) for fit in fits],
        "seconds": time.process_time() - started,
    }


class _Fit(NamedTuple):
    loss: float
    params: Mapping[str, Tensor]
    learning_rate: float
    epoch: int


def _fit(images: Images, seed: int, plan: AdamPlan, learning_rate: float) -> _Fit:
    torch.manual_seed(seed)
    params = {name: _start(name) for name in NETWORK.parameter_shapes}
    optimizer = torch.optim.Adam(params.values(), lr=learning_rate)
    best = _Fit(math.inf, {}, learning_rate, 0)
    for epoch in range(1, plan.epochs + 1):
        for rows in torch.randperm(len(images.x_train)).split(plan.batch_size):
            optimizer.zero_grad()
            _loss(params, images.x_train[rows], images.y_train[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            loss = _loss(params, images.x_held_out, images.y_held_out).item()
        if loss < best.loss:
            copies = {name: value.detach().clone() for name, value in params.items()}
            best = _Fit(loss, copies, learning_rate, epoch)
    return best


def _start(name: str) -> Tensor:
    """Draw weights or biases as torch.nn.Linear does."""
    layer = name.partition(".")[0]
    bound = NETWORK.parameter_shapes[f"{layer}.weight"][1] ** -0.5
    return torch.empty(NETWORK.parameter_shapes[name]).uniform_(-bound, bound).requires_grad_()


def _loss(params: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(NETWORK.forward(params, x), y)
