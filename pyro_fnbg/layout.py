"""The flat vector of unconstrained parameters and the sites it is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["Layout", "Site"]


@dataclass(frozen=True)
class Site:
    """Describe one latent sample site in unconstrained space.

    Attributes:
        name: The site's name in the model.
        shape: Shape of the site's unconstrained value.
        dtype: Floating type of the site's values.
        device: Where the site's values live.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")

    @property
    def size(self) -> int:
        """Number of unconstrained coordinates."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Map between the sites of a model and one flat vector, exactly in both directions.

    The flat order is the order of ``sites`` (the model's trace order), row-major inside a site.
    The flat vector has the widest floating type among the sites, so nothing is lost.

    Attributes:
        sites: The latent sites in trace order.

    Example:
        >>> layout = Layout((Site("w", (2, 3)), Site("b", (2,))))
        >>> layout.num_params, layout.coordinate_name(4)
        (8, 'w[1, 1]')
        >>> position = layout.flatten({"w": torch.zeros(2, 3), "b": torch.ones(2)})
        >>> layout.unflatten(position)["b"]
        tensor([1., 1.])
    """

    sites: tuple[Site, ...]

    @cached_property
    def sizes(self) -> list[int]:
        """Number of coordinates of each site."""
        return [site.size for site in self.sites]

    @cached_property
    def num_params(self) -> int:
        """Number of unconstrained coordinates over all sites."""
        return sum(self.sizes)

    @cached_property
    def dtype(self) -> torch.dtype:
        """Floating type of the flat vector."""
        dtype = self.sites[0].dtype
        for site in self.sites[1:]:
            dtype = torch.promote_types(dtype, site.dtype)
        return dtype

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all sites share one floating type."""
        return len({site.dtype for site in self.sites}) == 1

    def offsets(self) -> dict[str, int]:
        """Return the first flat coordinate of each site."""
        offset, offsets = 0, {}
        for site in self.sites:
            offsets[site.name] = offset
            offset += site.size
        return offsets

    def coordinate_name(self, coordinate: int) -> str:
        """Name a flat coordinate by its site and its index in the site."""
        for site in self.sites:
            if coordinate < site.size:
                index = []
                for length in reversed(site.shape):
                    coordinate, remainder = divmod(coordinate, length)
                    index.append(remainder)
                return f"{site.name}{list(reversed(index))}" if index else site.name
            coordinate -= site.size
        raise IndexError(f"coordinate beyond the last of {self.num_params} parameters")

    def flatten(self, params: Mapping[str, Tensor]) -> Tensor:
        """Join the sites' values, each of its site's shape, into shape ``(num_params,)``."""
        return torch.cat([params[site.name].reshape(-1).to(self.dtype) for site in self.sites])

    def unflatten(self, position: Tensor) -> dict[str, Tensor]:
        """Split positions, ``(..., num_params)``, into views of the sites' shapes and types."""
        pieces = position.split(self.sizes, -1)
        return {
            site.name: piece.view(piece.shape[:-1] + site.shape).to(site.dtype)
            for site, piece in zip(self.sites, pieces, strict=True)
        }

    def rounded(self, position: Tensor) -> Tensor:
        """Round each coordinate to its site's type, so that a position survives the round trip."""
        return position if self.is_uniform else self.flatten(self.unflatten(position))
