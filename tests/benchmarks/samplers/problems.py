"""The networks and data on which samplers are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
from sklearn.datasets import load_diabetes, make_moons
from sklearn.model_selection import train_test_split

from benchmarks.uci.sets import Split, split
from pyro_fnbg import BayesianMLP, mnist, noisy_xor

__all__ = ["PROBLEMS", "Problem", "network"]

Reader = Callable[[Path | None], Split]


@dataclass(frozen=True)
class Problem:
    """Say what network samplers get, on which data, and for how long.

    Attributes:
        read: Reads the rows, given the folder of the data.
        widths: Of the network.
        activation: Of its hidden layers.
        likelihood: Of its responses.
        has_network_scale: Whether a second output is the scale of numbers; a site is otherwise.
        prior_scale: Standard deviation of the prior of weights and biases.
        seconds: Of the processor, for each sampler.
        is_warm: Whether chains start at fits, not at draws of the prior.
        kernel: Arguments of ``FNBG``, besides its moves.
        has_peers: Whether samplers that see all rows in every step have a chance.
    """

    read: Reader
    widths: tuple[int, ...]
    activation: str = "tanh"
    likelihood: str = "bernoulli"
    has_network_scale: bool = False
    prior_scale: float = 1.0
    seconds: float = 60.0
    is_warm: bool = False
    kernel: tuple[tuple[str, Any], ...] = ()
    has_peers: bool = True

    @property
    def has_gradient(self) -> bool:
        """Whether the density has one that is of use."""
        return self.activation != "step"

    @property
    def can_be_rescaled(self) -> bool:
        """Whether there are hidden relu nodes."""
        return self.activation == "relu"

    @property
    def has_normal_outputs(self) -> bool:
        """Whether output weights have Normal conditionals."""
        return self.likelihood == "normal" and not self.has_network_scale

    @property
    def has_moves_to_pick(self) -> bool:
        """Whether there is more than the walk, for all data alone or for any."""
        is_full = "batch_size" not in dict(self.kernel)
        return self.can_be_rescaled or (self.has_normal_outputs and is_full)

    def about(self) -> dict[str, Any]:
        """Return what a sampler in another process needs to know of the network."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name in ("widths", "activation", "likelihood", "has_network_scale", "prior_scale")
        }


def network(about: dict[str, Any]) -> BayesianMLP:
    """Return the network; the scale of numbers is sampled, or an output."""
    scale: Any = {}
    if about["likelihood"] == "normal":
        scale["observation_scale"] = (
            "network" if about["has_network_scale"] else dist.HalfNormal(1.0)
        )
    names = "prior_scale", "activation", "likelihood"
    return BayesianMLP(about["widths"], **{name: about[name] for name in names}, **scale)


def _standardised(x: Any, y: Any, num_classes: int) -> Split:
    """Hold out a fifth, and standardise as the sets in common use are."""
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=0)
    mean, deviation = x_train.mean(0), x_train.std(0)
    x_train, x_test = ((each - mean) / deviation for each in (x_train, x_test))
    if not num_classes:
        mean, deviation = y_train.mean(), y_train.std()
        y_train, y_test = ((each - mean) / deviation for each in (y_train, y_test))
    return Split(x_train, y_train, x_test, y_test, num_classes)


def _moons(folder: Path | None) -> Split:
    return _standardised(*make_moons(250, noise=0.2, random_state=0), 2)


def _diabetes(folder: Path | None) -> Split:
    return _standardised(*load_diabetes(return_X_y=True), 0)


def _xor(folder: Path | None) -> Split:
    pyro.set_rng_seed(0)
    data = noisy_xor(num_train=500, num_test=100)
    return Split(*(np.asarray(each) for each in data), 2)


def _mnist(folder: Path | None) -> Split:
    if folder is None:
        raise ValueError("MNIST is read from a folder: pass --data FOLDER")
    return Split(*(np.asarray(each) for each in mnist(folder)), 10)


def _set(name: str) -> Reader:
    def read(folder: Path | None) -> Split:
        return split(name, None if folder is None else folder / "uci", 0)

    return read


def _on_mnist(widths: tuple[int, ...]) -> Problem:
    """Return a network for the digits, in the paper's blocks and batches."""
    return Problem(
        _mnist,
        widths,
        activation="sigmoid",
        likelihood="categorical",
        seconds=300.0,
        is_warm=True,
        kernel=(("batch_size", 3000), ("likelihood_scale", "batch"), ("parts", {1: 78})),
        has_peers=False,
    )


PROBLEMS = {
    "moons, MLP(2,8,1)": Problem(_moons, (2, 8, 1), seconds=20.0),
    "diabetes, MLP(10,8,1)": Problem(_diabetes, (10, 8, 1), likelihood="normal"),
    "diabetes, MLP(10,8,1), relu": Problem(
        _diabetes, (10, 8, 1), activation="relu", likelihood="normal"
    ),
    "diabetes, MLP(10,16,16,1)": Problem(
        _diabetes, (10, 16, 16, 1), likelihood="normal", seconds=120.0
    ),
    "breast cancer, MLP(30,16,1)": Problem(_set("breast_cancer"), (30, 16, 1)),
    "airfoil, MLP(5,16,16,16,16,2)": Problem(
        _set("airfoil"),
        (5, 16, 16, 16, 16, 2),
        activation="relu",
        likelihood="normal",
        has_network_scale=True,
        seconds=120.0,
        is_warm=True,
    ),
    "noisy XOR, MLP(2,8,1), steps": Problem(
        _xor, (2, 8, 1), activation="step", prior_scale=10**0.5
    ),
    "ionosphere, MLP(33,8,1), steps": Problem(_set("ionosphere"), (33, 8, 1), activation="step"),
    "MNIST, MLP(784,10,10,10,10)": _on_mnist((784, 10, 10, 10, 10)),
    "MNIST, MLP(784,100,10)": _on_mnist((784, 100, 10)),
}
