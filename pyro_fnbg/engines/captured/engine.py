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
from pyro_fnbg.core.moves.base import Move, MoveState
from pyro_fnbg.core.moves.joint import JointMoves, at, stacked
from pyro_fnbg.core.step import Proposal, accept_prob, displaced, sweep, tiled_sum
from pyro_fnbg.engines.base import Engine, Record, SweepInputs
from pyro_fnbg.engines.captured.capture import Captured
from pyro_fnbg.engines.captured.parts import Part, Parts, values_of
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


class _Block(NamedTuple):
    """Hold what a block's step needs.

    Attributes:
        coordinates: Flat coordinates.
        part: What follows from its sites.
        sites: First and last flat coordinate, and shape, of each of these sites.
    """

    coordinates: Tensor
    part: Part
    sites: tuple[tuple[int, int, tuple[int, ...]], ...]


class CapturedEngine(Engine):
    """Sweep over the blocks of any model that could be captured, one chain after the other.

    Runs every move.

    Args:
        captured: The model's computation.
        layout: Its latent sites.
        partition: The blocks in sweep order.
        moves: The move of each block.
    """

    name = "captured"
    is_compiled = False
    joins_chains = False

    def __init__(
        self, captured: Captured, layout: Layout, partition: Partition, moves: JointMoves
    ) -> None:
        self._moves, self._device = moves, layout.sites[0].device
        ends = torch.tensor(layout.sizes).cumsum(0)
        groups = [
            frozenset(torch.searchsorted(ends, index, right=True).tolist())
            for index in partition.indices
        ]
        self._parts = Parts(captured, len(layout.sites), groups)
        places = [
            (int(end) - site.size, int(end), site.shape)
            for site, end in zip(layout.sites, ends, strict=True)
        ]
        self._all_sites = tuple(places)
        self._blocks = [
            _Block(
                index.to(self._device),
                self._parts.of_group[group],
                tuple(places[site] for site in sorted(group)),
            )
            for index, group in zip(partition.indices, groups, strict=True)
        ]

    @staticmethod
    def knows(move: Move) -> bool:
        """Whether the engine runs a move: it runs all."""
        return True

    @checks_done()
    def run(self, inputs: SweepInputs) -> Record:
        """Run sweeps on given noise and batches; see ``Engine.run``."""
        with torch.no_grad(), pyro.validation_enabled(False):
            chains = [
                self._chain(
                    inputs.positions[chain],
                    None if inputs.rows is None else inputs.rows[chain],
                    inputs.z[chain],
                    inputs.log_u[chain],
                    at(inputs.adaptation, chain),
                    inputs.gains,
                )
                for chain in range(len(inputs.positions))
            ]
        return Record(
            positions=torch.stack([chain.positions for chain in chains]),
            log_ratios=torch.stack([chain.log_ratios for chain in chains]),
            accepted=torch.stack([chain.accepted for chain in chains]),
            log_densities=torch.stack([chain.log_densities for chain in chains]),
            adaptation=stacked([chain.adaptation for chain in chains]),
        )

    def _chain(
        self,
        position: Tensor,
        rows: Tensor | None,
        z: Tensor,
        log_u: Tensor,
        adaptation: tuple[MoveState, ...],
        gains: Tensor | None,
    ) -> Record:
        """Run sweeps of one chain; nothing has the leading dimension here."""
        found, learnt = list[tuple[Tensor, ...]](), [adaptation]
        state: CapturedState | None = None
        for number in range(len(z)):
            known = self._moves.displace(learnt[-1], position.cpu(), z[number]).to(self._device)
            batch = () if rows is None else self._batch(rows[number])
            evaluate = partial(self._evaluate, batch)
            if state is not None and rows is None:
                # On the same rows all that is kept still holds, and bit for bit: nothing in it adds
                # up over blocks
                evaluate = partial(_still, state)
            propose = partial(self._propose, batch, known.increment)
            step = self._moves.steps(propose, known, log_u[number].to(self._device))
            state, info = sweep(position, evaluate, step, len(self._blocks))
            position = state.position
            if gains is not None:
                probs = accept_prob(info.log_ratios).cpu()
                learnt.append(self._moves.adapt(learnt[-1], position.cpu(), probs, gains[number]))
            terms = torch.cat([state.kept[number] for number in self._parts.whole.terms])
            found.append((position, *info, tiled_sum(terms)))
        pieces = [torch.stack(some) for some in zip(*found, strict=True)]
        return Record(pieces[0], pieces[1], pieces[2], pieces[3], stacked(learnt[1:] or learnt))

    def _batch(self, rows: Tensor) -> tuple[Tensor, ...]:
        values: tuple[Tensor, ...] = self._parts.of_batch(rows) if self._parts.of_batch else ()
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
            torch.cat([kept[number] for number in part.terms]),
            torch.cat([state.kept[number] for number in part.terms]),
        )

    def _written(
        self,
        part: Part,
        sites: tuple[tuple[int, int, tuple[int, ...]], ...],
        position: Tensor,
        kept: tuple[Tensor, ...],
        batch: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """Compute what a part gives; NaN where operations say that the position is impossible."""
        values = [position[start:stop].view(shape) for start, stop, shape in sites]
        function: Callable[..., tuple[Tensor, ...]] = part.function
        try:
            return function(*values, *values_of(part, kept, batch))
        except Exception as error:
            if not kept or not is_impossible(error):
                raise
            return tuple(torch.full_like(kept[number], torch.nan) for number in part.writes)


def _still(state: CapturedState, _: Tensor) -> CapturedState:
    return state
