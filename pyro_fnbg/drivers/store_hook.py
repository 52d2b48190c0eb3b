"""A store for the draws of Pyro's own ``MCMC``, as its hook."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

from torch import Tensor

from pyro_fnbg.chains.running import Piece
from pyro_fnbg.config import checked_sizes
from pyro_fnbg.core.checks import shown
from pyro_fnbg.drivers.collect import Collector
from pyro_fnbg.kernel import FNBG
from pyro_fnbg.stock.ahead import Ahead
from pyro_fnbg.stock.seeds import worker_chain
from pyro_fnbg.stores.archive import Archive
from pyro_fnbg.stores.hierarchy import as_store, check_free
from pyro_fnbg.stores.reports import keep_noise
from pyro_fnbg.stores.runs import StoredRun, at_start

__all__ = ["StoreHook"]


class StoreHook:
    """Keep the draws of Pyro's ``MCMC`` in a store: ``hook_fn=StoreHook(path, ...)``.

    The store is that of ``MultiChainMCMC(..., store=)``: it can be opened at any time, and what was
    killed goes on, or a run is made longer, by ``MultiChainMCMC.resume``, whose chains make the
    draws that Pyro's would have made. With ``save_params=[]`` Pyro keeps no draws in memory.

    Chains may run one after the other or in workers. Draws reach the disk every ten seconds at the
    latest, and at the end of each chain; what ends the run otherwise loses those since the last
    time, which ``resume`` makes again.

    Args:
        store: A path where there is nothing yet.
        num_samples: Draws of each chain, as given to ``MCMC``.
        num_chains: Number of chains, as given to ``MCMC``.

    Raises:
        ValueError: If the numbers are none.
        OSError: If there is something at the path, or no folder to put it into.

    Example:
        >>> import tempfile, torch
        >>> from pyro.infer import MCMC
        >>> from pyro_fnbg import FNBG, BayesianMLP, StoreHook, open_store
        >>> model = BayesianMLP([2, 3, 1], likelihood="bernoulli")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     hook = StoreHook(f"{folder}/run.zarr", num_samples=8)
        ...     options = {"hook_fn": hook, "save_params": [], "disable_progbar": True}
        ...     MCMC(FNBG(model), num_samples=8, **options).run(torch.randn(9, 2), torch.ones(9))
        ...     dict(open_store(f"{folder}/run.zarr")["posterior"]["layer1.bias"].sizes)
        {'chain': 1, 'draw': 8, 'layer1.bias_dim_0': 3}
    """

    def __init__(
        self, store: str | os.PathLike[str], num_samples: int, num_chains: int = 1
    ) -> None:
        self._num_samples, _, self._num_chains = checked_sizes(num_samples, 0, num_chains)
        self._path = as_store(store)
        check_free(self._path)
        # Workers tell by it that a store which is there is that of their own run
        self._run = uuid4().hex
        self._chain: _Chain | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_chain": None}

    def __call__(self, kernel: FNBG, params: dict[str, Tensor], stage: str, i: int) -> None:
        """Take note of a step of the warmup or of a draw."""
        if self._chain is None or not self._chain.is_of(kernel):
            self._chain = self._begin(kernel, stage)
        self._chain.note()

    def _begin(self, kernel: object, stage: str) -> _Chain:
        if not isinstance(kernel, FNBG):
            raise TypeError(f"StoreHook is for runs of the kernel FNBG, got {shown(kernel)}")
        number = worker_chain()
        if number is None:
            found = re.search(r"\[(\d+)\]", stage)
            number = int(found.group(1)) if found else 0
        if number >= self._num_chains:
            raise ValueError(
                f"num_chains must be that of MCMC, got {self._num_chains}, but there is a chain "
                f"number {number}, counted from 0"
            )
        ahead = kernel.ahead
        if ahead is None or ahead.before.sweeps > 0:
            raise RuntimeError("StoreHook must see a chain from its first step on")
        return _Chain(kernel, ahead, number, self._stored(ahead, number), self._num_samples)

    def _stored(self, ahead: Ahead, number: int) -> StoredRun:
        """Make the store, or take the one that another chain of the run has made."""
        chains = {number: ahead.before}
        try:
            return StoredRun.begin(
                self._path,
                ahead.problem,
                None,
                [chains],
                self._num_samples,
                self._num_chains,
                self._run,
            )
        except FileExistsError:
            archive = Archive(self._path)
            if archive.run != self._run or archive.has_begun(number):
                raise
            stored = StoredRun(archive, at_start(archive.variables.values(), chains))
            archive.save(stored.saved)
            return stored


class _Chain:
    """Take the draws of one chain, as many at once as the kernel made at once."""

    def __init__(
        self, kernel: FNBG, ahead: Ahead, number: int, stored: StoredRun, num_samples: int
    ) -> None:
        self._problem, self._kernel = ahead.problem, kernel
        self._claim = ExitStack()
        self._archive = stored.archive
        self._claim.enter_context(self._archive.claimed(number))
        self._draws = stored.draws(ahead.problem, {number: ahead.before}, num_samples)
        self._collector = Collector(kernel, ahead.problem, [ahead.before], self._draws, None, [""])
        self._pending: Ahead | None = None
        kernel.at_end(self._close)

    def is_of(self, kernel: FNBG) -> bool:
        """Whether this is the chain that a kernel runs."""
        return self._kernel is kernel and kernel.problem is self._problem

    def note(self) -> None:
        """Take what the kernel has handed out, if that is all that it made at once."""
        ahead = self._kernel.ahead
        assert ahead is not None
        if self._pending is not None and ahead is not self._pending:
            self._take(self._pending)
        self._pending = ahead
        if ahead.is_used_up:
            self._take(ahead)
            self._pending = None

    def _take(self, ahead: Ahead) -> None:
        self._collector.take(Piece(0, ahead.before, ahead.state, ahead.handed_out))

    def _close(self) -> None:
        """Commit all draws once Pyro's driver is done with the chain."""
        if self._pending is not None:
            self._take(self._pending)
        self._draws.close(self._collector.chains)
        keep_noise(self._archive, [self._collector.report(0)])
        self._draws.finish([])
        self._claim.close()
