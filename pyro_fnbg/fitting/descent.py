"""Many chains' way to high density: AdamW in unconstrained space, all chains in one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.fitting.joint import Density
from pyro_fnbg.fitting.splits import Rows

__all__ = ["Course", "Fit", "descend"]

# How often a fit is judged, and by how much a chain's steps shrink where its density is lost
NUM_CHECKS, DAMPING = 100, 0.3


class Course(NamedTuple):
    """Hold the losses of C chains at K steps of a fit.

    Attributes:
        steps: The steps, shape ``(K,)``; the first is 0, the start.
        training: Minus the log density over the number of rows, mean over the steps since the
            entry before, shape ``(C, K)``; NaN at the start.
        held_out: Minus the mean log likelihood of the held-out rows, shape ``(C, K)``; None where
            there are none.
    """

    steps: Tensor
    training: Tensor
    held_out: Tensor | None


class Fit(NamedTuple):
    """Report a fit of C chains.

    Attributes:
        positions: The best place of each, shape ``(C, num_params)``.
        best_steps: The step after which it was there, shape ``(C,)``.
        num_steps: Number of steps made.
        course: The losses.
        num_setbacks: How often each chain lost its density and went back, shape ``(C,)``.
    """

    positions: Tensor
    best_steps: Tensor
    num_steps: int
    course: Course
    num_setbacks: Tensor


def descend(
    density: Density,
    held_out: Density | None,
    rows: Rows,
    starts: Tensor,
    is_fitted: Tensor,
    num_steps: int,
    learning_rate: float,
    advance: Callable[[int], Any],
) -> Fit:
    """Raise the log density of every chain, and keep the place with the lowest loss.

    The loss is that of the held-out rows, or of training where there are none. The learning rate
    falls to 0 along a cosine. A chain that comes where its density or gradient is not finite goes
    back to its best place, and makes smaller steps from there.

    Args:
        density: The log density, whose batches stand for all rows.
        held_out: The log likelihood of held-out rows.
        rows: Which rows each step sees.
        starts: Where the chains start, with a finite log density; shape ``(C, num_params)``.
        is_fitted: Which coordinates move, shape ``(num_params,)``.
        num_steps: Number of steps.
        learning_rate: That of the first step.
        advance: Called with the number of chains after every step.
    """
    num_chains, scale = len(starts), rows.plan.num_rows
    positions = starts.clone().requires_grad_()
    optimizer = torch.optim.AdamW([positions], lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / num_steps))
    )
    best = starts.clone()
    lowest = _held_out_loss(held_out, rows, starts)
    held = [lowest.clone()]
    training = [torch.full_like(lowest, torch.nan)]
    steps = [0]
    best_steps = torch.zeros(num_chains, dtype=torch.long)
    num_setbacks = torch.zeros(num_chains, dtype=torch.long)
    summed = torch.zeros_like(lowest)
    every = max(1, num_steps // NUM_CHECKS)
    for step in range(1, num_steps + 1):
        losses = -density(positions, rows.batch(step - 1)) / scale
        (gradient,) = torch.autograd.grad(losses.sum(), positions)
        with torch.no_grad():
            losses = losses.detach()
            is_lost = ~(torch.isfinite(losses) & torch.isfinite(gradient).all(1))
            positions.grad = torch.where(is_fitted, gradient, 0.0)
            before = positions.clone() if bool(num_setbacks.any()) else positions
            if bool(is_lost.any()):
                num_setbacks += is_lost.cpu()
                positions[is_lost], before = best[is_lost], positions.clone()
                before[is_lost] = best[is_lost]
                positions.grad[is_lost] = 0.0
                for moments in optimizer.state[positions].values():
                    if moments.shape == positions.shape:
                        moments[is_lost] = 0.0
            optimizer.step()
            schedule.step()
            if before is not positions:
                damping = DAMPING ** num_setbacks.to(positions)
                positions.copy_(torch.lerp(before, positions, damping[:, None]))
            summed += losses
            advance(num_chains)
            if step % every and step < num_steps:
                continue
            training.append(summed / (step - steps[-1]))
            steps.append(step)
            summed = torch.zeros_like(summed)
            if held_out is not None:
                held.append(_held_out_loss(held_out, rows, positions))
            now = held[-1] if held_out is not None else training[-1]
            is_better = (now < lowest) & torch.isfinite(positions).all(1) & ~is_lost
            lowest = torch.where(is_better, now, lowest)
            best = torch.where(is_better[:, None], positions, best)
            best_steps[is_better.cpu()] = step
    course = Course(
        torch.tensor(steps),
        torch.stack(training, 1).cpu(),
        None if held_out is None else torch.stack(held, 1).cpu(),
    )
    return Fit(best, best_steps, steps[-1], course, num_setbacks)


@torch.no_grad()
def _held_out_loss(held_out: Density | None, rows: Rows, positions: Tensor) -> Tensor:
    """Return minus the mean log likelihood of the held-out rows, shape ``(C,)``."""
    if held_out is None:
        return torch.full_like(positions[:, 0], torch.inf)
    total = sum(held_out(positions, piece) for piece in rows.held_out)
    return -torch.as_tensor(total) / rows.num_held_out
