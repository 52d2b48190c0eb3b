"""Many chains' way from a fit to where the posterior has its mass: annealed Langevin dynamics.

The peak of a network's posterior density is not where its mass is: weights there are too small, and
a fitted observation scale too sure of itself. A walk of small steps takes long to leave it. Here
each chain moves along its gradient at a constant speed, in directions that noise turns slowly, and
in steps that are too long to follow the density exactly at first: that heats the chain, so that it
crosses ridges, and cools it as the steps shrink. No candidate is refused, so nothing of this is a
draw: it is where draws may start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Annealed", "anneal"]

# Energy errors aimed at, as a variance a step and dimension: hot at first, down to warm over the
# first steps, then cooled by a constant factor a step
HOT, WARM, COLD, COOLING_FROM = 0.5, 0.1, 0.002, 0.7
# Length of the first steps, a coordinate; how fast they adapt, and by how much more where they are
# far too long; the error of a leapfrog step of length e is of order e cubed, its square of e ** 6
FIRST_LENGTH, GAIN, FASTEST, ORDER = 1e-3, 0.02, 5.0, 6
# An error so large, as a variance a dimension, is of no step but of a fall: from there the chain
# might not come back, where numbers of its type have no smaller steps
FALL = 100.0
NUM_CHECKS = 100
# Bytes; just under the most that glibc's allocator, once it has been freed, takes as the size of
# blocks to keep
KEPT = 31 * 2**20

Density = Callable[[Tensor], Tensor]


class Annealed(NamedTuple):
    """Report annealing of C chains.

    Attributes:
        positions: Where each ends, shape ``(C, num_params)``.
        steps: Numbers of some steps, shape ``(K,)``.
        log_densities: The log density after each of them, shape ``(C, K)``.
    """

    positions: Tensor
    steps: Tensor
    log_densities: Tensor


def anneal(
    density: Density,
    starts: Tensor,
    is_moved: Tensor,
    num_steps: int,
    generator: torch.Generator,
    advance: Callable[[int], Any],
) -> Annealed:
    """Move every chain by microcanonical Langevin dynamics with errors that shrink.

    Not exact: steps are not adjusted, and the errors that they make are the heat. A step to where
    the density or its gradient is not finite, or whose error is out of all proportion, is not
    taken: the chain turns back, and makes smaller steps. A chain that the heat has taken where the
    density is lower by a nat a coordinate than at its start, which it would not come back from in
    time, is put back there before the cooling, and at the end.

    Args:
        density: Log density at positions of shape ``(C, num_params)``, by chain, differentiable.
        starts: Where the chains start, with a finite log density; shape ``(C, num_params)``.
        is_moved: Which coordinates move, shape ``(num_params,)``.
        num_steps: Number of steps, each of one gradient.
        generator: The source of noise.
        advance: Called with the number of chains after every step.

    References:
        Robnik, De Luca, Silverstein and Seljak (2023), "Microcanonical Hamiltonian Monte Carlo",
        the dynamics, partial refreshment and control of the step size; Sommer, Robnik, Nozadze,
        Seljak and Ruegamer (2025), "Microcanonical Langevin ensembles", its use for networks.
    """
    # Else every step may give its large blocks back to the system, and get them anew page by page,
    # which took as long as a third of the step
    torch.empty(KEPT, dtype=torch.uint8)
    num_chains, dimensions = len(starts), int(is_moved.sum())
    free, coherence = max(1, dimensions - 1), math.sqrt(dimensions)

    def turned(velocities: Tensor) -> Tensor:
        sizes: Tensor = torch.linalg.vector_norm(velocities, dim=1, keepdim=True)
        return velocities / sizes

    def noise() -> Tensor:
        normal = torch.randn(starts.shape, generator=generator, dtype=starts.dtype)
        return torch.where(is_moved, normal.to(starts.device), 0.0)

    positions, velocities = starts, turned(noise())
    first_lengths = torch.full_like(starts[:, :1], FIRST_LENGTH * math.sqrt(dimensions))
    values, gradients = at_start = _with_gradient(density, positions, is_moved)
    lengths, steps, course = first_lengths, [0], [values]
    for step in range(1, num_steps + 1):
        halves, gained = _accelerated(velocities, gradients, 0.5 * lengths, free)
        moved = positions + lengths * halves
        new_values, new_gradients = _with_gradient(density, moved, is_moved)
        new_velocities, more = _accelerated(halves, new_gradients, 0.5 * lengths, free)
        errors = gained + more - (new_values - values)
        variances = errors.square() / dimensions
        is_possible = (variances <= FALL) & torch.isfinite(new_velocities).all(1)
        variances = torch.where(is_possible, variances, torch.inf)
        aim = _error_variance((step - 1) / num_steps)
        excess = (math.log(aim) - variances.clamp(min=1e-12).log()) / ORDER
        kept = is_possible[:, None]
        positions = torch.where(kept, moved, positions)
        velocities = torch.where(kept, new_velocities, -velocities)
        gradients = torch.where(kept, new_gradients, gradients)
        values = torch.where(is_possible, new_values, values)
        spread = ((2 * lengths / coherence).expm1() / dimensions).sqrt()
        velocities = turned(velocities + spread * noise())
        lengths = lengths * (GAIN * excess.clamp(-FASTEST, 1.0)).exp().to(lengths)[:, None]
        if step in (round(COOLING_FROM * num_steps), num_steps):
            # Where a posterior has its mass, the density is half a nat a coordinate below its peak
            melted = values < at_start[0] - dimensions
            back = melted[:, None]
            positions, lengths = (
                torch.where(back, start, now)
                for start, now in ((starts, positions), (first_lengths, lengths))
            )
            values = torch.where(melted, at_start[0], values)
            gradients = torch.where(back, at_start[1], gradients)
        advance(num_chains)
        if step % max(1, num_steps // NUM_CHECKS) == 0 or step == num_steps:
            steps.append(step)
            course.append(values)
    return Annealed(positions, torch.tensor(steps), torch.stack(course, 1).cpu())


def _error_variance(share: float) -> float:
    """Return the variance of energy errors aimed at after a share of the steps."""
    if share < COOLING_FROM:
        return HOT + (WARM - HOT) * share / COOLING_FROM
    return WARM * float((COLD / WARM) ** ((share - COOLING_FROM) / (1 - COOLING_FROM)))


def _with_gradient(density: Density, positions: Tensor, is_moved: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log densities in double precision, and their gradients."""
    at = positions.detach().requires_grad_()
    values = density(at)
    (gradients,) = torch.autograd.grad(values.sum(), at)
    return values.detach().double(), torch.where(is_moved, gradients, 0.0)


def _accelerated(
    velocities: Tensor, gradients: Tensor, times: Tensor, free: int
) -> tuple[Tensor, Tensor]:
    """Turn velocities of length 1 towards the gradients, for a time.

    Returns:
        The velocities, and the kinetic energy that was gained, shape ``(C,)``.
    """
    sizes = gradients.norm(dim=1, keepdim=True).clamp(min=torch.finfo(gradients.dtype).tiny)
    towards = gradients / sizes
    angle = times * sizes / free
    along, shrunk = (velocities * towards).sum(1, keepdim=True), (-angle).exp()
    pulled = towards * (1 - shrunk) * (1 + shrunk + along * (1 - shrunk))
    turned = pulled + 2 * shrunk * velocities
    grown = angle - math.log(2) + (1 + along + (1 - along) * shrunk.square()).log()
    return turned / turned.norm(dim=1, keepdim=True), free * grown.squeeze(1).double()
