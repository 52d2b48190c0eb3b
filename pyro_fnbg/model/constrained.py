"""Draws as the model has them, from the unconstrained ones of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions.transforms import ExpTransform, IndependentTransform

from pyro_fnbg.model.sites import ModelSites

__all__ = ["ConstrainedDraws"]


class ConstrainedDraws:
    """Map unconstrained draws to constrained ones, the same whatever draws are beside them.

    Args:
        sites: The model's latent sites.
        names: Sites whose draws are wanted; None for all.

    Attributes:
        shapes: Shape of a draw of each site.
    """

    def __init__(self, sites: ModelSites, names: Sequence[str] | None) -> None:
        self._sites = sites
        self.shapes: dict[str, tuple[int, ...]] = {}
        for site in sites.layout.sites:
            if names is None or site.name in names:
                unconstrained = torch.zeros(site.shape, dtype=site.dtype, device=site.device)
                self.shapes[site.name] = tuple(sites.constrain[site.name](unconstrained).shape)
        self._steady = sites.real_sites | {
            name for name, bijection in sites.constrain.items() if _is_exp(bijection)
        }

    def of(self, positions: Tensor) -> dict[str, Tensor]:
        """Map positions, shape ``(K, num_params)``, to draws by site, ``(K, *site shape)``."""
        found = {}
        for name, value in self._sites.layout.unflatten(positions).items():
            if name not in self.shapes:
                continue
            constrain = self._sites.constrain[name]
            if name in self._steady:
                found[name] = constrain(value)
                continue
            # One by one: torch may round otherwise where other numbers are computed beside these
            found[name] = value.new_empty(len(value), *self.shapes[name])
            for own, unconstrained in zip(found[name].unbind(0), value.unbind(0), strict=True):
                own.copy_(constrain(unconstrained))
        return found


def _is_exp(bijection: Any) -> bool:
    """Whether a map is the exponential, number by number."""
    while isinstance(bijection, IndependentTransform):
        bijection = bijection.base_transform
    return isinstance(bijection, ExpTransform)
