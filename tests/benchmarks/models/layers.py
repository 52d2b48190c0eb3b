"""Networks of other layers than linear ones: convolutions, a recurrent one, an embedding."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.models.case import Case, as_tensor, generator

__all__ = ["convolutional", "embedding", "put_normal_priors", "recurrent"]


def put_normal_priors(net: nn.Module, scale: float = 1.0) -> None:
    """Put independent normal priors on all parameters of a module that is one of Pyro's."""
    for module in net.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            prior = dist.Normal(0.0, scale).expand(value.shape).to_event(value.dim())
            setattr(module, name, PyroSample(prior))


class ConvolutionalDigits(PyroModule):
    """Four filters, a pool and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = PyroModule[nn.Conv2d](1, 4, kernel_size=3)
        self.pool = nn.MaxPool2d(2)
        self.fc = PyroModule[nn.Linear](4 * 3 * 3, 10)
        put_normal_priors(self, 0.5)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> None:
        hidden = self.pool(torch.relu(self.conv(images)))
        logits = self.fc(hidden.flatten(1))
        with pyro.plate("images", len(images)):
            pyro.sample("labels", dist.Categorical(logits=logits), obs=labels)


def convolutional() -> Case:
    pixels, labels = load_digits(return_X_y=True)
    images = as_tensor(pixels / 16.0).reshape(-1, 1, 8, 8)
    return Case(ConvolutionalDigits(), (images[:500], torch.tensor(labels[:500])))


class Recurrent(PyroModule):
    """A GRU over a short sequence, and a linear layer after its last step."""

    def __init__(self, inputs: int = 1, hidden: int = 4) -> None:
        super().__init__()
        self.gru = PyroModule[nn.GRU](inputs, hidden, batch_first=True)
        self.head = PyroModule[nn.Linear](hidden, 1)
        put_normal_priors(self)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        steps, _ = self.gru(x)
        mean = self.head(steps[:, -1]).squeeze(-1)
        sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("sequences", len(x)):
            pyro.sample("y", dist.Normal(mean, sigma), obs=y)


def recurrent() -> Case:
    phase = 6.0 * torch.rand(150, 1, generator=generator())
    waves = (phase + 0.7 * torch.arange(9.0)).sin()
    waves = waves + 0.1 * torch.randn(150, 9, generator=generator(1))
    return Case(Recurrent(), (waves[:, :8].unsqueeze(-1), waves[:, 8]), identified=("sigma",))


class EmbeddedTable(PyroModule):
    """A column of categories that is embedded, beside columns of numbers."""

    def __init__(self, categories: int = 7, numbers: int = 3) -> None:
        super().__init__()
        self.embedding = PyroModule[nn.Embedding](categories, 2)
        self.fc1 = PyroModule[nn.Linear](numbers + 2, 8)
        self.fc2 = PyroModule[nn.Linear](8, 1)
        put_normal_priors(self)

    def forward(self, category: Tensor, numbers: Tensor, y: Tensor | None = None) -> None:
        x = torch.cat([numbers, self.embedding(category)], dim=-1)
        mean = self.fc2(torch.relu(self.fc1(x))).squeeze(-1)
        sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("rows", len(numbers)):
            pyro.sample("y", dist.Normal(mean, sigma), obs=y)


def embedding() -> Case:
    category = torch.randint(0, 7, (300,), generator=generator())
    numbers = torch.randn(300, 3, generator=generator(1))
    level = torch.randn(7, generator=generator(2))
    y = level[category] + numbers[:, 0].relu() + 0.3 * torch.randn(300, generator=generator(3))
    return Case(EmbeddedTable(), (category, numbers, y), identified=("sigma",))
