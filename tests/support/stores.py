"""Runs with stores that end early, and what comes of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from pyro_fnbg.stores import hierarchy, writer
from support.drivers import by_chain, drive, same

X = torch.sin(1.7 * torch.arange(60.0)).reshape(30, 2)
Y = (X[:, 0] > 0).long()
NET = BayesianMLP([2, 3, 1], likelihood="bernoulli")
SIZES: dict[str, Any] = {"draws": 40, "warmup": 12, "num_chains": 3}
# Of a chunk with seven draws of the network
SMALL_CHUNK = 7 * (4 * 13 + 28)


def make_chunks_small(patch: pytest.MonkeyPatch) -> None:
    """Have chunks of seven draws of the network, and a commit after every piece."""
    patch.setattr(hierarchy, "CHUNK_BYTES", SMALL_CHUNK)
    patch.setattr(writer, "SECONDS", 0.0)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do so for one test."""
    make_chunks_small(monkeypatch)


class Stopped(Exception):
    """What stops a run in these tests."""


def stop_after(sweeps: int) -> Callable[..., None]:
    """Make a hook that stops a run after so many steps of all chains."""
    left = iter(range(sweeps))

    def hook(*_: Any) -> None:
        if next(left, None) is None:
            raise Stopped

    return hook


def stopped(path: Path, kernel: FNBG, *data: Any, sweeps: int, **options: Any) -> None:
    """Make a store of a run that is stopped by an error."""
    with pytest.raises(Stopped):
        drive(kernel, *data, store=path, hook_fn=stop_after(sweeps), **SIZES | options)


def go_on(path: Path, kernel: FNBG, *data: Any, **options: Any) -> MultiChainMCMC:
    """Go on with the run in a store."""
    mcmc = MultiChainMCMC.resume(path, kernel, disable_progbar=True, **options)
    mcmc.run(*data)
    return mcmc


def assert_same_runs(found: MultiChainMCMC, expected: MultiChainMCMC) -> None:
    """Compare draws, statistics and what the moves have learnt, bit for bit."""
    assert found.is_complete
    assert same(by_chain(found), by_chain(expected))
    for own, other in zip(found._diagnostics, expected._diagnostics, strict=True):
        for name, values in other.report.statistics.items():
            assert np.array_equal(own.report.statistics[name], values, equal_nan=True)
        assert own["acceptance rate by block"] == other["acceptance rate by block"]
        assert own["proposal scale by block"] == other["proposal scale by block"]
