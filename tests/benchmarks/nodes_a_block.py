"""Compare blocks of one node with blocks of several: how far the network's outputs move a second.

    python tests/benchmarks/nodes_a_block.py

MLP(64,128,128,10) on 3,000 rows of simulated data, one thread; nodes of a hidden layer go into
blocks of 1, 2, 4 and 16, and scales are tuned for each. What is compared is the mean squared
difference of centred logits, on 500 rows, of draws ten sweeps apart.
"""

from __future__ import annotations

import json
import time
from itertools import groupby

import pyro
import torch

from pyro_fnbg import FNBG, BayesianMLP, Block, Partition

WIDTHS, ROWS, SHOWN, WARMUP, SWEEPS, LAG = [64, 128, 128, 10], 3_000, 500, 600, 60, 10


def main() -> None:
    """Print a line for each size of blocks."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, WIDTHS[0], generator=generator)
    y = (x @ torch.randn(WIDTHS[0], WIDTHS[-1], generator=generator)).argmax(-1)
    model = BayesianMLP(WIDTHS)
    kernel = FNBG(model)
    kernel.setup(0, x, y)
    for size in (1, 2, 4, 16):
        print(json.dumps(measure(model, of_several_nodes(kernel.partition, size), x, y)))


def of_several_nodes(nodes: Partition, size: int) -> Partition:
    """Join blocks of nodes of the same hidden layer."""
    groups = []
    for layer, blocks in groupby(nodes.blocks, lambda block: block.layer):
        of_layer, at_once = list(blocks), 1 if layer == len(WIDTHS) - 1 else size
        groups += [of_layer[k : k + at_once] for k in range(0, len(of_layer), at_once)]
    return Partition(
        tuple(
            Block(f"block{number}", tuple(sorted(at for block in group for at in block.index)))
            for number, group in enumerate(groups)
        ),
        nodes.num_params,
    )


def measure(
    model: BayesianMLP, partition: Partition, x: torch.Tensor, y: torch.Tensor
) -> dict[str, float]:
    """Run one chain, and return what its sweeps take and how far they lead."""
    pyro.set_rng_seed(0)
    kernel = FNBG(model, blocks=partition)
    kernel.setup(WARMUP // 2, x, y)
    params = kernel.initial_params
    for _ in range(WARMUP):
        params = kernel.sample(params)
    started, draws = time.process_time(), []
    for _ in range(SWEEPS):
        params = kernel.sample(params)
        draws.append(params)
    seconds = (time.process_time() - started) / SWEEPS
    outputs = torch.stack([model.forward(draw, x[:SHOWN]) for draw in draws])
    outputs = outputs - outputs.mean(-1, keepdim=True)
    moved = float(((outputs[LAG:] - outputs[:-LAG]) ** 2).mean()) / LAG
    rates = kernel.problem.phase(kernel.state).rates
    return {
        "blocks": partition.num_blocks,
        "seconds a sweep": seconds,
        "accepted": float(rates.mean()),
        "squared change of logits a sweep": moved,
        "squared change of logits a second": moved / seconds,
    }


if __name__ == "__main__":
    main()
