"""The reference engine: any Pyro model, replayed with one block displaced at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.checks import checks_done
from pyro_fnbg.core.step import accept_prob, increments, proposals, sweep
from pyro_fnbg.core.tuning import Tuning, adapt
from pyro_fnbg.engines.base import SweepResults
from pyro_fnbg.model.density import ModelDensity

__all__ = ["TraceEngine"]


class TraceEngine:
    """Sweep over the blocks of any Pyro model, one model run a block, one chain after the other.

    Args:
        density: The model's log density.
        partition: The blocks in sweep order.
    """

    name = "trace"
    is_compiled = False
    joins_chains = False

    def __init__(self, density: ModelDensity, partition: Partition) -> None:
        self._density, self._partition = density, partition

    @checks_done()
    def sweeps(
        self,
        positions: Tensor,
        rows: Tensor | None,
        z: Tensor,
        log_u: Tensor,
        scales: Tensor,
        tuning: Tuning | None = None,
    ) -> SweepResults:
        """Run K sweeps of C chains; see ``pyro_fnbg.engines.base.Engine``."""
        chains = [
            self._chain(
                positions[chain],
                None if rows is None else rows[chain],
                z[chain],
                log_u[chain],
                scales[chain],
                tuning,
            )
            for chain in range(len(positions))
        ]
        return SweepResults(*(torch.stack(pieces) for pieces in zip(*chains, strict=True)))

    def _chain(
        self,
        position: Tensor,
        rows: Tensor | None,
        z: Tensor,
        log_u: Tensor,
        scales: Tensor,
        tuning: Tuning | None,
    ) -> SweepResults:
        """Run K sweeps of one chain; nothing has the leading dimension here."""
        device = position.device
        blocks = [index.to(device) for index in self._partition.indices]
        owners = self._partition.block_of_coordinate
        states, infos, scales_after = [], [], []
        for number, (z_sweep, log_u_sweep) in enumerate(zip(z, log_u, strict=True)):
            increment = increments(z_sweep, scales, owners, position.dtype).to(device)
            density = self._density.on(None if rows is None else rows[number])
            propose = proposals(density, blocks, increment)
            state, info = sweep(position, density, propose, log_u_sweep.to(device))
            position = state.position
            if tuning is not None:
                probs = accept_prob(info.log_ratios).cpu()
                scales = adapt(scales, probs, tuning.targets, tuning.gains[number])
            states.append(state)
            infos.append(info)
            scales_after.append(scales)
        return SweepResults(
            torch.stack([state.position for state in states]),
            torch.stack([info.log_ratios for info in infos]),
            torch.stack([info.accepted for info in infos]),
            torch.stack([state.log_density for state in states]),
            torch.stack(scales_after),
        )
