"""The captured engine: a block's step evaluates what follows from its sites, and nothing else.

What other sites lead to is kept from the sweep's start, or from the last block that was accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pyro
import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.checks import checks_done
from pyro_fnbg.core.layout import Layout
from pyro_fnbg.core.moves.base import Move
from pyro_fnbg.core.moves.joint import JointMoves, stacked
from pyro_fnbg.core.step import Proposal, accept_prob, displaced, sweep, tiled_sum
from pyro_fnbg.core.tasks import torch_threads
from pyro_fnbg.engines.base import Engine, Record, SweepInputs
from pyro_fnbg.engines.captured.parts import Function, Part, Parts, values_of
from pyro_fnbg.graphs.capture import Captured, for_chains
from pyro_fnbg.model.impossible import is_impossible

__all__ = ["CapturedEngine", "CapturedState"]


class CapturedState(NamedTuple):
    """Hold a chain on its batch.

    Attributes:
        position: Unconstrained parameters, shape ``(num_params,)``.
        kept: What was computed from it and is read again; terms of the log density are flat and in
            double precision.
    """

    position: Tensor
    kept: tuple[Tensor, ...]


# First and last flat coordinate of a site, and its shape
_Site = tuple[int, int, tuple[int, ...]]

# Numbers kept of a chain up to which it is small: several chains step together, and on one thread,
# since threads wait for each other longer than such operations take, most of all on busy cores
SMALL = 40_000
# How far log ratios of chains together and of each alone may differ, relative and absolute: more
# than rounding, and less than another computation
TOLERANCES = {torch.float32: 1e-2, torch.float64: 1e-6}


class _Block(NamedTuple):
    """Hold what a block's step needs.

    Attributes:
        coordinates: Flat coordinates.
        part: What follows from its sites.
        sites: First and last flat coordinate, and shape, of each of these sites.
    """

    coordinates: Tensor
    part: Part
    sites: tuple[_Site, ...]


class CapturedEngine(Engine):
    """Sweep over the blocks of any model that could be captured.

    Runs every move. Chains take each step together while what is kept of one is small, and else go
    one after the other; in double precision both take the same decisions, up to rounding.

    Args:
        captured: The model's computation.
        layout: Its latent sites.
        partition: The blocks in sweep order.
        moves: The move of each block.
    """

    name = "captured"
    is_compiled = False
    joins_chains = True

    def __init__(
        self, captured: Captured, layout: Layout, partition: Partition, moves: JointMoves
    ) -> None:
        self._moves, self._layout, self._partition = moves, layout, partition
        self._captured = captured
        self._alone = _Chains(captured, None, layout, partition, moves, self._prepare)
        self._is_small: bool | None = None
        # By the number of chains; None where these cannot step together
        self._together: dict[int, _Chains | None] = {}

    @staticmethod
    def knows(move: Move) -> bool:
        """Whether the engine runs a move: it runs all."""
        return True

    def _prepare(self, function: Function) -> Function:
        """Return the function of a part as it is called."""
        return function

    @checks_done()
    def run(self, inputs: SweepInputs) -> Record:
        """Run sweeps on given noise and batches; see ``Engine.run``."""
        num_chains = len(inputs.positions)
        with (
            torch.no_grad(),
            pyro.validation_enabled(False),
            torch_threads(1) as num_threads,
        ):
            if self._is_small is None:
                self._is_small = self._alone.size(inputs.of_chain(0)) <= SMALL
            with torch_threads(1 if self._is_small else num_threads):
                if num_chains > 1 and (together := self._for_chains(inputs)) is not None:
                    return together.run(inputs)
                found = [self._alone.run(inputs.of_chain(chain)) for chain in range(num_chains)]
        return Record.of_chains(found)

    def _for_chains(self, inputs: SweepInputs) -> _Chains | None:
        """Return what runs as many chains together; None where one is large, or torch cannot."""
        num_chains = len(inputs.positions)
        if num_chains not in self._together:
            self._together[num_chains] = self._made_for(inputs) if self._is_small else None
        return self._together[num_chains]

    def _made_for(self, inputs: SweepInputs) -> _Chains | None:
        """Make what runs several chains together, and compare it with each alone."""
        num_chains, rows = len(inputs.positions), inputs.rows
        values = self._layout.split(inputs.positions)
        try:
            captured = for_chains(self._captured, values, None if rows is None else rows[:, 0])
            place = self._layout, self._partition, self._moves
            together = _Chains(captured, num_chains, *place, self._prepare)
            one = inputs._replace(
                rows=None if rows is None else rows[:, :1],
                z=inputs.z[:, :1],
                log_u=torch.full_like(inputs.log_u[:, :1], torch.inf),  # accept nothing
            )
            found = together.run(one).log_ratios
        except Exception:  # whatever an operation raises when it is given a dimension more
            return None
        alone = [self._alone.run(one.of_chain(chain)).log_ratios for chain in range(num_chains)]
        expected, tolerance = torch.stack(alone), TOLERANCES[inputs.positions.dtype]
        are_equal = torch.allclose(found, expected, tolerance, tolerance, equal_nan=True)
        return together if are_equal else None


class _Chains:
    """Sweep over the blocks of one chain, or of a number of chains together.

    Args:
        captured: The computation, for that number.
        num_chains: The number; None for one chain without a dimension for chains.
        layout: The latent sites.
        partition: The blocks.
        moves: The move of each block.
        prepare: See ``Parts``.
    """

    def __init__(
        self,
        captured: Captured,
        num_chains: int | None,
        layout: Layout,
        partition: Partition,
        moves: JointMoves,
        prepare: Callable[[Function], Function],
    ) -> None:
        self._moves, self._device = moves, layout.sites[0].device
        self._front = () if num_chains is None else (num_chains,)
        ends = torch.tensor(layout.sizes).cumsum(0)
        groups = [
            frozenset(torch.searchsorted(ends, index, right=True).tolist())
            for index in partition.indices
        ]
        self._parts = Parts(captured, len(layout.sites), groups, prepare)
        self._all_sites = tuple(
            (int(end) - site.size, int(end), (*self._front, *site.shape))
            for site, end in zip(layout.sites, ends, strict=True)
        )
        self._blocks = [
            _Block(
                index.to(self._device),
                self._parts.of_group[group],
                tuple(self._all_sites[site] for site in sorted(group)),
            )
            for index, group in zip(partition.indices, groups, strict=True)
        ]

    def size(self, inputs: SweepInputs) -> int:
        """Count the numbers that are kept."""
        rows = None if inputs.rows is None else inputs.rows[..., 0, :]
        state = self._evaluate(self._batch(rows), inputs.positions)
        return sum(value.numel() for value in state.kept)

    def run(self, inputs: SweepInputs) -> Record:
        """Run sweeps; where there is one chain, nothing has the leading dimension."""
        position, found, learnt = inputs.positions, list[tuple[Tensor, ...]](), [inputs.adaptation]
        state: CapturedState | None = None
        dim = len(self._front)
        for number in range(inputs.z.shape[dim]):
            rows = None if inputs.rows is None else inputs.rows.select(dim, number)
            z, log_u = inputs.z.select(dim, number), inputs.log_u.select(dim, number)
            known = self._moves.displace(learnt[-1], position.cpu(), z).to(self._device)
            batch = self._batch(rows)
            evaluate = partial(self._evaluate, batch)
            if state is not None and rows is None:
                # On the same rows all that is kept still holds, and bit for bit: nothing in it adds
                # up over blocks
                evaluate = partial(_still, state)
            propose = partial(self._propose, batch, known.increment)
            step = self._moves.steps(propose, known, log_u.to(self._device))
            state, info = sweep(position, evaluate, step, len(self._blocks))
            if inputs.rescaling is not None and self._moves.rescaling is not None:
                noise = inputs.rescaling.at(*[slice(None)] * dim, number)
                moved = self._moves.rescaling(state.position.cpu(), noise)
                state = self._evaluate(batch, moved.to(self._device))
            position = state.position
            if inputs.gains is not None:
                probs, gain = accept_prob(info.log_ratios).cpu(), inputs.gains[number]
                learnt.append(self._moves.adapt(learnt[-1], position.cpu(), probs, gain))
            terms = torch.cat([state.kept[number] for number in self._parts.whole.terms], -1)
            found.append((position, *info, tiled_sum(terms)))
        pieces = [torch.stack(some, dim) for some in zip(*found, strict=True)]
        adaptation = stacked(learnt[1:] or learnt, dim)
        return Record(pieces[0], pieces[1], pieces[2], pieces[3], adaptation)

    def _batch(self, rows: Tensor | None) -> tuple[Tensor, ...]:
        of_batch = self._parts.of_batch
        values: tuple[Tensor, ...] = () if rows is None or of_batch is None else of_batch(rows)
        return values

    def _evaluate(self, batch: tuple[Tensor, ...], position: Tensor) -> CapturedState:
        """Compute the state of a position from nothing."""
        whole = self._parts.whole
        kept = self._written(whole, self._all_sites, position, (), batch)
        by_number = dict(zip(whole.writes, kept, strict=True))
        return CapturedState(position, tuple(by_number[number] for number in range(len(kept))))

    def _propose(
        self,
        batch: tuple[Tensor, ...],
        increment: Tensor,
        state: CapturedState,
        block: int,
        values: Tensor | None = None,
    ) -> Proposal[CapturedState]:
        """Displace one block, and compute what follows."""
        index, part, sites = self._blocks[block]
        position = displaced(state.position, index, increment, values)
        kept = list(state.kept)
        for number, value in zip(
            part.writes, self._written(part, sites, position, state.kept, batch), strict=True
        ):
            kept[number] = value
        return Proposal(
            CapturedState(position, tuple(kept)),
            torch.cat([kept[number] for number in part.terms], -1),
            torch.cat([state.kept[number] for number in part.terms], -1),
        )

    def _written(
        self,
        part: Part,
        sites: tuple[_Site, ...],
        position: Tensor,
        kept: tuple[Tensor, ...],
        batch: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """Compute what a part gives; NaN where operations say that the position is impossible."""
        values = [position[..., start:stop].view(shape) for start, stop, shape in sites]
        values += values_of(part, kept, batch)
        try:
            return _called(part, values)
        except Exception as error:
            if not kept or not is_impossible(error):
                raise
        if not self._front:
            return tuple(torch.full_like(kept[number], torch.nan) for number in part.writes)
        # One chain of several: which one is found out by giving its values to all
        written = [torch.full_like(kept[number], torch.nan) for number in part.writes]
        for chain in range(*self._front):
            own = [value[chain].expand_as(value) for value in values]
            try:
                for target, value in zip(written, _called(part, own), strict=True):
                    target[chain] = value[chain]
            except Exception as error:
                if not is_impossible(error):
                    raise
        return tuple(written)


def _called(part: Part, values: list[Tensor]) -> tuple[Tensor, ...]:
    function: Callable[..., tuple[Tensor, ...]] = part.function
    return function(*values)


def _still(state: CapturedState, _: Tensor) -> CapturedState:
    return state
