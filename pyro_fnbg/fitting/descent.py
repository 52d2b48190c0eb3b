"""Many chains' way to high density: AdamW in unconstrained space, all chains in one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.fitting.joint import Density
from pyro_fnbg.fitting.splits import Rows

__all__ = ["Course", "Fit", "descend"]

# How often a fit is judged, and in which part of it the learning rate rises
NUM_CHECKS, RISE = 100, 0.1
# By how much a chain's steps shrink each time that its density is lost
DAMPING = 0.3


class Course(NamedTuple):
    """Hold the losses of C chains at K steps of a fit.

    Attributes:
        steps: The steps, shape ``(K,)``; the first is 0, the start.
        training: Minus the log density over the number of rows, mean over the steps since the
            entry before, shape ``(C, K)``; NaN at the start, and where all of them were lost.
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
        course: The losses.
        num_setbacks: How often each chain lost its density and went back, shape ``(C,)``.
    """

    positions: Tensor
    best_steps: Tensor
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

    The loss is that of the held-out rows, or of training where there are none; it is looked at a
    hundred times. A chain whose density or gradient is not finite goes back to its best place, and
    makes smaller steps from there, so that all places that are kept have a finite log density.

    Args:
        density: The log density, whose batches stand for all rows.
        held_out: The log likelihood of held-out rows.
        rows: Which rows each step sees.
        starts: Where the chains start, with a finite log density; shape ``(C, num_params)``.
        is_fitted: Which coordinates move, shape ``(num_params,)``.
        num_steps: Number of steps.
        learning_rate: The highest of AdamW: it rises to that in a straight line in the first
            tenth of the steps, and falls to 0 along a cosine.
        advance: Called with the number of chains after every step.

    References:
        Loshchilov and Hutter (2019), "Decoupled weight decay regularization". There is no decay
        here: the model's priors take its place.
    """
    num_chains, scale = len(starts), rows.plan.num_rows
    positions = starts.clone().requires_grad_()
    optimizer = torch.optim.AdamW([positions], lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_share, max(1, num_steps)))
    num_setbacks = torch.zeros(num_chains, dtype=torch.long, device=starts.device)
    first = _held_out_loss(held_out, rows, starts)
    best = _Best(starts)
    training, held = [torch.full_like(first, torch.nan)], [first]
    steps, since, counts = [0], torch.zeros_like(first), torch.zeros_like(first)
    every = max(1, num_steps // NUM_CHECKS)
    for step in range(1, num_steps + 1):
        batch = rows.batch(step - 1)
        losses = -density(positions, batch) / scale
        (gradient,) = torch.autograd.grad(losses.sum(), positions)
        with torch.no_grad():
            is_lost = ~(torch.isfinite(losses) & torch.isfinite(gradient).all(1))
            if bool(is_lost.any()):
                num_setbacks += is_lost
                positions[is_lost], gradient[is_lost] = best.positions[is_lost], 0.0
                for state in optimizer.state.values():
                    state["exp_avg"][is_lost] = 0.0
            before = positions.clone()
            positions.grad = torch.where(is_fitted, gradient, 0.0)
            optimizer.step()
            schedule.step()
            positions.lerp_(before, (1 - DAMPING ** num_setbacks.to(starts))[:, None])
            since += torch.where(is_lost, 0.0, losses)
            counts += ~is_lost
            if step % every == 0 or step == num_steps:
                training.append(since / counts)
                held.append(_held_out_loss(held_out, rows, positions))
                steps.append(step)
                since, counts = torch.zeros_like(since), torch.zeros_like(counts)
                is_possible = torch.isfinite(density(positions, batch))
                loss = (training if held_out is None else held)[-1]
                best.note(step, positions, torch.where(is_possible, loss, torch.inf))
        advance(num_chains)
    course = Course(
        torch.tensor(steps),
        torch.stack(training, 1).cpu(),
        None if held_out is None else torch.stack(held, 1).cpu(),
    )
    return Fit(best.positions, best.steps.cpu(), course, num_setbacks.cpu())


def _share(num_steps: int, step: int) -> float:
    """Return the learning rate after some steps, as a share of the highest."""
    falling = 0.5 * (1 + math.cos(math.pi * step / num_steps))
    return falling * min(1.0, (step + 1) / (RISE * num_steps))


class _Best:
    """Keep the place of each chain where its loss was lowest so far.

    Any other place is better than the start, unless it is lost.

    Args:
        positions: Where they start, shape ``(C, num_params)``.
    """

    def __init__(self, positions: Tensor) -> None:
        self.positions = positions.clone()
        self.steps = torch.zeros(len(positions), dtype=torch.long, device=positions.device)
        self._losses = torch.full_like(positions[:, 0], torch.inf)

    def note(self, step: int, positions: Tensor, losses: Tensor) -> None:
        """Take over where chains are after a step, where that is better; NaN is not."""
        is_better = losses < self._losses
        self._losses = torch.where(is_better, losses, self._losses)
        self.positions = torch.where(is_better[:, None], positions, self.positions)
        self.steps = torch.where(is_better, step, self.steps)


@torch.no_grad()
def _held_out_loss(held_out: Density | None, rows: Rows, positions: Tensor) -> Tensor:
    """Return minus the mean log likelihood of the held-out rows, shape ``(C,)``; NaN of none."""
    if held_out is None:
        return torch.full_like(positions[:, 0], torch.nan)
    total = sum(held_out(positions, piece) for piece in rows.held_out)
    return -torch.as_tensor(total) / rows.num_held_out
