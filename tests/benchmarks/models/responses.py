"""Networks whose responses are none of one plain family: a mixture, and two sites at once."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from benchmarks.models.case import Case, diabetes, generator
from benchmarks.models.layers import put_normal_priors

__all__ = ["mixture", "two_sites"]


class MixtureDensity(PyroModule):
    """A network with a head for the weights, the means and the scales of a mixture."""

    def __init__(self, hidden: int = 8, components: int = 2) -> None:
        super().__init__()
        self.body = PyroModule[nn.Linear](1, hidden)
        self.pi = PyroModule[nn.Linear](hidden, components)
        self.mu = PyroModule[nn.Linear](hidden, components)
        self.sigma = PyroModule[nn.Linear](hidden, components)
        put_normal_priors(self)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        hidden = torch.tanh(self.body(x))
        mixture = dist.MixtureSameFamily(
            dist.Categorical(logits=self.pi(hidden)),
            dist.Normal(self.mu(hidden), self.sigma(hidden).exp()),
        )
        with pyro.plate("data", len(x)):
            pyro.sample("y", mixture, obs=y)


def mixture() -> Case:
    x = 4.0 * torch.rand(200, 1, generator=generator()) - 2.0
    side = 2.0 * torch.randint(0, 2, (200,), generator=generator(1)) - 1.0
    y = side * (1.0 + 0.5 * x[:, 0]) + 0.2 * torch.randn(200, generator=generator(2))
    return Case(MixtureDensity(), (x, y))


class TwoHeads(PyroModule):
    """One body, a number and a yes or no."""

    def __init__(self) -> None:
        super().__init__()
        self.body = PyroModule[nn.Linear](10, 6)
        self.amount = PyroModule[nn.Linear](6, 1)
        self.event = PyroModule[nn.Linear](6, 1)
        put_normal_priors(self)

    def forward(self, x: Tensor, amount: Tensor | None = None, event: Tensor | None = None) -> None:
        hidden = torch.tanh(self.body(x))
        mean, logits = self.amount(hidden).squeeze(-1), self.event(hidden).squeeze(-1)
        sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("amount", dist.Normal(mean, sigma), obs=amount)
            pyro.sample("event", dist.Bernoulli(logits=logits), obs=event)


def two_sites() -> Case:
    inputs, responses = diabetes()
    # Whether a measurement, which the network then does not see, is above its mean
    event = (inputs[:, 8] > 0).to(inputs)
    seen = inputs.clone()
    seen[:, 8] = 0.0
    return Case(TwoHeads(), (seen, responses, event), identified=("sigma",))
