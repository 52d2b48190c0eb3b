"""Time sweeps of eeyore 0.0.20, the code the paper ran on, at the paper's two network sizes.

eeyore needs an environment of its own: ``pip install torch eeyore==0.0.20 kanga``. FOLDER is the
one the examples take: it holds MNIST/raw for ``mnist`` and training/x.csv, training/y.csv for
``xor``::

    python tests/benchmarks/eeyore_sweeps.py mnist --data FOLDER --sweeps 5 --threads 1
    python tests/benchmarks/eeyore_sweeps.py xor --data FOLDER --sweeps 200 --threads 1

The last line printed is a JSON object. A sweep's seconds include drawing its batch. The sweep is
eeyore's, which is not Algorithm 1: this script compares speed, not draws.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from eeyore.chains import ChainList
from eeyore.constants import loss_functions
from eeyore.datasets import XYDataset
from eeyore.models import mlp
from eeyore.samplers import Gibbs
from torch import Tensor
from torch.distributions import Normal

PRIOR_VARIANCE = 10.0


class Work(NamedTuple):
    """Hold one of the paper's settings.

    Attributes:
        widths: Units of each layer, the inputs first.
        batch_size: Rows in the batch of one sweep.
        variances: Proposal variance of each layer.
        part_sizes: About how many parameters of a node are proposed together, layer by layer;
            None for all of them.
        num_blocks: Blocks in one sweep, known beforehand so that the script can check itself.
        loss: eeyore's name for the likelihood.
    """

    widths: list[int]
    batch_size: int
    variances: list[float]
    part_sizes: list[int | None]
    num_blocks: int
    loss: str


WORKS = {
    "mnist": Work(
        widths=[784, 10, 10, 10, 10],
        batch_size=3000,
        variances=[1e-2, 1e-4, 1e-4, 1e-5],
        part_sizes=[10, None, None, None],
        num_blocks=810,
        loss="multiclass_classification",
    ),
    "xor": Work(
        widths=[2] * 7 + [1],
        batch_size=100,
        variances=[0.04] * 7,
        part_sizes=[None] * 7,
        num_blocks=13,
        loss="binary_classification",
    ),
}


class StratifiedBatches:
    """Serve shuffled epochs in batches that hold the classes in the data's proportions.

    It has what eeyore asks of a data loader, and slices whole tensors: cheaper than the paper's
    loader, which collates row by row.
    """

    def __init__(self, dataset: XYDataset, batch_size: int) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.rows = torch.empty(0, dtype=torch.long)
        y = dataset.y
        self._labels = y.argmax(1) if y.shape[1] > 1 else y[:, 0].long()

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self.dataset) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through one epoch; ``rows`` says which rows the last batch holds."""
        rank = torch.empty(len(self.dataset))
        for label in self._labels.unique():
            members = torch.nonzero(self._labels == label)[:, 0]
            rank[members] = (torch.randperm(len(members)) + 0.5) / len(members)
        for rows in rank.argsort().split(self.batch_size)[: len(self)]:
            self.rows = rows
            yield self.dataset.x[rows], self.dataset.y[rows]


def main() -> None:
    """Time the sweeps and print them."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    work = WORKS[options.work]
    read = read_mnist if options.work == "mnist" else read_xor
    batches = StratifiedBatches(read(options.data), work.batch_size)
    sampler = make_sampler(work, batches, options.scale)
    num_blocks = sum(len(parts) for _, _, parts in sampler.get_blocks())
    if num_blocks != work.num_blocks:
        raise SystemExit(f"eeyore made {num_blocks} blocks, {work.num_blocks} expected")

    time_sweeps(sampler, batches, options.untimed)
    seconds, accepted, distinct = time_sweeps(sampler, batches, options.sweeps)
    if accepted.shape != (options.sweeps, num_blocks):
        raise SystemExit(f"{options.sweeps} sweeps decided on blocks {tuple(accepted.shape)}")
    report = {
        "work": options.work,
        "threads": options.threads,
        "seconds_per_sweep": seconds,
        "num_blocks": num_blocks,
        "median_seconds": float(np.median(seconds)),
        "batch_size": work.batch_size,
        "distinct_batches": distinct,
        "acceptance_rate": float(accepted.float().mean()),
        "versions": {name: version(name) for name in ("eeyore", "kanga", "torch", "numpy")},
    }
    print(json.dumps(report))


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--sweeps", type=int, default=5, help="timed sweeps")
    parser.add_argument("--untimed", type=int, default=1, help="sweeps before the timed ones")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="times the paper's scales")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.sweeps < 1 or options.untimed < 0 or options.threads < 1 or options.scale <= 0:
        parser.error("--sweeps, --threads and --scale must be positive, --untimed not negative")
    return options


def read_mnist(folder: Path) -> XYDataset:
    """Read the training images, standardised by the mean and deviation of all their pixels."""
    raw = folder / "MNIST" / "raw"
    # An IDX file starts with 4 bytes and 4 more for each dimension: 16 for images, 8 for labels
    pixels = np.fromfile(raw / "train-images-idx3-ubyte", np.uint8)[16:].reshape(-1, 784)
    labels = np.fromfile(raw / "train-labels-idx1-ubyte", np.uint8)[8:]
    x = torch.from_numpy(pixels).float()
    y = torch.nn.functional.one_hot(torch.from_numpy(labels).long(), 10).float()
    return XYDataset((x - x.mean()) / x.std(), y)


def read_xor(folder: Path) -> XYDataset:
    """Read the noisy XOR training rows."""
    return XYDataset.from_file(path=folder / "training", dtype=torch.float32)


def make_sampler(work: Work, batches: StratifiedBatches, scale: float) -> Gibbs:
    """Set up eeyore's blocked Gibbs sampler at a draw from the prior."""
    num_layers = len(work.widths) - 1
    last = None if work.loss == "multiclass_classification" else torch.sigmoid
    model = mlp.MLP(
        loss=loss_functions[work.loss],
        hparams=mlp.Hyperparameters(
            dims=work.widths,
            bias=[True] * num_layers,
            activations=[torch.sigmoid] * (num_layers - 1) + [last],
        ),
        dtype=torch.float32,
    )
    num_params = model.num_params()
    model.prior = Normal(torch.zeros(num_params), torch.full((num_params,), PRIOR_VARIANCE**0.5))
    # eeyore wants these two node by node
    layer_of_node = np.repeat(np.arange(num_layers), work.widths[1:])
    return Gibbs(
        model,
        theta0=model.prior.sample(),
        dataloader=batches,
        scales=[scale * work.variances[layer] ** 0.5 for layer in layer_of_node],
        node_subblock_size=[work.part_sizes[layer] for layer in layer_of_node],
        chain=ChainList(),
    )


def time_sweeps(
    sampler: Gibbs, batches: StratifiedBatches, num_sweeps: int
) -> tuple[list[float], Tensor, int]:
    """Run sweeps, each on the next batch.

    Returns:
        Seconds of each sweep, its blocks' acceptances of shape (sweeps, blocks), and how many of
        the batches differed from all others.
    """
    stream = endless(batches)
    seconds, accepted, seen = [], [], set()
    for _ in range(num_sweeps):
        started = time.perf_counter()
        x, y = next(stream)
        sampler.draw(x, y, savestate=True)
        seconds.append(time.perf_counter() - started)
        accepted.append(sampler.current["accepted"])
        seen.add(batches.rows.sort().values.numpy().tobytes())
    return seconds, torch.stack(accepted) if accepted else torch.empty(0), len(seen)


def endless(batches: StratifiedBatches) -> Iterator[tuple[Tensor, Tensor]]:
    """Go on from epoch to epoch."""
    while True:
        yield from batches


if __name__ == "__main__":
    main()
