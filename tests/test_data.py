import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_fnbg.data import noisy_xor


@settings(max_examples=20, deadline=None)
@given(quarter=st.integers(1, 40), test_quarter=st.integers(1, 40), seed=st.integers(0, 2**64))
def test_corners_come_in_order_and_in_their_squares(quarter, test_quarter, seed):
    data = noisy_xor(4 * quarter, 4 * test_quarter, seed)
    for x, y, rows in (
        (data.x_train, data.y_train, quarter),
        (data.x_test, data.y_test, test_quarter),
    ):
        assert x.shape == (4 * rows, 2)
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
        corner = (x > 0.5).long()
        assert torch.equal(2 * corner[:, 0] + corner[:, 1], torch.arange(4).repeat_interleave(rows))
        assert torch.equal(y, corner[:, 0] ^ corner[:, 1])


def test_coordinates_are_uniform_on_their_intervals():
    x = noisy_xor(40_000, 4).x_train.double()
    uniform = torch.where(x > 0.5, x - 0.55, x + 0.55)
    assert uniform.min() >= 0
    assert uniform.max() <= 1
    # Standard errors of the mean and the variance of 80,000 uniform numbers: 0.0010 and 0.00026.
    assert uniform.mean().item() == pytest.approx(1 / 2, abs=0.005)
    assert uniform.var().item() == pytest.approx(1 / 12, abs=0.0013)


def test_default_sizes_are_the_papers():
    data = noisy_xor()
    assert torch.bincount(data.y_train).tolist() == [2500, 2500]
    assert torch.bincount(data.y_test).tolist() == [600, 600]


def test_seed_decides_and_the_sets_differ():
    first, again, other = noisy_xor(400, 400), noisy_xor(400, 400), noisy_xor(400, 400, seed=1)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first.x_train, other.x_train)
    assert not torch.equal(first.x_test, other.x_test)
    assert not torch.equal(first.x_train, first.x_test)
    assert torch.equal(first.x_test, noisy_xor(8, 400).x_test)


def test_global_random_state_is_neither_read_nor_changed():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    first = noisy_xor(8, 8, seed=3)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002
    torch.rand(1)
    assert all(map(torch.equal, first, noisy_xor(8, 8, seed=3)))


@pytest.mark.parametrize("name", ["num_train", "num_test"])
@pytest.mark.parametrize("value", [0, -4, 6, 8.0, True, "8", None])
def test_refused_numbers_of_rows(name, value):
    message = f"{name} must be a positive multiple of 4, got {value!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        noisy_xor(**{name: value})


@pytest.mark.parametrize("seed", [-1, 1.5, None, False])
def test_refused_seeds(seed):
    message = f"seed must be an integer of zero or more, got {seed!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        noisy_xor(seed=seed)
