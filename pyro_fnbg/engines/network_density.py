"""The log density of a network that a model states, in torch, for many chains at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Normal, biject_to
from torch.nn.functional import binary_cross_entropy_with_logits

from pyro_fnbg.core.prior_terms import PriorTerms
from pyro_fnbg.engines.network import Network
from pyro_fnbg.graphs.strided import Strided
from pyro_fnbg.networks.counts import poisson_log_probs
from pyro_fnbg.networks.statement import ACTIVATIONS

__all__ = ["NetworkDensity"]


class NetworkDensity:
    """Evaluate a network at positions of shape ``(C, num_params)``, on batches of n rows.

    Exact, up to rounding, and differentiable. Labels are of shape ``(C or 1, columns, n)``.

    Args:
        network: What the model states of itself.
    """

    def __init__(self, network: Network) -> None:
        self._network, self._architecture = network, network.architecture
        self._inputs, labels = network.data
        self._labels = labels.reshape(len(labels), -1)
        self.activations = [ACTIVATIONS[name] for name in network.activations]
        self._prior_terms = PriorTerms(network.priors, self._inputs.device)
        prior = network.scale_prior
        self._bijection = None if prior is None else biject_to(prior.support)

    def __call__(self, position: Tensor, rows: Tensor | None) -> Tensor:
        """Return the log density of each chain, double precision, shape ``(C,)``.

        Args:
            position: Unconstrained parameters, shape ``(C, num_params)``.
            rows: Rows of a batch that all chains see; None for all.
        """
        return self.log_likelihood(position, rows) + self.log_prior(position).sum(-1)

    def log_likelihood(self, position: Tensor, rows: Tensor | None) -> Tensor:
        """Return the log likelihood of a batch times its factor; see ``__call__``."""
        inputs, labels = self.batch(None if rows is None else rows.unsqueeze(0))
        fed = inputs.mT.expand(len(position), -1, -1)
        outputs = self.pre_activations(position, fed, ())[-1]
        return self.log_lik(position, outputs, labels).sum(-1)

    def batch(self, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Fetch the inputs of batches, shape ``(C, n, inputs)``, and their labels.

        Args:
            rows: Shape ``(C, n)``; None for all rows of the data, as a single batch.
        """
        if rows is None:
            return self._inputs.unsqueeze(0), self._labels.unsqueeze(0).mT
        return self._inputs[rows], self._labels[rows].mT

    def pre_activations(
        self, position: Tensor, inputs: Tensor, pre: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Compute the pre-activations of all layers from those of the lowest, ``(C, nodes, n)``.

        Args:
            position: Unconstrained parameters.
            inputs: Shape ``(C, inputs, n)``.
            pre: What is known.
        """
        for layer in range(len(pre) + 1, self._architecture.num_layers + 1):
            fed = self.activations[layer - 2](pre[-1]) if pre else inputs
            weight, biases = self.weight(position, layer), self._network.biases[layer - 1]
            if biases is None:
                pre += (weight @ fed,)
            else:
                bias = _view(position, biases, weight.shape[1:2]).unsqueeze(-1)
                pre += (torch.baddbmm(bias, weight, fed),)
        return pre

    def weight(self, position: Tensor, layer: int) -> Tensor:
        """View a layer's weights, shape ``(C, nodes, nodes below)``."""
        fan_in, fan_out = self._architecture.widths[layer - 1 : layer + 1]
        return _view(position, self._network.weights[layer - 1], (fan_out, fan_in))

    def log_lik(self, position: Tensor, outputs: Tensor, labels: Tensor) -> Tensor:
        """Score each row, as the distributions of the models do."""
        likelihood = self._architecture.likelihood
        if likelihood.name == "bernoulli":
            labels = labels.expand_as(outputs)
            terms = -binary_cross_entropy_with_logits(outputs, labels, reduction="none")
        elif likelihood.name == "categorical":
            chosen = outputs.gather(1, labels.expand(len(outputs), -1, -1))
            terms = chosen - outputs.logsumexp(1, keepdim=True)
        elif likelihood.name == "poisson":
            counts, logs, at_best = labels.split([outputs.shape[1], outputs.shape[1], 1], 1)
            terms = poisson_log_probs(outputs, counts, logs)
            terms = torch.cat([terms, at_best.expand(len(outputs), -1, -1)], 1)
        else:
            scale: Tensor | float = likelihood.fixed_scale
            if likelihood.has_network_scale:
                outputs, scale = likelihood.locations_and_scales(outputs, 1)
            elif self._bijection is not None:
                scale = self._bijection(position[:, self._network.scale_coordinate, None, None])
            if likelihood.name == "normal":
                terms = Normal(outputs, scale, validate_args=False).log_prob(labels)
            else:
                terms = likelihood.student_log_densities(outputs, scale, labels)
        return (terms * self._network.factor).double().sum(1)

    def log_prior(self, position: Tensor) -> Tensor:
        """Score each coordinate in double precision, shape ``(..., num_params)``."""
        terms = self._prior_terms(position)
        prior, at = self._network.scale_prior, self._network.scale_coordinate
        if prior is None or at is None or self._bijection is None:
            return terms
        scale = self._bijection(position[..., at])
        jacobian = self._bijection.log_abs_det_jacobian(position[..., at], scale)
        term: Tensor = prior.log_prob(scale).double() + jacobian.double()
        return torch.select_scatter(terms, term, -1, at)


def _view(position: Tensor, place: Strided, shape: Sequence[int]) -> Tensor:
    """View a part of each position, ``(C, num_params)``, in a shape."""
    chain, entry = position.stride()
    strides = [chain, *(entry * step for step in place.steps)]
    start = position.storage_offset() + entry * place.start
    return position.as_strided([len(position), *shape], strides, start)
