"""Boxes are where the values are, and few values are dots."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from pyro_fnbg.plots.boxes import MAX_DOTS, draw_boxes
from pyro_fnbg.plots.style import look


def drawn(values, orientation="vertical"):
    """Return box, median, ends of the whiskers and dots of one box: each as values."""
    panel = plt.subplots()[1]
    draw_boxes(panel, [np.array(values)], [3.0], 0.5, orientation, look(0))
    number = 1 if orientation == "vertical" else 0
    box = panel.patches[0].get_path().vertices[:, number]
    lines = [line.get_data()[number] for line in panel.lines]
    across = [line.get_data()[1 - number] for line in panel.lines]
    return box, lines, across


@pytest.mark.parametrize("orientation", ["vertical", "horizontal"])
def test_box_and_whiskers_of_few_values_and_each_value_a_dot(orientation):
    values = [4.0, 0.0, 1.0, 3.0, 9.0]
    box, lines, across = drawn(values, orientation)
    assert (box.min(), box.max()) == (1.0, 4.0)
    first, second, _, _, median, dots = lines
    assert (first[-1], second[-1], median[0]) == (0.0, 9.0, 3.0)
    np.testing.assert_array_equal(dots, values)
    assert len(set(across[-1])) == 5
    assert 2.75 < min(across[-1]) < 3.0 < max(across[-1]) < 3.25


def test_whiskers_of_many_values_do_not_depend_on_their_number():
    values = np.random.default_rng(0).permutation(np.linspace(0.0, 1.0, 201))
    _, (low, high, *_, beyond), _ = drawn(values)
    assert (low[-1], high[-1]) == pytest.approx((0.05, 0.95))
    # Only those beyond the whiskers are dots
    assert len(beyond) == np.sum((values < 0.05 - 1e-9) | (values > 0.95 + 1e-9)) == 20


def test_dots_end_with_the_limit():
    assert len(drawn(np.arange(MAX_DOTS + 0.0))[1][-1]) == MAX_DOTS
    assert len(drawn(np.arange(MAX_DOTS + 1.0))[1][-1]) < MAX_DOTS


def test_what_is_not_defined_is_left_out():
    box, *_ = drawn([1.0, np.nan, 3.0])
    assert (box.min(), box.max()) == (1.5, 2.5)
    drawn([np.nan])
    plt.gcf().canvas.draw()
