"""What a picture may be drawn of by mistake is refused before a figure is opened."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_fnbg.plots import (
    plot_acceptance_by_node,
    plot_accuracy,
    plot_by_batch_size,
    plot_decision_surface,
    plot_images,
    plot_regression_band,
    plot_reliability,
    plot_risk_coverage,
    plot_score,
    plot_traces,
)

NAN, INFINITY = float("nan"), float("inf")
RATES = [{"a.node1": 0.1}, {"a.node1": NAN}]
SURFACE = {
    "probabilities": np.full((1, 2, 2, 2), 0.5),
    "x_values": [0.0, 1.0],
    "y_values": [0.0, 1.0],
    "points": [[0.0, 1.0]],
    "labels": [1],
}
TRACES = {"values": [[1.0, 2.0], [2.0, NAN]], "label": "height (m)"}
SCORES = {"scores": [[0.1, 0.2]], "draws": [1, 2], "label": "accuracy"}
BATCHES = {"values": {1: [0.5, NAN]}, "label": "log likelihood"}
ROWS = {"probabilities": [[0.3, 0.7]], "labels": [1]}
MISTAKES = {
    "one chain": (plot_traces, TRACES | {"values": [1.0, 2.0]}, "values"),
    "draws with parameters": (plot_traces, TRACES | {"values": np.zeros((2, 5, 3))}, "values"),
    "no draws": (plot_traces, TRACES | {"values": [[], []]}, "values"),
    "one title": (plot_traces, TRACES | {"titles": ["a"]}, "titles"),
    "a text": (plot_traces, TRACES | {"titles": "ab"}, "titles"),
    "one chain's rates": (plot_acceptance_by_node, {"rates": RATES[0]}, "rates"),
    "no chains": (plot_acceptance_by_node, {"rates": []}, "rates"),
    "other nodes": (plot_acceptance_by_node, {"rates": [*RATES, {"b.node1": 0.1}]}, "rates"),
    "per cent": (plot_acceptance_by_node, {"rates": [{"a.node1": 23.4}]}, "rates"),
    "target in per cent": (plot_acceptance_by_node, {"rates": RATES, "target": 23.4}, "target"),
    "accuracy in per cent": (plot_accuracy, {"accuracies": {"chain 1": [85.0]}}, "accuracies"),
    "one group": (plot_accuracy, {"accuracies": [0.85]}, "accuracies"),
    "logits of classes": (plot_reliability, ROWS | {"probabilities": [[-1.0, 2.0]]}, "prob"),
    "P(class 1) alone": (plot_risk_coverage, ROWS | {"probabilities": [0.7]}, "probabilities"),
    "P(class 1) in a column": (plot_risk_coverage, ROWS | {"probabilities": [[0.7]]}, "prob"),
    "one-hot labels": (plot_reliability, ROWS | {"labels": [[0, 1]]}, "labels"),
    "classes from 1": (plot_reliability, ROWS | {"labels": [2]}, "labels"),
    "flat images": (plot_images, ROWS | {"images": np.zeros((1, 784))}, "images"),
    "images with a channel": (plot_images, ROWS | {"images": np.zeros((1, 1, 8, 8))}, "images"),
    "text for rates": (plot_acceptance_by_node, {"rates": [{"a.node1": "0.3"}]}, "rates"),
    "rates without names": (plot_acceptance_by_node, {"rates": [[0.3]]}, "rates"),
    "a text as target": (plot_acceptance_by_node, {"rates": RATES, "target": "0.3"}, "target"),
    "values that overflow": (plot_traces, TRACES | {"values": [[0.0, 1e308]]}, "values"),
    "no name of values": (plot_traces, TRACES | {"label": None}, "label"),
    "no name of a score": (plot_score, SCORES | {"label": None}, "label"),
    "no name of batches": (plot_by_batch_size, {"values": {1: [0.5]}, "label": None}, "label"),
    "one level": (plot_traces, TRACES | {"reference_lines": 50.0}, "reference_lines"),
    "levels alone": (plot_traces, TRACES | {"reference_lines": [50.0]}, "reference_lines"),
    "a level in words": (plot_traces, TRACES | {"reference_lines": {"a": "50"}}, "reference_lines"),
    "an endless level": (plot_traces, TRACES | {"reference_lines": {"a": NAN}}, "reference_lines"),
    "levels by number": (plot_traces, TRACES | {"reference_lines": {1: 50.0}}, "reference_lines"),
    "impossible batches": (plot_by_batch_size, BATCHES | {"values": {2: [-INFINITY]}}, "values"),
    "impossible rows": (plot_by_batch_size, BATCHES | {"all_rows": -INFINITY}, "all_rows"),
    "one class": (plot_reliability, ROWS | {"probabilities": [[1.0]], "labels": [0]}, "prob"),
    "swapped bands": (
        plot_regression_band,
        {
            "x": [0.0, 1.0],
            "mean": [0.0, 0.0],
            "intervals": {0.95: ([-1.0, -1.0], [1.0, 1.0]), 0.5: ([-1.0, -2.0], [1.0, 2.0])},
        },
        r"intervals\[0.95\]",
    ),
    "logits": ({"probabilities": np.full((1, 2, 2, 2), -1.5)}, "probabilities"),
    "one set": ({"probabilities": np.full((2, 2, 2), 0.5)}, "probabilities"),
    "a finer grid": ({"x_values": [0.0, 0.5, 1.0]}, "x_values"),
    "a grid as it comes from meshgrid": ({"y_values": [[0.0, 0.0], [1.0, 1.0]]}, "y_values"),
    "a grid downwards": ({"y_values": [1.0, 0.0]}, "y_values"),
    "points side by side": ({"points": [[0.0], [1.0]]}, "points"),
    "points alone": ({"labels": None}, "labels"),
    "labels of other points": ({"labels": [1, 0]}, "labels"),
    "signs": ({"labels": [-1]}, "labels"),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_what_cannot_be_drawn_is_refused_and_leaves_no_figure(mistake):
    *call, changes, argument = mistake
    function = call[0] if call else plot_decision_surface
    with pytest.raises(ValueError, match=rf"{argument}.* must .*(got|differ)"):
        function(**(changes if call else SURFACE | changes))
    assert not plt.get_fignums()


@given(
    values=st.lists(
        st.lists(st.floats(-1e6, 1e6) | st.just(NAN), min_size=3, max_size=3),
        min_size=1,
        max_size=7,
    ),
    lines=st.dictionaries(st.text("ab c", max_size=3), st.floats(-10, 10), max_size=2),
    as_tensor=st.booleans(),
)
@settings(max_examples=3)
def test_edges_that_can_be_drawn(values, lines, as_tensor):
    given_values = torch.tensor(values, requires_grad=True) if as_tensor else values
    traces = plot_traces(given_values, "q", reference_lines=lines)
    assert traces.shape == (len(values), 2)
    one = plot_decision_surface(np.full((1, 1, 2, 3), 1), [0, 1e-3, 1e3], [-1e3, 0.0])
    assert one.shape == (2, 1)
    plt.close("all")
