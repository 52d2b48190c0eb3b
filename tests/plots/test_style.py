"""All pictures keep one contract: given axes are drawn into, new ones are made, none is shown."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes

from pyro_fnbg import plots
from pyro_fnbg.plots.style import legend_beside, look, mark_level

RATES = [{"layer1.node1": 0.1, "layer1.node2": 0.2}, {"layer1.node1": 0.5, "layer1.node2": 1.0}]
PROBABILITIES, LABELS = [[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]], [0, 1, 1]
SURFACE = np.full((3, 2, 2, 2), 0.5)
# By picture: arguments, and the shape of its axes; () is one panel
PICTURES = {
    plots.plot_acceptance_by_layer: ({"rates": RATES, "target": 0.3, "groups": ["a", "b"]}, ()),
    plots.plot_acceptance_by_node: ({"rates": RATES, "target": 0.3}, ()),
    plots.plot_accuracy: ({"accuracies": {"a": [0.5, 0.7]}}, ()),
    plots.plot_by_batch_size: ({"values": {10: [1.0, 2.0]}, "label": "q", "all_rows": 1.0}, ()),
    plots.plot_decision_surface: (
        {"probabilities": SURFACE, "x_values": [0.0, 1.0], "y_values": [0.0, 1.0]},
        (2, 3),
    ),
    plots.plot_images: (
        {"images": np.ones((3, 4, 4)), "probabilities": PROBABILITIES, "labels": LABELS, "top": 1},
        (3,),
    ),
    plots.plot_regression_band: (
        {"x": [0.0, 1.0], "mean": [0.0, 1.0], "intervals": {0.5: ([-1.0, 0.0], [1.0, 2.0])}},
        (),
    ),
    plots.plot_reliability: ({"probabilities": PROBABILITIES, "labels": LABELS}, ()),
    plots.plot_ranks: ({"values": np.arange(40.0).reshape(2, 20), "label": "q"}, ()),
    plots.plot_risk_coverage: ({"probabilities": PROBABILITIES, "labels": LABELS}, ()),
    plots.plot_score: (
        {"scores": [[1.0, 2.0]], "draws": [1, 2], "seconds": [[0.1, 0.2]], "label": "q"},
        (2,),
    ),
    plots.plot_traces: ({"values": np.zeros((3, 20)), "label": "q", "warmup": 5}, (3, 2)),
}
each_picture = pytest.mark.parametrize(
    ("draw", "arguments", "shape"),
    [(draw, *rest) for draw, rest in PICTURES.items()],
    ids=lambda value: getattr(value, "__name__", ""),
)


def new_axes(shape):
    lines = (1, 1, *shape)[-2:]
    return plt.subplots(*lines, squeeze=False)[1].reshape(shape)[()]


def has_drawn(panel):
    artists = [*panel.lines, *panel.collections, *panel.patches, *panel.images]
    return bool(artists) or any(has_drawn(inside) for inside in panel.child_axes)


def test_every_picture_is_tested():
    assert {draw.__name__ for draw in PICTURES} == set(plots.__all__)


@each_picture
def test_new_axes_are_of_one_figure_that_holds_all_of_them(draw, arguments, shape):
    ax = draw(**arguments)
    assert isinstance(ax, Axes if shape == () else np.ndarray)
    panels = np.asarray(ax, dtype=object)
    assert panels.shape == shape
    assert all(has_drawn(panel) for panel in panels.flat)
    assert len(plt.get_fignums()) == len({id(panel.figure) for panel in panels.flat}) == 1
    panels.flat[0].figure.canvas.draw()


@each_picture
def test_given_axes_are_drawn_into_and_returned(draw, arguments, shape):
    ax = new_axes(shape)
    before = plt.get_fignums()
    returned = draw(**arguments, ax=ax)
    assert plt.get_fignums() == before
    assert np.array_equal(np.asarray(returned, object), np.asarray(ax, object))
    assert all(has_drawn(panel) for panel in np.asarray(ax, dtype=object).flat)


@each_picture
def test_axes_of_another_shape_are_refused_before_anything_is_drawn(draw, arguments, shape):
    for wrong in (new_axes((4,)), new_axes((1,)), "axes"):
        with pytest.raises((TypeError, ValueError), match=r"ax must be .*, got"):
            draw(**arguments, ax=wrong)
        assert not any(has_drawn(panel) for panel in plt.gcf().axes)


@each_picture
def test_style_of_the_caller_is_left_alone_and_nothing_is_shown(
    draw, arguments, shape, monkeypatch
):
    monkeypatch.setattr(plt, "show", lambda: pytest.fail("a plot called plt.show"))
    before = dict(plt.rcParams)
    draw(**arguments)
    assert dict(plt.rcParams) == before


def test_what_the_first_figure_sets_stays(monkeypatch):
    subplots = plt.subplots

    def first_of_a_notebook(*args, **options):
        plt.rcParams["interactive"] = True  # as its backend does when it is loaded
        return subplots(*args, **options)

    monkeypatch.setitem(plt.rcParams, "interactive", False)
    monkeypatch.setattr(plt, "subplots", first_of_a_notebook)
    plots.plot_accuracy({"group": [0.5]})
    assert plt.rcParams["interactive"]


def test_looks_differ_in_colour_or_marker():
    assert len({tuple(look(number).values()) for number in range(49)}) == 49


@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_level_is_marked_by_a_line_and_its_name_outside_of_the_panel(axis):
    panel = plt.subplots()[1]
    panel.set_xlim(0, 10)
    panel.set_ylim(0, 10)
    mark_level(panel, 4.0, "chance", axis)
    line = panel.lines[0]
    along = line.get_xdata() if axis == "x" else line.get_ydata()
    assert list(along) == [4.0, 4.0]
    text = panel.texts[0]
    panel.figure.canvas.draw()
    assert text.get_text() == "chance"
    assert not panel.bbox.overlaps(text.get_window_extent())


@pytest.mark.parametrize(("entries", "shown"), [(0, False), (12, True), (13, False)])
def test_a_legend_is_left_out_where_there_is_nothing_or_too_much_to_tell(entries, shown):
    panel = plt.subplots()[1]
    for number in range(entries):
        panel.plot([0, 1], label=str(number))
    legend_beside(panel)
    assert (panel.get_legend() is not None) == shown
