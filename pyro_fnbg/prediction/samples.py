"""Draws of a model's latent sites, checked against the model, and its response under one."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_fnbg.core.checks import shown
from pyro_fnbg.prediction.responses import NumberResponse, Response, response_of, without_moments

__all__ = [
    "LazySamples",
    "check_chains",
    "count_draws",
    "first_response",
    "response_under",
    "sample_sites",
    "some_draws",
    "under_draw",
]

# None that a user would choose, too
SOME_SEED = 2_718_281_828
# Pyro's handlers are the same for all threads of a process
ALONE = threading.RLock()


class LazySamples(Mapping[str, Tensor]):
    """Give draws by site, ``(draws, *site shape)``, that are not in memory.

    As a mapping it reads all draws of the site that is asked for, each time.

    Attributes:
        num_chains: Number of chains.
    """

    num_chains: int

    @property
    @abstractmethod
    def num_draws(self) -> int:
        """Number of draws of all chains."""

    @abstractmethod
    def read(self, draws: slice) -> dict[str, Tensor]:
        """Read some draws of all sites, those of all chains one after another."""

    @abstractmethod
    def by_chain(self, name: str) -> Any:
        """Return the draws of a site, ``(chains, draws, *site shape)``, as xarray reads them."""


def some_draws(samples: Mapping[str, Tensor], draws: slice) -> dict[str, Tensor]:
    """Return some draws of all sites."""
    if isinstance(samples, LazySamples):
        return samples.read(draws)
    return {name: values[draws] for name, values in samples.items()}


def count_draws(samples: Mapping[str, Tensor]) -> int:
    """Return the number of draws, which is that of every site.

    Raises:
        TypeError: If samples are no mapping to tensors.
        ValueError: If there are none, or not as many of each.
    """
    if not isinstance(samples, Mapping):
        raise TypeError(f"samples must map site names to tensors, got {type(samples).__name__}")
    if isinstance(samples, LazySamples):
        return samples.num_draws
    for name, value in samples.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"samples[{name!r}] must be a torch tensor, got {type(value).__name__}")
    counts = {name: len(value) if value.dim() else 0 for name, value in samples.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise ValueError(
            f"samples must hold the same number of draws, one or more, of each site; got {counts}"
        )
    return next(iter(counts.values()))


def check_chains(num_draws: int, num_chains: int) -> None:
    """Check that draws can be those of so many chains, one after another.

    Raises:
        ValueError: If they cannot be as many of each.
    """
    if num_draws % num_chains:
        raise ValueError(
            f"samples must have as many draws of each of the {num_chains} chains, got {num_draws} "
            "draws"
        )


def under_draw(
    model: Callable[..., Any], draw: Mapping[str, Tensor], x: Tensor, seed: int | None = None
) -> poutine.Trace:
    """Run the model with values of its latent sites.

    Handlers around the prediction are none of the model's. Its random state is the caller's, or
    that of a seed; the caller's stays as it is.
    """
    conditioned = poutine.condition(model, dict(draw))
    with ALONE, poutine.block(), torch.random.fork_rng([x.device] if x.is_cuda else []):
        if seed is not None:
            torch.manual_seed(seed)
        return poutine.trace(conditioned).get_trace(x)


def _trace(
    model: Callable[..., Any],
    samples: Mapping[str, Tensor],
    draw: int,
    x: Tensor,
    seed: int | None = None,
) -> poutine.Trace:
    one = some_draws(samples, slice(draw, draw + 1))
    return under_draw(model, {name: values[0] for name, values in one.items()}, x, seed)


def first_response(
    model: Callable[..., Any], samples: Mapping[str, Tensor], x: Tensor
) -> tuple[str, Response]:
    """Find the only site that `samples` leaves open, and its response under the first draw.

    The samples are checked on the way.

    Raises:
        ValueError: If the samples are not those of the model, or its response is none that can be
            predicted.
    """
    try:
        sites = sample_sites(_trace(model, samples, 0, x))
    except Exception as error:
        # A model that cannot run with these samples may run from its prior, which says why
        try:
            sites = sample_sites(_trace(model, {}, 0, x))
        except Exception:
            raise error from None
        known = _checked(samples)
        _check_samples(known, sites)
        _check_dtypes(known, sites)
        raise
    _check_samples(_checked(samples), sites)
    # Conditioning observes the latent sites too, so what was drawn here is what samples lacks.
    drawn = [name for name, site in sites.items() if not site["is_observed"]]
    if len(drawn) != 1:
        raise ValueError(
            "samples must hold every latent site of the model and not its response, one site of "
            f"the model called without labels; left open are {drawn}"
        )
    (name,) = drawn
    found = response_of(name, sites[name], len(x))
    if isinstance(found, NumberResponse) and not all(map(_is_finite, found.compared())):
        raise without_moments(name, sites[name]["fn"])
    # Noise of its own would be the same under all draws
    again = response_of(name, sample_sites(_trace(model, samples, 0, x, SOME_SEED))[name], len(x))
    if not all(map(_are_equal, found.compared(), again.compared())):
        raise ValueError(
            "the model draws random numbers of its own, such as those of dropout that trains: two "
            f"runs with the same draw and x gave site {name!r} two distributions; call eval() on "
            "networks"
        )
    return name, found


def _is_finite(values: Tensor) -> bool:
    return bool(values.isfinite().all())


def _are_equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def sample_sites(trace: poutine.Trace) -> dict[str, Any]:
    """Return what a run says of its sample sites, by name; subsamples of plates are none."""
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not site_is_subsample(site)
    }


def _checked(samples: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return what has the shapes and types of all draws: one of those that are not in memory."""
    return some_draws(samples, slice(0, 1)) if isinstance(samples, LazySamples) else samples


def _check_samples(samples: Mapping[str, Tensor], sites: Mapping[str, Any]) -> None:
    """Check that each entry of the samples is draws of a site of the model."""
    if unknown := [name for name in samples if name not in sites]:
        raise ValueError(
            f"samples holds {shown(unknown)}, which the model does not sample: {list(sites)}"
        )
    for name, value in samples.items():
        expected = tuple(cast("TorchDistributionMixin", sites[name]["fn"]).shape())
        if value.shape[1:] != expected:
            is_grouped = value.shape[2:] == expected
            advice = ": put the draws of all chains in one dimension" if is_grouped else ""
            raise ValueError(
                f"samples[{name!r}] must have shape (draws, ...), with {expected} after the "
                f"draws; got {tuple(value.shape)}{advice}"
            )


def _check_dtypes(samples: Mapping[str, Tensor], sites: Mapping[str, Any]) -> None:
    """Check that the samples have the types of the model's own draws."""
    for name, value in samples.items():
        dtype = sites[name]["value"].dtype
        if value.dtype != dtype:
            raise ValueError(
                f"samples[{name!r}] must be of {dtype}, as the model's own on this x; got "
                f"{value.dtype}"
            )


def response_under(
    model: Callable[..., Any], samples: Mapping[str, Tensor], draw: int, x: Tensor, site: str
) -> Response:
    """Run the model for its response under one draw."""
    sites = _trace(model, samples, draw, x).nodes
    return response_of(site, cast("Any", sites[site]), len(x))
