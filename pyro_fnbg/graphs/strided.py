"""Where evenly spaced parameters are among others."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fnbg.networks.statement import NotFeedforward

__all__ = ["Strided"]


class Strided(NamedTuple):
    """Say where numbers with one or two indices are among the flat coordinates.

    Attributes:
        start: Coordinate of the first.
        steps: From one to the next, by index.
    """

    start: int
    steps: tuple[int, ...]

    @classmethod
    def of(cls, coordinates: Tensor) -> Strided:
        """Return where some coordinates are.

        Raises:
            NotFeedforward: If they are not evenly spaced.
        """
        steps = tuple(
            int(coordinates.select(dim, 1).min() - coordinates.min()) if length > 1 else 1
            for dim, length in enumerate(coordinates.shape)
        )
        found = cls(int(coordinates.reshape(-1)[0]), steps)
        if min(steps) < 1 or not torch.equal(found.coordinates(*coordinates.shape), coordinates):
            raise NotFeedforward("weights of a layer are not evenly spaced in their site")
        return found

    def coordinates(self, *shape: int) -> Tensor:
        """Return the coordinates of all, in a shape of as many dimensions as there are steps."""
        found = torch.tensor(self.start)
        for length, step in zip(shape, self.steps, strict=True):
            found = found.unsqueeze(-1) + step * torch.arange(length)
        return found
