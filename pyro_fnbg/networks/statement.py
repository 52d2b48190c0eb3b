"""How a model says that it is a feedforward network, for all that makes use of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.networks.surrogate import step

__all__ = ["ACTIVATIONS", "Activation", "Feedforward", "NotFeedforward"]

Activation = str | Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "step": step,
    "identity": lambda values: values,
}


class NotFeedforward(ValueError):
    """Say why a model's statement cannot be used, though nothing is wrong with it."""


class Feedforward(NamedTuple):
    """State that a model is a fully connected network, and where its parts are.

    A model with a method ``feedforward``, which takes the model's own arguments and returns this,
    is sampled by the fast engines, and predicts many draws at once. Nothing is taken on trust:
    set-up and predictions compare with the model itself. Labels and priors (independent Normal,
    Laplace or StudentT distributions) are read from the model's sample sites.

    Attributes:
        inputs: Inputs of all rows of the data, shape ``(rows, inputs)``, in the parameters' dtype.
        layers: Name of each layer, first to last: layer ``"a"`` has its weights in the site
            ``"a.weight"`` of shape ``(nodes, nodes below)`` and its biases, if it has any, in
            ``"a.bias"`` of shape ``(nodes,)``.
        activations: Activation of each hidden layer: "sigmoid", "tanh", "relu", "step" (1 above
            zero, else 0) or "identity"; with any other, the model itself is run. (Predictions
            know callables, too.)
        likelihood: "bernoulli" (one output, a logit), "categorical" (a logit a class), "normal"
            (the outputs are means), "student" (the outputs are locations of Student's t) or
            "poisson" (the outputs are logarithms of rates; see
            `pyro_fnbg.networks.counts.LogPoisson`).
        observation_scale: For "normal", the standard deviation of the observations, for "student"
            their scale: a number, the name of the latent site that holds it, or "network" where the
            network gives one a row. Then the last layer has 2 K nodes for K responses: K means or
            locations, and K outputs v with the scales log(1 + exp(v)) + 1e-6.
        degrees_of_freedom: For "student", a number above 0.
        prior_scales: Where the scale of a prior is sampled, by site of weights or biases the name
            of the latent site that holds the scale, or the variance, of its prior, in a shape that
            broadcasts to its own: ``()`` for one of a layer, ``(nodes below,)`` for one of each
            input. Which of both it holds, and its own prior, are read from the model.

    Example:
        >>> import pyro, pyro.distributions as dist, torch
        >>> from pyro.nn import PyroModule, PyroSample
        >>> class Net(PyroModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.hidden = PyroModule[torch.nn.Linear](2, 3)
        ...         self.out = PyroModule[torch.nn.Linear](3, 1)
        ...         for layer in (self.hidden, self.out):
        ...             for name, value in list(layer.named_parameters()):
        ...                 prior = dist.Normal(0.0, 3.0).expand(value.shape).to_event()
        ...                 setattr(layer, name, PyroSample(prior))
        ...     def forward(self, x, y=None):
        ...         plate = pyro.plate("data", len(x))
        ...         with plate as rows:
        ...             batch, labels = x[rows], None if y is None else y[rows]
        ...         logits = self.out(torch.tanh(self.hidden(batch))).squeeze(-1)
        ...         with plate:
        ...             return pyro.sample("y", dist.Bernoulli(logits=logits), obs=labels)
        ...     def feedforward(self, x, y=None):
        ...         return Feedforward(x, ["hidden", "out"], ["tanh"], "bernoulli")
        >>> from pyro_fnbg import FNBG
        >>> kernel = FNBG(Net(), batch_size=4)
        >>> kernel.setup(0, torch.randn(8, 2), torch.ones(8))
        >>> kernel.engine
        'fused'
    """

    inputs: Tensor
    layers: Sequence[str]
    activations: Sequence[Activation]
    likelihood: str
    observation_scale: float | str = 1.0
    degrees_of_freedom: float = 4.0
    prior_scales: Mapping[str, str] = {}
