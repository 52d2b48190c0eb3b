"""Where a fit starts: at random, and not the same for two chains."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_fnbg.core.noise import ChainKey, Stream, generator
from pyro_fnbg.fitting.joint import JointDensity
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.sites import ModelSites, PlateRows, prior_draws, seeded

__all__ = ["at_medians", "random_start"]

# Positions that are drawn, at most, until one has a finite log density
MAX_TRIES = 100
# Draws from the prior that medians are taken of
NUM_DRAWS = 100


def random_start(
    bound: BoundModel,
    sites: ModelSites,
    density: JointDensity,
    plate: str | None,
    rows: Tensor | None,
    key: ChainKey,
) -> Tensor:
    """Draw where the fit of a chain starts, again until its log density is finite.

    Weights of networks, two-dimensional sites on the real line called ``NAME.weight``, are Normal
    with variance 2 / inputs, and their biases, ``NAME.bias``, 0 (He, Zhang, Ren and Sun, 2015).
    Other sites are drawn from their priors.

    Returns:
        The unconstrained position, shape ``(num_params,)``.

    Raises:
        ValueError: If none of 100 tries is.
    """
    with seeded(int(generator(key, Stream.FIT, 1).integers(2**63 - 1))), torch.no_grad():
        for _ in range(MAX_TRIES):
            (drawn,) = prior_draws(bound, sites, PlateRows(plate, rows), 1)
            values = sites.layout.unflatten(drawn)
            for name, value in values.items():
                layer, _, part = name.rpartition(".")
                weight = values.get(f"{layer}.weight")
                if name not in sites.real_sites or weight is None or weight.dim() != 2:
                    continue
                if part == "weight":
                    values[name] = torch.randn_like(value) * math.sqrt(2 / value.shape[1])
                elif part == "bias":
                    values[name] = torch.zeros_like(value)
            position = sites.layout.flatten(values)
            if bool(torch.isfinite(density(position[None], rows)).all()):
                return position
    raise ValueError(
        f"no start of the fit with a finite log density in {MAX_TRIES} tries: check the data and "
        "the priors"
    )


def at_medians(
    bound: BoundModel,
    sites: ModelSites,
    density: JointDensity,
    rows: tuple[str | None, Tensor | None],
    starts: Tensor,
    is_held: Tensor,
    key: ChainKey,
) -> Tensor:
    """Put some coordinates of chains at their medians under the prior, of a hundred draws.

    A chain that would have no finite log density there stays where it is.

    Args:
        bound: The model.
        sites: What set-up found in it.
        density: Its log density.
        rows: The plate, and its rows that the density is looked at on.
        starts: Where the chains are, shape ``(C, num_params)``.
        is_held: Which coordinates to put there, shape ``(num_params,)``.
        key: The random streams of the draws.
    """
    with seeded(int(generator(key, Stream.FIT, 2).integers(2**63 - 1))), torch.no_grad():
        draws = prior_draws(bound, sites, PlateRows(*rows), NUM_DRAWS)
        moved = torch.where(is_held, draws.median(0).values, starts)
        is_possible = torch.isfinite(density(moved, rows[1]))
        return torch.where(is_possible[:, None], moved, starts)
