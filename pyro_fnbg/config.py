"""The arguments of ``FNBG``: held, checked, and spread over the blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from pyro_fnbg.adaptation import target_accept_probs
from pyro_fnbg.blocks import Partition
from pyro_fnbg.engines.choice import ENGINE_NAMES
from pyro_fnbg.layout import Layout
from pyro_fnbg.sites import Model

__all__ = [
    "Config",
    "check_arguments",
    "check_choice",
    "check_count",
    "check_hook",
    "given_scales",
    "targets_of_blocks",
    "with_thin",
]


@dataclass(frozen=True)
class Config:
    """Hold the arguments of ``FNBG``, as given."""

    model: Model
    blocks: str | Partition | Callable[[Layout], Partition]
    parts: int | Mapping[int, int] | None
    max_block_size: int | None
    batch_size: int | None
    batch_order: str
    batch_plate: str | None
    likelihood_scale: str | float | None
    proposal_scale: float | Sequence[float] | None
    adapt: bool
    target_accept_prob: float | None
    engine: str
    thin: int
    init_strategy: Callable[..., Any]


def given_scales(
    proposal_scale: float | Sequence[float] | None, partition: Partition
) -> Tensor | None:
    """Spread a number, or one number a layer, over the blocks.

    Raises:
        ValueError: If there are not as many numbers as layers.
    """
    if proposal_scale is None:
        return None
    scales = torch.as_tensor(proposal_scale, dtype=torch.float64)
    if scales.dim() == 0:
        return scales.repeat(partition.num_blocks)
    names = partition.layer_names
    layers = [block.layer for block in partition.blocks if block.layer is not None]
    if len(scales) != len(names) or len(layers) < partition.num_blocks:
        raise ValueError(
            f"proposal_scale must be one number or one per layer {list(names)}, "
            f"got {len(scales)} numbers"
        )
    return scales[torch.tensor(layers) - 1]


def targets_of_blocks(target_accept_prob: float | None, partition: Partition) -> Tensor:
    """Return the acceptance probability aimed at for each block, as asked or by its size."""
    if target_accept_prob is None:
        return target_accept_probs(partition)
    return torch.full((partition.num_blocks,), target_accept_prob, dtype=torch.float64)


def check_arguments(config: Config) -> None:
    """Check the arguments that need no model.

    Raises:
        TypeError: If the model or the strategy is not callable.
        ValueError: Naming the argument, its value and what is allowed.
    """
    if not callable(config.model):
        raise TypeError(
            f"model must be a callable with Pyro sample statements, got {config.model!r}"
        )
    scale = config.proposal_scale
    if scale is not None and not _are_positive(scale):
        raise ValueError(
            f"proposal_scale must be a positive standard deviation or one per layer, got {scale!r}"
        )
    if not callable(config.init_strategy):
        raise TypeError(
            "init_strategy must be one of pyro.infer.autoguide.initialization, "
            f"got {config.init_strategy!r}"
        )
    check_choice("engine", config.engine, ENGINE_NAMES)
    check_count("thin", config.thin, 1)
    target = config.target_accept_prob
    is_number = isinstance(target, Real) and not isinstance(target, bool)
    if target is not None and not (is_number and 0 < target < 1):
        raise ValueError(f"target_accept_prob must be between 0 and 1, got {target!r}")


def _are_positive(scale: float | Sequence[float]) -> bool:
    """Whether something is one finite positive number, or a row of them."""
    try:
        numbers = torch.as_tensor(scale, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return False
    is_right_shape = numbers.dim() <= 1 and not isinstance(scale, bool)
    return is_right_shape and bool(((numbers > 0) & numbers.isfinite()).all())


def check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    """Check that something is one of a few.

    Raises:
        ValueError: If it is not.
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {tuple(allowed)}, got {value!r}")


def check_count(name: str, value: object, least: int) -> None:
    """Check a number of things.

    Raises:
        ValueError: If it is no whole number or too small.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise ValueError(f"{name} must be a whole number, {least} or more; got {value!r}")


def check_hook(hook_fn: object) -> None:
    """Check a driver's hook.

    Raises:
        TypeError: If there is one that cannot be called.
    """
    if hook_fn is not None and not callable(hook_fn):
        raise TypeError(f"hook_fn must be a callable or None, got {hook_fn!r}")


def with_thin(config: Config, thin: int | None) -> Config:
    """Take a driver's number of sweeps a draw, unless the kernel has another.

    Raises:
        ValueError: If both say different numbers, or it is no whole number from 1.
    """
    if thin is None:
        return config
    check_count("thin", thin, 1)
    if config.thin not in (1, thin):
        raise ValueError(f"the kernel has thin={config.thin}, but the driver got thin={thin}")
    return replace(config, thin=thin)
