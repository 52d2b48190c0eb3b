"""All randomness of a chain, addressed by a counter."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "ChainKey",
    "Stream",
    "SweepNoise",
    "generator",
    "noise_of_sweeps",
    "sweep_noise",
]

# Random numbers that come from one generator, at most, where they are of more than one sweep
GROUP_NUMBERS = 2**14


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
    FIT = 6
    RESCALING = 7


class SweepNoise(NamedTuple):
    """Hold all noise of one sweep, or of K sweeps with a dimension for them in front.

    Attributes:
        z: Standard normal numbers in flat order, double precision, shape ``(num_params,)``.
        log_u: Logarithms of uniforms in block order, double precision, shape ``(num_blocks,)``.
    """

    z: Tensor
    log_u: Tensor


def generator(key: ChainKey, stream: Stream, counter: int) -> np.random.Generator:
    """Return the generator of one (chain, stream, counter), independent of all others.

    The generator is Philox (Salmon et al., 2011): its key is the chain's, and the counter's upper
    words hold the stream and the number of the epoch or the group of sweeps, which leaves 2**128
    numbers to each. So any sweep can be replayed alone, and chain c of many equals chain c run by
    itself.

    Example:
        >>> key = ChainKey(seed=1, chain=0)
        >>> a = generator(key, Stream.CHECK, 7).random()
        >>> a == generator(key, Stream.CHECK, 7).random()
        True
    """
    bits = np.random.Philox(
        key=np.array(key, dtype=np.uint64),
        counter=np.array([0, 0, stream, counter], dtype=np.uint64),
    )
    return np.random.Generator(bits)


def noise_of_sweeps(
    key: ChainKey,
    first: int,
    count: int,
    num_params: int,
    num_blocks: int,
    stream: Stream = Stream.SWEEP,
) -> SweepNoise:
    """Draw all noise of ``count`` sweeps before the first of them starts.

    Sweeps share a generator in groups whose size depends on the model alone, so that a sweep's
    noise does not depend on how many are asked for at once. The logarithm of a uniform is minus a
    standard exponential, which is exact in distribution and never minus infinity.

    Returns:
        Noise of shapes ``(count, num_params)`` and ``(count, num_blocks)``.

    Example:
        >>> noise = noise_of_sweeps(ChainKey(seed=1, chain=0), 0, 3, num_params=5, num_blocks=2)
        >>> noise.z.shape, noise.log_u.shape, bool((noise.log_u <= 0).all())
        (torch.Size([3, 5]), torch.Size([3, 2]), True)
    """
    group = _group_size(num_params + num_blocks)
    z, log_u = np.empty((count, num_params)), np.empty((count, num_blocks))
    done = 0
    while done < count:
        number, skipped = divmod(first + done, group)
        taken = min(group - skipped, count - done)
        rng = generator(key, stream, number)
        exponentials = rng.standard_exponential((group, num_blocks))
        np.negative(exponentials[skipped : skipped + taken], out=log_u[done : done + taken])
        rng.standard_normal((skipped, num_params))
        rng.standard_normal(out=z[done : done + taken])
        done += taken
    return SweepNoise(torch.from_numpy(z), torch.from_numpy(log_u))


def sweep_noise(
    key: ChainKey, sweep: int, num_params: int, num_blocks: int, stream: Stream = Stream.SWEEP
) -> SweepNoise:
    """Draw all noise of one sweep; see ``noise_of_sweeps``."""
    z, log_u = noise_of_sweeps(key, sweep, 1, num_params, num_blocks, stream)
    return SweepNoise(z[0], log_u[0])


def _group_size(numbers: int) -> int:
    """Return how many sweeps share a generator, a power of two, by the numbers that one needs."""
    # To make a generator takes as long as some hundred numbers
    return 1 << max(0, (GROUP_NUMBERS // numbers).bit_length() - 1)
