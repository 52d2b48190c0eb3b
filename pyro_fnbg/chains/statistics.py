"""A few numbers of every draw, and averages of acceptance rates over nodes and layers."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.step import accept_prob
from pyro_fnbg.core.tasks import torch_threads
from pyro_fnbg.engines.base import Record

__all__ = ["DrawStatistics", "means_by_label"]

# Rates of more layers than these are shown as a range
MAX_SHOWN_LAYERS = 10


class DrawStatistics:
    """Keep a few numbers of every draw: its acceptance by layer, and its log density.

    Memory grows by 4 bytes a layer and 12 bytes a draw: nothing else is kept of the past.

    Args:
        partition: The blocks.
    """

    def __init__(self, partition: Partition) -> None:
        labels = [partition.layer_label(block) for block in partition.blocks]
        self.layers = list(dict.fromkeys(labels))
        # Sites that are no layers of nodes, such as sampled scales, are shown beside those by name
        of_nodes = {partition.layer_label(block) for block in partition.blocks if block.node}
        self._names = ["" if not of_nodes or one in of_nodes else f"{one}=" for one in self.layers]
        members = torch.tensor([[label == layer for layer in self.layers] for label in labels])
        # From rates of blocks to those of layers, and of all blocks: shape (blocks, layers + 1)
        everything = torch.cat([members, torch.ones(len(labels), 1)], 1).double()
        self._weights = everything / everything.sum(0)
        self._rates, self._log_densities = array("f"), array("d")

    def __len__(self) -> int:
        """Return the number of draws."""
        return len(self._log_densities)

    @torch_threads(1)
    def add(self, record: Record, thin: int) -> None:
        """Take the draws of one chain's sweeps, ``thin`` sweeps a draw."""
        rates = accept_prob(record.log_ratios).cpu() @ self._weights
        means = rates.view(-1, thin, rates.shape[1]).mean(1)
        self._rates.frombytes(means.numpy().astype(np.float32).tobytes())
        log_densities = record.log_densities[thin - 1 :: thin].double().cpu()
        self._log_densities.frombytes(log_densities.numpy().tobytes())

    def extend(self, other: DrawStatistics) -> None:
        """Take over the draws that follow."""
        self._rates.extend(other._rates)
        self._log_densities.extend(other._log_densities)

    def keep_first(self, num_draws: int) -> None:
        """Forget all draws but the first."""
        del self._rates[num_draws * (len(self.layers) + 1) :], self._log_densities[num_draws:]

    @torch_threads(1)
    def shown(self, rates: Tensor) -> list[str]:
        """Write blocks' rates, ``(..., num_blocks)``, for a progress bar.

        By layer, or as their range where there are many layers; in per cent.
        """
        layers = 100 * torch.atleast_2d(rates).double() @ self._weights[:, :-1]
        if len(self.layers) > MAX_SHOWN_LAYERS:
            ranges = torch.stack(torch.aminmax(layers, dim=-1), -1).tolist()
            return [f"{lowest:.0f}..{highest:.0f}" for lowest, highest in ranges]
        return [
            " ".join(f"{name}{rate:.0f}" for name, rate in zip(self._names, row, strict=True))
            for row in layers.tolist()
        ]

    def arrays(self, num_draws: int) -> Mapping[str, NDArray[np.floating]]:
        """Return the statistics of the first draws by name, draws first.

        ``acceptance_rate`` is the mean of min(1, ratio) over the blocks of a draw's sweeps,
        ``(draws,)``; ``layer_acceptance_rate`` the same by layer, ``(draws, layers)``;
        ``batch_log_density`` the log density after the last sweep, on its batch, in double
        precision, ``(draws,)``.
        """
        rates = np.array(self._rates, dtype=np.float32).reshape(-1, len(self.layers) + 1)
        return {
            "acceptance_rate": rates[:num_draws, -1],
            "layer_acceptance_rate": rates[:num_draws, :-1],
            "batch_log_density": np.array(self._log_densities)[:num_draws],
        }


def means_by_label(values: Sequence[float], labels: Sequence[str]) -> dict[str, float]:
    """Average the blocks' values over those with the same label (a layer, a node).

    Example:
        >>> means_by_label([0.25, 0.75, 0.5], ["layer1", "layer1", "layer2"])
        {'layer1': 0.5, 'layer2': 0.5}
    """
    found: dict[str, list[float]] = {}
    for label, value in zip(labels, values, strict=True):
        found.setdefault(label, []).append(value)
    return {label: sum(own) / len(own) for label, own in found.items()}
