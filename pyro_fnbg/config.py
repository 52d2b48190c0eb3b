"""The arguments of ``FNBG``: held, checked, and spread over the blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.checks import (
    as_finite,
    as_probability,
    as_reals,
    check_choice,
    check_count,
    check_flag,
    check_names,
    is_count,
    is_list,
    shown,
)
from pyro_fnbg.core.layout import Layout
from pyro_fnbg.core.moves.choice import AUTO, MOVE_NAMES
from pyro_fnbg.core.partitions import check_blocks
from pyro_fnbg.core.tuning import target_accept_probs
from pyro_fnbg.engines.choice import ENGINE_NAMES
from pyro_fnbg.model.bound import Model
from pyro_fnbg.model.planning import check_batch_arguments

__all__ = [
    "Config",
    "Scale",
    "check_arguments",
    "check_driver_options",
    "check_memory",
    "checked_seconds",
    "checked_sizes",
    "given_scales",
    "targets_of_blocks",
    "with_thin",
]

# One number, one a layer, or by name of a block or a layer
Scale = float | Sequence[float] | Mapping[str, float]

# Numbers of all parameters over the sweeps of one draw, at most: 1 GB in double precision
MAX_NUMBERS = 2**27
# Each has a state of its own, so a mistyped number must not try
MAX_CHAINS = 100_000


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
    proposal_scale: Scale | None
    adapt: bool
    target_accept_prob: float | None
    engine: str
    thin: int
    init_strategy: Callable[..., Any]
    moves: str | Mapping[str, str]
    rescale: bool | None

    def __post_init__(self) -> None:
        """Turn whole numbers into Python's: NumPy's small ones overflow in products and sums."""
        for name in ("parts", "max_block_size", "batch_size", "thin"):
            value = getattr(self, name)
            if is_count(value, 1):
                object.__setattr__(self, name, int(value))

    def tuned_sweeps(self, warmup_steps: int) -> int:
        """Return how many sweeps adapt the scales."""
        return warmup_steps if self.adapt else 0


def given_scales(proposal_scale: Scale | None, partition: Partition) -> Tensor:
    """Spread a number, one a layer, or some by name, over the blocks; NaN where there is none.

    A block's own name comes before that of its layer.

    Raises:
        ValueError: If there are not as many numbers as layers, or a name is none of these.
    """
    names, blocks = partition.layer_names, partition.blocks
    if proposal_scale is None or isinstance(proposal_scale, Mapping):
        found = partition.by_name("proposal_scale", proposal_scale or {}, "numbers")
        numbers = [math.nan if one is None else float(one) for one in found]
        return torch.tensor(numbers, dtype=torch.float64)
    scales = torch.as_tensor(as_reals(proposal_scale))
    if scales.dim() == 0:
        return scales.repeat(partition.num_blocks)
    layers = [block.layer for block in blocks if block.layer is not None]
    if len(scales) != len(names) or len(layers) < partition.num_blocks:
        raise ValueError(
            f"proposal_scale must be one number, one per layer {list(names)}, or a mapping from "
            f"names of blocks or layers to numbers; got {len(scales)} numbers"
        )
    return scales[torch.tensor(layers) - 1]


def targets_of_blocks(target_accept_prob: float | None, partition: Partition) -> Tensor:
    """Return the acceptance probability aimed at for each block, as asked or by its size."""
    if target_accept_prob is None:
        return target_accept_probs(partition)
    return torch.full((partition.num_blocks,), float(target_accept_prob), dtype=torch.float64)


def check_arguments(config: Config) -> None:
    """Check the arguments that need no model.

    Raises:
        TypeError: If the model or the strategy is not callable.
        ValueError: Naming the argument, its value and what is allowed.
    """
    if not callable(config.model):
        raise TypeError(
            f"model must be a callable with Pyro sample statements, got {shown(config.model)}"
        )
    check_blocks(config.blocks, config.parts, config.max_block_size)
    check_batch_arguments(
        config.batch_size, config.batch_order, config.batch_plate, config.likelihood_scale
    )
    scale = config.proposal_scale
    if scale is not None and not _are_positive(scale):
        raise ValueError(
            "proposal_scale must be a positive standard deviation, one per layer, or a mapping "
            f"from names of blocks or layers to positive ones, got {shown(scale)}"
        )
    check_flag("adapt", config.adapt)
    if not callable(config.init_strategy):
        raise TypeError(
            "init_strategy must be one of pyro.infer.autoguide.initialization, "
            f"got {shown(config.init_strategy)}"
        )
    if isinstance(config.moves, Mapping):
        for name, move in config.moves.items():
            check_choice(f"moves[{name!r}]", move, MOVE_NAMES)
    else:
        check_choice("moves", config.moves, (*MOVE_NAMES, AUTO))
    if config.rescale is not None:
        check_flag("rescale", config.rescale)
    check_choice("engine", config.engine, ENGINE_NAMES)
    check_count("thin", config.thin, 1)
    if config.target_accept_prob is not None:
        as_probability("target_accept_prob", config.target_accept_prob)


def _are_positive(scale: Scale) -> bool:
    """Whether something is one finite positive number, a row of them, or each of a name."""
    if isinstance(scale, Mapping):
        numbered = all(isinstance(name, str) for name in scale)
        return numbered and all(np.ndim(one) == 0 and _are_positive(one) for one in scale.values())
    numbers = as_reals(scale)
    if numbers is None or numbers.ndim > 1 or numbers.size == 0:
        return False
    # True would count as 1, and does in an array, where it cannot be told any more
    entries = scale if is_list(scale) else [scale]
    if any(isinstance(entry, bool) or _has_bools(entry) for entry in entries):
        return False
    return bool(((numbers > 0) & np.isfinite(numbers)).all())


def _has_bools(entry: object) -> bool:
    return str(getattr(entry, "dtype", "")) in ("bool", "torch.bool")


def check_memory(thin: int, partition: Partition) -> None:
    """Check that the sweeps of one draw, which are made together, fit into memory.

    Raises:
        ValueError: If they do not; says how many do.
    """
    most = MAX_NUMBERS // partition.num_params
    if thin > max(1, most):
        raise ValueError(
            f"thin must be {most} at most for {partition.num_params} parameters, since the sweeps "
            f"of a draw are in memory together; got {thin}"
        )


def checked_sizes(
    num_samples: int, warmup_steps: int | None, num_chains: int
) -> tuple[int, int, int]:
    """Return a driver's numbers of draws, of steps of warmup and of chains.

    Raises:
        ValueError: If one is no whole number, too small or too large.
    """
    check_count("num_samples", num_samples, 1)
    if warmup_steps is None:
        warmup_steps = num_samples
    check_count("warmup_steps", warmup_steps, 0)
    check_count("num_chains", num_chains, 1, MAX_CHAINS)
    return int(num_samples), int(warmup_steps), int(num_chains)


def checked_seconds(max_seconds: float | None) -> float | None:
    """Return how long a run may take; None for as long as it needs.

    Raises:
        ValueError: If it is no positive number.
    """
    if max_seconds is None:
        return None
    seconds = as_finite(max_seconds)
    if seconds is None or seconds <= 0:
        raise ValueError(
            f"max_seconds must be a positive number of seconds or None, got {shown(max_seconds)}"
        )
    return seconds


def check_driver_options(hook_fn: object, disable_progbar: object, save_params: object) -> None:
    """Check what a driver passes on.

    Raises:
        TypeError: If there is a hook that cannot be called, or no list of sites' names.
        ValueError: If the progress bar is neither on nor off.
    """
    if hook_fn is not None and not callable(hook_fn):
        raise TypeError(f"hook_fn must be a callable or None, got {shown(hook_fn)}")
    check_flag("disable_progbar", disable_progbar)
    if save_params is not None:
        check_names("save_params", save_params, "latent sites")


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
