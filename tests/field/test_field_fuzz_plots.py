"""Whatever a picture is to be drawn of: it is drawn, or refused before a figure is opened."""

from collections.abc import Mapping
from fractions import Fraction

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_fnbg.plots import plot_acceptance_by_node, plot_decision_surface, plot_traces
from support.fuzzing import NAN, anything, assert_refused, is_real, with_found

EXAMPLES = 8
RATES = [{"a.node1": 0.1}, {"a.node1": NAN}]
SURFACE = {
    "probabilities": np.full((1, 2, 2, 2), 0.5),
    "x_values": [0.0, 1.0],
    "y_values": [0.0, 1.0],
    "points": [[0.0, 1.0]],
    "labels": [1],
}


def numbers(value, dims):
    """Return an array of real numbers of so many dimensions, or None."""
    if isinstance(value, Tensor):
        if value.is_meta or value.is_sparse or value.is_complex():
            return None
        value = value.detach().double().numpy()
    try:
        found = np.asarray(value)
        if found.dtype == object:
            known = all(isinstance(v, int | float | Fraction | np.number) for v in found.flat)
            found = found.astype(float) if known else np.array("")
    except (OverflowError, TypeError, ValueError):
        return None
    fits = found.dtype.kind in "biuf" and found.ndim == dims and found.size > 0
    return found.astype(np.float64) if fits else None


def is_course(value):
    found = numbers(value, 2)
    return found is not None and not np.isinf(found).any()


def is_grid(value):
    found = numbers(value, 1)
    return found is not None and found.shape == (2,) and -1e100 <= found[0] < found[1] <= 1e100


def is_share(value):
    return (
        isinstance(value, float | np.floating)
        and np.isnan(value)
        or (is_real(value) and 0 <= float(value) <= 1)
    )


def are_points(value):
    """Whether something is places of data; of another number than there are labels, perhaps."""
    found = numbers(value, 2)
    return found is not None and found.shape[1] == 2 and (np.abs(found) <= 1e100).all()


def are_labels(value):
    found = numbers(value, 1)
    return found is not None and found.shape == (1,) and found[0] in (0, 1)


def are_titles(count):
    return lambda value: (
        value is None
        or (isinstance(value, list | tuple) and len(value) == count and all(map(is_text, value)))
    )


def is_text(value):
    return isinstance(value, str)


def are_levels(value):
    return value is None or (
        isinstance(value, Mapping)
        and all(is_text(text) and is_real(level) for text, level in value.items())
    )


def are_rates(value):
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(is_text(node) and is_share(rate) for node, rate in value.items())
    )


TRACES = {"values": [[1.0, 2.0], [2.0, NAN]], "label": "height (m)"}
CALLS = {
    "values": (lambda v: plot_traces(v, "q"), is_course),
    "label": (lambda v: plot_traces([[1.0, 2.0]], v), is_text),
    "titles": (lambda v: plot_traces(**TRACES, titles=v), are_titles(2)),
    "reference_lines": (lambda v: plot_traces(**TRACES, reference_lines=v), are_levels),
    "rates": (plot_acceptance_by_node, lambda v: False),
    "rates ": (lambda v: plot_acceptance_by_node([v]), are_rates),
    "rates  ": (lambda v: plot_acceptance_by_node([{"a": v}]), is_share),
    "target": (
        lambda v: plot_acceptance_by_node(RATES, target=v),
        lambda v: v is None or (is_real(v) and 0 <= float(v) <= 1),
    ),
    "titles ": (lambda v: plot_acceptance_by_node(RATES, titles=v), are_titles(2)),
    "probabilities": (
        lambda v: plot_decision_surface(**(SURFACE | {"probabilities": v})),
        lambda v: False,
    ),
    "x_values": (lambda v: plot_decision_surface(**(SURFACE | {"x_values": v})), is_grid),
    "y_values": (lambda v: plot_decision_surface(**(SURFACE | {"y_values": v})), is_grid),
    "points": (lambda v: plot_decision_surface(**(SURFACE | {"points": v})), are_points),
    "labels": (lambda v: plot_decision_surface(**(SURFACE | {"labels": v})), are_labels),
    "titles  ": (lambda v: plot_decision_surface(**SURFACE, titles=v), are_titles(1)),
}  # fmt: skip


@pytest.mark.parametrize("argument", CALLS)
@with_found
@given(value=anything)
@example(value=[[0.0, NAN]])
@example(value=[1.0, 0.0])
@example(value=[0.0, float("inf")])
@example(value=np.full((1, 2, 2, 2), NAN))
@example(value=[2])
@settings(max_examples=EXAMPLES)
def test_what_cannot_be_drawn_is_refused_and_leaves_no_figure(argument, value):
    call, allowed = CALLS[argument]
    assume(not allowed(value))
    shown = "" if isinstance(value, list | tuple | range | Mapping | Tensor | np.ndarray) else value
    shown = "" if argument in ("rates ", "rates  ") else shown
    assert_refused(argument.strip(), shown, lambda: call(value))
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
    figure = plot_traces(given_values, "q", reference_lines=lines)
    assert len(figure.axes) == len(values)
    plt.close(figure)
    one = plot_decision_surface(np.full((1, 1, 2, 3), 1), [0, 1e-3, 1e100], [-1e100, 0.0])
    assert len(one.axes) == 4
    plt.close(one)
