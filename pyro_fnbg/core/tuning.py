"""Tuning of the proposal scales during warmup.

Each block's log scale follows a stochastic approximation that raises it when candidates are
accepted too often and lowers it when too rarely. An adapting chain is not a Markov chain, so the
scales are frozen after warmup and only the draws that follow are kept.

References: Andrieu and Thoms (2008), "A tutorial on adaptive MCMC", the scale recursion of
Algorithm 4; Robbins and Monro (1951), "A stochastic approximation method", for gains that end as
a constant over the number of the step.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition

__all__ = ["adapt", "gains", "initial_scales", "target_accept_probs"]

# Gains sum to infinity (a scale can travel any distance) and their squares do not (it settles), as
# the theory asks. Those of t**-GAIN_DECAY travel fast, but still follow the last thousand sweeps
# after ten thousand, while a network's chain takes many thousands to see how wide its posterior is
# elsewhere. So from sweep 1,024 on it is SETTLING / t: a scale then fits the mean acceptance over
# the last part of the warmup, half of it or so, however long that is
GAIN_DECAY, SETTLING = 0.6, 16.0

# Tuning starts at this share of the scale that would suit the prior. Steps of the prior's size
# throw a network's nodes to where the data do not reach them; there a wide scale is learnt that the
# node is stuck with when it comes back after warmup. To grow back takes about twenty sweeps.
FIRST_SHARE = 0.01
# Coordinates whose spread is computed at a time
MAX_COORDINATES = 2**16

# Distance of the quartiles of a Gaussian, in standard deviations
NORMAL_QUARTILES = 1.349

# Acceptance rates near the best for a random walk on a Gaussian of 1, 2, 3 and 10 or more
# dimensions (Gelman, Roberts and Gilks, 1996); between them, linear in the dimension
TARGET_SIZES = (1, 2, 3, 10)
TARGET_RATES = (0.44, 0.35, 0.32, 0.30)


def target_accept_probs(partition: Partition) -> Tensor:
    """Return the acceptance probability aimed at for each block, by its size.

    Example:
        >>> from pyro_fnbg.core.blocks import Block
        >>> blocks = (Block("a", (0,)), Block("b", tuple(range(1, 12))))
        >>> target_accept_probs(Partition(blocks, 12)).tolist()
        [0.44, 0.3]
    """
    return torch.from_numpy(np.interp(partition.sizes.numpy(), TARGET_SIZES, TARGET_RATES))


def initial_scales(
    prior_draws: Tensor, partition: Partition, is_given: Tensor | None = None
) -> Tensor:
    """Scale each block to its spread under the prior.

    A block of d coordinates starts at 2.4 / sqrt(d) times the root mean variance of its
    coordinates, the best scale for a Gaussian of that spread (Gelman, Roberts and Gilks, 1996).
    Where the tails are so heavy that the variance of the draws says little (a Cauchy prior has
    none), the spread is three times what a Gaussian of the same quartiles has, at most.

    Args:
        prior_draws: Unconstrained draws from the prior, shape ``(draws, num_params)``.
        partition: The blocks.
        is_given: Which blocks have a scale already, and need no spread, shape ``(num_blocks,)``.

    Returns:
        Standard deviations, shape ``(num_blocks,)``.

    Raises:
        ValueError: If the draws of a block do not vary or are not finite, naming the block.
    """
    # Some coordinates at a time: in double precision all draws take twice their memory once more
    some = prior_draws.split(MAX_COORDINATES, 1)
    variances = torch.cat([_variances(draws.double()) for draws in some])
    sums = torch.zeros(partition.num_blocks, dtype=torch.float64)
    sums = sums.index_add(0, partition.block_of_coordinate, variances)
    scales = 2.4 / partition.sizes * sums.sqrt()
    is_given = torch.zeros(len(scales), dtype=torch.bool) if is_given is None else is_given
    own = zip(partition.blocks, scales.tolist(), is_given.tolist(), strict=True)
    for block, scale, has_scale in own:
        if not has_scale and not 0 < scale < float("inf"):
            raise ValueError(
                f"block {block.name!r} has no finite spread under the prior (scale {scale}), "
                "so no proposal scale can be derived from it: give proposal_scale"
            )
    return scales


def _variances(draws: Tensor) -> Tensor:
    """Estimate each coordinate's variance, bounded by its quartiles where single draws make it."""
    variances, mean = draws.var(0), draws.mean(0)
    farthest = torch.maximum(draws.amax(0) - mean, mean - draws.amin(0))
    # Of a Gaussian's coordinates less than one in a hundred is looked at, and none is bounded
    is_heavy = ~(farthest <= 4 * variances.sqrt())
    ordered = draws[:, is_heavy].sort(0).values
    quartile = len(draws) // 4
    bounds = (3 * (ordered[-1 - quartile] - ordered[quartile]) / NORMAL_QUARTILES).square()
    heavy = variances[is_heavy]
    variances[is_heavy] = torch.where((bounds > 0) & ~(heavy <= bounds), bounds, heavy)
    return variances


def gains(first: int, count: int) -> Tensor:
    r"""Return the gain after each of ``count`` sweeps of the warmup, of which ``first`` are over.

    After sweep t it is the smaller of t\ :sup:`-0.6` and 16 / t, which cross at t = 1,024. Where
    the acceptance probability falls by b with every unit of the log scale, sweep t then counts by
    (t / n)\ :sup:`16 b` at sweep n. For blocks of networks b is about a quarter: what the first
    half of a long warmup led to counts by a sixteenth at its end.

    Example:
        >>> gains(first=0, count=2)
        tensor([1.0000, 0.6598], dtype=torch.float64)
        >>> gains(first=9_999, count=1)
        tensor([0.0016], dtype=torch.float64)
    """
    numbers = np.arange(first + 1, first + count + 1, dtype=np.float64)
    return torch.from_numpy(np.minimum(numbers**-GAIN_DECAY, SETTLING / numbers))


def adapt(scales: Tensor, accept_probs: Tensor, targets: Tensor, gain: Tensor) -> Tensor:
    """Move each log scale by the gain times (acceptance probability - target).

    Args:
        scales: Proposal scales, shape ``(..., num_blocks)``.
        accept_probs: min(1, ratio) of each block in the last sweep, of the same shape;
            0 for refused candidates, never NaN.
        targets: Acceptance probabilities aimed at, shape ``(num_blocks,)``.
        gain: Size of the move, a scalar.

    Example:
        >>> adapt(torch.ones(1), torch.tensor([1.0]), torch.tensor([0.44]), torch.tensor(1.0)).log()
        tensor([0.5600])
    """
    return scales * (gain * (accept_probs - targets)).exp()
