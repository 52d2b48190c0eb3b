"""Acceptance rates and the noise of minibatch decisions, counted by block, node and layer."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_fnbg.core.batches import Batches
from pyro_fnbg.core.blocks import Block, Partition
from pyro_fnbg.core.noise import ChainKey, Stream, sweep_noise
from pyro_fnbg.core.step import accept_prob
from pyro_fnbg.engines.base import Engine, SweepResults

__all__ = [
    "BatchNoise",
    "DrawStatistics",
    "Tally",
    "acceptance_rates",
    "batch_noise_report",
    "measure_batch_noise",
]

# Rates of more layers than these are shown as a range
MAX_SHOWN_LAYERS = 10


class Tally(NamedTuple):
    """Count the decisions of a phase, by block.

    Attributes:
        accepted: Accepted candidates, shape ``(num_blocks,)``.
        non_finite: Candidates whose log density was NaN or plus infinity, shape ``(num_blocks,)``.
        sweeps: Number of sweeps.
    """

    accepted: Tensor
    non_finite: Tensor
    sweeps: int

    @classmethod
    def empty(cls, num_blocks: int) -> Tally:
        """Start a count."""
        zeros = torch.zeros(num_blocks, dtype=torch.long)
        return cls(zeros, zeros, 0)

    def add(self, accepted: Tensor, log_ratios: Tensor) -> Tally:
        """Count K sweeps, given shapes ``(K, num_blocks)``."""
        return Tally(
            self.accepted + accepted.sum(0).cpu(),
            self.non_finite + log_ratios.isnan().sum(0).cpu(),
            self.sweeps + len(accepted),
        )

    @property
    def rates(self) -> Tensor:
        """Share of accepted candidates, shape ``(num_blocks,)``; NaN before the first sweep."""
        return self.accepted.double() / self.sweeps if self.sweeps else self.accepted * torch.nan


class DrawStatistics:
    """Keep a few numbers of every draw: its acceptance by layer, and two more.

    Memory grows by 4 bytes a number: the kernel keeps nothing else of the past.

    Args:
        partition: The blocks.
    """

    def __init__(self, partition: Partition) -> None:
        labels = [partition.layer_label(block) for block in partition.blocks]
        self.layers = list(dict.fromkeys(labels))
        members = torch.tensor([[label == layer for layer in self.layers] for label in labels])
        # From rates of blocks to those of layers, and of all blocks: shape (blocks, layers + 1)
        everything = torch.cat([members, torch.ones(len(labels), 1)], 1).double()
        self._weights = everything / everything.sum(0)
        self._numbers = array("f")

    def add(self, results: SweepResults, thin: int) -> None:
        """Record the draws of one chain's sweeps, ``thin`` sweeps a draw."""
        rates = accept_prob(results.log_ratios).cpu() @ self._weights
        numbers = np.empty((len(rates) // thin, rates.shape[1] + 1), dtype=np.float32)
        numbers[:, :-1] = rates.view(-1, thin, rates.shape[1]).mean(1)
        numbers[:, -1] = results.log_densities[thin - 1 :: thin].cpu()
        self._numbers.frombytes(numbers.tobytes())

    def shown(self, rates: Tensor) -> list[str]:
        """Write blocks' rates, ``(..., num_blocks)``, for a progress bar.

        By layer, or as their range where there are many layers; in per cent.
        """
        layers = 100 * torch.atleast_2d(rates).double() @ self._weights[:, :-1]
        if len(self.layers) > MAX_SHOWN_LAYERS:
            layers = torch.stack(torch.aminmax(layers, dim=-1), -1)
        separator = ".." if len(self.layers) > MAX_SHOWN_LAYERS else " "
        return [separator.join([f"{rate:.0f}" for rate in row]) for row in layers.tolist()]

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return the statistics by name, draws first.

        ``acceptance_rate`` is the mean of min(1, ratio) over the blocks of a draw's sweeps,
        ``(draws,)``; ``layer_acceptance_rate`` the same by layer, ``(draws, layers)``;
        ``batch_log_density`` the log density after the last sweep, on its batch, ``(draws,)``.
        """
        table = np.array(self._numbers, dtype=np.float32).reshape(-1, len(self.layers) + 2)
        return {
            "acceptance_rate": table[:, -2],
            "layer_acceptance_rate": table[:, :-2],
            "batch_log_density": table[:, -1],
        }


def acceptance_rates(
    partition: Partition, rates: Tensor, label: Callable[[Block], str]
) -> dict[str, float]:
    """Average the blocks' rates over those with the same label (a layer, a node).

    Example:
        >>> partition = Partition((Block("a", (0,), 1), Block("b", (1,), 1)), 2, ("layer1",))
        >>> acceptance_rates(partition, torch.tensor([0.25, 0.75]), partition.layer_label)
        {'layer1': 0.5}
    """
    found: dict[str, list[float]] = {}
    for block, rate in zip(partition.blocks, rates.tolist(), strict=True):
        found.setdefault(label(block), []).append(rate)
    return {name: sum(values) / len(values) for name, values in found.items()}


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
    engine: Engine,
    position: Tensor,
    batches: Batches,
    key: ChainKey,
    scales: Tensor,
    num_batches: int,
) -> BatchNoise:
    """Judge the same candidates from one position on several independent batches.

    Each batch comes from a shuffle of its own. No candidate is accepted (log u is infinite), so
    every block is judged at the given position. Candidates of probability zero on some batch are
    left out of the standard deviation.

    Args:
        engine: The chain's engine.
        position: Position to judge from, shape ``(num_params,)``.
        batches: The chain's batches.
        key: The chain's random streams.
        scales: Proposal scales, shape ``(num_blocks,)``.
        num_batches: Number of batches, at least 2.
    """
    num_blocks = len(scales)
    z = sweep_noise(key, 0, len(position), num_blocks, Stream.PROBE).z
    rows = torch.stack([batches.independent_rows(number) for number in range(num_batches)])
    log_u = torch.full((1, num_batches, num_blocks), torch.inf, dtype=torch.float64)
    noise = z.expand(1, num_batches, -1)
    results = engine.sweeps(position[None], rows[None], noise, log_u, scales[None])
    log_ratios = results.log_ratios[0].cpu()
    finite = torch.isfinite(log_ratios)
    counts = finite.sum(0)
    means = torch.where(finite, log_ratios, 0.0).sum(0) / counts
    squares = torch.where(finite, (log_ratios - means).square(), 0.0).sum(0)
    variances = torch.where(counts > 1, squares / (counts - 1), torch.nan)
    probs = accept_prob(log_ratios)
    # With one uniform for both batches, the decisions differ when it falls between the two
    gaps = (probs.unsqueeze(0) - probs.unsqueeze(1)).abs().sum((0, 1))
    return BatchNoise(variances.sqrt(), gaps / (num_batches * (num_batches - 1)))


def batch_noise_report(partition: Partition, noise: BatchNoise) -> dict[str, Any]:
    """Summarise the noise of minibatch decisions, overall and by layer."""
    figures = {
        "standard deviation of the log ratio across batches": noise.log_ratio_sd,
        "share of decisions that another batch would reverse": noise.reversed_share,
    }
    return {
        name: {
            "all": float(values.nanmean()),
            **acceptance_rates(partition, values, partition.layer_label),
        }
        for name, values in figures.items()
    }
