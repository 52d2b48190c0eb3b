"""Time the parts of a sweep in the marked copy of the package, which is what is imported here."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime

import pyro
import torch

from benchmarks.models.records import ran_on
from benchmarks.sweep.floor import least_seconds
from benchmarks.sweep.marks import PARTS
from pyro_fnbg import FNBG, BayesianMLP, mnist
from pyro_fnbg.core.moves.joint import stacked
from pyro_fnbg.engines.base import SweepInputs
from pyro_fnbg.engines.fused.engine import FusedEngine

BATCH, PARTS_OF_NODE, TURNS = 3000, 78, 3


def main() -> None:
    """Print what was measured as JSON, in the last line."""
    network, data, warmup, sweeps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    widths = [int(width) for width in network.split(",")]
    images = mnist(data)
    pyro.set_rng_seed(0)
    model = BayesianMLP(widths, prior_scale=10**0.5)
    kernel = FNBG(model, parts={1: PARTS_OF_NODE}, batch_size=BATCH, likelihood_scale="batch")
    kernel.setup(warmup, images.x_train, images.y_train)
    params = kernel.initial_params
    for _ in range(warmup):
        params = kernel.sample(params)
    chain, engine = kernel.state, kernel.problem.engine
    assert isinstance(engine, FusedEngine)
    blocks = kernel.problem.partition.num_blocks
    positions, generator = chain.position[None], torch.Generator().manual_seed(0)
    for _ in range(TURNS):
        noise = {"dtype": torch.float64, "generator": generator}
        inputs = SweepInputs(
            positions,
            torch.randint(len(images.x_train), (1, sweeps, BATCH), generator=generator),
            torch.randn(1, sweeps, positions.shape[1], **noise),
            torch.rand(1, sweeps, blocks, **noise).log(),
            stacked([chain.adaptation]),
        )
        if engine._kept:
            engine._kept[-1][0].marks[:] = 0
        started = time.perf_counter()
        record = engine.run(inputs)
        seconds = time.perf_counter() - started
        positions = record.positions[:, -1]
    # The clock's unit is found from the time of all
    marks = engine._kept[-1][0].marks[: len(PARTS)].astype(float)
    by_part = dict(zip(PARTS, (marks / marks.sum() * seconds / sweeps).tolist(), strict=True))
    net, moved = engine._net, engine.moved_rows[0].double().mean(0)
    is_hidden = torch.from_numpy(net.block_layers < len(widths) - 1)
    hidden, first = int(is_hidden.sum()), int((net.block_layers == 1).sum())
    rows_moved = float(moved[is_hidden].mean())
    least = least_seconds(
        net, engine._data.inputs, BATCH, rows_moved, hidden, widths[0] * widths[1] / first
    )
    found = {
        "network": network,
        "blocks": blocks,
        "warmup": warmup,
        "sweeps": sweeps,
        "accepted": float(record.accepted.double().mean()),
        "moved": rows_moved / BATCH,
        "seconds": by_part,
        "least": least,
        "date": datetime.now(UTC).date().isoformat(),
        **ran_on(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
