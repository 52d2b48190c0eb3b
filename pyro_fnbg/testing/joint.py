"""Geweke's joint test of a transition: alternating data and parameters against plain simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Generator, Tensor

from pyro_fnbg.core.checks import check_count
from pyro_fnbg.core.layout import Layout
from pyro_fnbg.testing.expectations import assert_same_expectation

__all__ = ["JointDraws", "Transition", "assert_joint_distribution", "kernel_transition"]

Transition = Callable[[Tensor, Tensor, int], Tensor]
# Parts of the one chain, between which ArviZ compares
PARTS = 4


class JointDraws(NamedTuple):
    """Hold draws of parameters and data together.

    Attributes:
        parameters: Shape ``(4, draws, num_params)``, four parts of one chain after each other.
        data: Shape ``(4, draws, ...)``, those that led to the parameters beside them.

    Example:
        >>> draws = JointDraws(parameters=torch.zeros(4, 1000, 2), data=torch.zeros(4, 1000, 3))
        >>> draws.parameters.flatten(0, 1).var(0)  # beside the prior's, which is known
        tensor([0., 0.])
    """

    parameters: Tensor
    data: Tensor


def assert_joint_distribution(
    transition: Transition,
    sample_prior: Callable[[int, Generator], Tensor],
    simulate: Callable[[Tensor, Generator], Tensor],
    statistics: Callable[[Tensor, Tensor], Mapping[str, Tensor]],
    num_sweeps: int,
    num_simulated: int = 200_000,
    z_max: float = 4.5,
    min_ess: float = 400.0,
    seed: int = 0,
) -> JointDraws:
    """Assert that a transition leaves the posterior of every data set invariant: Geweke's test.

    One chain alternates between new data, given the parameters, and the transition, given the data.
    If the transition is right then parameters and data together keep their joint distribution, so
    that their means are those of plain simulation from the model. It must not adapt. A right
    transition passes whatever its speed, if the chain is long enough for `min_ess`; a transition
    with a small bias fails only in a chain so long that the standard error is smaller.

    Args:
        transition: From parameters, shape ``(num_params,)``, data and the step's number to the next
            parameters: one sweep of the sampler. ``kernel_transition`` makes one of a Pyro kernel.
        sample_prior: From a number of draws and a generator to parameters from the prior, shape
            ``(draws, num_params)``.
        simulate: From parameters, shape ``(..., num_params)``, and a generator to data given them,
            shape ``(..., *data)``.
        statistics: From parameters and data, with the same leading dimensions, to numbers by name,
            each of shape ``(...)``. Squares and products of parameters and data show the most.
        num_sweeps: Length of the chain, a multiple of 4.
        num_simulated: Number of draws of the plain simulation, a multiple of 4.
        z_max: Largest distance of two means allowed, in standard errors of the difference.
        min_ess: Least effective sample size of every statistic.
        seed: Of the prior and of the data; the transition has randomness of its own.

    Returns:
        The chain, for further checks, as of moments of the prior that are known exactly.

    Raises:
        AssertionError: If a mean differs, with the statistic's name; or if the chain is too short.

    References:
        Geweke (2004), "Getting it right: joint distribution tests of posterior simulators".

    Example:
        >>> def sample_prior(draws, rng):
        ...     return torch.randn(draws, 1, generator=rng)
        >>> def simulate(parameters, rng):
        ...     noise = torch.randn(parameters.shape, generator=rng)
        ...     return parameters + noise
        >>> def from_the_posterior(parameters, data, number):
        ...     return 0.5 * data + 0.5**0.5 * torch.randn(1)
        >>> def from_the_prior(parameters, data, number):
        ...     return torch.randn(1)
        >>> def statistics(parameters, data):
        ...     return {"square": parameters[..., 0] ** 2, "product": (parameters * data)[..., 0]}
        >>> _ = torch.manual_seed(1)
        >>> given = sample_prior, simulate, statistics, 4_000
        >>> draws = assert_joint_distribution(from_the_posterior, *given)
        >>> draws.parameters.shape
        torch.Size([4, 1000, 1])
        >>> _ = assert_joint_distribution(from_the_prior, *given)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        AssertionError: product: means ... and ...: z = ... exceeds 4.5 (...)
    """
    for name, count in (("num_sweeps", num_sweeps), ("num_simulated", num_simulated)):
        check_count(name, count, PARTS)
        if count % PARTS:
            raise ValueError(f"{name} must be a multiple of {PARTS}, got {count}")
    rng = Generator().manual_seed(seed)
    parameters = sample_prior(1, rng)[0]
    visited, seen = [], []
    for number in range(num_sweeps):
        data = simulate(parameters, rng)
        parameters = transition(parameters, data, number)
        visited.append(parameters)
        # Beside new data, a transition that forgot the data would look right
        seen.append(data)
    chain = JointDraws(_in_parts(torch.stack(visited)), _in_parts(torch.stack(seen)))
    simulated = _in_parts(sample_prior(num_simulated, rng))
    expected = statistics(simulated, simulate(simulated, rng))
    for name, values in statistics(*chain).items():
        try:
            assert_same_expectation(values, expected[name], z_max, min_ess)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
    return chain


def kernel_transition(
    make_kernel: Callable[[], MCMCKernel],
    arguments: Callable[[Tensor], tuple[Any, ...]],
    layout: Layout,
) -> Transition:
    """Return one step of a kernel for Pyro's ``MCMC`` as a transition, for Geweke's test.

    The kernel is made and set up anew for every data set, without warmup, as ``MCMC`` would: this
    takes about a tenth of a second a step with FNBG, so that chains are short.

    Args:
        make_kernel: Makes the kernel, with a step size of its own that nothing tunes.
        arguments: From data to the model's arguments.
        layout: Names and shapes of the sites, in the order in which parameters are flat. Parameters
            are unconstrained.

    Returns:
        The transition. Its randomness is that of Pyro's seed.

    Example:
        >>> import pyro, pyro.distributions as dist
        >>> from pyro_fnbg import FNBG, Site
        >>> def model(y):
        ...     mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        ...     with pyro.plate("data", 3):
        ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> def make_kernel():
        ...     return FNBG(model, proposal_scale=1.0)
        >>> pyro.set_rng_seed(1)
        >>> transition = kernel_transition(make_kernel, lambda y: (y,), Layout((Site("mean", ()),)))
        >>> transition(torch.zeros(1), torch.ones(3), 0).shape
        torch.Size([1])
    """

    def transition(parameters: Tensor, data: Tensor, number: int) -> Tensor:
        kernel: Any = make_kernel()
        kernel.initial_params = layout.unflatten(parameters)
        kernel.setup(0, *arguments(data))
        moved = kernel.sample(kernel.initial_params)
        kernel.cleanup()
        return layout.flatten(moved).detach()

    return transition


def _in_parts(draws: Tensor) -> Tensor:
    return draws.reshape(PARTS, -1, *draws.shape[1:])
