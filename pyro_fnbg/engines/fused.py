"""The engine for CPUs: whole sweeps of a network, compiled."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyro.distributions as dist
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from pyro_fnbg.blocks import Partition
from pyro_fnbg.engines.base import SweepResults
from pyro_fnbg.engines.compiled import TILE, Data, Noise, Plan, Results, Work
from pyro_fnbg.engines.compiled import run_sweeps
from pyro_fnbg.engines.network import Network, NotFeedforward
from pyro_fnbg.structure import ACTIVATIONS, LIKELIHOODS

__all__ = ["FusedEngine"]

# Bytes of first-layer increments times inputs held at a time, of one chain
DELTA_BYTES = 2**27


class FusedEngine:
    """Sweep over the blocks of a feedforward network, compiled for the CPU.

    The same decisions as the other engines from the same noise; in single precision, log ratios
    agree up to rounding. Chains run on threads of their own, up to the number of cores, and each
    chain's results are the same bit for bit whatever runs beside it. The first use compiles for
    some seconds, and says so; later processes find the result on disk.

    Args:
        network: What the model computes.
        partition: The blocks in sweep order.

    Raises:
        NotFeedforward: If the network is on another device, or its observation scale has a prior
            that is not known here.
    """

    name = "fused"

    def __init__(self, network: Network, partition: Partition) -> None:
        if network.inputs.device.type != "cpu":
            raise NotFeedforward(f"its data are on {network.inputs.device}, not on the CPU")
        dtype = network.inputs.dtype
        if dtype not in (torch.float32, torch.float64):
            raise NotFeedforward(f"its parameters are of {dtype}, not of float32 or float64")
        self._plan = _plan(network, partition)
        labels = network.labels.reshape(len(network.inputs), -1).to(dtype)
        self._data = Data(network.inputs.contiguous().numpy(), labels.contiguous().numpy())
        self._works: list[Work] = []

    def sweeps(
        self, positions: Tensor, rows: Tensor | None, z: Tensor, log_u: Tensor, scales: Tensor
    ) -> SweepResults:
        """Run K sweeps of C chains; see ``pyro_fnbg.engines.base.Engine``."""
        chains, num_sweeps, num_params = z.shape
        num_blocks = log_u.shape[-1]
        num_rows = len(self._data.inputs) if rows is None else rows.shape[-1]
        if len(self._works) < chains or self._works[0].pre.shape[1] != num_rows:
            self._works = [_work(self._plan, self._data, num_rows) for _ in range(chains)]
        results = Results(
            positions=np.empty((chains, num_sweeps, num_params), self._data.inputs.dtype),
            log_ratios=np.empty((chains, num_sweeps, num_blocks)),
            accepted=np.empty((chains, num_sweeps, num_blocks), np.bool_),
            log_densities=np.empty((chains, num_sweeps)),
            moved_rows=np.empty((chains, num_sweeps, num_blocks), np.int64),
        )
        every = np.arange(num_rows)[None]
        tasks = [
            partial(
                run_sweeps,
                self._plan,
                self._data,
                self._works[chain],
                positions[chain].numpy().copy(),
                Noise(
                    every if rows is None else rows[chain].contiguous().numpy(),
                    z[chain].contiguous().numpy(),
                    log_u[chain].contiguous().numpy(),
                    scales[chain].contiguous().numpy(),
                ),
                Results(*(values[chain] for values in results)),
            )
            for chain in range(chains)
        ]
        with _message_while_compiling():
            tasks[0]()
        threads = min(chains - 1, len(os.sched_getaffinity(0)))
        if threads <= 1:
            for task in tasks[1:]:
                task()
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda task: task(), tasks[1:]))
        self.moved_rows = torch.from_numpy(results.moved_rows)
        return SweepResults(*(torch.from_numpy(values) for values in results[:4]))


@contextmanager
def _message_while_compiling() -> Iterator[None]:
    """Say that the first sweep compiles, should it take more than a second."""
    yield


def _plan(network: Network, partition: Partition) -> Plan:
    """Turn network and blocks into the arrays that the compiled sweep reads."""
    widths, top = network.widths, network.num_layers
    dtype = network.inputs.numpy().dtype
    scale_prior, scale_constant = _scale_prior(network.scale_prior)
    places = network.places.tolist()
    coordinates: list[int] = []
    starts, layers, nodes = [0], [], []
    piece_starts, pieces = [0], []
    for block in partition.blocks:
        # Layer by layer and node by node, in each the weights and then the bias
        index = sorted(block.index, key=lambda at: (*places[at][:2], places[at][2] % (1 << 62)))
        found = sorted({(places[at][0], places[at][1]) for at in index})
        layers.append(found[0][0])
        nodes.append(found[0][1] if len(found) == 1 and found[0][0] <= top else -1)
        first = len(coordinates)
        for layer, node in found:
            if layer == 1:
                inputs = [places[at][2] for at in index if places[at][:2] == [1, node]]
                has_bias = inputs[-1] < 0
                size = len(inputs) - has_bias
                pieces.append((node, first, size, first + size if has_bias else -1))
                first += len(inputs)
        coordinates += index
        starts.append(len(coordinates))
        piece_starts.append(len(pieces))
    piece_columns = np.array(pieces, dtype=np.int64).reshape(-1, 4).T.copy()
    return Plan(
        widths=np.array(widths),
        first_units=np.cumsum([0, 0, *widths[1:-1]]),
        weights=np.array([0, *network.weight_starts]),
        biases=np.array([-1, *(-1 if b is None else b for b in network.bias_starts)]),
        activations=np.array(
            [0, *(list(ACTIVATIONS).index(name) for name in network.activations), 4]
        ),
        likelihood=LIKELIHOODS.index(network.likelihood),
        factor=network.factor,
        fixed_scale=network.observation_scale,
        scale_coordinate=-1 if network.scale_coordinate is None else network.scale_coordinate,
        scale_prior=scale_prior,
        prior_locs=network.prior_locs.numpy(),
        half_precisions=(0.5 / network.prior_scales.square()).numpy(),
        log_constant=scale_constant + float(network.log_prior_constant),
        unnoticed=dtype.type(np.finfo(dtype).eps / 8),
        block_starts=np.array(starts),
        block_layers=np.array(layers),
        block_nodes=np.array(nodes),
        coordinates=np.array(coordinates),
        inputs=np.array([places[at][2] for at in coordinates]),
        piece_starts=np.array(piece_starts),
        piece_nodes=piece_columns[0],
        piece_firsts=piece_columns[1],
        piece_sizes=piece_columns[2],
        piece_biases=piece_columns[3],
        counting=np.arange(max(widths)),
    )


def _scale_prior(prior: Distribution | None) -> tuple[NDArray[np.float64], float]:
    """Write the log density of log(scale), Jacobian included, in the form of the compiled sweep.

    With u = log(s): c0 u + c1 u^2 + c2 s + c3 s^2 + c4 / s + c5 log(1 + c6 s^2), and a constant.

    Raises:
        NotFeedforward: If the prior is none of those that have this form.
    """
    c = np.zeros(7)
    if prior is None:
        return c, 0.0
    values = {name: float(getattr(prior, name)) for name in prior.arg_constraints}
    c[0] = 1.0  # the Jacobian
    if isinstance(prior, dist.HalfNormal):
        c[3] = -0.5 / values["scale"] ** 2
    elif isinstance(prior, dist.HalfCauchy):
        c[5], c[6] = -1.0, values["scale"] ** -2
    elif isinstance(prior, dist.Exponential):
        c[2] = -values["rate"]
    elif isinstance(prior, dist.Gamma):
        c[0] += values["concentration"] - 1
        c[2] = -values["rate"]
    elif isinstance(prior, dist.InverseGamma):
        c[0] -= values["concentration"] + 1
        c[4] = -values["rate"]
    elif isinstance(prior, dist.LogNormal):
        precision = values["scale"] ** -2
        c[0] += values["loc"] * precision - 1
        c[1] = -0.5 * precision
    else:
        raise NotFeedforward(f"the prior of its observation scale is {type(prior).__name__}")
    at_one = c[1] * 0 + c[2] + c[3] + c[4] + c[5] * np.log1p(c[6])
    return c, float(prior.log_prob(torch.ones(()))) - float(at_one)


def _work(plan: Plan, data: Data, num_rows: int) -> Work:
    """Allocate the memory of one chain."""
    dtype, columns = data.inputs.dtype, data.labels.shape[1]
    nodes, widest, num_params = plan.widths[1:].sum(), plan.widths[1:].max(), len(plan.prior_locs)
    at_once = max(
        int(np.diff(plan.piece_starts).max()), DELTA_BYTES // (num_rows * dtype.itemsize)
    )

    def empty(*shape: int) -> NDArray[np.floating]:
        return np.empty(shape, dtype)

    return Work(
        input_rows=empty(TILE, plan.widths[0]),
        input_tile=empty(plan.widths[0], TILE),
        labels=empty(columns, num_rows),
        pre=empty(nodes, num_rows),
        act=empty(nodes, num_rows),
        deltas=empty(min(at_once, len(plan.piece_nodes)), num_rows),
        log_lik=empty(num_rows),
        new_log_lik=empty(num_rows),
        new_pre=empty(num_rows),
        new_act=empty(num_rows),
        next_pre=empty(widest, num_rows),
        moved=np.empty(num_rows, np.uint32),
        least=empty(num_rows),
        label_tile=empty(columns, TILE),
        scratch=empty(TILE),
        pre_tile=empty(widest, TILE),
        act_tile=empty(widest, TILE),
        increments=empty(num_params),
        candidate=empty(num_params),
        kept=empty(num_params),
        state=np.zeros(5, np.int64),
    )
