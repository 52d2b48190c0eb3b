"""Show what is sampled when a rejected block stays in the proposal of those after it.

The sweep of the paper's code (``eeyore`` 0.0.20, ``Gibbs.draw``) keeps one proposal vector and
does not put a block back after a rejection. Later blocks are then judged at a point that holds
all earlier rejected moves, while only the new block is stored, with the log target of that point.
On all data this log target also survives into the next sweep; in batches it is computed anew.
Algorithm 1 of the paper puts the block back.
"""

import numpy as np

CHAINS, SWEEPS, DROPPED = 2_000, 500, 100


def log_target(x: np.ndarray) -> np.ndarray:
    """Return the log density of independent standard normals, up to a constant."""
    return -0.5 * (x**2).sum((1, 2))


def sample(
    num_blocks: int, block_size: int, step: float, puts_back: bool, is_anew: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Sample standard normals; return mean squares and acceptance rates by block."""
    rng = np.random.default_rng(1)
    current = rng.normal(size=(CHAINS, num_blocks, block_size))
    now = log_target(current)
    squares, rates = np.zeros(num_blocks), np.zeros(num_blocks)
    for sweep in range(SWEEPS):
        now = log_target(current) if is_anew else now
        proposed = current.copy()
        for block in range(num_blocks):
            proposed[:, block] += step * rng.normal(size=(CHAINS, block_size))
            then = log_target(proposed)
            accepted = np.log(rng.random(CHAINS)) < then - now
            now = np.where(accepted, then, now)
            current[accepted, block] = proposed[accepted, block]
            if puts_back:
                proposed[~accepted, block] = current[~accepted, block]
            rates[block] += accepted.mean() * (sweep >= DROPPED)
        squares += (current**2).mean((0, 2)) * (sweep >= DROPPED)
    return squares / (SWEEPS - DROPPED), rates / (SWEEPS - DROPPED)


for name, puts_back, is_anew in (
    ("rejected blocks stay in the proposal, as on all data", False, False),
    ("rejected blocks stay in the proposal, as in batches", False, True),
    ("rejected blocks are put back", True, True),
):
    print(f"{name}:")
    squares, _ = sample(8, 1, 0.5, puts_back, is_anew)
    print("  variances of 8 scalar blocks, all 1 in truth:", squares.round(2))
    _, rates = sample(13, 3, 0.5, puts_back, is_anew)
    print("  acceptance of 13 blocks of three, all alike:", rates.round(2))

try:
    from inspect import getsource

    from eeyore.samplers import Gibbs
except ImportError as error:
    print(f"eeyore, of the extra `bench` of this project, is not shown: {error}")
else:
    lines = getsource(Gibbs.draw).splitlines()
    first = next(n for n, line in enumerate(lines) if "kernel = NormalKernel" in line)
    print("eeyore's own lines:", *lines[first : first + 14], sep="\n")
