"""What moves have in common that draw blocks from their conditionals: they learn nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from pyro_fnbg.core.moves.base import Move

__all__ = ["ExactDraw", "NoState"]


class NoState(NamedTuple):
    """Hold what a move has learnt that learns nothing."""


class ExactDraw(Move):
    """Draw blocks from their conditionals, with nothing to tune and nothing to tell."""

    def start(self) -> NoState:
        """Return the state, which is none."""
        return NoState()

    def adapt(
        self, state: NoState, position: Tensor, accept_probs: Tensor, gain: Tensor
    ) -> NoState:
        """Learn nothing."""
        return state

    def report(self, state: NoState) -> Mapping[str, Tensor]:
        """Return nothing."""
        return {}
