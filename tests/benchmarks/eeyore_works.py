"""The same networks, blocks and batches in eeyore 0.0.20, the code the paper ran on.

Its sweep is not Algorithm 1: a rejected candidate stays in the position that the next block's
candidate starts from. So it is compared by speed, not by draws.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from eeyore.chains import ChainList
from eeyore.constants import loss_functions
from eeyore.datasets import XYDataset
from eeyore.models import mlp
from eeyore.samplers import Gibbs
from torch import Tensor
from torch.distributions import Normal

from benchmarks.works import Work, kernel_of, training_data

__all__ = ["EeyoreSweeps", "StratifiedBatches", "make_sampler"]


class StratifiedBatches:
    """Serve shuffled epochs in batches that hold the classes in the data's proportions.

    It has what eeyore asks of a data loader, and slices whole tensors: cheaper than the paper's
    loader, which collates row by row.
    """

    def __init__(self, dataset: XYDataset, batch_size: int) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        y = dataset.y
        self._labels = y.argmax(1) if y.shape[1] > 1 else y[:, 0].long()

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self.dataset) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through one epoch."""
        rank = torch.empty(len(self.dataset))
        for label in self._labels.unique():
            members = torch.nonzero(self._labels == label)[:, 0]
            rank[members] = (torch.randperm(len(members)) + 0.5) / len(members)
        for rows in rank.argsort().split(self.batch_size)[: len(self)]:
            yield self.dataset.x[rows], self.dataset.y[rows]


class EeyoreSweeps:
    """Sweeps of one chain, each on the next batch; drawing the batch is part of a sweep."""

    def __init__(self, work: Work) -> None:
        self.sampler = make_sampler(work)
        self._stream = self._endless()

    def __call__(self, sweeps: int) -> None:
        """Run some sweeps."""
        for _ in range(sweeps):
            x, y = next(self._stream)
            self.sampler.draw(x, y, savestate=True)

    def _endless(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from self.sampler.dataloader


def make_sampler(work: Work) -> Gibbs:
    """Set up eeyore's blocked Gibbs sampler at a draw from the prior.

    Raises:
        ValueError: If it does not make the blocks that this package makes.
    """
    num_layers, num_outputs = len(work.widths) - 1, work.widths[-1]
    is_binary = num_outputs == 1
    loss = "binary_classification" if is_binary else "multiclass_classification"
    model = mlp.MLP(
        loss=loss_functions[loss],
        hparams=mlp.Hyperparameters(
            dims=list(work.widths),
            bias=[True] * num_layers,
            activations=[torch.sigmoid] * (num_layers - 1) + [torch.sigmoid if is_binary else None],
        ),
        dtype=torch.float32,
    )
    num_params = model.num_params()
    model.prior = Normal(torch.zeros(num_params), torch.full((num_params,), work.prior_scale))
    x, y = training_data(work)
    labels = y[:, None] if is_binary else torch.nn.functional.one_hot(y, num_outputs)
    # eeyore wants scales and sizes of parts node by node
    layer_of_node = np.repeat(np.arange(num_layers), work.widths[1:])
    part_size = work.widths[0] // work.parts if work.parts > 1 else None
    sampler = Gibbs(
        model,
        theta0=model.prior.sample(),
        dataloader=StratifiedBatches(XYDataset(x, labels.float()), work.batch_size),
        scales=[work.scales[layer] for layer in layer_of_node],
        node_subblock_size=[part_size if layer == 0 else None for layer in layer_of_node],
        chain=ChainList(),
    )
    num_blocks = sum(len(parts) for _, _, parts in sampler.get_blocks())
    kernel = kernel_of(work)
    kernel.setup(0, x, y)
    if num_blocks != kernel.partition.num_blocks:
        raise ValueError(f"eeyore made {num_blocks} blocks, not {kernel.partition.num_blocks}")
    return sampler
