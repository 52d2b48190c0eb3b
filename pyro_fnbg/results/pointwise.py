"""Log likelihoods and responses of a run's own data under its draws, for ArviZ's groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pyro import poutine
from torch import Tensor

from pyro_fnbg.chains.report import ChainReport
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.sites import seeded
from pyro_fnbg.prediction.likelihood import log_likelihood, sample_responses
from pyro_fnbg.prediction.samples import LazySamples, sample_sites, some_draws
from pyro_fnbg.prediction.sources import states_its_network

__all__ = [
    "check_predicts_all_rows",
    "check_targets_posterior",
    "pointwise_log_likelihoods",
    "posterior_responses",
]


def check_targets_posterior(report: ChainReport) -> None:
    """Check that leave-one-out estimates from a run's draws would be those of the posterior.

    Raises:
        ValueError: If the chain targets something else; says what, and what can be done instead.
    """
    if not report.plan.is_exact:
        raise ValueError(
            "log_likelihood=True is for chains that target the posterior; this run targets "
            f"{report.plan.target}, so that LOO and WAIC would weigh its draws by the wrong "
            "density. Score rows that the chain has not seen instead: "
            "predict(model, samples, x, y)"
        )


def check_predicts_all_rows(report: ChainReport) -> None:
    """Check that a model, run with its data, samples a response for each of the rows.

    Raises:
        ValueError: If it takes some of the rows each time.
    """
    if plates := [plate.name for plate in report.plates.values() if plate.is_subsampled]:
        raise ValueError(
            "posterior_predictive=True is for models that sample all rows; this one has a "
            f"subsample_size in plate {plates[0]!r}: call predict with a model without it"
        )


def pointwise_log_likelihoods(
    bound: BoundModel, samples: Mapping[str, Tensor], observed: Mapping[str, Tensor]
) -> dict[str, NDArray[Any]]:
    """Compute the log likelihood of every observed value under each draw, by site.

    Args:
        bound: The model with its data.
        samples: Draws by site, each of shape ``(chains, draws, *site shape)``.
        observed: The values of the observed sites.
    """

    def of_site(site: Mapping[str, Any]) -> Tensor:
        found: Tensor = site["fn"].log_prob(site["value"])
        return found if site.get("mask") is None else torch.where(site["mask"], found, 0.0)

    if _states_it_all(bound, observed):
        ((name, y),) = observed.items()
        found = log_likelihood(bound.model, _together(samples), bound.args[0], y)
        return {name: _by_chain(found, samples)}
    return _for_each_draw(bound, samples, observed, of_site)


def posterior_responses(
    bound: BoundModel, samples: Mapping[str, Tensor], observed: Mapping[str, Tensor]
) -> dict[str, NDArray[Any]]:
    """Draw the values of observed sites anew under each draw, by site.

    Args:
        bound: The model with its data.
        samples: Draws by site, each of shape ``(chains, draws, *site shape)``.
        observed: The values of the observed sites.
    """
    if _states_it_all(bound, observed):
        (name,) = observed
        found = sample_responses(bound.model, _together(samples), bound.args[0])
        return {name: _by_chain(found, samples)}
    with seeded(0):
        return _for_each_draw(bound, samples, observed, _sampled)


def _sampled(site: Mapping[str, Any]) -> Tensor:
    """Draw a site's value anew; whole numbers where it can have no others."""
    found: Tensor = site["fn"].sample()
    try:
        is_discrete = site["fn"].support.is_discrete
    except NotImplementedError:
        is_discrete = False
    return found.long() if is_discrete else found


def _states_it_all(bound: BoundModel, observed: Mapping[str, Tensor]) -> bool:
    """Whether the one response is that of a network that the model states, given x alone."""
    is_plain = len(observed) == 1 and len(bound.args) <= 2 and not bound.kwargs
    return is_plain and states_its_network(bound.model, *bound.args[:1])


@torch.no_grad()
@poutine.block()
def _for_each_draw(
    bound: BoundModel,
    samples: Mapping[str, Tensor],
    observed: Mapping[str, Tensor],
    of_site: Callable[[Mapping[str, Any]], Tensor],
) -> dict[str, NDArray[Any]]:
    """Run the model under each draw and look at its observed sites.

    Raises:
        ValueError: If latent sites have no draws: they would be drawn from their priors.
    """
    together = _together(samples)
    found: dict[str, list[Tensor]] = {name: [] for name in observed}
    for draw in range(math.prod(_chains_and_draws(samples))):
        one = some_draws(together, slice(draw, draw + 1))
        model = poutine.condition(bound.model, {name: value[0] for name, value in one.items()})
        sites = sample_sites(poutine.trace(model).get_trace(*bound.args, **bound.kwargs))
        # Sites that are conditioned on count as observed
        if missing := [name for name, site in sites.items() if not site["is_observed"]]:
            raise ValueError(
                f"the run kept no draws of {missing} (see save_params), without which log "
                "likelihoods and responses cannot be computed"
            )
        for name, site in sites.items():
            if name in found:
                found[name].append(of_site(site))
    return {
        name: _by_chain(torch.stack(values), samples) for name, values in found.items() if values
    }


def _together(samples: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Put the draws of all chains one after another, as predictions read those of a store."""
    if isinstance(samples, LazySamples):
        return samples
    return {name: value.flatten(0, 1) for name, value in samples.items()}


def _chains_and_draws(samples: Mapping[str, Tensor]) -> tuple[int, int]:
    if isinstance(samples, LazySamples):
        return samples.num_chains, samples.num_draws // samples.num_chains
    num_chains, num_draws = next(iter(samples.values())).shape[:2]
    return num_chains, num_draws


def _by_chain(values: Tensor, samples: Mapping[str, Tensor]) -> NDArray[Any]:
    return np.asarray(values.unflatten(0, _chains_and_draws(samples)).numpy(force=True))
