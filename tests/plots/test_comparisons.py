"""Accuracies and quantities of batches stand beside the name of their group."""

import numpy as np
import pytest

from pyro_fnbg.plots import plot_accuracy, plot_by_batch_size


def test_accuracies_are_in_per_cent_with_the_number_of_values():
    ax = plot_accuracy({"one": [0.5, 1.0], "many": np.linspace(0.6, 0.8, 1001)})
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one (2)", "many (1,001)"]
    dots = next(line for line in ax.lines if line.get_marker() == "o")
    np.testing.assert_allclose(dots.get_xdata(), [50, 100])
    # The first group is above, and a box is where its quartiles are
    assert [np.round(patch.get_path().vertices[:, 1].mean()) for patch in ax.patches] == [0, 1]
    assert ax.yaxis.get_inverted()
    many = ax.patches[1].get_path().vertices[:, 0]
    assert (many.min(), many.max()) == pytest.approx((65, 75))


def test_batch_sizes_are_in_order_and_have_their_own_values():
    ax = plot_by_batch_size({1000: [5.0], 10: [1.0, 2.0]}, "log likelihood", all_rows=4.0)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["10", "1,000"]
    first, second = [line.get_ydata() for line in ax.lines if line.get_marker() == "o"]
    np.testing.assert_array_equal(first, [1.0, 2.0])
    np.testing.assert_array_equal(second, [5.0])
    assert ax.get_ylabel() == "log likelihood"
    assert [text.get_text() for text in ax.texts] == ["all rows"]
    assert list(ax.lines[-1].get_ydata()) == [4.0, 4.0]


@pytest.mark.parametrize(
    ("accuracies", "message"),
    [
        ([0.5], "accuracies must be a mapping from groups"),
        ({"a": [0.5], "b": [98.0]}, r"accuracies\['b'\] must lie between 0 and 1, got 98"),
        ({"a": []}, r"accuracies\['a'\] must have shape"),
    ],
)
def test_wrong_accuracies_are_named(accuracies, message):
    with pytest.raises(ValueError, match=message):
        plot_accuracy(accuracies)


@pytest.mark.parametrize("size", [0, 0.5, "10", None])
def test_wrong_batch_sizes_are_named(size):
    with pytest.raises(ValueError, match="batch sizes in values must be a whole number, 1 or more"):
        plot_by_batch_size({size: [1.0]}, "q")
