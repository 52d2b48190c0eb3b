"""Assertions on sampled means, with tolerances from Monte Carlo standard errors."""

from typing import NamedTuple

import arviz as az
import numpy as np
import torch
from numpy.typing import ArrayLike


class Estimate(NamedTuple):
    """A sampled mean, its Monte Carlo standard error and its effective sample size."""

    mean: float
    error: float
    ess: float


def estimate(draws: ArrayLike | torch.Tensor, min_ess: float = 100.0) -> Estimate:
    """Estimate the mean of draws of shape (chain, draw).

    The standard error is that of ArviZ, the standard deviation over the root of the effective
    sample size of the mean, but computed here since ArviZ 0.23 and 1.x differ in ``az.mcse``.

    Raises:
        ValueError: If `draws` does not have two dimensions.
        AssertionError: If a draw is not finite, no draw differs from another, or the effective
            sample size is below `min_ess`, where the standard error cannot be trusted.
    """
    if isinstance(draws, torch.Tensor):
        draws = draws.detach().cpu().numpy()
    values = np.asarray(draws, dtype=np.float64)
    if values.ndim != 2:
        raise ValueError(f"draws have shape {values.shape}; expected (chain, draw)")
    assert np.isfinite(values).all(), f"{(~np.isfinite(values)).sum()} draws are not finite"
    assert np.ptp(values) > 0, f"all draws equal {values.flat[0]:.6g}"
    ess = float(az.ess(values, method="mean"))
    assert ess >= min_ess, f"effective sample size {ess:.1f} is below {min_ess:g}: draw more"
    return Estimate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(ess)), ess)


def assert_expectation(
    draws: ArrayLike | torch.Tensor,
    expected: float,
    z_max: float = 4.5,
    min_ess: float = 100.0,
) -> None:
    """Assert that draws of shape (chain, draw) have the expected mean, up to Monte Carlo error.

    At the default `z_max` a correct sampler fails about 7 times in a million comparisons.
    """
    mean, error, ess = estimate(draws, min_ess)
    z = (mean - float(expected)) / error
    assert abs(z) < z_max, (
        f"mean {mean:.6g}, expected {float(expected):.6g}: z = {z:.2f} exceeds {z_max:g} "
        f"(standard error {error:.3g}, ess {ess:.0f})"
    )


def assert_same_expectation(
    a: ArrayLike | torch.Tensor,
    b: ArrayLike | torch.Tensor,
    z_max: float = 4.5,
    min_ess: float = 100.0,
) -> None:
    """Assert that two independent samplers' draws, each (chain, draw), have the same mean."""
    first, second = estimate(a, min_ess), estimate(b, min_ess)
    error = float(np.hypot(first.error, second.error))
    z = (first.mean - second.mean) / error
    assert abs(z) < z_max, (
        f"means {first.mean:.6g} and {second.mean:.6g}: z = {z:.2f} exceeds {z_max:g} "
        f"(standard error {error:.3g}, ess {first.ess:.0f} and {second.ess:.0f})"
    )
