"""Networks for regression: modules of layers, a lifted ``Sequential``, and matrices by hand."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import to_pyro_module_
from torch import Tensor, nn

from benchmarks.models.case import Case, diabetes, generator
from pyro_fnbg import BayesianMLP

__all__ = ["by_hand", "deep", "heteroscedastic", "sequential", "two_layers"]


class TwoLayers(PyroModule):
    """The network of most tutorials: two linear layers, and a scale that is sampled."""

    def __init__(self, in_dim: int, hid_dim: int) -> None:
        super().__init__()
        self.activation = nn.Tanh()
        self.layer1 = PyroModule[nn.Linear](in_dim, hid_dim)
        self.layer2 = PyroModule[nn.Linear](hid_dim, 1)
        self.layer1.weight = PyroSample(dist.Normal(0.0, 1.0).expand([hid_dim, in_dim]).to_event(2))
        self.layer1.bias = PyroSample(dist.Normal(0.0, 1.0).expand([hid_dim]).to_event(1))
        self.layer2.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, hid_dim]).to_event(2))
        self.layer2.bias = PyroSample(dist.Normal(0.0, 1.0).expand([1]).to_event(1))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        x = self.activation(self.layer1(x))
        mu = self.layer2(x).squeeze(-1)
        sigma = pyro.sample("sigma", dist.Gamma(2.0, 2.0))
        with pyro.plate("data", x.shape[0]):
            pyro.sample("obs", dist.Normal(mu, sigma), obs=y)
        return mu


def two_layers() -> Case:
    network = BayesianMLP(
        [10, 10, 1], activation="tanh", likelihood="normal", observation_scale=dist.Gamma(2.0, 2.0)
    )
    names = [f"layer{layer}.{kind}" for layer in (1, 2) for kind in ("weight", "bias")]
    return Case(
        TwoLayers(10, 10),
        diabetes(),
        network,
        {name: name for name in names} | {"sigma": "obs_scale"},
        identified=("sigma",),
    )


class Heteroscedastic(PyroModule):
    """A network of two outputs, a mean and what becomes a scale."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.fc1 = PyroModule[nn.Linear](1, hidden)
        self.fc2 = PyroModule[nn.Linear](hidden, 2)
        for layer in (self.fc1, self.fc2):
            layer.weight = PyroSample(dist.Normal(0.0, 1.0).expand(layer.weight.shape).to_event(2))
            layer.bias = PyroSample(dist.Normal(0.0, 1.0).expand(layer.bias.shape).to_event(1))

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        out = self.fc2(torch.tanh(self.fc1(x)))
        loc, scale = out[:, 0], nn.functional.softplus(out[:, 1]) + 1e-6
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(loc, scale), obs=y)


def heteroscedastic() -> Case:
    x = torch.linspace(-2.0, 2.0, 200).unsqueeze(-1)
    noise = torch.randn(200, generator=generator())
    y = x[:, 0].sin() + torch.where(x[:, 0] > 0, 0.1, 0.5) * noise
    network = BayesianMLP(
        [1, 16, 2], activation="tanh", likelihood="normal", observation_scale="network"
    )
    same = {f"fc{n}.{kind}": f"layer{n}.{kind}" for n in (1, 2) for kind in ("weight", "bias")}
    shuffled = torch.randperm(200, generator=generator(1))
    return Case(Heteroscedastic(), (x[shuffled], y[shuffled]), network, same)


class Deep(PyroModule):
    """Layers in a ``ModuleList``, as many as one likes, with priors by their fan-in."""

    def __init__(self, in_dim: int, hid_dim: int, n_hid_layers: int) -> None:
        super().__init__()
        sizes = [in_dim, *[hid_dim] * n_hid_layers, 1]
        layers = [PyroModule[nn.Linear](sizes[i - 1], sizes[i]) for i in range(1, len(sizes))]
        self.layers = PyroModule[nn.ModuleList](layers)
        for layer, fan_in in zip(self.layers, sizes, strict=False):
            scale = (2.0 / fan_in) ** 0.5
            layer.weight = PyroSample(
                dist.Normal(0.0, scale).expand(layer.weight.shape).to_event(2)
            )
            layer.bias = PyroSample(dist.Normal(0.0, 1.0).expand(layer.bias.shape).to_event(1))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        mu = self.layers[-1](x).squeeze(-1)
        with pyro.plate("data", x.shape[0]):
            pyro.sample("obs", dist.Normal(mu, 0.7), obs=y)
        return mu


def deep() -> Case:
    widths = [10, 10, 10, 10, 10, 1]
    network = BayesianMLP(
        widths,
        prior_scale=[(2.0 / fan_in) ** 0.5 for fan_in in widths[:-1]],
        bias_prior_scale=1.0,
        activation="relu",
        likelihood="normal",
        observation_scale=0.7,
    )
    same = {
        f"layers.{n}.{kind}": f"layer{n + 1}.{kind}"
        for n in range(5)
        for kind in ("weight", "bias")
    }
    return Case(Deep(10, 10, 4), diabetes(), network, same)


def sequential() -> Case:
    net = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
    # From here on as in the documentation of to_pyro_module_
    to_pyro_module_(net)
    for m in net.modules():
        for name, value in list(m.named_parameters(recurse=False)):
            prior = dist.Normal(0, 1).expand(value.shape).to_event(value.dim())
            setattr(m, name, PyroSample(prior=prior))

    def model(x: Tensor, y: Tensor | None = None) -> None:
        mean = net(x).squeeze(-1)
        sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, sigma), obs=y)

    network = BayesianMLP(
        [10, 8, 4, 1],
        activation="tanh",
        likelihood="normal",
        observation_scale=dist.HalfNormal(1.0),
    )
    same = {
        f"{2 * n}.{kind}": f"layer{n + 1}.{kind}" for n in range(3) for kind in ("weight", "bias")
    }
    return Case(model, diabetes(), network, same | {"sigma": "obs_scale"}, identified=("sigma",))


def by_hand() -> Case:
    def model(x: Tensor, y: Tensor | None = None, hidden: int = 8) -> None:
        inputs = x.shape[1]
        w1 = pyro.sample("w1", dist.Normal(0.0, 1.0).expand([inputs, hidden]).to_event(2))
        b1 = pyro.sample("b1", dist.Normal(0.0, 1.0).expand([hidden]).to_event(1))
        w2 = pyro.sample("w2", dist.Normal(0.0, 1.0).expand([hidden, 1]).to_event(2))
        b2 = pyro.sample("b2", dist.Normal(0.0, 1.0))
        mean = (torch.tanh(x @ w1 + b1) @ w2 + b2).squeeze(-1)
        sigma = pyro.sample("sigma", dist.HalfCauchy(1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, sigma), obs=y)

    network = BayesianMLP(
        [10, 8, 1], activation="tanh", likelihood="normal", observation_scale=dist.HalfCauchy(1.0)
    )
    same = {
        "w1": "layer1.weight transposed",
        "b1": "layer1.bias",
        "w2": "layer2.weight transposed",
        "b2": "layer2.bias",
        "sigma": "obs_scale",
    }
    return Case(model, diabetes(), network, same, identified=("sigma",))
