import numpy as np
import pyro
import pytest
import torch

from pyro_fnbg.core.noise import (
    GROUP_NUMBERS,
    ChainKey,
    Stream,
    generator,
    noise_of_sweeps,
    sweep_noise,
)

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


# --- Many sweeps at once -------------------------------------------------------------------------

# Numbers of a sweep, and how many sweeps then share a generator
GROUPS = {(4500, 500): 2, (2000, 60): 4, (30_000, 3): 1}


def cuts(first, stop, group):
    """Ways to ask for the sweeps of a range: pieces that begin and end on and off the borders."""
    count = stop - first
    yield [1] * count
    yield [count]
    for size in (group - 1, group, group + 1, 2 * group + 1):
        if 0 < size < count:
            yield [size] * (count // size) + [count % size] * (count % size > 0)


@pytest.mark.parametrize("size", GROUPS, ids=str)
@pytest.mark.parametrize("first", [0, 1, 3, 1001])
def test_noise_does_not_depend_on_how_many_sweeps_are_asked_for(size, first):
    group, count = GROUPS[size], 11
    together = noise_of_sweeps(KEY, first, count, *size)
    for pieces in cuts(first, first + count, group):
        done = 0
        for piece in pieces:
            found = noise_of_sweeps(KEY, first + done, piece, *size)
            assert torch.equal(found.z, together.z[done : done + piece])
            assert torch.equal(found.log_u, together.log_u[done : done + piece])
            done += piece
        assert done == count
    alone = sweep_noise(KEY, first + 5, *size)
    assert torch.equal(alone.z, together.z[5])
    assert torch.equal(alone.log_u, together.log_u[5])


@pytest.mark.parametrize("size", GROUPS, ids=str)
def test_a_group_is_as_many_sweeps_as_a_generator_is_worth(size, monkeypatch):
    """The largest power of two of sweeps with at most so many numbers, whatever is asked for."""
    used = []

    def counting(key, stream, counter):
        used.append(counter)
        return generator(key, stream, counter)

    monkeypatch.setattr("pyro_fnbg.core.noise.generator", counting)
    group = GROUPS[size]
    assert group == 1 or group * sum(size) <= GROUP_NUMBERS
    assert 2 * group * sum(size) > GROUP_NUMBERS
    noise_of_sweeps(KEY, 0, 4 * group, *size)
    assert used == [0, 1, 2, 3]
    used.clear()
    noise_of_sweeps(KEY, 3 * group - 1, 2, *size)
    assert used == [2, 3]


def test_no_number_comes_twice_in_the_noise_of_a_chain():
    noise = noise_of_sweeps(KEY, 0, 900, 33, 7)
    for values in noise:
        assert len(values.reshape(-1).unique()) == values.numel()
    others = [
        noise_of_sweeps(ChainKey(KEY.seed, KEY.chain + 1), 0, 900, 33, 7),
        noise_of_sweeps(ChainKey(KEY.seed + 1, KEY.chain), 0, 900, 33, 7),
        noise_of_sweeps(KEY, 900, 900, 33, 7),
        noise_of_sweeps(KEY, 0, 900, 33, 7, Stream.CHECK),
    ]
    for other in others:
        assert not torch.isin(other.z, noise.z).any()
        assert not torch.isin(other.log_u, noise.log_u).any()


def test_noise_of_many_sweeps_is_of_the_right_law():
    """Moments, and no correlation between neighbours in a sweep, of sweeps, and of z with u."""
    z, log_u = noise_of_sweeps(KEY, 17, 4000, 20, 20)
    assert z.dtype == log_u.dtype == torch.float64
    assert ((z.mean() * z.numel() ** 0.5).abs() < 4.5).all()
    assert ((z.square() - 1).mean().abs() * (z.numel() / 2) ** 0.5 < 4.5).all()
    assert ((z.pow(4) - 3).mean().abs() * (z.numel() / 96) ** 0.5 < 4.5).all()
    # minus log u is a standard exponential: mean 1, variance 1, second moment 2 with variance 20
    assert (log_u <= 0).all()
    assert (log_u + 1).mean().abs() * log_u.numel() ** 0.5 < 4.5
    assert (log_u.square() - 2).mean().abs() * (log_u.numel() / 20) ** 0.5 < 4.5
    e = -log_u - 1
    for one, other in (
        (z[:, 1:], z[:, :-1]),
        (z[1:], z[:-1]),
        (e[:, 1:], e[:, :-1]),
        (e[1:], e[:-1]),
        (z, e),
        (z[1:], e[:-1]),
    ):
        assert (one * other).mean().abs() * one.numel() ** 0.5 < 4.5
