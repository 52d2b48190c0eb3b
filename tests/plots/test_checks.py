"""What cannot be drawn is refused by name."""

import numpy as np
import pytest
import torch

from pyro_fnbg.plots.checks import as_array, as_labels, as_probabilities, as_samples


def test_tensors_are_taken_as_they_come():
    tensor = torch.ones(1, 3, requires_grad=True)
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        array = as_array("values", tensor.to(dtype), (1, "draws"))
        np.testing.assert_array_equal(array, [[1.0, 1.0, 1.0]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(3), r"values must have shape \(chains, 2\), got \(3,\)"),
        (np.zeros((3, 3)), r"values must have shape \(chains, 2\), got \(3, 3\)"),
        (np.zeros((0, 2)), r"values must have shape \(chains, 2\), got \(0, 2\)"),
        ([["a", "b"]], "values must be an array of numbers, got "),
        ([[1.0], [1.0, 2.0]], "values must be an array of numbers, got "),
        (None, "values must be an array of numbers, got None"),
        ([[0.0, -1e308]], r"values must lie between -1e\+300 and 1e\+300, got -1e\+308"),
    ],
)
def test_other_arrays_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        as_array("values", values, ("chains", 2))


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [
        ([0.5, 0.5], r"probabilities must have shape \(rows, classes\)"),
        ([[-1.0, 2.0]], "probabilities must lie between 0 and 1, got -1"),
        ([[0.5, 0.5], [0.5, 0.4]], "probabilities must sum to 1 in each row, got a sum of 0.9"),
        ([[np.nan, 1.0]], "probabilities must sum to 1 in each row, got a sum of nan"),
        ([[0.3], [0.7]], "probabilities must sum to 1 in each row"),
        ([[1.0], [1.0]], "probabilities must be of two classes or more, got 1"),
    ],
)
def test_what_is_no_distribution_is_refused(probabilities, message):
    with pytest.raises(ValueError, match=message):
        as_probabilities(probabilities)


def test_rounded_probabilities_are_taken():
    # The lowest precision that torch computes softmax in, with as many classes as ImageNet
    torch.manual_seed(0)
    as_probabilities(torch.randn(20, 1000).softmax(-1).half().float())


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0], [0.5, 1], [np.nan, 0]])
def test_labels_that_are_no_class_are_refused(labels):
    with pytest.raises(ValueError, match="labels must be whole numbers from 0 to 2, got"):
        as_labels(labels, 2, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.1], "values must be a mapping from groups to values"),
        ({}, "values must be a mapping from groups to values"),
        ({"a": []}, r"values\['a'\] must have shape \(values\)"),
        ({"a": 0.5}, r"values\['a'\] must have shape \(values\)"),
        ({"a": [0.5, np.nan, -np.inf]}, r"values\['a'\] must hold finite numbers, .*got -inf"),
    ],
)
def test_samples_must_have_groups_and_values(values, message):
    with pytest.raises(ValueError, match=message):
        as_samples("values", values)
