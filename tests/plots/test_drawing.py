"""The figures show the numbers they were given, and say what they are."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh

from pyro_fnbg.plots import plot_acceptance_by_node, plot_decision_surface, plot_traces

RATES = [
    {"layer1.node1": 0.1, "layer1.node2": 0.2, "layer2.node1": 0.0},
    {"layer1.node1": 0.5, "layer1.node2": 0.6, "layer2.node1": 1.0},
]
X_VALUES = np.linspace(-1.0, 1.0, 4)
Y_VALUES = np.linspace(0.0, 2.0, 3)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def surface(sets=1, draws=5):
    return np.random.default_rng(0).uniform(size=(sets, draws, len(Y_VALUES), len(X_VALUES)))


def meshes(axes):
    return [artist for artist in axes.collections if isinstance(artist, QuadMesh)]


# --- Traces -------------------------------------------------------------------------------------


def test_traces_show_every_draw_of_every_chain():
    values = np.arange(12.0).reshape(3, 4)
    figure = plot_traces(values, "accuracy (%)")
    assert len(figure.axes) == 3
    for axes, chain in zip(figure.axes, values, strict=True):
        np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1, 2, 3, 4])
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), chain)
    assert figure.get_supylabel() == "accuracy (%)"
    assert figure.axes[2].get_title("left") == "chain 3"


def test_many_chains_stand_in_two_columns_line_by_line():
    values = np.arange(28.0).reshape(7, 4)
    figure = plot_traces(values, "value")
    assert len(figure.axes) == 7
    places = [axes.get_subplotspec() for axes in figure.axes]
    assert [(p.rowspan.start, p.colspan.start) for p in places] == [
        divmod(chain, 2) for chain in range(7)
    ]
    for axes, chain in zip(figure.axes, values, strict=True):
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), chain)
    # The lowest panel of each column has numbers, also above the place that is left empty
    numbered = [axes.xaxis.get_tick_params()["labelbottom"] for axes in figure.axes]
    assert numbered == [False] * 5 + [True] * 2


def test_running_mean_is_the_mean_around_its_place():
    values = np.random.default_rng(0).normal(size=(1, 200))
    line = plot_traces(values, "value").axes[0].lines[1]
    x, y = line.get_data()
    assert len(x) == 197  # windows of 200 / 50 = 4 draws
    assert x[10] == pytest.approx(np.arange(1, 201)[10:14].mean())
    assert y[10] == pytest.approx(values[0, 10:14].mean())


def test_traces_share_axes_so_that_levels_can_be_compared():
    figure = plot_traces([[0.0, 1.0], [50.0, 90.0]], "value")
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_reference_lines_are_at_their_levels_in_every_panel():
    figure = plot_traces(np.zeros((2, 5)), "value", reference_lines={"chance": 0.5})
    for axes in figure.axes:
        assert list(axes.lines[-1].get_ydata()) == [0.5, 0.5]
        assert [text.get_text() for text in axes.texts] == ["chance"]


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros((2, 3, 4)), np.zeros((2, 0))])
def test_wrong_shape_of_values_is_named(values):
    with pytest.raises(ValueError, match=r"values must have shape \(chains, draws\)"):
        plot_traces(values, "value")


@pytest.mark.parametrize("titles", [["one"], "ab"])
def test_wrong_titles_are_named(titles):
    with pytest.raises(ValueError, match="titles must hold 2 texts"):
        plot_traces(np.zeros((2, 5)), "value", titles=titles)


# --- Acceptance ---------------------------------------------------------------------------------


def test_acceptance_has_one_dot_per_node_and_chain_in_per_cent():
    axes = plot_acceptance_by_node(RATES, target=0.3).axes[0]
    first, second, target = axes.lines
    np.testing.assert_allclose(first.get_xdata(), [10.0, 20.0, 0.0])
    np.testing.assert_allclose(second.get_xdata(), [50.0, 60.0, 100.0])
    np.testing.assert_array_equal(np.round(first.get_ydata()), [0, 1, 2])
    assert list(target.get_xdata()) == [30.0, 30.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(RATES[0])
    assert axes.yaxis.get_inverted()  # the first node of the sweep is at the top


def test_acceptance_lines_nodes_up_whatever_their_order_in_a_chain():
    shuffled = [RATES[0], dict(reversed(RATES[1].items()))]
    lines = plot_acceptance_by_node(shuffled).axes[0].lines
    np.testing.assert_allclose(lines[1].get_xdata(), [50.0, 60.0, 100.0])


def test_acceptance_legend_names_chains_and_target():
    figure = plot_acceptance_by_node(RATES, target=0.3, titles=["cold", "hot"])
    assert [text.get_text() for text in figure.legends[0].texts] == ["cold", "hot", "target"]


def test_acceptance_of_a_group_shares_a_colour_a_marker_and_a_name():
    figure = plot_acceptance_by_node([*RATES, RATES[0]], titles=["cold", "hot", "cold"])
    assert [text.get_text() for text in figure.legends[0].texts] == ["cold", "hot"]
    cold, again, hot = figure.axes[0].lines
    assert (cold.get_color(), cold.get_marker()) == (again.get_color(), again.get_marker())
    assert cold.get_color() != hot.get_color()
    assert cold.get_marker() != hot.get_marker()
    np.testing.assert_allclose(hot.get_xdata(), [50.0, 60.0, 100.0])
    assert cold.get_ydata()[0] < again.get_ydata()[0] < hot.get_ydata()[0]


def test_acceptance_of_ten_chains_has_ten_looks():
    lines = plot_acceptance_by_node(RATES * 5).axes[0].lines
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 10


def test_acceptance_has_no_legend_of_very_many_chains():
    assert plot_acceptance_by_node(RATES[:1] * 40).legends == []


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ([], "rates must hold one mapping"),
        ([{}], "rates must hold one mapping"),
        (RATES[0], "rates must hold one mapping"),
        ([{"a": 0.1}, {"b": 0.1}], r"rates must have the same nodes in all chains; \['a', 'b'\]"),
        ([{"a": 0.1}, {"a": 31.0}], "rates must lie between 0 and 1, got 31"),
    ],
)
def test_wrong_rates_are_named(rates, message):
    with pytest.raises(ValueError, match=message):
        plot_acceptance_by_node(rates)


def test_target_in_per_cent_is_refused():
    with pytest.raises(ValueError, match="target must lie between 0 and 1, got 30"):
        plot_acceptance_by_node(RATES, target=30)


# --- Decision surface ---------------------------------------------------------------------------


@pytest.mark.parametrize("sets", [1, 3, 7])
def test_surface_shows_mean_and_standard_deviation_of_every_set(sets):
    draws = surface(sets)
    figure = plot_decision_surface(draws, X_VALUES, Y_VALUES)
    panels = [axes for axes in figure.axes if axes.get_subplotspec() and axes.get_aspect() == 1]
    assert len(panels) == 2 * sets
    for number in range(sets):
        mean, deviation = panels[number], panels[sets + number]
        np.testing.assert_allclose(meshes(mean)[0].get_array(), draws[number].mean(0))
        np.testing.assert_allclose(meshes(deviation)[0].get_array(), draws[number].std(0))
        assert meshes(mean)[0].get_clim() == (0.0, 1.0)
        assert meshes(deviation)[0].get_clim() == (0.0, 0.5)
        assert mean.get_title("left") == f"set {number + 1}"


def test_surface_of_many_sets_takes_several_lines():
    figure = plot_decision_surface(surface(7), X_VALUES, Y_VALUES)
    panels = [axes for axes in figure.axes if axes.get_aspect() == 1]
    places = [axes.get_subplotspec() for axes in panels]
    upper = [divmod(number, 4) for number in range(7)]
    lower = [(line + 2, column) for line, column in upper]
    assert [(p.rowspan.start, p.colspan.start) for p in places] == upper + lower
    assert [axes.get_title("left") for axes in panels] == 2 * [f"set {n}" for n in range(1, 8)]
    named = [axes.get_xlabel() for axes in panels]
    assert named == [""] * 10 + ["first input"] * 4


def test_surface_puts_rows_on_the_second_input():
    draws = np.zeros((1, 1, len(Y_VALUES), len(X_VALUES)))
    draws[0, 0, 2, 0] = 1.0  # the largest second and the smallest first input
    mesh = meshes(plot_decision_surface(draws, X_VALUES, Y_VALUES).axes[0])[0]
    row, column = np.argwhere(mesh.get_array() == 1.0)[0]
    np.testing.assert_allclose(mesh.get_coordinates()[row, column], [-1.0, 2.0])


def test_points_are_drawn_by_class():
    points = np.array([[-0.5, 0.5], [0.5, 1.0], [0.0, 1.5]])
    figure = plot_decision_surface(surface(), X_VALUES, Y_VALUES, points, [0, 1, 1])
    found = {
        artist.get_label(): artist.get_offsets()
        for artist in figure.axes[0].collections
        if not isinstance(artist, QuadMesh)
    }
    np.testing.assert_allclose(found["class 0"], points[:1])
    np.testing.assert_allclose(found["class 1"], points[1:])
    assert [text.get_text() for text in figure.legends[0].texts] == ["class 0", "class 1"]


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
        ({"points": np.zeros((2, 2)), "labels": [0, 2]}, "labels must be 0 or 1, got"),
        ({"titles": ["a", "b"]}, "titles must hold 1 texts"),
    ],
)
def test_wrong_argument_of_surface_is_named(changes, message):
    arguments = {"probabilities": surface(), "x_values": X_VALUES, "y_values": Y_VALUES} | changes
    with pytest.raises(ValueError, match=message):
        plot_decision_surface(**arguments)


# --- All ----------------------------------------------------------------------------------------


def test_style_of_the_caller_is_left_alone():
    before = dict(plt.rcParams)
    plot_traces(np.zeros((2, 5)), "value")
    plot_acceptance_by_node(RATES)
    plot_decision_surface(surface(), X_VALUES, Y_VALUES)
    assert dict(plt.rcParams) == before


def test_nothing_is_shown(monkeypatch):
    monkeypatch.setattr(plt, "show", lambda: pytest.fail("a plot called plt.show"))
    plot_traces(np.zeros((2, 5)), "value")
    plot_acceptance_by_node(RATES)
    plot_decision_surface(surface(), X_VALUES, Y_VALUES)


def test_tensors_are_taken_as_they_come():
    axes = plot_traces(torch.ones(1, 3), "value").axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [1.0, 1.0, 1.0])
