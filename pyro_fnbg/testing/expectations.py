"""Checks of sampled means, with tolerances from Monte Carlo standard errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from pyro_fnbg.results.estimates import import_arviz

__all__ = ["Estimate", "assert_expectation", "assert_same_expectation", "estimate"]


class Estimate(NamedTuple):
    """Hold a sampled mean with what is known of its error.

    Attributes:
        mean: The mean over all draws of all chains.
        error: Its Monte Carlo standard error.
        ess: Its effective sample size.

    Example:
        >>> found = Estimate(mean=0.1, error=0.05, ess=400.0)
        >>> round(found.mean / found.error, 3)  # standard errors away from 0
        2.0
    """

    mean: float
    error: float
    ess: float


def estimate(draws: ArrayLike | Tensor, min_ess: float = 100.0) -> Estimate:
    """Estimate the mean of draws of one number.

    The standard error is that of ArviZ, the standard deviation over the root of the effective
    sample size of the mean, but computed here since ArviZ 0.23 and 1.x differ in ``az.mcse``.

    Args:
        draws: Draws of shape ``(chains, draws)``.
        min_ess: Least effective sample size at which the standard error is trusted.

    Returns:
        The mean, its Monte Carlo standard error and its effective sample size.

    Raises:
        ValueError: If `draws` does not have two dimensions.
        AssertionError: If a draw is not finite, no draw differs from another, or the effective
            sample size is below `min_ess`.

    Example:
        >>> import torch
        >>> draws = torch.randn(4, 1000, generator=torch.Generator().manual_seed(1))
        >>> found = estimate(draws)
        >>> abs(found.mean) < 0.1, 0.01 < found.error < 0.02
        (True, True)
    """
    if isinstance(draws, Tensor):
        draws = draws.detach().cpu().numpy()
    values = np.asarray(draws, dtype=np.float64)
    if values.ndim != 2:
        raise ValueError(f"draws have shape {values.shape}; expected (chain, draw)")
    if not np.isfinite(values).all():
        raise AssertionError(f"{(~np.isfinite(values)).sum()} draws are not finite")
    if np.ptp(values) == 0:
        raise AssertionError(f"all draws equal {values.flat[0]:.6g}")
    ess = float(import_arviz().ess(values, method="mean"))
    # Written so that NaN fails, too
    if not ess >= min_ess:
        raise AssertionError(f"effective sample size {ess:.1f} is below {min_ess:g}: draw more")
    return Estimate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(ess)), ess)


def assert_expectation(
    draws: ArrayLike | Tensor,
    expected: float,
    z_max: float = 4.5,
    min_ess: float = 100.0,
) -> None:
    """Assert that draws have the expected mean, up to Monte Carlo error.

    At the default `z_max` a correct sampler fails about 7 times in a million comparisons.

    Args:
        draws: Draws of shape ``(chains, draws)``.
        expected: The mean that they must have.
        z_max: Largest distance allowed, in standard errors.
        min_ess: See ``estimate``.

    Raises:
        AssertionError: If the mean is further off, or ``estimate`` refuses the draws.

    Example:
        >>> import torch
        >>> draws = torch.randn(4, 1000, generator=torch.Generator().manual_seed(1))
        >>> assert_expectation(draws, 0.0)
        >>> assert_expectation(draws**2, 1.0)
        >>> assert_expectation(draws, 0.2)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        AssertionError: mean ..., expected 0.2: z = ... exceeds 4.5 (standard error ..., ess ...)
    """
    mean, error, ess = estimate(draws, min_ess)
    z = (mean - float(expected)) / error
    if not abs(z) < z_max:
        raise AssertionError(
            f"mean {mean:.6g}, expected {float(expected):.6g}: z = {z:.2f} exceeds {z_max:g} "
            f"(standard error {error:.3g}, ess {ess:.0f})"
        )


def assert_same_expectation(
    a: ArrayLike | Tensor,
    b: ArrayLike | Tensor,
    z_max: float = 4.5,
    min_ess: float = 100.0,
) -> None:
    """Assert that two independent samplers' draws have the same mean, up to Monte Carlo error.

    Args:
        a: Draws of the first sampler, shape ``(chains, draws)``.
        b: Draws of the second, with shape ``(chains, draws)`` of their own.
        z_max: Largest distance allowed, in standard errors of the difference.
        min_ess: See ``estimate``.

    Raises:
        AssertionError: If the means are further apart, or ``estimate`` refuses the draws.

    Example:
        >>> import torch
        >>> rng = torch.Generator().manual_seed(1)
        >>> normal = torch.randn(4, 1000, generator=rng)
        >>> uniform = torch.rand(4, 1000, generator=rng) - 0.5
        >>> assert_same_expectation(normal, uniform)
    """
    first, second = estimate(a, min_ess), estimate(b, min_ess)
    error = float(np.hypot(first.error, second.error))
    z = (first.mean - second.mean) / error
    if not abs(z) < z_max:
        raise AssertionError(
            f"means {first.mean:.6g} and {second.mean:.6g}: z = {z:.2f} exceeds {z_max:g} "
            f"(standard error {error:.3g}, ess {first.ess:.0f} and {second.ess:.0f})"
        )
