"""Transition matrices on a lattice, which show exactly what a sweep leaves invariant.

A chain whose candidates all lie on a few points has a transition matrix, and that is made here from
the ratios that a sweep reports and the decisions that it takes. No chain is run: what comes out
holds up to rounding, not up to Monte Carlo error. Wrong ratios, wrong decisions, and blocks that
are judged from another state than the one that the blocks before them left all show.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition

__all__ = [
    "Lattice",
    "Outcome",
    "Sweep",
    "assert_invariant",
    "assert_reversible",
    "block_matrix",
    "sweep_matrix",
]

# Logarithms of a uniform number at which a possible candidate is always accepted, and never
ALWAYS, NEVER = -math.inf, math.inf
# Distance from a log ratio, on either side, at which the decision must be what the ratio says
MARGIN = 1e-9


class Outcome(NamedTuple):
    """Hold what a sweep did.

    Attributes:
        position: Where it led, shape ``(num_params,)``.
        log_ratios: Log acceptance ratio of every block, shape ``(num_blocks,)``.
        accepted: Every block's decision, shape ``(num_blocks,)``.

    Example:
        >>> stayed = Outcome(torch.zeros(2), torch.tensor([-0.4]), torch.tensor([False]))
        >>> stayed.log_ratios.exp()
        tensor([0.6703])
    """

    position: Tensor
    log_ratios: Tensor
    accepted: Tensor


class Sweep(Protocol):
    """One sweep on chosen noise: from a position, increments and thresholds to an ``Outcome``.

    Block b's candidate moves the block's coordinates by their increments, shape ``(num_params,)``,
    and is accepted where ``log_u[b]``, shape ``(num_blocks,)``, is below its log ratio.
    ``sweep_of`` makes one of an engine.

    Example:
        >>> def sweep(position, increments, log_u):  # one block, on a standard Normal
        ...     moved = position + increments
        ...     log_ratio = 0.5 * (position.square() - moved.square()).sum()
        ...     accepted = log_u < log_ratio
        ...     return Outcome(torch.where(accepted, moved, position), log_ratio[None], accepted)
        >>> sweep(torch.zeros(1), torch.ones(1), torch.tensor([-1.0])).position
        tensor([1.])
    """

    def __call__(self, position: Tensor, increments: Tensor, log_u: Tensor) -> Outcome:
        """Run the sweep."""


class Lattice:
    """Hold the points of a grid, each of which every block's candidates reach with equal chance.

    Args:
        axes: The values of each coordinate, some numbers an axis.

    Attributes:
        points: The points, double precision, shape ``(num_points, num_params)``.

    Example:
        >>> lattice = Lattice([[-1.0, 0.5, 2.0], [-0.5, 1.5]])
        >>> lattice.points.shape, lattice.find(torch.tensor([0.5, 1.5]))
        (torch.Size([6, 2]), 3)
        >>> lattice.moves(3, [0])
        tensor([[-1.5000,  0.0000],
                [ 1.5000,  0.0000]], dtype=torch.float64)
    """

    def __init__(self, axes: Sequence[Sequence[float]]) -> None:
        self.points = torch.tensor(list(itertools.product(*axes)), dtype=torch.float64)

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.points)

    def find(self, position: Tensor) -> int:
        """Return the number of the point at a position.

        Raises:
            AssertionError: If there is none.
        """
        is_here = ((self.points - position).abs() < MARGIN).all(1)
        if int(is_here.sum()) != 1:
            raise AssertionError(f"{position.tolist()} is no point of the lattice")
        return int(is_here.nonzero())

    def moves(self, point: int, coordinates: Sequence[int] | Tensor) -> Tensor:
        """Return the increments to all other points that differ in some coordinates alone.

        Returns:
            Increments, shape ``(num_moves, num_params)``.
        """
        others = torch.ones(self.points.shape[1], dtype=torch.bool)
        others[torch.as_tensor(coordinates)] = False
        increments = self.points - self.points[point]
        is_move = (increments[:, others] == 0).all(1) & (increments != 0).any(1)
        return increments[is_move]


def block_matrix(sweep: Sweep, lattice: Lattice, partition: Partition, block: int) -> Tensor:
    """Return the transition matrix of one block, where all others stand still.

    Acceptance probabilities are those of the reported ratios; the decisions at thresholds a little
    below and above each ratio are checked against it.

    Args:
        sweep: What runs a sweep.
        lattice: The points; none may be impossible.
        partition: The blocks.
        block: Number of the block.

    Returns:
        Probabilities of a step from each point to each, double precision, shape
        ``(num_points, num_points)``.

    Raises:
        AssertionError: If a decision is not what the reported ratio says, or a rejected candidate
            leaves a trace.

    Example:
        >>> from pyro_fnbg import BayesianMLP, Block
        >>> from pyro_fnbg.testing import start, sweep_of
        >>> x, y = torch.tensor([[-1.0], [2.0]], dtype=torch.float64), torch.tensor([1, 0])
        >>> blocks = Partition((Block("weight", (0,)), Block("bias", (1,))), 2)
        >>> model = BayesianMLP([1, 1], likelihood="bernoulli")
        >>> sweep = sweep_of(start("trace", model, x, y, blocks=blocks))
        >>> block_matrix(sweep, Lattice([[-1.0, 1.0], [0.0]]), blocks, block=0).shape
        torch.Size([2, 2])
    """
    matrix = torch.zeros(len(lattice), len(lattice), dtype=torch.float64)
    shut = torch.full((partition.num_blocks,), NEVER, dtype=torch.float64)
    for number, point in enumerate(lattice.points):
        moves = lattice.moves(number, partition.indices[block])
        for move in moves:
            ratio = sweep(point, move, shut).log_ratios[block]
            for log_u, expected in ((ratio - MARGIN, True), (ratio + MARGIN, False)):
                thresholds = shut.clone()
                thresholds[block] = log_u
                found = sweep(point, move, thresholds)
                if bool(found.accepted[block]) is not expected:
                    raise AssertionError(
                        f"block {block} from {point.tolist()} by {move.tolist()}: log u "
                        f"{float(log_u):.6g} is decided against the log ratio {float(ratio):.6g}"
                    )
                _assert_at(found.position, point + move if expected else point, point)
            matrix[number, lattice.find(point + move)] += ratio.exp().clamp(max=1.0) / len(moves)
        matrix[number, number] += 1 - matrix[number].sum()
    return matrix


def sweep_matrix(sweep: Sweep, lattice: Lattice, partition: Partition) -> Tensor:
    """Return the transition matrix of a whole sweep: all moves of all blocks, and all decisions.

    Every block is judged where the decisions before it left the chain. The number of sweeps that
    are run is the number of points times the product of the blocks' moves times two to the number
    of blocks: for a few blocks of a few values.

    Args:
        sweep: What runs a sweep.
        lattice: The points; none may be impossible.
        partition: The blocks, in the order in which the sweep visits them.

    Returns:
        Probabilities of a sweep from each point to each, double precision, shape
        ``(num_points, num_points)``.

    Raises:
        AssertionError: If a sweep does not lead where the accepted blocks moved.

    Example:
        >>> from pyro_fnbg import BayesianMLP, Block
        >>> from pyro_fnbg.testing import start, sweep_of
        >>> x, y = torch.tensor([[-1.0], [2.0]], dtype=torch.float64), torch.tensor([1, 0])
        >>> blocks = Partition((Block("weight", (0,)), Block("bias", (1,))), 2)
        >>> model = BayesianMLP([1, 1], likelihood="bernoulli")
        >>> sweep = sweep_of(start("trace", model, x, y, blocks=blocks))
        >>> sweep_matrix(sweep, Lattice([[-1.0, 1.0], [0.0, 0.5]]), blocks).shape
        torch.Size([4, 4])
    """
    matrix = torch.zeros(len(lattice), len(lattice), dtype=torch.float64)
    for number, point in enumerate(lattice.points):
        moves = [lattice.moves(number, index) for index in partition.indices]
        share = 1.0 / math.prod(len(of_block) for of_block in moves)
        for chosen in itertools.product(*moves):
            increments = torch.stack(chosen).sum(0)
            for earlier in itertools.product((True, False), repeat=partition.num_blocks - 1):
                # Whether the last block is accepted makes no difference to the ratios
                decisions = (*earlier, True)
                log_u = torch.tensor([ALWAYS if one else NEVER for one in decisions]).double()
                found = sweep(point, increments, log_u)
                stayed = point + sum(
                    move for move, one in zip(chosen, earlier, strict=False) if one
                )
                _assert_at(found.position, stayed + chosen[-1], point)
                probs = found.log_ratios.exp().clamp(max=1.0)
                weight = share
                for prob, one in zip(probs, earlier, strict=False):
                    weight = weight * float(prob if one else 1 - prob)
                matrix[number, lattice.find(stayed + chosen[-1])] += weight * probs[-1]
                matrix[number, lattice.find(stayed)] += weight * (1 - probs[-1])
    return matrix


def assert_invariant(matrix: Tensor, log_density: Tensor, tolerance: float = 1e-12) -> None:
    """Assert that a transition matrix leaves a distribution as it is.

    Args:
        matrix: Probabilities of a step from each point to each, shape ``(num_points, num_points)``.
        log_density: Log density of every point up to a constant, shape ``(num_points,)``.
        tolerance: How far a probability may be off by rounding.

    Raises:
        AssertionError: If a row is no distribution, or the distribution changes in a step.

    Example:
        >>> matrix = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64)
        >>> assert_invariant(matrix, torch.tensor([1.0, 2.0]).double().log())
        >>> assert_invariant(matrix, torch.zeros(2))
        Traceback (most recent call last):
            ...
        AssertionError: the distribution is not invariant: a share changes by 0.125
    """
    share = _distribution(log_density)
    if not (matrix >= -tolerance).all():
        raise AssertionError(f"a probability is {float(matrix.min()):.6g}")
    off = float((matrix.sum(1) - 1).abs().max())
    if not off <= tolerance:
        raise AssertionError(f"the probabilities of a row do not sum to 1; off by {off:.3g}")
    gap = float((share @ matrix - share).abs().max())
    if not gap <= tolerance:
        raise AssertionError(f"the distribution is not invariant: a share changes by {gap:.3g}")


def assert_reversible(matrix: Tensor, log_density: Tensor, tolerance: float = 1e-12) -> None:
    """Assert detailed balance: as much goes from each point to another as comes back.

    Args:
        matrix: Probabilities of a step from each point to each, shape ``(num_points, num_points)``.
        log_density: Log density of every point up to a constant, shape ``(num_points,)``.
        tolerance: How far a probability may be off by rounding.

    Raises:
        AssertionError: If two flows differ.

    Example:
        >>> around = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]).double()
        >>> assert_invariant(around, torch.zeros(3))
        >>> assert_reversible(around, torch.zeros(3))
        Traceback (most recent call last):
            ...
        AssertionError: the step is not reversible: two flows differ by 0.333
    """
    flow = _distribution(log_density).unsqueeze(1) * matrix
    gap = float((flow - flow.T).abs().max())
    if not gap <= tolerance:
        raise AssertionError(f"the step is not reversible: two flows differ by {gap:.3g}")


def _distribution(log_density: Tensor) -> Tensor:
    return log_density.double().softmax(0)


def _assert_at(position: Tensor, expected: Tensor, start: Tensor) -> None:
    """Assert that a sweep led to a point, bit for bit."""
    if not torch.equal(position, expected):
        raise AssertionError(
            f"a sweep from {start.tolist()} led to {position.tolist()}, not to {expected.tolist()}"
        )
