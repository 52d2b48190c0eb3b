"""The maps that Pyro's ``MCMC`` takes a run's draws back to the model's space with."""

from __future__ import annotations

import sys
from typing import Any

from pyro.infer.mcmc.api import MCMC
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel

__all__ = ["Transforms"]


class Transforms(dict[str, Any]):
    """Hold the transforms of a kernel's last set-up, by site.

    Pyro's ``MCMC`` keeps the dict that it was given after its first run, and uses it after all
    others. So it is one object for all runs, also of a pickled ``MCMC``; and as a run in workers
    sets up no kernel in this process, it asks for that when it is read after one.

    Args:
        kernel: Whose ``setup`` fills it, and whose ``transforms`` is None where that is due.
    """

    def __init__(self, kernel: MCMCKernel) -> None:
        super().__init__()
        self._kernel: Any = kernel

    def __contains__(self, name: object) -> bool:
        # Who asks knows the run's arguments
        reader: Any = sys._getframe(1).f_locals.get("self")
        if issubclass(type(reader), MCMC) and self._kernel.transforms is None:
            self._kernel.setup(0, *reader._args, **reader._kwargs)
        return super().__contains__(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._kernel, "_transforms")
