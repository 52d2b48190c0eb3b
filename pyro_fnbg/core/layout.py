"""The flat vector of unconstrained parameters and the sites it is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyro_fnbg.core.checks import is_count, is_list, shown

__all__ = ["Layout", "Site"]


@dataclass(frozen=True)
class Site:
    """Describe one latent sample site in unconstrained space.

    Attributes:
        name: The site's name in the model.
        shape: Shape of the site's unconstrained value.
        dtype: Floating type of the site's values.
        device: Where the site's values live.

    Raises:
        TypeError: If the shape is no tuple of whole numbers.

    Example:
        >>> Site("layer1.weight", (3, 2)).size
        6
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")

    def __post_init__(self) -> None:
        """Check the shape, and make it a plain tuple."""
        if not isinstance(self.shape, tuple) or not all(is_count(n, 0) for n in self.shape):
            raise TypeError(f"shape must be a tuple of whole numbers, got {shown(self.shape)}")
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))

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

    def __post_init__(self) -> None:
        """Check that there are sites, each with a name of its own."""
        are_sites = is_list(self.sites) and all(isinstance(site, Site) for site in self.sites)
        if not are_sites or not self.sites:
            raise TypeError(f"sites must be one or more Site, got {shown(self.sites)}")
        object.__setattr__(self, "sites", tuple(self.sites))
        names = [site.name for site in self.sites]
        if len(set(names)) < len(names):
            raise ValueError(f"sites must have names of their own, got {shown(names)}")

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
        """Name a flat coordinate by its site and its index in the site.

        Raises:
            IndexError: If it is no whole number from 0 to ``num_params - 1``.
        """
        if not is_count(coordinate, 0, self.num_params - 1):
            raise IndexError(
                f"coordinate must be one of {self.num_params} parameters, counted from 0, "
                f"got {shown(coordinate)}"
            )
        offsets = self.offsets()
        site = next(s for s in reversed(self.sites) if s.size and offsets[s.name] <= coordinate)
        place, index = int(coordinate) - offsets[site.name], []
        for length in reversed(site.shape):
            place, remainder = divmod(place, length)
            index.append(remainder)
        return f"{site.name}{list(reversed(index))}" if index else site.name

    def flatten(self, params: Mapping[str, Tensor]) -> Tensor:
        """Join the sites' values, each of its site's shape, into shape ``(num_params,)``.

        Raises:
            TypeError: If a site's value is missing or no tensor.
            ValueError: If one has another shape.
        """
        for site in self.sites:
            value = params.get(site.name) if isinstance(params, Mapping) else None
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"params must map site {site.name!r} to a tensor, got {shown(params)}"
                )
            if value.shape != site.shape:
                raise ValueError(
                    f"params[{site.name!r}] must have shape {site.shape}, got {tuple(value.shape)}"
                )
        return torch.cat([params[site.name].reshape(-1).to(self.dtype) for site in self.sites])

    def unflatten(self, position: Tensor) -> dict[str, Tensor]:
        """Split positions, ``(..., num_params)``, into views of the sites' shapes and types.

        Raises:
            ValueError: If the position is no tensor of that shape.
        """
        if not isinstance(position, Tensor) or position.shape[-1:] != (self.num_params,):
            found = tuple(position.shape) if isinstance(position, Tensor) else shown(position)
            raise ValueError(
                f"position must be a tensor of shape (..., {self.num_params}), got {found}"
            )
        return self.split(position)

    def split(self, position: Tensor) -> dict[str, Tensor]:
        """Do what ``unflatten`` does without its checks, as at every block of a sweep."""
        # A plain tuple and no conversions without need: torch takes longer for them than to split
        front, dtype = tuple(position.shape[:-1]), position.dtype
        pieces = position.split_with_sizes(self.sizes, -1)
        values = {}
        for site, piece in zip(self.sites, pieces, strict=True):
            value = piece.view(front + site.shape)
            values[site.name] = value if dtype is site.dtype else value.to(site.dtype)
        return values

    def rounded(self, position: Tensor) -> Tensor:
        """Round each coordinate to its site's type, so that a position survives the round trip."""
        return position if self.is_uniform else self.flatten(self.unflatten(position))
