"""Which random streams a chain gets, in this process or in a worker of Pyro's ``MCMC``.

The root seed of a run is a fingerprint of torch's random stream in the process that called
``MCMC.run``, so ``pyro.set_rng_seed`` governs it, and the chain's number keeps chains apart. Pyro
reseeds its workers by the seed alone, which would tie every run of a session to the same noise; so
a forked worker takes the fingerprint that its parent had when it forked, and a spawned one gets it
with the pickled kernel. Chains drawn one after the other in one process number themselves.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
from typing import NamedTuple

import torch

from pyro_fnbg.core.noise import ChainKey

__all__ = [
    "RunMark",
    "fingerprint",
    "forks",
    "next_key",
    "worker_chain",
]


class RunMark(NamedTuple):
    """Remember the last set-up, to tell the next chain of a run from a new run.

    Attributes:
        key: The streams that it gave out.
        stream: Fingerprint of torch's stream when it was done.
    """

    key: ChainKey
    stream: int


# Fingerprint of the parent's stream at the moment of the fork, in a forked child
_parent_stream: int | None = None
# Number of forks of this process, or of its parent before its own
_forks = 0


def fingerprint() -> int:
    """Condense the state of torch's random stream into 64 bits, without drawing from it."""
    state = torch.get_rng_state().numpy().tobytes()
    return int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "little")


def _remember_parent_stream() -> None:
    global _parent_stream
    _parent_stream = fingerprint()


def _count_fork() -> None:
    global _forks
    _forks += 1


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_remember_parent_stream, after_in_parent=_count_fork)


def forks() -> int:
    """Return how often this process has forked; a child goes on from its parent's count."""
    return _forks


def worker_chain() -> int | None:
    """Return the chain's number in a worker of Pyro's ``MCMC``, which names it so; else None."""
    name = multiprocessing.current_process().name
    if multiprocessing.parent_process() is None or not name.isdigit():
        return None
    return int(name)


def next_key(mark: RunMark | None, spawned_from: int | None) -> RunMark:
    """Give the chain that is being set up its random streams.

    Args:
        mark: The kernel's last set-up in this process, if any. If torch's stream has not moved
            since, this is the next chain of the same run, or another run without a new seed.
        spawned_from: The parent's fingerprint, in a spawned worker.
    """
    chain = worker_chain()
    if chain is not None:
        root = spawned_from if spawned_from is not None else _parent_stream
        assert root is not None
        return RunMark(ChainKey(root, chain), fingerprint())
    stream = fingerprint()
    if mark is not None and mark.stream == stream:
        key = ChainKey(mark.key.seed, mark.key.chain + 1)
    else:
        key = ChainKey(stream, 0)
    # Moves the stream on, so that a new kernel without a new seed gets other noise
    torch.rand((), device="cpu")
    return RunMark(key, fingerprint())
