"""Traces and scores show the numbers they were given, at the draws that they belong to."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from pyro_fnbg.plots import plot_ranks, plot_score, plot_traces

# --- Traces -------------------------------------------------------------------------------------


def test_whole_runs_and_their_ends_are_at_their_draws():
    values = np.arange(60.0).reshape(2, 30)
    ax = plot_traces(values, "accuracy (%)", warmup=10, near=4)
    for (wide, close), chain in zip(ax, values, strict=True):
        np.testing.assert_array_equal(wide.lines[0].get_xdata(), np.arange(-9, 21))
        np.testing.assert_array_equal(wide.lines[0].get_ydata(), chain)
        np.testing.assert_array_equal(close.lines[0].get_xdata(), [17, 18, 19, 20])
        np.testing.assert_array_equal(close.lines[0].get_ydata(), chain[-4:])
        assert wide.get_ylabel() == "accuracy (%)"
    assert ax[1, 0].get_title("left") == "chain 1"
    assert ax[1, 1].get_title("left") == "last 4 of 20 draws: mean 57.50"


def test_values_of_some_draws_are_at_theirs():
    wide, close = plot_traces(np.arange(20.0)[None, 4::5], "q", near=2, every=5)[0]
    np.testing.assert_array_equal(wide.lines[0].get_xdata(), [5, 10, 15, 20])
    np.testing.assert_array_equal(close.lines[0].get_xdata(), [15, 20])
    assert close.get_title("left") == "last 2 of 4 values: mean 16.50"
    assert wide.get_xlabel() == "draw (one in 5)"


def test_near_view_takes_a_tenth_of_the_draws_without_the_warmup():
    ax = plot_traces(np.zeros((1, 300)), "q", warmup=100)
    assert ax[0, 1].get_title("left") == "last 20 of 200 draws: mean 0.000"
    assert plot_traces([[7.0]], "q")[0, 1].get_title("left") == "last 1 of 1 draws: mean 7.000"


def test_warmup_is_shaded_up_to_its_end():
    wide = plot_traces(np.zeros((1, 30)), "q", warmup=10)[0, 0]
    shade = wide.patches[0].get_path().transformed(wide.patches[0].get_patch_transform())
    assert (shade.vertices[:, 0].min(), shade.vertices[:, 0].max()) == (-9, 0.5)
    assert "warmup" in wide.get_xlabel()
    without = plot_traces(np.zeros((1, 30)), "q")[0, 0]
    assert not without.patches
    assert "warmup" not in without.get_xlabel()


def test_mean_in_the_title_is_of_the_draws_shown_and_defined():
    ax = plot_traces([[100.0, -3.0, np.nan, -4.0], [1.0, np.nan, np.nan, np.nan]], "q", near=3)
    titles = [close.get_title("left") for close in ax[:, 1]]
    assert titles == [
        "last 3 of 4 draws: mean \N{MINUS SIGN}3.500",
        "last 3 of 4 draws: mean not defined",
    ]


def test_running_mean_is_the_mean_around_its_place():
    values = np.random.default_rng(0).normal(size=(1, 200))
    x, y = plot_traces(values, "value")[0, 0].lines[1].get_data()
    assert len(x) == 197  # windows of 200 / 50 = 4 draws
    assert x[10] == pytest.approx(np.arange(1, 201)[10:14].mean())
    assert y[10] == pytest.approx(values[0, 10:14].mean())


def test_whole_runs_share_a_scale_that_holds_everything_and_ends_do_not():
    ax = plot_traces([[0.0, 1.0], [50.0, 90.0]], "value", near=2, reference_lines={"top": 99.0})
    assert ax[0, 0].get_ylim() == ax[1, 0].get_ylim()
    low, high = ax[0, 0].get_ylim()
    assert low < 0 < 99 < high
    assert ax[0, 1].get_ylim()[1] < 2
    assert "scales differ" in ax[1, 1].get_xlabel()


def test_reference_lines_are_at_their_levels_in_the_panels_of_whole_runs():
    ax = plot_traces(np.zeros((2, 5)), "value", reference_lines={"chance": 0.5})
    for wide, close in ax:
        assert [text.get_text() for text in wide.texts] == ["chance"]
        assert list(wide.lines[-1].get_ydata()) == [0.5, 0.5]
        assert len(close.lines) == 1


def test_a_chain_of_nothing_but_gaps_can_be_drawn():
    ax = plot_traces([[np.nan, np.inf]], "value")
    ax[0, 0].figure.canvas.draw()


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros((2, 3, 4)), np.zeros((2, 0))])
def test_wrong_shape_of_values_is_named(values):
    with pytest.raises(ValueError, match=r"values must have shape \(chains, draws\)"):
        plot_traces(values, "value")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"titles": ["one"]}, "titles must hold 2 texts"),
        ({"titles": "ab"}, "titles must hold 2 texts"),
        ({"warmup": 5}, "warmup must be a whole number, 0 or more and at most 4; got 5"),
        ({"warmup": -1}, "warmup must be a whole number, 0 or more and at most 4; got -1"),
        ({"near": 0}, "near must be a whole number, 1 or more and at most 5; got 0"),
        ({"warmup": 2, "near": 4}, "near must be a whole number, 1 or more and at most 3; got 4"),
    ],
)
def test_wrong_argument_of_traces_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        plot_traces(np.zeros((2, 5)), "value", **changes)
    assert not plt.get_fignums()


# --- Ranks --------------------------------------------------------------------------------------


def shares(ax):
    return [patch.get_data().values for patch in ax.patches]


def test_ranks_of_chains_that_are_alike_are_level_and_of_others_are_not():
    values = np.arange(400.0).reshape(100, 4).T
    for own in shares(plot_ranks(values, "value")):
        np.testing.assert_allclose(own, 1.0)
    low, high = shares(plot_ranks(np.stack([np.arange(100.0), 100 + np.arange(100.0)]), "value"))
    np.testing.assert_allclose(low, [*10 * [2.0], *10 * [0.0]])
    np.testing.assert_allclose(high, low[::-1])


@pytest.mark.parametrize("values", [[[1.0, 2.0]], [[1.0, 2.0], [3.0, np.nan]]])
def test_ranks_of_one_chain_or_of_no_numbers_are_refused(values):
    with pytest.raises(ValueError, match="values must be finite numbers of two chains or more"):
        plot_ranks(values, "value")


# --- Scores -------------------------------------------------------------------------------------

SCORES = {
    "scores": [[50.0, 60.0, 70.0], [80.0, 85.0, 90.0]],
    "draws": [1, 10, 100],
    "seconds": [[0.1, 1.0, 10.0], [0.2, 0.9, 8.0]],
    "label": "accuracy (%)",
}


def test_scores_stand_at_their_draws_and_seconds():
    by_draws, by_seconds = plot_score(**SCORES)
    for chain in range(2):
        np.testing.assert_array_equal(by_draws.lines[chain].get_xdata(), SCORES["draws"])
        np.testing.assert_array_equal(by_seconds.lines[chain].get_xdata(), SCORES["seconds"][chain])
        for panel in (by_draws, by_seconds):
            np.testing.assert_array_equal(panel.lines[chain].get_ydata(), SCORES["scores"][chain])
    assert (by_draws.get_ylabel(), by_seconds.get_xlabel()) == ("accuracy (%)", "seconds")
    assert by_draws.get_ylim() == by_seconds.get_ylim()


def test_pooled_score_stands_where_the_last_chain_has_its_draws():
    by_draws, by_seconds = plot_score(**SCORES, pooled=[81.0, 86.0, 91.0], titles=["a", "b"])
    np.testing.assert_array_equal(by_draws.lines[2].get_xdata(), SCORES["draws"])
    np.testing.assert_array_equal(by_seconds.lines[2].get_xdata(), [0.2, 1.0, 10.0])
    np.testing.assert_array_equal(by_seconds.lines[2].get_ydata(), [81.0, 86.0, 91.0])
    legend = [text.get_text() for text in by_seconds.get_legend().texts]
    assert legend == ["a", "b", "all pooled"]


def test_without_seconds_there_is_one_panel():
    (panel,) = plot_score(**SCORES | {"seconds": None}, pooled=[81.0, 86.0, 91.0])
    assert len(panel.figure.axes) == 1
    np.testing.assert_array_equal(panel.lines[2].get_xdata(), SCORES["draws"])
    legend = [text.get_text() for text in panel.get_legend().texts]
    assert legend == ["chain 0", "chain 1", "all pooled"]


@pytest.mark.parametrize("seconds", [(0.3, 0.5, 8.0), (0.001, 1.0, 100_000.0)])
def test_numbers_along_the_axes_do_not_run_into_each_other(seconds):
    panels = plot_score(**SCORES | {"seconds": [seconds, seconds]})
    panels[0].figure.canvas.draw()
    for panel in panels:
        ticks = [*panel.xaxis.get_ticklabels(), *panel.xaxis.get_ticklabels(minor=True)]
        left, right = panel.bbox.x0 - 5, panel.bbox.x1 + 5
        boxes = [tick.get_window_extent() for tick in ticks if tick.get_text()]
        boxes = sorted((box.x0, box.x1) for box in boxes if left <= (box.x0 + box.x1) / 2 <= right)
        assert len(boxes) >= 2
        assert all(end < start for (_, end), (start, _) in zip(boxes, boxes[1:], strict=False))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": [1.0, 2.0]}, r"scores must have shape \(chains, points\)"),
        ({"draws": [1, 10]}, r"draws must have shape \(3\), got \(2,\)"),
        ({"draws": [1, 10, 10]}, "draws must be two or more numbers, each larger"),
        ({"draws": [0, 1, 2]}, "draws must be above 0, got 0"),
        ({"seconds": [0.1, 1.0, 10.0]}, r"seconds must have shape \(2, 3\), got \(3,\)"),
        ({"seconds": [[3.0, 2.0, 1.0]] * 2}, "seconds must be two or more numbers, each larger"),
        ({"pooled": [1.0]}, r"pooled must have shape \(3\), got \(1,\)"),
        ({"titles": ["a"]}, "titles must hold 2 texts"),
    ],
)
def test_wrong_argument_of_scores_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        plot_score(**SCORES | changes)
    assert not plt.get_fignums()
