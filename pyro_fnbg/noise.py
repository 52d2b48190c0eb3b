"""All randomness of a chain, addressed by a counter."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["ChainKey", "Stream", "SweepNoise", "generator", "sweep_noise"]


class ChainKey(NamedTuple):
    """Identify the random streams of one chain: the run's seed and the chain's number."""

    seed: int
    chain: int


class Stream(IntEnum):
    """Separate uses of randomness, so that none shifts another."""

    SWEEP = 0
    EPOCH = 1
    MODEL = 2
    PROBE = 3
    PROBE_EPOCH = 4
    CHECK = 5


class SweepNoise(NamedTuple):
    """Hold all noise of one sweep, in double precision.

    Attributes:
        z: Standard normal increments in flat order, shape ``(num_params,)``.
        log_u: Logarithms of uniforms in block order, shape ``(num_blocks,)``.
    """

    z: Tensor
    log_u: Tensor


def generator(key: ChainKey, stream: Stream, counter: int) -> np.random.Generator:
    """Return the generator of one (chain, stream, counter), independent of all others.

    The generator is Philox (Salmon et al., 2011): its key is the chain's, and the counter's upper
    words hold the stream and the sweep or epoch, which leaves 2**128 numbers to each. So any sweep
    can be replayed alone, and chain c of many equals chain c run by itself.

    Example:
        >>> key = ChainKey(seed=1, chain=0)
        >>> a = generator(key, Stream.SWEEP, 7).random()
        >>> a == generator(key, Stream.SWEEP, 7).random()
        True
    """
    bits = np.random.Philox(
        key=np.array(key, dtype=np.uint64),
        counter=np.array([0, 0, stream, counter], dtype=np.uint64),
    )
    return np.random.Generator(bits)


def sweep_noise(
    key: ChainKey, sweep: int, num_params: int, num_blocks: int, stream: Stream = Stream.SWEEP
) -> SweepNoise:
    """Draw all noise of one sweep before the sweep starts.

    The logarithm of a uniform is minus a standard exponential, which is exact in distribution and
    never minus infinity.

    Example:
        >>> noise = sweep_noise(ChainKey(seed=1, chain=0), sweep=0, num_params=5, num_blocks=2)
        >>> noise.z.shape, noise.log_u.shape, bool((noise.log_u <= 0).all())
        (torch.Size([5]), torch.Size([2]), True)
    """
    rng = generator(key, stream, sweep)
    z = torch.from_numpy(rng.standard_normal(num_params))
    return SweepNoise(z, torch.from_numpy(-rng.standard_exponential(num_blocks)))
