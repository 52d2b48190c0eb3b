"""Runs of real engines with noise that a test chooses."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pyro_fnbg import FNBG
from pyro_fnbg.chains.setup import RunState
from pyro_fnbg.core.noise import ChainKey, SweepNoise, sweep_noise
from pyro_fnbg.core.step import log_accept_ratio
from pyro_fnbg.engines.base import SweepResults
from pyro_fnbg.model.density import ModelDensity

# Every exactness test runs on each of these
ENGINES = ("trace", "feedforward", "fused")
# The same for long chains, which take half a minute where Python runs something for every block
ENGINES_OF_LONG_CHAINS = (
    *(pytest.param(engine, marks=pytest.mark.slow) for engine in ENGINES[:2]), ENGINES[2],
)  # fmt: skip
# How far a fast engine's log ratios and log densities may lie from the model's own, from the same
# state. In double precision rounding is about 1e-12 for the sums of these tests; in single
# precision a term of size 10 is off by 1e-6, and there are up to some hundreds of them.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}
# Units of rounding, of the sum of the absolute terms, that a log ratio may be off by
ROUNDINGS = 8


def start(engine: str, model: Any, *args: Any, **options: Any) -> RunState:
    """Set a kernel up and return its run: engine, sites, partition, plan and position."""
    assert engine in ENGINES
    kernel = FNBG(model, engine=engine, **options)
    kernel.setup(0, *args)
    return kernel._running()


def run_sweeps(
    run: RunState,
    position: Tensor,
    rows: Sequence[Tensor | None],
    z: Tensor,
    log_u: Tensor,
    scales: Tensor,
) -> SweepResults:
    """Run K sweeps of one chain; arguments and results have no dimension for chains."""
    batches = (
        torch.stack([row for row in rows if row is not None])[None] if rows[0] is not None else None
    )
    results = run.engine.sweeps(position[None], batches, z[None], log_u[None], scales[None])
    return SweepResults(*(values[0] for values in results))


def one_sweep(
    run: RunState,
    position: Tensor,
    increments: Tensor,
    log_u: Sequence[float] | Tensor,
    rows: Tensor | None = None,
) -> SweepResults:
    """Run one sweep with the given increments (scale 1) and thresholds."""
    return run_sweeps(
        run,
        position,
        [rows],
        increments.double().unsqueeze(0),
        torch.as_tensor(log_u, dtype=torch.float64).unsqueeze(0),
        torch.ones(run.partition.num_blocks, dtype=torch.float64),
    )


def run_chain(
    run: RunState,
    position: Tensor,
    scales: Tensor,
    num_sweeps: int,
    key: ChainKey,
    rows: Tensor | None = None,
    chunk: int = 250,
) -> Tensor:
    """Run sweeps on one frozen batch and return the positions, (num_sweeps, num_params)."""
    positions = []
    size = len(position), run.partition.num_blocks
    for first in range(0, num_sweeps, chunk):
        noise = [sweep_noise(key, first + k, *size) for k in range(chunk)]
        z, log_u = torch.stack([n.z for n in noise]), torch.stack([n.log_u for n in noise])
        results = run_sweeps(run, position, [rows] * chunk, z, log_u, scales)
        position = results.positions[-1]
        positions.append(results.positions)
    return torch.cat(positions)


class Replay(NamedTuple):
    """What the model itself says of one sweep's decisions.

    Attributes:
        log_ratios: Log ratio of each block, judged where the blocks accepted before it led.
        position: Where the accepted blocks led.
        log_density: Log density there.
        sizes: Sum of the absolute terms of each block's two log densities.
    """

    log_ratios: Tensor
    position: Tensor
    log_density: Tensor
    sizes: Tensor


def replay(
    run: RunState,
    density: ModelDensity,
    position: Tensor,
    rows: Tensor | None,
    noise: SweepNoise,
    scales: Tensor,
    accepted: Tensor,
) -> Replay:
    """Follow one sweep's decisions, and evaluate the whole model before and after every block."""
    moves = (scales[run.partition.block_of_coordinate] * noise.z).to(position.dtype)
    state, log_ratios, sizes = density.on(rows)(position), [], []
    for index, is_accepted in zip(run.partition.indices, accepted.tolist(), strict=True):
        moved = state.position.clone()
        moved[index] += moves[index]
        candidate = density.on(rows)(moved)
        log_ratios.append(log_accept_ratio(candidate.log_terms, state.log_terms))
        sizes.append(candidate.log_terms.abs().sum() + state.log_terms.abs().sum())
        state = candidate if is_accepted else state
    return Replay(torch.stack(log_ratios), state.position, state.log_density, torch.stack(sizes))


def assert_follows(
    results: SweepResults, expected: Replay, log_u: Tensor, tolerance: float
) -> None:
    """Assert that one sweep, its results without leading dimensions, is that of the model.

    Log ratios and log density agree within the tolerance, and a few units of rounding of the terms'
    size where that is larger; a tolerance of 0 asks for the same numbers. Each decision follows
    from the reported ratio, exactly, and from the model's unless the threshold lies within the
    tolerance of it; and the position is bit for bit what the accepted increments give.
    """
    # A term comes from a chain of some operations, each rounded; squares double the relative error
    rounding = ROUNDINGS * torch.finfo(results.positions.dtype).eps * expected.sizes
    allowed = rounding.clamp(min=tolerance) if tolerance > 0 else torch.zeros_like(rounding)
    gaps = (results.log_ratios - expected.log_ratios).abs()
    is_same = (gaps <= allowed) | (results.log_ratios == expected.log_ratios)
    assert (is_same | (results.log_ratios.isnan() & expected.log_ratios.isnan())).all()
    assert torch.equal(results.accepted, log_u < results.log_ratios)
    differs = results.accepted != (log_u < expected.log_ratios)
    assert ((log_u - expected.log_ratios).abs() <= allowed)[differs].all()
    assert torch.equal(results.positions, expected.position)
    torch.testing.assert_close(
        results.log_densities, expected.log_density, rtol=0.0, atol=float(allowed.max())
    )


def put_labels(run: RunState, labels: Tensor) -> None:
    """Write new labels over those that the run's engine holds."""
    engine: Any = run.engine
    if engine.name == "trace":
        held = engine._density._bound.args[1]
    elif engine.name == "feedforward":
        held = engine._labels
    else:
        held = torch.from_numpy(engine._data.labels)
    held.copy_(labels.reshape(held.shape))
