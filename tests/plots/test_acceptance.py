"""Acceptance rates stand beside their node or layer, in per cent, group by group."""

import numpy as np
import pytest

from pyro_fnbg.plots import plot_acceptance_by_layer, plot_acceptance_by_node

RATES = [
    {"layer1.node1": 0.1, "layer1.node2": 0.2, "layer2.node1": 0.0},
    {"layer1.node1": 0.5, "layer1.node2": 0.6, "layer2.node1": 1.0},
]
LAYERS = [{"layer1": 0.15, "layer2": 0.0}, {"layer1": 0.55, "layer2": 1.0}]


def dots(ax):
    """Return the dots of each box: by group, and in it by node or layer."""
    return [
        line.get_data()
        for line in ax.lines
        if line.get_marker() in ("o", "s") and len(line.get_xdata())
    ]


def names(labels):
    return [label.get_text() for label in labels]


def test_nodes_have_a_dot_per_chain_in_per_cent():
    ax = plot_acceptance_by_node(RATES, target=0.3)
    found = dots(ax)
    np.testing.assert_allclose([x for x, _ in found], [[10, 50], [20, 60], [0, 100]])
    np.testing.assert_array_equal(np.round([y for _, y in found]), [[0, 0], [1, 1], [2, 2]])
    assert names(ax.get_yticklabels()) == list(RATES[0])
    assert ax.yaxis.get_inverted()  # the first node of the sweep is at the top
    assert ax.get_xlim() == (0, 100)
    assert names(ax.texts) == ["target"]
    assert [list(line.get_xdata()) for line in ax.lines if line.get_linestyle() == "--"] == [
        [30] * 2
    ]


def test_layers_stand_from_left_to_right_in_per_cent():
    ax = plot_acceptance_by_layer(LAYERS)
    found = dots(ax)
    np.testing.assert_allclose([y for _, y in found], [[15, 55], [0, 100]])
    np.testing.assert_array_equal(np.round([x for x, _ in found]), [[0, 0], [1, 1]])
    assert names(ax.get_xticklabels()) == ["layer1", "layer2"]
    assert ax.get_ylim() == (0, 100)
    assert not ax.texts
    assert ax.get_legend() is None


def test_nodes_line_up_whatever_their_order_in_a_chain():
    shuffled = [RATES[0], dict(reversed(RATES[1].items()))]
    np.testing.assert_array_equal(
        dots(plot_acceptance_by_node(shuffled)), dots(plot_acceptance_by_node(RATES))
    )


def test_nodes_of_a_layer_lie_on_a_band_of_their_own():
    ax = plot_acceptance_by_node(RATES)
    bands = [
        patch.get_window_extent()
        for patch in ax.patches
        if patch.get_facecolor()[:3] == (0.95,) * 3
    ]
    places = ax.transData.transform([[50, place] for place in range(3)])
    assert [[band.contains(*place) for place in places] for band in bands] == [[True, True, False]]


def test_groups_have_boxes_colours_markers_and_names_of_their_own():
    ax = plot_acceptance_by_node([*RATES, RATES[0]], groups=["cold", "hot", "cold"])
    assert names(ax.get_legend().texts) == ["cold", "hot"]
    found = dots(ax)
    np.testing.assert_allclose(found[0][0], [10, 10])
    np.testing.assert_allclose(found[3][0], [50])
    assert max(found[0][1]) < min(found[3][1])  # cold ones are above hot ones
    looks = [(handle.get_color(), handle.get_marker()) for handle in ax.get_legend().legend_handles]
    assert looks[0][0] != looks[1][0]
    assert looks[0][1] != looks[1][1]


@pytest.mark.parametrize("draw", [plot_acceptance_by_node, plot_acceptance_by_layer])
@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ([], "rates must hold one mapping"),
        ([{}], "rates must hold one mapping"),
        (RATES[0], "rates must hold one mapping"),
        ([{"a": 0.1}, {"b": 0.1}], r"rates must have the same .* in all chains; \['a', 'b'\]"),
        ([{"a": 0.1}, {"a": 31.0}], "rates must lie between 0 and 1, got 31"),
    ],
)
def test_wrong_rates_are_named(draw, rates, message):
    with pytest.raises(ValueError, match=message):
        draw(rates)


@pytest.mark.parametrize("draw", [plot_acceptance_by_node, plot_acceptance_by_layer])
def test_wrong_targets_and_groups_are_named(draw):
    with pytest.raises(ValueError, match="target must lie between 0 and 1, got 30"):
        draw(RATES, target=30)
    with pytest.raises(ValueError, match="groups must hold 2 texts, got 'ab'"):
        draw(RATES, groups="ab")
