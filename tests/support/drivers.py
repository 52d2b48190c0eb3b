"""Runs of the driver and of Pyro's own ``MCMC`` from one seed, to compare."""

from collections.abc import Callable, Mapping
from typing import Any

import pyro
import pyro.infer.mcmc.api as api
import pytest
import torch
from pyro.infer import MCMC
from torch import Tensor

from pyro_fnbg import FNBG, MultiChainMCMC
from support.engines import ENGINES


def drive(
    kernel: FNBG,
    *args: Any,
    draws: int = 20,
    warmup: int = 10,
    seed: int | None = 1,
    **options: Any,
) -> MultiChainMCMC:
    """Run the driver without a progress bar."""
    return _run(MultiChainMCMC, kernel, args, draws, warmup, seed, options)


def stock(
    kernel: FNBG,
    *args: Any,
    draws: int = 20,
    warmup: int = 10,
    seed: int | None = 1,
    **options: Any,
) -> MCMC:
    """Run Pyro's driver, its chains one after the other as where cores are few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api.mp, "cpu_count", lambda: 1)
        return _run(MCMC, kernel, args, draws, warmup, seed, options)


def _run(
    driver: Callable[..., Any],
    kernel: FNBG,
    args: tuple[Any, ...],
    draws: int,
    warmup: int,
    seed: int | None,
    options: dict[str, Any],
) -> Any:
    if seed is not None:
        pyro.set_rng_seed(seed)
    options = {"disable_progbar": True} | options
    mcmc = driver(kernel, num_samples=draws, warmup_steps=warmup, **options)
    mcmc.run(*args)
    return mcmc


def by_chain(mcmc: Any) -> dict[str, Tensor]:
    """Return the draws with their dimension for chains."""
    return mcmc.get_samples(group_by_chain=True)


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two runs kept the same sites with the same draws, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


# The two drivers, as classes and as runs from one seed
DRIVERS = pytest.mark.parametrize("driver", [MCMC, MultiChainMCMC], ids=["stock", "ours"])
# Every engine with our driver, and Pyro's with what it chooses
WAYS = pytest.mark.parametrize(
    ("driver", "engine"),
    [(MCMC, "auto"), *((MultiChainMCMC, engine) for engine in ENGINES)],
    ids=["stock", *ENGINES],
)
each_driver = pytest.mark.parametrize("run", [stock, drive], ids=["stock", "ours"])
