"""Pictures of class probabilities agree with counts made by hand."""

import numpy as np
import pytest
from scipy.stats import binomtest

from pyro_fnbg.plots import plot_images, plot_reliability, plot_risk_coverage

PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.2, 0.35, 0.45]])
IMAGES = np.arange(48.0).reshape(3, 4, 4)


# --- Images -------------------------------------------------------------------------------------


def test_images_have_their_pixels_on_one_scale():
    for panel, image in zip(plot_images(IMAGES, PROBABILITIES, [0, 2, 1]), IMAGES, strict=True):
        shown = panel.child_axes[0].images[0]
        np.testing.assert_array_equal(shown.get_array(), image)
        assert shown.get_clim() == (0.0, 47.0)


def test_bars_are_the_top_probabilities_and_that_of_the_label_stands_out():
    ax = plot_images(IMAGES, PROBABILITIES, [0, 2, 1], top=2, class_names=["cat", "dog", "eel"])
    bars = [panel.child_axes[1] for panel in ax]
    np.testing.assert_allclose(
        [[bar.get_width() for bar in panel.patches] for panel in bars],
        [[0.7, 0.2], [0.6, 0.3], [0.45, 0.35]],
    )
    assert [text.get_text() for text in bars[2].texts] == ["eel", "45.0 %", "dog", "35.0 %"]
    likeliest, second = [bar.get_facecolor() for bar in bars[2].patches]
    assert second == bars[0].patches[0].get_facecolor()  # both are of the label
    assert likeliest == bars[0].patches[1].get_facecolor() != second
    assert bars[0].yaxis.get_inverted()
    assert bars[0].get_xlim() == (0, 1)


def test_titles_name_the_label_and_a_wrong_prediction():
    ax = plot_images(IMAGES, PROBABILITIES, [0, 2, 1])
    assert [panel.get_title() for panel in ax] == ["label 0", "label 2", "label 1\npredicted 2"]
    assert [panel.title.get_fontweight() for panel in ax] == ["normal", "normal", "bold"]


def test_many_images_take_lines_and_nothing_is_cut_off():
    ax = plot_images(np.zeros((8, 4, 4)), np.full((8, 10), 0.1), range(8), top=5)
    figure = ax[0].figure
    figure.canvas.draw()
    assert len(figure.axes) == 8
    lines = [panel.get_subplotspec().rowspan.start for panel in ax]
    assert lines == [0] * 6 + [1] * 2
    for panel in ax:
        box = panel.get_tightbbox()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.y1 <= figure.bbox.y1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros((3, 16))}, r"images must have shape \(images, rows, columns\)"),
        ({"images": IMAGES[:2]}, r"probabilities must have shape \(2, classes\), got \(3, 3\)"),
        ({"labels": [0, 1]}, r"labels must have shape \(3\)"),
        ({"labels": [1, 2, 3]}, "labels must be whole numbers from 0 to 2, got"),
        ({"top": 4}, "top must be a whole number, 1 or more and at most 3; got 4"),
        ({"class_names": ["a", "b"]}, "class_names must hold 3 texts"),
    ],
)
def test_wrong_argument_of_images_is_named(changes, message):
    arguments = {"images": IMAGES, "probabilities": PROBABILITIES, "labels": [0, 1, 2]} | changes
    with pytest.raises(ValueError, match=message):
        plot_images(**arguments)


# --- Reliability --------------------------------------------------------------------------------


def binary(p):
    p = np.asarray(p)
    return np.stack([1 - p, p], axis=1)


def test_reliability_is_mean_confidence_and_accuracy_of_each_bin():
    p = [0.55, 0.58, 0.05, 0.92, 0.97, 0.94]
    ax = plot_reliability(binary(p), [1, 0, 0, 1, 1, 0])
    x, y = ax.containers[0].lines[0].get_data()
    np.testing.assert_allclose(x, [(0.55 + 0.58) / 2, (0.95 + 0.92 + 0.97 + 0.94) / 4])
    np.testing.assert_allclose(y, [0.5, 0.75])
    bars = ax.patches[0].get_data()
    np.testing.assert_allclose(bars.values, [0, 0, 0, 0, 0, 2 / 6, 0, 0, 0, 4 / 6])


def test_reliability_has_intervals_of_wilson():
    ax = plot_reliability(binary([0.9] * 10), [1] * 8 + [0] * 2, num_bins=1)
    (low, high) = ax.containers[0].lines[2][0].get_segments()[0][:, 1]
    interval = binomtest(8, 10).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((interval.low, interval.high))


def test_every_row_is_in_a_bin_and_certainty_in_the_last():
    p = np.random.default_rng(0).choice([0.0, 0.5, 0.6, 0.7, 0.8, 1.0], size=50)
    ax = plot_reliability(binary(p), np.ones(50), num_bins=10)
    shares = ax.patches[0].get_data().values
    assert shares.sum() == pytest.approx(1)
    assert shares[-1] == pytest.approx(np.isin(p, [0.0, 1.0]).mean())


def test_a_calibrated_prediction_lies_on_the_diagonal():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=20_000)
    ax = plot_reliability(binary(p), rng.uniform(size=20_000) < p)
    x, y = ax.containers[0].lines[0].get_data()
    # 4000 rows a bin
    assert np.all(np.abs(y - x) < 4.5 * np.sqrt(x * (1 - x) / 3800))
    assert ax.get_xlim() == (0.5, 1)


# --- Risk and coverage --------------------------------------------------------------------------


def test_risk_is_the_share_of_errors_among_the_surest():
    ax = plot_risk_coverage(binary([0.9, 0.2, 0.7, 0.4]), [1, 1, 1, 1])
    surest, best, random = ax.lines
    # In order: 0.9 right, 0.2 wrong, 0.7 right, 0.4 wrong
    np.testing.assert_allclose(surest.get_xdata(), [25, 50, 75, 100])
    np.testing.assert_allclose(surest.get_ydata(), [0, 50, 100 / 3, 50])
    np.testing.assert_allclose(best.get_ydata(), [0, 0, 100 / 3, 50])
    np.testing.assert_allclose(random.get_ydata(), [50, 50, 50, 50])


def test_rows_of_equal_confidence_share_their_errors_whatever_their_order():
    p, labels = np.array([0.9, 0.75, 0.75, 0.6]), np.array([1, 0, 1, 1])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        line = plot_risk_coverage(binary(p[order]), labels[order]).lines[0]
        np.testing.assert_allclose(line.get_xdata(), [25, 50, 75, 100])
        np.testing.assert_allclose(line.get_ydata(), [0, 25, 100 / 3, 25])


@pytest.mark.parametrize("draw", [plot_reliability, plot_risk_coverage])
def test_wrong_probabilities_and_labels_are_named(draw):
    with pytest.raises(ValueError, match=r"probabilities must have shape \(rows, classes\)"):
        draw([0.1, 0.9], [0, 1])
    with pytest.raises(ValueError, match="labels must be whole numbers from 0 to 1, got"):
        draw([[0.1, 0.9]], [2])
    with pytest.raises(ValueError, match=r"labels must have shape \(1\), got \(2,\)"):
        draw([[0.1, 0.9]], [0, 1])


def test_wrong_number_of_bins_is_named():
    with pytest.raises(ValueError, match="num_bins must be a whole number, 1 or more; got 0"):
        plot_reliability(PROBABILITIES, [0, 1, 2], num_bins=0)
