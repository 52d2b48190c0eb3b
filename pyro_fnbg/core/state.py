"""The state of a chain: small, and all that a later sweep needs besides the problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.core.moves.base import MoveState
from pyro_fnbg.core.noise import ChainKey

__all__ = ["ChainState", "Tally"]


class Tally(NamedTuple):
    """Count the decisions of a phase, by block.

    Attributes:
        accepted: Accepted candidates, shape ``(num_blocks,)``.
        non_finite: Candidates whose log ratio was NaN, as where the log density is NaN or plus
            infinity or the model fails by linear algebra, shape ``(num_blocks,)``.
        sweeps: Number of sweeps.
    """

    accepted: Tensor
    non_finite: Tensor
    sweeps: int

    @classmethod
    def empty(cls, num_blocks: int) -> Tally:
        """Start a count."""
        zeros = torch.zeros(num_blocks, dtype=torch.long)
        return cls(zeros, zeros, 0)

    def add(self, accepted: Tensor, log_ratios: Tensor) -> Tally:
        """Count K sweeps, given shapes ``(K, num_blocks)``."""
        return Tally(
            self.accepted + accepted.sum(0).cpu(),
            self.non_finite + log_ratios.isnan().sum(0).cpu(),
            self.sweeps + len(accepted),
        )

    @property
    def rates(self) -> Tensor:
        """Share of accepted candidates, shape ``(num_blocks,)``; NaN before the first sweep."""
        return self.accepted.double() / self.sweeps if self.sweeps else self.accepted * torch.nan


@dataclass(frozen=True, eq=False)
class ChainState:
    """Hold where a chain is: a checkpoint needs no more, since all noise follows from the key.

    Frozen, tensors included: nothing writes to them.

    Attributes:
        key: The chain's random streams.
        sweeps: Number of sweeps so far, warmup included; the next sweep's noise and batch have this
            number.
        position: Current unconstrained parameters, shape ``(num_params,)``.
        adaptation: What each move has learnt, in the order of the problem's moves.
        warmup_tally: Decisions during warmup.
        draw_tally: Decisions after warmup.
    """

    key: ChainKey
    sweeps: int
    position: Tensor
    adaptation: tuple[MoveState, ...]
    warmup_tally: Tally
    draw_tally: Tally
