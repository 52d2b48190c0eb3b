"""The engine for CPUs: whole sweeps of a network, compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.compiling import warn_if_not_kept, while_compiling
from pyro_fnbg.core.moves.base import Move
from pyro_fnbg.core.moves.joint import JointMoves, stacked
from pyro_fnbg.engines.base import Engine, Record, SweepInputs
from pyro_fnbg.engines.fused.allocation import make_works, threads_that_pay
from pyro_fnbg.engines.fused.compiled import run_sweeps
from pyro_fnbg.engines.fused.memory import (
    Kind,
    Noise,
    Results,
    Work,
    make_data,
    make_moves,
    make_net,
)
from pyro_fnbg.engines.fused.moves import COMPILED_MOVES, noise_of, pack, unpack
from pyro_fnbg.engines.fused.vectors import WIDTH
from pyro_fnbg.engines.network import Network, NotFeedforward

__all__ = ["FusedEngine"]

# More arrivals than there ever are
NO_MORE_WAITING = 2**62


class FusedEngine(Engine):
    """Sweep over the blocks of a feedforward network, compiled for the CPU.

    The same decisions as the other engines from the same noise; in single precision, log ratios
    agree up to rounding. Calls on several threads run side by side, and within a call threads share
    the rows of a large batch, as many as torch may use; a chain's results are the same bit for bit
    on any number of threads, and whatever runs beside it. The first use compiles for some seconds,
    and says so; later processes find the result on disk, and where it cannot be kept there, a
    warning says that.

    Args:
        network: What the model computes.
        partition: The blocks in sweep order.
        moves: The move of each block.

    Raises:
        NotFeedforward: If the network is on another device, or its observation scale has a prior
            that is not known here.
    """

    name = "fused"
    is_compiled = True
    joins_chains = False

    def __init__(self, network: Network, partition: Partition, moves: JointMoves) -> None:
        inputs = network.data.inputs
        if inputs.device.type != "cpu":
            raise NotFeedforward(f"its data are on {inputs.device}, not on the CPU")
        dtype = inputs.dtype
        self._net = make_net(network, partition)
        self._move_data = make_moves(network, self._net, moves)
        self._data = make_data(network)
        # Parameters of the largest block that is drawn from a Normal conditional
        sizes = np.diff(self._net.block_starts)[self._move_data.kinds == Kind.GIBBS]
        self._most_drawn = int(sizes.max(initial=1))
        self._moves, self._targets = moves, moves.targets.numpy()
        self._kept: list[tuple[Work, ...]] = []
        self._no_rescaling = np.empty((1, 3, 0, 0))
        self.moved_rows = torch.empty(0)
        # No sweeps at all: they are compiled by that
        nothing = torch.empty(1, 0, partition.num_params, dtype=torch.float64)
        warn_if_not_kept(run_sweeps)
        with while_compiling(f"the fused engine for {dtype} (about 20 s)"):
            self.run(
                SweepInputs(
                    nothing.new_zeros(1, partition.num_params).to(dtype),
                    torch.zeros(1, 0, 1, dtype=torch.long),
                    nothing,
                    nothing.new_empty(1, 0, partition.num_blocks),
                    stacked([moves.start()]),
                )
            )

    @staticmethod
    def knows(move: Move) -> bool:
        """Whether a move has a compiled counterpart; one derived from it has none."""
        return type(move) in COMPILED_MOVES

    def run(self, inputs: SweepInputs) -> Record:
        """Run sweeps on given noise and batches; see ``Engine.run``.

        ``moved_rows`` then holds the number of rows on which each candidate had to be followed up
        the layers, shape ``(C, K, num_blocks)``.
        """
        positions, rows, z, log_u, adaptation, gains, rescaling = inputs
        (chains, num_sweeps, num_params), num_blocks = z.shape, log_u.shape[-1]
        num_rows = len(self._data.inputs) if rows is None else rows.shape[-1]
        every = np.arange(num_rows)[None]
        scales, z = pack(self._moves, chains, adaptation), noise_of(self._moves, z)
        num_learnt = 0 if gains is None else num_sweeps
        rescalings = self._no_rescaling
        if rescaling is not None:
            rescalings = torch.stack(list(rescaling), 1).numpy()
        results = Results(
            positions=np.empty((chains, num_sweeps, num_params), self._data.inputs.dtype),
            log_ratios=np.empty((chains, num_sweeps, num_blocks)),
            accepted=np.empty((chains, num_sweeps, num_blocks), np.bool_),
            log_densities=np.empty((chains, num_sweeps)),
            scales=np.empty((chains, num_learnt, num_blocks)),
            moved_rows=np.empty((chains, num_sweeps, num_blocks), np.int64),
        )
        with self._works(num_rows) as works:
            for chain in range(chains):
                noise = Noise(
                    rows=every if rows is None else rows[chain].contiguous().numpy(),
                    z=z[chain].contiguous().numpy(),
                    log_u=log_u[chain].contiguous().numpy(),
                    scales=scales[chain],
                    targets=self._targets,
                    gains=np.empty(0) if gains is None else gains.numpy(),
                    rescaling=rescalings[min(chain, len(rescalings) - 1)],
                )
                position = positions[chain].numpy().copy()
                chain_results = Results(*(values[chain] for values in results))
                self._run_chain(works, position, noise, chain_results)
        self.moved_rows = torch.from_numpy(results.moved_rows)
        learnt = torch.from_numpy(scales[:, None] if gains is None else results.scales)
        return Record(
            positions=torch.from_numpy(results.positions),
            log_ratios=torch.from_numpy(results.log_ratios),
            accepted=torch.from_numpy(results.accepted),
            log_densities=torch.from_numpy(results.log_densities),
            adaptation=unpack(self._moves, learnt),
        )

    def _run_chain(
        self, works: Sequence[Work], position: NDArray[Any], noise: Noise, results: Results
    ) -> None:
        """Run one chain's sweeps, each share of its rows on a thread of its own if there are some.

        All take the same decisions; the first one's are kept, and the moved rows of all.
        """
        if len(works) == 1:
            # The compiled code lets go of Python's lock
            run_sweeps(self._net, self._move_data, self._data, works[0], position, noise, results)
            return
        others = [
            (
                work,
                _apart(position),
                noise._replace(scales=_apart(noise.scales)),
                Results(*map(np.empty_like, results)),
            )
            for work in works[1:]
        ]
        shared = self._net, self._move_data, self._data
        with ThreadPoolExecutor(len(others)) as pool:
            try:
                done = [pool.submit(run_sweeps, *shared, *other) for other in others]
                run_sweeps(*shared, works[0], position, noise, results)
            except BaseException:
                # A thread that does not start, or Ctrl-C: nobody waits for those who are missing
                works[0].arrivals[0] = NO_MORE_WAITING
                raise
            for future in done:
                future.result()
        for *_, found in others:
            results.moved_rows[:] += found.moved_rows

    @contextmanager
    def _works(self, num_rows: int) -> Iterator[tuple[Work, ...]]:
        """Lend memory to one call; calls on other threads get their own."""
        num_threads = threads_that_pay(num_rows, torch.get_num_threads())
        try:
            works = self._kept.pop()
        except IndexError:
            works = ()
        if (sum(work.num_rows for work in works), len(works)) != (num_rows, num_threads):
            works = make_works(self._net, self._data, num_rows, num_threads, self._most_drawn)
        yield works
        self._kept.append(works)


def _apart(array: NDArray[Any]) -> NDArray[Any]:
    """Copy an array, and leave a line of the cache between it and what another thread writes."""
    return np.concatenate([array, np.zeros(WIDTH, array.dtype)])[: len(array)]
