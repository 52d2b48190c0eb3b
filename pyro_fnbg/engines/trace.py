"""The reference engine: any Pyro model, replayed with one block displaced at a time."""

from __future__ import annotations

import torch

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.checks import checks_done
from pyro_fnbg.core.moves.base import Move
from pyro_fnbg.core.moves.joint import JointMoves, stacked
from pyro_fnbg.core.step import accept_prob, proposals, sweep
from pyro_fnbg.engines.base import Engine, Record, SweepInputs
from pyro_fnbg.model.density import ModelDensity

__all__ = ["TraceEngine"]


class TraceEngine(Engine):
    """Sweep over the blocks of any Pyro model, one model run a block, one chain after the other.

    Runs every move.

    Args:
        density: The model's log density.
        partition: The blocks in sweep order.
        moves: The move of each block.
    """

    name = "trace"
    is_compiled = False
    joins_chains = False

    def __init__(self, density: ModelDensity, partition: Partition, moves: JointMoves) -> None:
        self._density, self._partition, self._moves = density, partition, moves

    @staticmethod
    def knows(move: Move) -> bool:
        """Whether the engine runs a move: it runs all."""
        return True

    @checks_done()
    def run(self, inputs: SweepInputs) -> Record:
        """Run sweeps on given noise and batches; see ``Engine.run``."""
        chains = range(len(inputs.positions))
        return Record.of_chains([self._chain(inputs.of_chain(chain)) for chain in chains])

    def _chain(self, inputs: SweepInputs) -> Record:
        """Run sweeps of one chain; nothing has the leading dimension here."""
        position, rows, z, log_u, adaptation, gains, rescaling = inputs
        device, num_blocks = position.device, self._partition.num_blocks
        blocks = [index.to(device) for index in self._partition.indices]
        states, infos, learnt = [], [], [adaptation]
        for number in range(len(z)):
            # On the CPU, as all noise and all that moves learn
            known = self._moves.displace(learnt[-1], position.cpu(), z[number]).to(device)
            density = self._density.on(None if rows is None else rows[number])
            propose = proposals(density, blocks, known.increment)
            step = self._moves.steps(propose, known, log_u[number].to(device))
            state, info = sweep(position, density, step, num_blocks)
            if rescaling is not None and self._moves.rescaling is not None:
                moved = self._moves.rescaling(state.position.cpu(), rescaling.at(number))
                state = density(moved.to(device))
            position = state.position
            if gains is not None:
                probs = accept_prob(info.log_ratios).cpu()
                learnt.append(self._moves.adapt(learnt[-1], position.cpu(), probs, gains[number]))
            states.append(state)
            infos.append(info)
        return Record(
            positions=torch.stack([state.position for state in states]),
            log_ratios=torch.stack([info.log_ratios for info in infos]),
            accepted=torch.stack([info.accepted for info in infos]),
            log_densities=torch.stack([state.log_density for state in states]),
            adaptation=stacked(learnt[1:] or learnt),
        )
