"""Simulation-based calibration of a whole sampler: teachers among draws given what they taught."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Generator, Tensor

from pyro_fnbg.core.checks import check_count
from pyro_fnbg.core.layout import Layout
from pyro_fnbg.results.estimates import import_arviz

__all__ = ["Calibration", "Posterior", "assert_calibrated", "kernel_posterior"]

Posterior = Callable[[Tensor, int], Tensor]
# Mean squared distance from the middle of numbers uniform on (0, 1), and its variance
SPREAD, VARIANCE_OF_SQUARES = 1 / 12, 1 / 180


class Calibration(NamedTuple):
    """Hold where teachers lay among the draws given their data, for each statistic by name.

    Attributes:
        places: Share of the draws below the teacher, shape ``(num_teachers,)``: uniform on (0, 1)
            where the sampler is right.
        ess: Effective sample size of the draws of a data set, the harmonic mean over data sets.

    Example:
        >>> found = Calibration(places={"fit": torch.rand(100)}, ess={"fit": 250.0})
        >>> torch.histogram(found.places["fit"], bins=10)[0].sum()
        tensor(100.)
    """

    places: dict[str, Tensor]
    ess: dict[str, float]


def assert_calibrated(
    posterior: Posterior,
    sample_prior: Callable[[int, Generator], Tensor],
    simulate: Callable[[Tensor, Generator], Tensor],
    statistics: Callable[[Tensor, Tensor], Mapping[str, Tensor]],
    num_teachers: int = 100,
    z_max: float = 4.5,
    min_ess: float = 100.0,
    seed: int = 0,
) -> Calibration:
    """Assert that teachers lie among a sampler's draws as one draw more: a rank test.

    A *teacher* is drawn from the prior, and data given the teacher. So it is one exact draw of the
    posterior given its data, and its place among independent draws is uniform, whatever the
    posterior is. Over many teachers, the mean place and the mean squared distance of places from
    the middle are compared with those of uniform numbers: a bias shows in the first, and draws
    that spread too far or too little in the second. All of a sampler is tested, its warmup
    and tuning included; for exactly one sweep, see ``assert_joint_distribution``.

    It is exact for independent draws. Dependent ones, of an effective sample size e, scatter places
    further, by 1 / (6 e) in the squared distance: with the least ess that is allowed, 100, a sixth
    of a standard error at 100 teachers, a half at 900. A chain must start from where the teacher
    has no say, and be long enough to forget it.

    Args:
        posterior: From data and their number to draws given these data, shape
            ``(draws, num_params)``. ``kernel_posterior`` makes one of a Pyro kernel.
        sample_prior: From a number of draws and a generator to parameters from the prior, shape
            ``(draws, num_params)``.
        simulate: From parameters, shape ``(..., num_params)``, and a generator to data given them,
            shape ``(..., *data)``.
        statistics: From parameters and data, with the same leading dimensions, to numbers by name,
            each of shape ``(...)``. Those that depend on the data show the most, the log likelihood
            above all. Of networks, take none that changes with the order or the signs of nodes,
            between which a chain need not go to and fro.
        num_teachers: Number of teachers, each with data of its own.
        z_max: Largest distance allowed, in standard errors.
        min_ess: Least effective sample size of every statistic, the harmonic mean over data sets.
        seed: Of teachers and data; the sampler has randomness of its own.

    Returns:
        The places, for a look at their histograms.

    Raises:
        AssertionError: If places are not uniform, with the statistic's name; or if draws are not
            finite, or too few.

    References:
        Cook, Gelman and Rubin (2006), "Validation of software for Bayesian models using posterior
        quantiles"; Talts, Betancourt, Simpson, Vehtari and Gelman (2018), "Validating Bayesian
        inference algorithms with simulation-based calibration".

    Example:
        >>> def sample_prior(draws, rng):
        ...     return torch.randn(draws, 1, generator=rng)
        >>> def simulate(parameters, rng):
        ...     return parameters + torch.randn(parameters.shape, generator=rng)
        >>> def statistics(parameters, data):
        ...     return {"mean": parameters[..., 0], "error": (data - parameters)[..., 0].square()}
        >>> def right(data, number):
        ...     return 0.5 * data + 0.5**0.5 * torch.randn(200, 1)
        >>> def too_wide(data, number):
        ...     return 0.5 * data + 1.5 * torch.randn(200, 1)
        >>> _ = torch.manual_seed(1)
        >>> given = sample_prior, simulate, statistics, 200
        >>> found = assert_calibrated(right, *given)
        >>> found.places["mean"].shape
        torch.Size([200])
        >>> _ = assert_calibrated(too_wide, *given)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        AssertionError: mean: draws spread too far: ...: z = -... exceeds 4.5 (200 teachers, ...)
    """
    check_count("num_teachers", num_teachers, 1)
    arviz = import_arviz()
    rng = Generator().manual_seed(seed)
    places: dict[str, list[float]] = {}
    inverse_ess: dict[str, float] = {}
    for number in range(num_teachers):
        teacher = sample_prior(1, rng)
        data = simulate(teacher, rng)
        draws = posterior(data[0], number)
        both = torch.cat([teacher, draws.to(teacher)])
        for name, values in statistics(both, data.expand(len(both), *data.shape[1:])).items():
            own, others = values[0].double(), values[1:].double()
            if not (own.isfinite() and others.isfinite().all()):
                raise AssertionError(f"{name}: numbers of data set {number} are not all finite")
            # Among equals, every place is as likely
            below, equal = int((others < own).sum()), int((others == own).sum())
            within = float(torch.rand((), generator=rng, dtype=torch.float64))
            place = (below + within * (equal + 1)) / (len(others) + 1)
            places.setdefault(name, []).append(place)
            ess = float(arviz.ess(others[None].numpy(), method="mean"))
            inverse_ess[name] = inverse_ess.get(name, 0.0) + 1 / ess / num_teachers
    found = Calibration(
        {name: torch.tensor(values, dtype=torch.float64) for name, values in places.items()},
        {name: 1 / value for name, value in inverse_ess.items()},
    )
    for name, values in found.places.items():
        _assert_uniform(name, values, found.ess[name], z_max, min_ess)
    return found


def _assert_uniform(name: str, places: Tensor, ess: float, z_max: float, min_ess: float) -> None:
    mean, square = float(places.mean()), float((places - 0.5).square().mean())
    shift = (mean - 0.5) / math.sqrt(SPREAD / len(places))
    excess = (square - SPREAD) / math.sqrt(VARIANCE_OF_SQUARES / len(places))
    of = f"({len(places)} teachers, ess {ess:.0f})"
    # Written so that NaN fails, too
    if not abs(shift) < z_max:
        wrong = "too small" if mean > 0.5 else "too large"
        raise AssertionError(
            f"{name}: draws are {wrong}: the mean place is {mean:.3g}, expected 0.5: "
            f"z = {shift:.3g} exceeds {z_max:g} {of}"
        )
    if not abs(excess) < z_max:
        wrong = "too little" if square > SPREAD else "too far"
        raise AssertionError(
            f"{name}: draws spread {wrong}: the mean squared distance from the middle is "
            f"{square:.3g}, expected {SPREAD:.3g}: z = {excess:.3g} exceeds {z_max:g} {of}"
        )
    if not ess >= min_ess:
        raise AssertionError(
            f"{name}: effective sample size {ess:.1f} is below {min_ess:g}: draw more"
        )


def kernel_posterior(
    make_kernel: Callable[[], MCMCKernel],
    arguments: Callable[[Tensor], tuple[Any, ...]],
    layout: Layout,
    num_draws: int,
    warmup_steps: int,
) -> Posterior:
    """Return one chain of a kernel for Pyro's ``MCMC`` as a sampler, for ``assert_calibrated``.

    The kernel is made, set up and warmed up anew for every data set, as ``MCMC`` would.

    Args:
        make_kernel: Makes the kernel.
        arguments: From data to the model's arguments.
        layout: Names and shapes of the sites, in the order in which parameters are flat. Parameters
            are unconstrained.
        num_draws: Draws of a chain.
        warmup_steps: Steps before them.

    Returns:
        The sampler. Its randomness is that of Pyro's seed.

    Example:
        >>> import pyro, pyro.distributions as dist
        >>> from pyro_fnbg import FNBG, Site
        >>> def model(y):
        ...     mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        ...     with pyro.plate("data", 3):
        ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> layout = Layout((Site("mean", ()),))
        >>> pyro.set_rng_seed(1)
        >>> posterior = kernel_posterior(lambda: FNBG(model), lambda y: (y,), layout, 50, 20)
        >>> posterior(torch.ones(3), 0).shape
        torch.Size([50, 1])
    """

    def posterior(data: Tensor, number: int) -> Tensor:
        kernel: Any = make_kernel()
        kernel.setup(warmup_steps, *arguments(data))
        params = kernel.initial_params
        draws = []
        for step in range(warmup_steps + num_draws):
            params = kernel.sample(params)
            if step >= warmup_steps:
                draws.append(layout.flatten(params).detach())
        kernel.cleanup()
        return torch.stack(draws)

    return posterior
