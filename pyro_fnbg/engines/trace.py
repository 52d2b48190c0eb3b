"""The reference engine: any Pyro model, replayed with one block displaced at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_fnbg.blocks import Partition
from pyro_fnbg.density import ModelDensity
from pyro_fnbg.engines.base import SweepResults
from pyro_fnbg.step import increments, sweep

__all__ = ["TraceEngine"]


class TraceEngine:
    """Sweep over the blocks of any Pyro model, one model run a block.

    Args:
        density: The model's log density.
        partition: The blocks in sweep order.
    """

    def __init__(self, density: ModelDensity, partition: Partition) -> None:
        self._density, self._partition = density, partition

    def sweeps(
        self,
        position: Tensor,
        rows: Sequence[Tensor | None],
        z: Tensor,
        log_u: Tensor,
        scales: Tensor,
    ) -> SweepResults:
        """Run K sweeps from a position; see ``pyro_fnbg.engines.base.Engine``."""
        device = position.device
        blocks = [index.to(device) for index in self._partition.indices]
        owners = self._partition.block_of_coordinate
        states, infos = [], []
        for batch, z_sweep, log_u_sweep in zip(rows, z, log_u, strict=True):
            state, info = sweep(
                position,
                blocks,
                increments(z_sweep, scales, owners, position.dtype).to(device),
                log_u_sweep.to(device),
                self._density.on(batch),
            )
            position = state.position
            states.append(state)
            infos.append(info)
        return SweepResults(
            torch.stack([state.position for state in states]),
            torch.stack([info.log_ratios for info in infos]),
            torch.stack([info.accepted for info in infos]),
            torch.stack([state.log_density for state in states]),
        )
