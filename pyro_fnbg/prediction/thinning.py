"""Fewer draws for serving predictions, with what they lose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_fnbg.core.checks import check_count, shown
from pyro_fnbg.prediction.likelihood import log_likelihood
from pyro_fnbg.prediction.samples import LazySamples, check_chains

__all__ = ["FewerDraws", "fewer_draws"]


@dataclass(frozen=True, eq=False, repr=False)
class FewerDraws:
    """Hold draws to serve predictions with, and what they lose; ``print`` shows the loss.

    Attributes:
        samples: The draws that are kept, by site name.
        num_draws: Their number.
        num_all: Number of all draws.
        lppd_all: Log pointwise predictive density of all draws, mean over rows, in nats.
        lppd_kept: The same of those that are kept.

    Example:
        >>> FewerDraws({}, num_draws=10, num_all=1000, lppd_all=-0.25, lppd_kept=-0.26)
        10 of 1000 draws: lppd -0.26 in place of -0.25, a loss of 0.01 nats a row
    """

    samples: dict[str, Tensor]
    num_draws: int
    num_all: int
    lppd_all: float
    lppd_kept: float

    @property
    def loss(self) -> float:
        """What the log predictive density of a row loses on average, in nats.

        Negative where the draws that are kept happen to do better on these rows.
        """
        return self.lppd_all - self.lppd_kept

    def __repr__(self) -> str:
        change = "gain" if self.loss < 0 else "loss"
        return (
            f"{self.num_draws} of {self.num_all} draws: lppd {self.lppd_kept:.4g} in place of "
            f"{self.lppd_all:.4g}, a {change} of {abs(self.loss):.2g} nats a row"
        )


def fewer_draws(
    model: Callable[..., Any],
    samples: Mapping[str, Tensor],
    x: Tensor,
    y: Tensor,
    num_draws: int,
    num_chains: int = 1,
) -> FewerDraws:
    """Thin draws to a given number, and state what predictions lose by it.

    Every chain keeps as many, evenly spaced, its last draw among them. The loss is exact for these
    rows; take held-out ones, since draws fit the rows of the chain better than others. It is no
    bound for single rows. Log likelihoods of draws x rows numbers are held at once.

    Args:
        model: As in `predict`.
        samples: Draws by site name, those of all chains one after another and as many of each.
        x: Inputs of held-out rows.
        y: What was observed there, as in `predict`.
        num_draws: How many draws to keep in all, a multiple of the number of chains.
        num_chains: Number of chains.

    Returns:
        The draws, with the log predictive densities of all and of those that are kept.

    Raises:
        TypeError: As in `predict`.
        ValueError: As in `predict`; or if the chains cannot have as many draws each, or keep as
            many.

    Example:
        >>> from pyro_fnbg.networks.mlp import BayesianMLP
        >>> model = BayesianMLP([1, 1], likelihood="bernoulli")
        >>> weights = torch.linspace(0.0, 2.0, 8).view(8, 1, 1)
        >>> samples = {"layer1.weight": weights, "layer1.bias": torch.zeros(8, 1)}
        >>> fewer = fewer_draws(model, samples, torch.ones(1, 1), torch.ones(1), 4, num_chains=2)
        >>> fewer
        4 of 8 draws: lppd -0.3009 in place of -0.3381, a gain of 0.037 nats a row
        >>> fewer.samples["layer1.weight"].flatten()
        tensor([0.2857, 0.8571, 1.4286, 2.0000])
    """
    check_count("num_chains", num_chains, 1)
    log_likelihoods = log_likelihood(model, samples, x, y)
    num_all = len(log_likelihoods)
    check_chains(num_all, num_chains)
    check_count("num_draws", num_draws, num_chains, num_all)
    if num_draws % num_chains:
        raise ValueError(
            f"num_draws must be a multiple of the {num_chains} chains, which keep as many each; "
            f"got {shown(num_draws)}"
        )
    of_chain, kept_of_chain = num_all // num_chains, num_draws // num_chains
    places = torch.arange(1, kept_of_chain + 1) * of_chain // kept_of_chain - 1
    kept = (torch.arange(num_chains).unsqueeze(-1) * of_chain + places).flatten()
    return FewerDraws(
        samples=_draws_at(samples, kept),
        num_draws=int(num_draws),
        num_all=num_all,
        lppd_all=_lppd(log_likelihoods),
        lppd_kept=_lppd(log_likelihoods[kept.to(log_likelihoods.device)]),
    )


def _draws_at(samples: Mapping[str, Tensor], places: Tensor) -> dict[str, Tensor]:
    if isinstance(samples, LazySamples):
        ones = [samples.read(slice(place, place + 1)) for place in places.tolist()]
        return {name: torch.cat([one[name] for one in ones]) for name in samples}
    return {name: values[places.to(values.device)] for name, values in samples.items()}


def _lppd(log_likelihoods: Tensor) -> float:
    """Average the log of the mean likelihood of each row, of ``(draws, rows)``."""
    sums = log_likelihoods.double().logsumexp(0)
    return float(sums.mean()) - math.log(len(log_likelihoods))
