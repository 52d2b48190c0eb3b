"""What all chains of a run share, and the one interface of what runs their sweeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.core.batches import Batches, BatchPlan
from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.moves.base import Move, MoveState
from pyro_fnbg.core.moves.joint import JointMoves, at, beside, copied, stacked
from pyro_fnbg.core.noise import noise_of_sweeps
from pyro_fnbg.core.rescaling import RescalingNoise
from pyro_fnbg.core.state import ChainState, Tally
from pyro_fnbg.core.tasks import torch_threads
from pyro_fnbg.core.tuning import gains
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.sites import ModelSites

__all__ = ["Engine", "Problem", "Record", "SweepInputs", "advance", "next_inputs"]


@dataclass(frozen=True)
class Problem:
    """Hold what all chains of a run share; what they see of it does not change while they run.

    Attributes:
        bound: The model and what it is called with.
        sites: What set-up found in the model.
        partition: The blocks.
        plan: The batches' sizes and what the chains target.
        batches: The rows of every chain's batches.
        density: The model's log density.
        moves: The move of each block.
        engine: What runs the sweeps.
        engine_reason: Why it is this one.
        warmup_steps: Number of sweeps that are not counted as draws.
        tuned_sweeps: Number of sweeps in which the moves learn.
        thin: Sweeps a draw.
        remarks: What users are told of the run when it begins.

    Example:
        >>> from pyro_fnbg import BayesianMLP
        >>> from pyro_fnbg.testing import start
        >>> model = BayesianMLP([1, 2, 1], likelihood="bernoulli")
        >>> run = start("trace", model, torch.zeros(6, 1), torch.arange(6) % 2, batch_size=3)
        >>> run.problem.partition.num_blocks, run.problem.plan.temperature
        (3, 2.0)
    """

    bound: BoundModel
    sites: ModelSites
    partition: Partition
    plan: BatchPlan
    batches: Batches
    density: ModelDensity
    moves: JointMoves
    engine: Engine
    engine_reason: str
    warmup_steps: int
    tuned_sweeps: int
    thin: int
    remarks: tuple[str, ...] = ()

    def is_warming_up(self, chain: ChainState) -> bool:
        """Whether a chain's next sweep belongs to the warmup."""
        return chain.sweeps < self.warmup_steps

    def phase(self, chain: ChainState) -> Tally:
        """Return the decisions of the phase that a chain's last sweep belongs to."""
        return chain.warmup_tally if chain.sweeps <= self.warmup_steps else chain.draw_tally

    def next_tally(self, chain: ChainState) -> Tally:
        """Return the decisions so far of the phase that a chain's next sweep belongs to."""
        return chain.warmup_tally if self.is_warming_up(chain) else chain.draw_tally

    def sweeps_a_draw(self, chain: ChainState) -> int:
        """Return how many sweeps a chain's next draw takes, or its next step of the warmup."""
        return 1 if self.is_warming_up(chain) else self.thin

    def num_draws(self, chain: ChainState) -> int:
        """Return how many draws a chain has made."""
        return chain.draw_tally.sweeps // self.thin


class SweepInputs(NamedTuple):
    """Hold all that K sweeps of C chains start from.

    Attributes:
        positions: Unconstrained parameters, shape ``(C, num_params)``.
        rows: Rows of each sweep's batch, shape ``(C, K, batch_size)``; None stands for all rows in
            every sweep.
        z: Standard normal noise in flat order, shape ``(C, K, num_params)``, double precision.
        log_u: Logarithms of uniforms in block order, shape ``(C, K, num_blocks)``.
        adaptation: The moves' states, each with a dimension for chains in front.
        gains: How much the moves learn from each sweep, shape ``(K,)``; None for nothing.
        rescaling: Noise of the rescalings after each sweep's blocks, shape ``(C, K, nodes)``; None
            for no rescalings.

    Example:
        >>> z, log_u = torch.zeros(2, 5, 7), torch.zeros(2, 5, 3)
        >>> inputs = SweepInputs(torch.zeros(2, 7), None, z, log_u, adaptation=())
        >>> inputs.of_chain(1).z.shape
        torch.Size([5, 7])
    """

    positions: Tensor
    rows: Tensor | None
    z: Tensor
    log_u: Tensor
    adaptation: tuple[MoveState, ...]
    gains: Tensor | None = None
    rescaling: RescalingNoise | None = None

    def of_chain(self, chain: int) -> SweepInputs:
        """Return one chain's inputs, without the dimension for chains."""
        return SweepInputs(
            self.positions[chain],
            None if self.rows is None else self.rows[chain],
            self.z[chain],
            self.log_u[chain],
            at(self.adaptation, chain),
            self.gains,
            None if self.rescaling is None else self.rescaling.at(chain),
        )

    def to(self, device: torch.device) -> SweepInputs:
        """Return the same on a device."""
        return SweepInputs(
            self.positions.to(device),
            None if self.rows is None else self.rows.to(device),
            self.z.to(device),
            self.log_u.to(device),
            tuple(
                type(state)(*(values.to(device) for values in state)) for state in self.adaptation
            ),
            None if self.gains is None else self.gains.to(device),
            None if self.rescaling is None else self.rescaling.to(device),
        )


class Record(NamedTuple):
    """Report K sweeps of C chains.

    Attributes:
        positions: Position after each sweep, shape ``(C, K, num_params)``.
        log_ratios: Log acceptance ratios, shape ``(C, K, num_blocks)``; minus infinity for
            candidates of probability zero, NaN for candidates whose density is NaN or infinite.
        accepted: Decisions, shape ``(C, K, num_blocks)``.
        log_densities: Log density of each position on its sweep's batch, double precision, shape
            ``(C, K)``.
        adaptation: The moves' states after each sweep, with dimensions ``(C, K)`` in front;
            ``(C, 1)`` where they learnt nothing.

    Example:
        >>> ratios = torch.zeros(2, 5, 3)
        >>> record = Record(torch.zeros(2, 5, 7), ratios, ratios < 0, torch.zeros(2, 5), ())
        >>> record.of_chain(1).of_sweeps(0, 2).positions.shape
        torch.Size([2, 7])
    """

    positions: Tensor
    log_ratios: Tensor
    accepted: Tensor
    log_densities: Tensor
    adaptation: tuple[MoveState, ...]

    @staticmethod
    def of_chains(chains: Sequence[Record]) -> Record:
        """Put records of single chains, which have no dimension for chains, side by side."""
        return Record(
            positions=torch.stack([chain.positions for chain in chains]),
            log_ratios=torch.stack([chain.log_ratios for chain in chains]),
            accepted=torch.stack([chain.accepted for chain in chains]),
            log_densities=torch.stack([chain.log_densities for chain in chains]),
            adaptation=stacked([chain.adaptation for chain in chains]),
        )

    def of_chain(self, chain: int) -> Record:
        """Return one chain's record, without the dimension for chains."""
        return Record(*self._map(lambda values: values[chain]), at(self.adaptation, chain))

    def of_sweeps(self, first: int, stop: int) -> Record:
        """Return some sweeps of one chain's record, which has no dimension for chains."""
        has_learnt = all(len(values) > 1 for state in self.adaptation for values in state)
        learnt = at(self.adaptation, slice(first, stop)) if has_learnt else self.adaptation
        return Record(*self._map(lambda values: values[first:stop]), learnt)

    def _map(self, take: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Take a part of all tensors that have an entry for every sweep."""
        return (
            take(self.positions),
            take(self.log_ratios),
            take(self.accepted),
            take(self.log_densities),
        )


@torch_threads(1)
def advance(problem: Problem, chain: ChainState, record: Record) -> ChainState:
    """Return a chain's state after the sweeps of its record, all of the warmup or all of the draws.

    Args:
        problem: What the chains share.
        chain: The state before the first of the sweeps.
        record: The chain's record, without the dimension for chains.
    """
    in_warmup = problem.is_warming_up(chain)
    tally = problem.next_tally(chain).add(record.accepted, record.log_ratios)
    return replace(
        chain,
        sweeps=chain.sweeps + len(record.accepted),
        # Copies: a view would keep the whole record in memory, and be pickled with all of it
        position=record.positions[-1].clone(),
        adaptation=copied(at(record.adaptation, -1)),
        warmup_tally=tally if in_warmup else chain.warmup_tally,
        draw_tally=chain.draw_tally if in_warmup else tally,
    )


class Engine(ABC):
    """Run sweeps. The same noise gives the same decisions in every engine (double precision).

    Attributes:
        name: The engine's name.
        is_compiled: Whether sweeps take so little time that Python is in the way: then it pays to
            ask for many at a time, and calls on several threads run side by side.
        joins_chains: Whether several chains are faster in one call than in one each.

    Example:
        >>> from pyro_fnbg import BayesianMLP
        >>> from pyro_fnbg.testing import start
        >>> model = BayesianMLP([1, 2, 1], likelihood="bernoulli")
        >>> run = start("trace", model, torch.zeros(6, 1), torch.arange(6) % 2)
        >>> chains, record = run.problem.engine.sweeps(run.problem, [run.chain], count=4)
        >>> chains[0].sweeps, record.positions.shape
        (4, torch.Size([1, 4, 7]))
    """

    name: ClassVar[str]
    is_compiled: ClassVar[bool]
    joins_chains: ClassVar[bool]

    @staticmethod
    @abstractmethod
    def knows(move: Move) -> bool:
        """Whether the engine runs a move."""

    def sweeps(
        self, problem: Problem, chains: Sequence[ChainState], count: int
    ) -> tuple[list[ChainState], Record]:
        """Run the next ``count`` sweeps of chains that have made as many sweeps so far.

        Args:
            problem: What the chains share.
            chains: Their states.
            count: Number of sweeps, all of the warmup or all of the draws.

        Returns:
            The chains' states after the sweeps, and what happened in them.
        """
        record = self.run(next_inputs(problem, chains, count))
        after = [
            advance(problem, chain, record.of_chain(number)) for number, chain in enumerate(chains)
        ]
        return after, record

    @abstractmethod
    def run(self, inputs: SweepInputs) -> Record:
        """Run sweeps on given noise and batches, each chain from its own position."""


@torch_threads(1)
def next_inputs(problem: Problem, chains: Sequence[ChainState], count: int) -> SweepInputs:
    """Draw all noise and batches of the next ``count`` sweeps, before the first of them starts."""
    first = chains[0].sweeps
    size = problem.partition.num_params, problem.partition.num_blocks
    noise = [noise_of_sweeps(chain.key, first, count, *size) for chain in chains]
    rows = [problem.batches.rows_of_sweeps(chain.key, first, count) for chain in chains]
    batches = [batch for batch in rows if batch is not None]
    rescaling = problem.moves.rescaling
    return SweepInputs(
        beside([chain.position for chain in chains]),
        beside(batches) if batches else None,
        beside([z for z, _ in noise]),
        beside([log_u for _, log_u in noise]),
        stacked([chain.adaptation for chain in chains]),
        gains(first, count) if first < problem.tuned_sweeps else None,
        None
        if rescaling is None
        else RescalingNoise.of_chains(
            [rescaling.noise(chain.key, first, count) for chain in chains]
        ),
    )
