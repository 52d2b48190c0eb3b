import math

import pytest
import torch

from pyro_fnbg.core.blocks import Block, Partition
from pyro_fnbg.core.tuning import adapt, gains, initial_scales, target_accept_probs


def partition_of(*sizes):
    blocks, start = [], 0
    for number, size in enumerate(sizes):
        blocks.append(Block(f"b{number}", tuple(range(start, start + size))))
        start += size
    return Partition(tuple(blocks), start)


def test_targets_by_block_size():
    targets = target_accept_probs(partition_of(1, 2, 3, 10, 500)).tolist()
    assert targets == [0.44, 0.35, 0.32, 0.30, 0.30]
    between = target_accept_probs(partition_of(4, 5, 6, 7, 8, 9)).tolist()
    assert between == sorted(between, reverse=True)
    assert all(0.30 < target < 0.32 for target in between)


def test_initial_scales_follow_the_prior_spread():
    partition = partition_of(1, 4)
    draws = torch.randn(200_000, 5) * torch.tensor([10.0, 1.0, 1.0, 3.0, 3.0])
    scales = initial_scales(draws, partition)
    assert scales[0] == pytest.approx(2.4 * 10, rel=0.01)
    assert scales[1] == pytest.approx(2.4 / 2 * math.sqrt((1 + 1 + 9 + 9) / 4), rel=0.01)


@pytest.mark.parametrize("value", [0.0, math.inf, math.nan])
def test_a_block_without_spread_is_named(value):
    draws = torch.randn(10, 3)
    draws[:, 1:] = value
    with pytest.raises(ValueError, match="block 'b1' has no finite spread.*give proposal_scale"):
        initial_scales(draws, partition_of(1, 2))


def test_gains_decay_with_the_number_of_the_sweep():
    found = gains(first=0, count=6)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([t**-0.6 for t in range(1, 7)], rel=1e-15)
    assert torch.equal(gains(2, 3), found[2:5])


def test_gains_end_as_a_constant_over_the_number_of_the_sweep():
    found = gains(first=0, count=5000)
    numbers = torch.arange(1, 5001).double()
    assert torch.allclose(found[:1024], numbers[:1024] ** -0.6, rtol=1e-15, atol=0)
    assert torch.allclose(found[1023:], 16 / numbers[1023:], rtol=1e-15, atol=0)
    for first, count in ((0, 1024), (1000, 100), (4999, 1)):
        assert torch.equal(gains(first, count), found[first : first + count])


def test_adapt_is_the_recursion_of_the_source():
    targets = torch.tensor([0.44, 0.30], dtype=torch.float64)
    scales, expected = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for t, gain in enumerate(gains(0, 49), start=1):
        probs = torch.rand(2, dtype=torch.float64)
        scales = adapt(scales, probs, targets, gain)
        expected = expected + t**-0.6 * (probs - targets)
        assert torch.allclose(scales.log(), expected, rtol=0, atol=1e-12)


def test_adapt_leaves_the_scales_alone_without_gain():
    scales = torch.rand(5, dtype=torch.float64)
    assert torch.equal(adapt(scales, torch.rand(5), torch.rand(5), torch.tensor(0.0)), scales)


@pytest.mark.slow
def test_a_scale_settles_where_the_mean_acceptance_over_slow_changes_is_its_aim():
    """As in a chain that stays for long where one scale fits, and then where another does.

    Known: in turn for 1,000 sweeps, log steps of -1.5 and 1.5 would fit. The root of the mean of
    both curves is what a scale must settle at, wherever the last turn was.
    """
    target = torch.tensor([0.44], dtype=torch.float64)

    def mean(scale, place):
        return 2 / math.pi * torch.atan(2 / (scale * math.exp(place)))

    ends = []
    for sweeps in (40_000, 41_000):
        scale = torch.tensor([0.1], dtype=torch.float64)
        for number, gain in enumerate(gains(0, sweeps)):
            place = 1.5 if number // 1000 % 2 else -1.5
            scale = adapt(scale, mean(scale, place), target, gain)
        ends.append(float((mean(scale, 1.5) + mean(scale, -1.5)) / 2))
    # In a turn the log scale goes to and fro by 1,000 x 16 / 40,000 times the 0.3 by which the
    # acceptance differs from its aim; the curve falls by 1 / pi a unit at most
    assert all(abs(end - 0.44) < 0.5 * 0.4 * 0.3 / math.pi for end in ends), ends


def test_adapt_finds_the_root_of_a_known_curve():
    # a one-dimensional random walk on N(0, 1) accepts (2 / pi) arctan(2 / scale)
    target = torch.tensor([0.44], dtype=torch.float64)
    for start in (-7.0, 7.0):
        scale = torch.tensor([start], dtype=torch.float64).exp()
        for gain in gains(0, 3000):
            mean = 2 / math.pi * torch.atan(2 / scale)
            scale = adapt(scale, torch.bernoulli(mean), target, gain)
        mean = 2 / math.pi * torch.atan(2 / scale)
        assert abs(mean - 0.44) < 0.05
