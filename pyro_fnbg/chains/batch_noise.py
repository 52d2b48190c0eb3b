"""How much a minibatch decides: the same candidates judged on several batches."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.core.moves.joint import stacked
from pyro_fnbg.core.noise import Stream, sweep_noise
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.core.step import accept_prob
from pyro_fnbg.engines.base import Problem, SweepInputs

__all__ = ["BatchNoise", "measure_batch_noise"]

# Candidates judged to measure the noise of minibatch decisions, and batches at least
PROBED_CANDIDATES, MIN_PROBED_BATCHES = 200, 4


class BatchNoise(NamedTuple):
    """Measure how much a minibatch decides, by block.

    Attributes:
        log_ratio_sd: Standard deviation over batches of the log ratio of the same candidate,
            shape ``(num_blocks,)``.
        reversed_share: Probability that an independent batch would reverse the decision, given the
            same uniform, shape ``(num_blocks,)``.
    """

    log_ratio_sd: Tensor
    reversed_share: Tensor


def measure_batch_noise(
    problem: Problem, chain: ChainState, num_batches: int | None = None
) -> BatchNoise:
    """Judge the same candidates from a chain's position on several independent batches.

    Each batch comes from a shuffle of its own. No candidate is accepted (log u is infinite), so
    every block is judged at the given position. Candidates of probability zero on some batch are
    left out of the standard deviation.

    Args:
        problem: What the chains share.
        chain: The chain's state.
        num_batches: Number of batches, at least 2; left out, as many as judge 200 candidates.
    """
    num_blocks, num_params = problem.partition.num_blocks, problem.partition.num_params
    if num_batches is None:
        num_batches = max(MIN_PROBED_BATCHES, PROBED_CANDIDATES // num_blocks)
    z = sweep_noise(chain.key, 0, num_params, num_blocks, Stream.PROBE).z
    batches = range(num_batches)
    rows = [problem.batches.independent_rows(chain.key, number) for number in batches]
    record = problem.engine.run(
        SweepInputs(
            positions=chain.position[None],
            rows=torch.stack(rows)[None],
            z=z.expand(1, num_batches, -1),
            log_u=torch.full((1, num_batches, num_blocks), torch.inf, dtype=torch.float64),
            adaptation=stacked([chain.adaptation]),
        )
    )
    log_ratios = record.log_ratios[0].cpu()
    finite = torch.isfinite(log_ratios)
    counts = finite.sum(0)
    means = torch.where(finite, log_ratios, 0.0).sum(0) / counts
    squares = torch.where(finite, (log_ratios - means).square(), 0.0).sum(0)
    variances = torch.where(counts > 1, squares / (counts - 1), torch.nan)
    probs = accept_prob(log_ratios)
    # With one uniform for both batches, the decisions differ when it falls between the two
    gaps = (probs.unsqueeze(0) - probs.unsqueeze(1)).abs().sum((0, 1))
    return BatchNoise(variances.sqrt(), gaps / (num_batches * (num_batches - 1)))
