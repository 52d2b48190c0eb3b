"""Engines run on chosen noise: set-up, inputs of some sweeps, single sweeps, long chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_fnbg.chains.setup import Run
from pyro_fnbg.core.moves.base import MoveState
from pyro_fnbg.core.moves.joint import stacked
from pyro_fnbg.core.noise import ChainKey, noise_of_sweeps
from pyro_fnbg.engines.base import Engine, Problem, Record, SweepInputs, next_inputs
from pyro_fnbg.kernel import FNBG
from pyro_fnbg.testing.lattice import Outcome, Sweep

__all__ = [
    "make_inputs",
    "one_sweep",
    "run_chain",
    "run_on",
    "run_sweeps",
    "start",
    "sweep_of",
    "with_engine",
    "with_scales",
]


def start(engine: str, model: Any, *args: Any, warmup_steps: int = 0, **options: Any) -> Run:
    """Set a kernel up, as Pyro's ``MCMC`` does, and return its problem and its chain.

    Args:
        engine: Name of the engine; "trace" runs the model itself.
        model: The model.
        args: What the model is called with.
        warmup_steps: Number of sweeps in which the moves learn.
        options: Further arguments of ``FNBG``.

    Returns:
        ``run.problem``, what all chains share, and ``run.chain``, the state of one.

    Raises:
        ValueError: As ``FNBG`` and its ``setup`` do.

    Example:
        >>> from pyro_fnbg import BayesianMLP
        >>> x, y = torch.linspace(-1, 1, 6).unsqueeze(-1), torch.arange(6) % 2
        >>> model = BayesianMLP([1, 2, 1], likelihood="bernoulli")
        >>> start("trace", model, x, y).problem.partition.num_blocks
        3
    """
    kernel = FNBG(model, engine=engine, **options)
    with pyro.validation_enabled(False):
        kernel.setup(warmup_steps, *args)
    return Run(kernel.problem, kernel.state)


def with_engine(run: Run, engine: Engine) -> Run:
    """Return the same run with another engine, which nothing has compared with the model.

    Args:
        run: The problem and a chain, from ``start``.
        engine: The engine.

    Returns:
        The run. The one given stays as it is.

    Example:
        >>> from pyro_fnbg import BayesianMLP
        >>> x, y = torch.linspace(-1, 1, 6).unsqueeze(-1), torch.arange(6) % 2
        >>> run = start("trace", BayesianMLP([1, 2, 1], likelihood="bernoulli"), x, y)
        >>> from pyro_fnbg.engines.trace import TraceEngine
        >>> class Mine(TraceEngine):
        ...     name = "mine"
        >>> problem = run.problem
        >>> mine = Mine(problem.density, problem.partition, problem.moves)
        >>> with_engine(run, mine).problem.engine.name
        'mine'
    """
    return Run(replace(run.problem, engine=engine), run.chain)


def with_scales(problem: Problem, scales: Tensor) -> tuple[MoveState, ...]:
    """Return states of the moves that learn a number a block, by proposal scales.

    Args:
        problem: What the chains share.
        scales: Proposal scales, shape ``(..., num_blocks)``.

    Returns:
        The states, in the order of the problem's moves.

    Example:
        >>> from pyro_fnbg import BayesianMLP
        >>> x, y = torch.linspace(-1, 1, 6).unsqueeze(-1), torch.arange(6) % 2
        >>> run = start("trace", BayesianMLP([1, 2, 1], likelihood="bernoulli"), x, y)
        >>> with_scales(run.problem, torch.tensor([0.1, 0.2, 0.3]))
        (ScaleState(scales=tensor([0.1000, 0.2000, 0.3000])),)
    """
    return tuple(
        type(state)(*(scales[..., move.blocks] for _ in state))
        for move, state in zip(problem.moves.moves, problem.moves.start(), strict=True)
    )


def make_inputs(
    run: Run,
    chains: int = 1,
    sweeps: int = 1,
    *,
    scale: float | None = None,
    spread: float = 0.0,
    first: int = 0,
    seed: int = 3,
) -> SweepInputs:
    """Draw batches and noise of some sweeps, for chains with streams of their own.

    Args:
        run: The problem, and where it starts.
        chains: Number of chains.
        sweeps: Number of sweeps.
        scale: What the moves have learnt differs by chain and block, around this number; left out,
            it is that of the run's chain.
        spread: Standard deviation of the chains' positions around the run's.
        first: Number of the first sweep.
        seed: Of the noise, the batches and the positions.

    Returns:
        What the engine's ``run`` takes.

    Example:
        >>> from pyro_fnbg import BayesianMLP
        >>> x, y = torch.linspace(-1, 1, 6).unsqueeze(-1), torch.arange(6) % 2
        >>> run = start("trace", BayesianMLP([1, 2, 1], likelihood="bernoulli"), x, y)
        >>> inputs = make_inputs(run, chains=2, sweeps=5, scale=0.5)
        >>> inputs.z.shape, inputs.log_u.shape
        (torch.Size([2, 5, 7]), torch.Size([2, 5, 3]))
    """
    problem, num_blocks = run.problem, run.problem.partition.num_blocks
    rng = torch.Generator().manual_seed(seed)
    own = torch.linspace(0.7, 1.5, chains * num_blocks, dtype=torch.float64)
    scales = (scale or 0.0) * own.view(chains, num_blocks)
    position = run.chain.position
    starts = [
        replace(
            run.chain,
            key=ChainKey(seed, chain),
            sweeps=first,
            position=position
            + spread * torch.randn(len(position), generator=rng, dtype=position.dtype),
            adaptation=(
                run.chain.adaptation if scale is None else with_scales(problem, scales[chain])
            ),
        )
        for chain in range(chains)
    ]
    return next_inputs(problem, starts, sweeps)


def run_on(run: Run, inputs: SweepInputs) -> Record:
    """Run a run's engine on inputs, distributions' own checks off as under Pyro's ``MCMC``.

    Args:
        run: The problem, whose engine it is.
        inputs: Positions, batches and noise, as from ``make_inputs``.

    Returns:
        What happened: positions, log ratios, decisions and log densities of every sweep.

    Example:
        >>> from pyro_fnbg import BayesianMLP
        >>> x, y = torch.linspace(-1, 1, 6).unsqueeze(-1), torch.arange(6) % 2
        >>> run = start("trace", BayesianMLP([1, 2, 1], likelihood="bernoulli"), x, y)
        >>> record = run_on(run, make_inputs(run, chains=2, sweeps=5))
        >>> record.positions.shape, record.accepted.shape
        (torch.Size([2, 5, 7]), torch.Size([2, 5, 3]))
    """
    with pyro.validation_enabled(False):
        return run.problem.engine.run(inputs)


def run_sweeps(
    run: Run,
    position: Tensor,
    rows: Sequence[Tensor | None],
    z: Tensor,
    log_u: Tensor,
    scales: Tensor,
) -> Record:
    """Run K sweeps of one chain; arguments and record have no dimension for chains.

    Args:
        run: The problem.
        position: Where the chain starts, unconstrained, shape ``(num_params,)``.
        rows: Rows of each sweep's batch, or None for all rows, K of them.
        z: Standard normal noise, shape ``(K, num_params)``.
        log_u: Logarithms of uniforms, shape ``(K, num_blocks)``.
        scales: Proposal scales, shape ``(num_blocks,)``.

    Returns:
        What happened in each sweep.

    Example:
        >>> from pyro_fnbg import BayesianMLP
        >>> x, y = torch.linspace(-1, 1, 6).unsqueeze(-1), torch.arange(6) % 2
        >>> run = start("trace", BayesianMLP([1, 2, 1], likelihood="bernoulli"), x, y)
        >>> z, log_u = torch.randn(4, 7).double(), torch.rand(4, 3).double().log()
        >>> run_sweeps(run, torch.zeros(7), [None] * 4, z, log_u, torch.ones(3)).positions.shape
        torch.Size([4, 7])
    """
    batches = [row for row in rows if row is not None]
    inputs = SweepInputs(
        position[None],
        torch.stack(batches)[None] if batches else None,
        z[None],
        log_u[None],
        stacked([with_scales(run.problem, scales)]),
    )
    return run_on(run, inputs).of_chain(0)


def one_sweep(
    run: Run,
    position: Tensor,
    increments: Tensor,
    log_u: Sequence[float] | Tensor,
    rows: Tensor | None = None,
) -> Record:
    """Run one sweep of the walk with the given increments (scale 1) and thresholds.

    Args:
        run: The problem.
        position: Where the chain is, unconstrained, shape ``(num_params,)``.
        increments: How far each coordinate's candidate lies, shape ``(num_params,)``.
        log_u: What a block's log ratio must exceed for its candidate to be accepted, shape
            ``(num_blocks,)``.
        rows: Rows of the sweep's batch; None for all rows.

    Returns:
        The record, without a dimension for chains and with one for the one sweep.

    Example:
        >>> from pyro_fnbg import BayesianMLP
        >>> x, y = torch.linspace(-1, 1, 6).unsqueeze(-1), torch.arange(6) % 2
        >>> run = start("trace", BayesianMLP([1, 2, 1], likelihood="bernoulli"), x, y)
        >>> always_never = [-torch.inf, torch.inf, torch.inf]
        >>> one_sweep(run, torch.zeros(7), torch.ones(7), always_never).accepted
        tensor([[ True, False, False]])
    """
    return run_sweeps(
        run,
        position,
        [rows],
        increments.double().unsqueeze(0),
        torch.as_tensor(log_u, dtype=torch.float64).unsqueeze(0),
        torch.ones(run.problem.partition.num_blocks, dtype=torch.float64),
    )


def run_chain(
    run: Run,
    position: Tensor,
    scales: Tensor,
    num_sweeps: int,
    key: ChainKey,
    rows: Tensor | None = None,
    chunk: int = 250,
) -> Tensor:
    """Run sweeps on all rows or on one frozen batch, and return the positions.

    Args:
        run: The problem.
        position: Where the chain starts, unconstrained, shape ``(num_params,)``.
        scales: Proposal scales, shape ``(num_blocks,)``.
        num_sweeps: Number of sweeps.
        key: The chain's random stream.
        rows: Rows of the batch; None for all rows.
        chunk: Sweeps a call of the engine.

    Returns:
        Positions after each sweep, shape ``(num_sweeps, num_params)``.

    Example:
        >>> from pyro_fnbg import BayesianMLP
        >>> x, y = torch.linspace(-1, 1, 6).unsqueeze(-1), torch.arange(6) % 2
        >>> run = start("trace", BayesianMLP([1, 2, 1], likelihood="bernoulli"), x, y)
        >>> scales, key = torch.full((3,), 0.5).double(), ChainKey(seed=0, chain=0)
        >>> run_chain(run, torch.zeros(7), scales, 20, key, chunk=10).shape
        torch.Size([20, 7])
    """
    positions = []
    size = len(position), run.problem.partition.num_blocks
    for first in range(0, num_sweeps, chunk):
        z, log_u = noise_of_sweeps(key, first, chunk, *size)
        record = run_sweeps(run, position, [rows] * chunk, z, log_u, scales)
        position = record.positions[-1]
        positions.append(record.positions)
    return torch.cat(positions)


def sweep_of(run: Run, rows: Tensor | None = None) -> Sweep:
    """Return the sweep of a run's engine as the functions of lattices take it.

    Args:
        run: The problem; its blocks must walk.
        rows: Rows of every sweep's batch; None for all rows.

    Returns:
        From a position, increments and thresholds to what the sweep did.

    Example:
        >>> from pyro_fnbg import BayesianMLP
        >>> x = torch.tensor([[-1.0], [0.5]], dtype=torch.float64)
        >>> model = BayesianMLP([1, 1], likelihood="bernoulli")
        >>> sweep = sweep_of(start("trace", model, x, torch.tensor([0, 1])))
        >>> never = torch.tensor([torch.inf])
        >>> sweep(torch.zeros(2).double(), torch.ones(2).double(), never).position
        tensor([0., 0.], dtype=torch.float64)
    """

    def sweep(position: Tensor, increments: Tensor, log_u: Tensor) -> Outcome:
        record = one_sweep(run, position, increments, log_u, rows)
        return Outcome(record.positions[0], record.log_ratios[0], record.accepted[0])

    return sweep
