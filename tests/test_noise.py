import numpy as np
import pyro
import torch

from pyro_fnbg.noise import ChainKey, Stream, generator, sweep_noise

KEY = ChainKey(seed=2**62 + 12345, chain=3)


def test_a_sweeps_noise_depends_on_its_counter_alone():
    first = [sweep_noise(KEY, sweep, 7, 4) for sweep in range(5)]
    again = sweep_noise(KEY, 3, 7, 4)
    assert torch.equal(first[3].z, again.z)
    assert torch.equal(first[3].log_u, again.log_u)


def test_seeds_chains_streams_and_sweeps_give_different_noise():
    draws = [
        generator(ChainKey(seed, chain), stream, counter).random(4).tobytes()
        for seed in (0, 1, 2**62)
        for chain in (0, 1)
        for stream in Stream
        for counter in (0, 1, 2**40)
    ]
    assert len(set(draws)) == len(draws)


def test_streams_that_differ_by_one_sweep_do_not_overlap():
    long = generator(KEY, Stream.SWEEP, 0).random(100_000)
    following = generator(KEY, Stream.SWEEP, 1).random(1000)
    assert not np.isin(following, long).any()


def test_noise_is_double_precision_and_of_the_right_law():
    noise = [sweep_noise(KEY, sweep, 20, 10) for sweep in range(2000)]
    z = torch.stack([n.z for n in noise]).reshape(-1)
    log_u = torch.stack([n.log_u for n in noise]).reshape(-1)
    assert z.dtype == log_u.dtype == torch.float64
    assert abs(z.mean()) < 4.5 / len(z) ** 0.5
    assert abs(z.square().mean() - 1) < 4.5 * (2 / len(z)) ** 0.5
    u = log_u.exp()
    assert abs(u.mean() - 0.5) < 4.5 * (1 / 12 / len(u)) ** 0.5
    assert abs(u.square().mean() - 1 / 3) < 4.5 * (4 / 45 / len(u)) ** 0.5
    assert (log_u <= 0).all()


def test_global_random_state_is_left_alone():
    before = pyro.util.get_rng_state()
    sweep_noise(KEY, 0, 5, 5)
    after = pyro.util.get_rng_state()
    assert torch.equal(before["torch"], after["torch"])
    assert (before["numpy"][1] == after["numpy"][1]).all()
