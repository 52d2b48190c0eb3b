"""Predictions over inputs are where the inputs are."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import QuadMesh

from pyro_fnbg.plots import plot_decision_surface, plot_regression_band

X_VALUES = np.linspace(-1.0, 1.0, 4)
Y_VALUES = np.linspace(0.0, 2.0, 3)

# --- Regression ---------------------------------------------------------------------------------

BAND = {
    "x": [0.0, 1.0, 2.0],
    "mean": [0.0, 1.0, 4.0],
    "intervals": {
        0.5: ([-1.0, 0.0, 3.0], [1.0, 2.0, 5.0]),
        0.95: ([-3.0, -2.0, 1.0], [3.0, 4.0, 7.0]),
    },
}


def test_bands_hold_their_intervals_and_narrow_ones_lie_in_front():
    ax = plot_regression_band(**BAND)
    for band, probability in zip(ax.collections, (0.95, 0.5), strict=True):
        lower, upper = BAND["intervals"][probability]
        corners = {tuple(vertex) for vertex in band.get_paths()[0].vertices}
        assert corners == {*zip(BAND["x"], lower, strict=True), *zip(BAND["x"], upper, strict=True)}
        assert band.get_label() == f"{100 * probability:g} % interval"
    wide, narrow = [band.get_facecolor()[0] for band in ax.collections]
    assert narrow[:3].sum() < wide[:3].sum()  # darker
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), BAND["mean"])
    legend = [text.get_text() for text in ax.get_legend().texts]
    assert legend == ["95 % interval", "50 % interval", "mean"]


def test_data_are_dots():
    ax = plot_regression_band(**BAND, x_data=[0.5, 1.5], y_data=[7.0, -7.0])
    x, y = ax.lines[1].get_data()
    np.testing.assert_array_equal([x, y], [[0.5, 1.5], [7.0, -7.0]])
    assert ax.lines[1].get_linestyle() == "None"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": [0.0, 2.0, 1.0]}, "x must be two or more numbers, each larger than the last"),
        ({"mean": [0.0, 1.0]}, r"mean must have shape \(3\), got \(2,\)"),
        ({"intervals": [(0.0, 1.0)]}, "intervals must be a mapping from probabilities"),
        ({"intervals": {95: BAND["intervals"][0.5]}}, "probabilities in intervals must be between"),
        ({"intervals": {0.5: BAND["mean"]}}, r"intervals\[0.5\] must be a lower and an upper end"),
        ({"intervals": {0.5: ([0.0], [1.0])}}, r"intervals\[0.5\] must have shape \(3\)"),
        (
            {"intervals": {0.5: BAND["intervals"][0.5][::-1]}},
            r"intervals\[0.5\] must have lower ends below upper ends, got 1 above -1",
        ),
        ({"x_data": [0.0]}, "x_data and y_data must be given together, got None as y_data"),
        ({"x_data": [0.0], "y_data": [0.0, 1.0]}, r"y_data must have shape \(1\), got \(2,\)"),
    ],
)
def test_wrong_argument_of_band_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        plot_regression_band(**BAND | changes)
    assert not plt.get_fignums()


# --- Decision surface ---------------------------------------------------------------------------


def surface(sets=1, draws=5):
    return np.random.default_rng(0).uniform(size=(sets, draws, len(Y_VALUES), len(X_VALUES)))


def meshes(panel):
    return [artist for artist in panel.collections if isinstance(artist, QuadMesh)]


@pytest.mark.parametrize("sets", [1, 3, 7])
def test_surface_shows_mean_and_standard_deviation_of_every_set(sets):
    draws = surface(sets)
    ax = plot_decision_surface(draws, X_VALUES, Y_VALUES)
    assert ax.shape == (2, sets)
    assert len(ax[0, 0].figure.axes) == 2 * sets + 2  # and two colour bars
    for number, (mean, deviation) in enumerate(ax.T):
        np.testing.assert_allclose(meshes(mean)[0].get_array(), draws[number].mean(0))
        np.testing.assert_allclose(meshes(deviation)[0].get_array(), draws[number].std(0))
        assert meshes(mean)[0].get_clim() == (0.0, 1.0)
        assert meshes(deviation)[0].get_clim() == (0.0, 0.5)
        assert mean.get_title("left") == f"set {number}"
        assert mean.get_aspect() == deviation.get_aspect() == 1


def test_surface_of_many_sets_takes_several_lines():
    ax = plot_decision_surface(surface(7), X_VALUES, Y_VALUES)
    places = [
        [(p.rowspan.start, p.colspan.start) for p in map(lambda a: a.get_subplotspec(), half)]
        for half in ax
    ]
    upper = [divmod(number, 4) for number in range(7)]
    assert places == [upper, [(line + 2, column) for line, column in upper]]
    # A mean and its deviation lie far apart, so both are named
    assert [panel.get_title("left") for panel in ax[1]] == [f"set {n}" for n in range(7)]


def test_inputs_are_named_at_the_left_and_below_also_above_an_empty_place():
    ax = plot_decision_surface(surface(7), X_VALUES, Y_VALUES)
    below = [panel.get_xlabel() for panel in ax.ravel()]
    assert below == [""] * 10 + ["first input"] * 4
    left = [bool(panel.get_ylabel()) for panel in ax.ravel()]
    assert left == 2 * [True, False, False, False, True, False, False]
    assert all(
        panel.get_xlabel() for panel in plot_decision_surface(surface(), X_VALUES, Y_VALUES).flat
    )


def test_surface_puts_rows_on_the_second_input():
    draws = np.zeros((1, 1, len(Y_VALUES), len(X_VALUES)))
    draws[0, 0, 2, 0] = 1.0  # the largest second and the smallest first input
    mesh = meshes(plot_decision_surface(draws, X_VALUES, Y_VALUES)[0, 0])[0]
    row, column = np.argwhere(mesh.get_array() == 1.0)[0]
    np.testing.assert_allclose(mesh.get_coordinates()[row, column], [-1.0, 2.0])


def test_points_are_drawn_by_class_and_the_scale_says_which_is_which():
    points = np.array([[-0.5, 0.5], [0.5, 1.0], [0.0, 1.5]])
    ax = plot_decision_surface(surface(), X_VALUES, Y_VALUES, points, [0, 1, 1])
    circles, crosses = [a for a in ax[0, 0].collections if not isinstance(a, QuadMesh)]
    np.testing.assert_allclose(circles.get_offsets(), points[:1])
    np.testing.assert_allclose(crosses.get_offsets(), points[1:])
    texts = [panel.get_xlabel() for panel in ax[0, 0].figure.axes]
    assert any(
        "\N{WHITE CIRCLE} class 0, \N{MULTIPLICATION SIGN} class 1" in text for text in texts
    )
    assert len(ax[1, 0].collections) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probabilities": np.zeros((5, 3, 4))}, r"probabilities must have shape \(sets, draws,"),
        ({"probabilities": np.full((1, 5, 3, 4), 2.0)}, "probabilities must lie between 0 and 1"),
        ({"x_values": np.zeros(3)}, r"x_values must have shape \(4\), got \(3,\)"),
        ({"x_values": X_VALUES[::-1]}, "x_values must be two or more numbers, each larger than"),
        ({"y_values": np.zeros((3, 1))}, r"y_values must have shape \(3\), got \(3, 1\)"),
        ({"points": np.zeros((2, 2))}, "points and labels must be given together"),
        ({"points": np.zeros((2, 3)), "labels": [0, 1]}, r"points must have shape \(points, 2\)"),
        ({"points": np.zeros((2, 2)), "labels": [0]}, r"labels must have shape \(2\), got \(1,\)"),
        (
            {"points": np.zeros((2, 2)), "labels": [0, 2]},
            "labels must be whole numbers from 0 to 1, got",
        ),
        ({"titles": ["a", "b"]}, "titles must hold 1 texts"),
    ],
)
def test_wrong_argument_of_surface_is_named(changes, message):
    arguments = {"probabilities": surface(), "x_values": X_VALUES, "y_values": Y_VALUES} | changes
    with pytest.raises(ValueError, match=message):
        plot_decision_surface(**arguments)
