"""Observed labels and numbers of every real type mean the same."""

import re

import pytest
import torch

from pyro_fnbg.prediction.labels import as_labels, as_numbers

WHOLE = [torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32]
WHOLE += [torch.int32, torch.uint64, torch.int64]
TYPES = [*WHOLE, torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", TYPES)
def test_labels_and_numbers_of_any_real_type(dtype):
    y = torch.tensor([0, 1, 1])
    for labels in (y, y[:, None], torch.eye(2)[y]):
        assert torch.equal(as_labels(labels.to(dtype), 3, 2), y)
    assert as_numbers(y.to(dtype)[:, None], (3,)).tolist() == [0, 1, 1]


@pytest.mark.parametrize("dtype", TYPES[1:])
def test_labels_of_any_type_that_are_no_class(dtype):
    with pytest.raises(ValueError, match=r"y must hold whole numbers from 0 to 1, got 2"):
        as_labels(torch.tensor([0, 2]).to(dtype), 2, 2)
    with pytest.raises(ValueError, match="y of several columns must hold one-hot rows"):
        as_labels(torch.ones(2, 2).to(dtype), 2, 2)


def test_one_hot_rows_of_bool_without_a_class():
    with pytest.raises(ValueError, match="y of several columns must hold one-hot rows"):
        as_labels(torch.tensor([[True, False], [False, False]]), 2, 2)


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_numbers_that_would_wrap_are_refused(number):
    y = torch.tensor([0, number], dtype=torch.uint64)
    message = re.escape(f"y must hold numbers below 2**63, got {number}")
    with pytest.raises(ValueError, match=message):
        as_labels(y, 2, 2)
    with pytest.raises(ValueError, match=message):
        as_numbers(y, (2,))
