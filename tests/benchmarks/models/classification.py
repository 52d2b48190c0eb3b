"""Networks for classes, for classes in an order, and for counts."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample
from sklearn.datasets import load_breast_cancer, load_wine
from torch import Tensor, nn

from benchmarks.models.case import Case, as_tensor, diabetes, generator, standardised
from pyro_fnbg import BayesianMLP

__all__ = ["bernoulli", "categorical", "ordinal", "poisson"]


class Classifier(PyroModule):
    """A network whose outputs are logits of classes, with a plate that hands out rows."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.fc1 = PyroModule[nn.Linear](inputs, hidden)
        self.out = PyroModule[nn.Linear](hidden, classes)
        for layer in (self.fc1, self.out):
            for name, value in list(layer.named_parameters()):
                prior = dist.Normal(0.0, 1.0).expand(value.shape).to_event(value.dim())
                setattr(layer, name, PyroSample(prior))

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        logits = self.out(torch.relu(self.fc1(x)))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)


SAME = {
    f"{ours}.{kind}": f"{theirs}.{kind}"
    for ours, theirs in (("fc1", "layer1"), ("out", "layer2"))
    for kind in ("weight", "bias")
}


def categorical() -> Case:
    inputs, classes = load_wine(return_X_y=True)
    shuffled = torch.randperm(len(inputs), generator=generator())
    return Case(
        Classifier(13, 8, 3),
        (standardised(inputs)[shuffled], torch.tensor(classes)[shuffled]),
        BayesianMLP([13, 8, 3], activation="relu"),
        SAME,
    )


def bernoulli() -> Case:
    class Diagnosis(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = PyroModule[nn.Linear](30, 5)
            self.out = PyroModule[nn.Linear](5, 1)
            for layer in (self.fc1, self.out):
                for name, value in list(layer.named_parameters()):
                    prior = dist.Normal(0.0, 1.0).expand(value.shape).to_event(value.dim())
                    setattr(layer, name, PyroSample(prior))

        def forward(self, x: Tensor, y: Tensor | None = None) -> None:
            logits = self.out(torch.sigmoid(self.fc1(x))).squeeze(-1)
            with pyro.plate("data", x.size(0)):
                pyro.sample("obs", dist.Bernoulli(logits=logits), obs=y)

    inputs, classes = load_breast_cancer(return_X_y=True)
    network = BayesianMLP([30, 5, 1], activation="sigmoid", likelihood="bernoulli")
    return Case(Diagnosis(), (standardised(inputs), as_tensor(classes)), network, SAME)


def ordinal() -> Case:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w1 = pyro.sample("w1", dist.Normal(0.0, 1.0).expand([10, 6]).to_event(2))
        w2 = pyro.sample("w2", dist.Normal(0.0, 1.0).expand([6]).to_event(1))
        gaps = dist.Normal(0.0, 1.0).expand([3]).to_event(1)
        ordered = dist.TransformedDistribution(gaps, dist.transforms.OrderedTransform())
        cutpoints = pyro.sample("cutpoints", ordered)
        predictor = torch.tanh(x @ w1) @ w2
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.OrderedLogistic(predictor, cutpoints), obs=y)

    inputs, responses = diabetes()
    quartiles = torch.quantile(responses, torch.tensor([0.25, 0.5, 0.75]).to(responses))
    return Case(model, (inputs, torch.bucketize(responses, quartiles)), identified=("cutpoints",))


def poisson() -> Case:
    class Counts(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = PyroModule[nn.Linear](4, 6)
            self.fc2 = PyroModule[nn.Linear](6, 1)
            for layer in (self.fc1, self.fc2):
                for name, value in list(layer.named_parameters()):
                    prior = dist.Normal(0.0, 0.5).expand(value.shape).to_event(value.dim())
                    setattr(layer, name, PyroSample(prior))

        def forward(self, x: Tensor, y: Tensor | None = None) -> None:
            log_rate = self.fc2(torch.tanh(self.fc1(x))).squeeze(-1)
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Poisson(log_rate.exp()), obs=y)

    x = torch.randn(300, 4, generator=generator())
    y = torch.poisson((0.5 + x[:, 0].sin() + 0.5 * x[:, 1]).exp(), generator=generator(1))
    network = BayesianMLP([4, 6, 1], prior_scale=0.5, activation="tanh", likelihood="poisson")
    same = {f"fc{n}.{kind}": f"layer{n}.{kind}" for n in (1, 2) for kind in ("weight", "bias")}
    return Case(Counts(), (x, y), network, same)
