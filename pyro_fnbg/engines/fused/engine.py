"""The engine for CPUs: whole sweeps of a network, compiled."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.compiling import warn_if_not_kept
from pyro_fnbg.core.tuning import Tuning
from pyro_fnbg.engines.base import SweepResults
from pyro_fnbg.engines.fused.compiled import run_sweeps
from pyro_fnbg.engines.fused.memory import Noise, Results, Work, make_data, make_plan, make_work
from pyro_fnbg.engines.network import Network, NotFeedforward

__all__ = ["FusedEngine"]

# Seconds after which a first sweep says that it is being compiled, not read from disk
PATIENCE = 2.0


class FusedEngine:
    """Sweep over the blocks of a feedforward network, compiled for the CPU.

    The same decisions as the other engines from the same noise; in single precision, log ratios
    agree up to rounding. Calls on several threads run side by side, and a chain's results are the
    same bit for bit whatever runs beside it. The first use compiles for some seconds, and says so;
    later processes find the result on disk, and where it cannot be kept there, a warning says that.

    Args:
        network: What the model computes.
        partition: The blocks in sweep order.

    Raises:
        NotFeedforward: If the network is on another device, or its observation scale has a prior
            that is not known here.
    """

    name = "fused"
    is_compiled = True
    joins_chains = False

    def __init__(self, network: Network, partition: Partition) -> None:
        if network.inputs.device.type != "cpu":
            raise NotFeedforward(f"its data are on {network.inputs.device}, not on the CPU")
        dtype = network.inputs.dtype
        self._plan = make_plan(network, partition)
        self._data = make_data(network)
        self._works: list[Work] = []
        self.moved_rows = torch.empty(0)
        nothing = torch.empty(1, 0, len(network.prior_locs), dtype=torch.float64)
        warn_if_not_kept(run_sweeps)
        with _message_while_compiling(str(dtype)):
            self.sweeps(
                nothing.new_zeros(1, nothing.shape[-1]).to(dtype),
                torch.zeros(1, 0, 1, dtype=torch.long),
                nothing,
                nothing.new_empty(1, 0, partition.num_blocks),
                nothing.new_ones(1, partition.num_blocks),
            )

    def sweeps(
        self,
        positions: Tensor,
        rows: Tensor | None,
        z: Tensor,
        log_u: Tensor,
        scales: Tensor,
        tuning: Tuning | None = None,
    ) -> SweepResults:
        """Run K sweeps of C chains; see ``pyro_fnbg.engines.base.Engine``.

        ``moved_rows`` then holds the number of rows on which each candidate had to be followed up
        the layers, shape ``(C, K, num_blocks)``.
        """
        (chains, num_sweeps, num_params), num_blocks = z.shape, log_u.shape[-1]
        num_rows = len(self._data.inputs) if rows is None else rows.shape[-1]
        every = np.arange(num_rows)[None]
        if tuning is None:
            tuning = Tuning(torch.zeros(num_blocks), torch.zeros(num_sweeps))
        targets, gains = (values.double().numpy() for values in tuning)
        results = Results(
            positions=np.empty((chains, num_sweeps, num_params), self._data.inputs.dtype),
            log_ratios=np.empty((chains, num_sweeps, num_blocks)),
            accepted=np.empty((chains, num_sweeps, num_blocks), np.bool_),
            log_densities=np.empty((chains, num_sweeps)),
            scales=np.empty((chains, num_sweeps, num_blocks)),
            moved_rows=np.empty((chains, num_sweeps, num_blocks), np.int64),
        )
        with self._work(num_rows) as work:
            for chain in range(chains):
                noise = Noise(
                    rows=every if rows is None else rows[chain].contiguous().numpy(),
                    z=z[chain].contiguous().numpy(),
                    log_u=log_u[chain].contiguous().numpy(),
                    scales=scales[chain].numpy().copy(),
                    targets=targets,
                    gains=gains,
                )
                position = positions[chain].numpy().copy()
                chain_results = Results(*(values[chain] for values in results))
                # The compiled code lets go of Python's lock
                run_sweeps(self._plan, self._data, work, position, noise, chain_results)
        self.moved_rows = torch.from_numpy(results.moved_rows)
        return SweepResults(*map(torch.from_numpy, results[:-1]))

    @contextmanager
    def _work(self, num_rows: int) -> Iterator[Work]:
        """Lend memory to one call; calls on other threads get their own."""
        try:
            work = self._works.pop()
        except IndexError:
            work = make_work(self._plan, self._data, num_rows)
        if len(work.log_lik) != num_rows:
            work = make_work(self._plan, self._data, num_rows)
        yield work
        self._works.append(work)


@contextmanager
def _message_while_compiling(dtype: str) -> Iterator[None]:
    """Say that the sweep is being compiled, where it was not found on disk."""
    message = f"pyro_fnbg: compiling the fused engine for {dtype} (about 20 s)"
    timer = threading.Timer(PATIENCE, print, [message], {"file": sys.stderr, "flush": True})
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
