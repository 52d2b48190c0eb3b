"""Troubles with labels and responses: shapes that broadcast, types, values, numbers of rows."""

import re

import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from support.drivers import DRIVERS, WAYS
from support.engines import ENGINES

N = 12
X = torch.linspace(-1.0, 1.0, 2 * N).reshape(N, 2)
CLASSES, RESPONSES = torch.arange(N) % 3, X.sum(1)


def sampled(driver, kernel, *args, **options):
    pyro.set_rng_seed(3)
    mcmc = driver(kernel, num_samples=4, warmup_steps=2, disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc.get_samples()


def classifier(x, y):
    weight = pyro.sample("weight", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=x @ weight.mT), obs=y)


def regression(x, y):
    weight = pyro.sample("weight", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ weight, 1.0), obs=y)


def column_regression(x, y):
    """Forget to squeeze the output."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(1, 2), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ weight.mT, 1.0), obs=y)


def column_scale(x, y):
    """Give each row its own scale, in a column."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ weight, torch.ones(len(x), 1)), obs=y)


# Shapes

COUNTED_TWICE = {
    "column of labels": (classifier, CLASSES[:, None]),
    "column of responses": (regression, RESPONSES[:, None]),
    "column of outputs": (column_regression, RESPONSES),
    "column of both": (column_regression, RESPONSES[:, None]),
    "column of scales": (column_scale, RESPONSES),
}


@DRIVERS
@pytest.mark.parametrize(("model", "y"), COUNTED_TWICE.values(), ids=COUNTED_TWICE)
def test_rows_times_rows_are_refused_with_both_shapes_and_the_plate(driver, model, y):
    words = rf"'y' has data of shape {re.escape(str(tuple(y.shape)))} .*to \(12, 12\), so that rows"
    with pytest.raises(ValueError, match=words + ".*plate 'data' has 12 rows on dimension -1"):
        sampled(driver, FNBG(model), X, y)


@DRIVERS
def test_a_factor_of_rows_times_rows_is_refused(driver):
    def model(x, y):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(1, 2), 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.factor("score", dist.Normal(x @ weight.mT, 1.0).log_prob(y))

    with pytest.raises(ValueError, match=r"'score' has shape \(12, 12\) inside plate 'data' of 12"):
        sampled(driver, FNBG(model), X, RESPONSES)


@WAYS
@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        ("bernoulli", CLASSES % 2),
        ("normal", RESPONSES),
        ("student", RESPONSES),
        ("poisson", CLASSES),
        ("categorical", CLASSES),
    ],
)
def test_a_network_takes_a_column_for_a_vector(driver, engine, likelihood, y):
    model = BayesianMLP([2, 2, 3 if likelihood == "categorical" else 1], likelihood=likelihood)
    vector = sampled(driver, FNBG(model, engine=engine), X, y)
    column = sampled(driver, FNBG(model, engine=engine), X, y[:, None])
    assert all(torch.equal(column[name], value) for name, value in vector.items())


# Types

NUMBERS = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32, torch.float64)


@DRIVERS
def test_labels_of_all_number_types_give_the_same_chain(driver):
    runs = [sampled(driver, FNBG(classifier), X, CLASSES.to(dtype)) for dtype in NUMBERS]
    assert all(torch.equal(run["weight"], runs[0]["weight"]) for run in runs)


@WAYS
def test_labels_of_a_network_may_have_any_number_type_and_be_bool_or_one_hot(driver, engine):
    def chain(likelihood, y):
        model = BayesianMLP([2, 2, 3 if likelihood == "categorical" else 1], likelihood=likelihood)
        return sampled(driver, FNBG(model, engine=engine), X, y)["layer1.weight"]

    classes = [CLASSES.to(dtype) for dtype in NUMBERS[::2]] + [torch.eye(3)[CLASSES]]
    draws = [chain("categorical", y) for y in classes]
    assert all(torch.equal(other, draws[0]) for other in draws)
    assert torch.equal(chain("bernoulli", CLASSES == 1), chain("bernoulli", (CLASSES == 1) * 1.0))


NO_TENSOR = {
    "ndarray": CLASSES.numpy(),
    "list": CLASSES.tolist(),
    "Series": pd.Series(CLASSES.numpy()),
}


@DRIVERS
@pytest.mark.parametrize("kind", NO_TENSOR)
def test_data_that_are_no_tensor_are_refused_by_site_or_argument(driver, kind):
    with pytest.raises(TypeError, match=f"'y' must have its data in a tensor, got {kind} for Cat"):
        sampled(driver, FNBG(classifier), X, NO_TENSOR[kind])
    with pytest.raises(TypeError, match=f"'y' must have its data in a tensor, got {kind} for Nor"):
        sampled(driver, FNBG(regression), X, NO_TENSOR[kind])
    with pytest.raises(TypeError, match=f"y must be a .*torch tensor .*got {kind}"):
        sampled(driver, FNBG(BayesianMLP([2, 3])), X, NO_TENSOR[kind])


@DRIVERS
def test_words_for_labels_are_refused(driver):
    words = ["cat", "dog", "cow"] * 4
    with pytest.raises(TypeError, match="'y' must have its data in a tensor, got list"):
        sampled(driver, FNBG(classifier), X, words)
    with pytest.raises(TypeError, match="y must be a .*torch tensor .*got list"):
        sampled(driver, FNBG(BayesianMLP([2, 3])), X, words)


@DRIVERS
def test_complex_responses_are_refused_rather_than_cut(driver):
    with pytest.raises(ValueError, match=r"'y' must have real data, got torch\.complex64"):
        sampled(driver, FNBG(regression), X, RESPONSES + 1j)


@DRIVERS
def test_a_number_is_data_for_all_rows(driver):
    number = sampled(driver, FNBG(regression), X, 0.5)
    tensor = sampled(driver, FNBG(regression), X, torch.full((N,), 0.5))
    # Engines of their own, which round otherwise
    torch.testing.assert_close(number["weight"], tensor["weight"])


@DRIVERS
def test_a_model_that_fails_on_its_arguments_says_what_they_were(driver):
    with pytest.raises(TypeError) as caught:
        sampled(driver, FNBG(regression), X.numpy(), RESPONSES)
    assert "x: ndarray of shape (12, 2), y: tensor of shape (12,)" in str(caught.value)


# Values

WRONG_VALUES = {
    "negative": (CLASSES - 1, "-1"),
    "too large": (CLASSES + 1, "3"),
    "half a class": (CLASSES + 0.5, "0.5"),
    "not a number": (CLASSES.float().index_fill(0, torch.tensor([5]), torch.nan), "nan"),
}


@DRIVERS
@pytest.mark.parametrize(("y", "first"), WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_impossible_labels_are_named(driver, y, first):
    with pytest.raises(ValueError, match=rf"'y' has \d+ of 12 values outside .*first is {first}$"):
        sampled(driver, FNBG(classifier), X, y)
    for engine in ENGINES:
        kernel = FNBG(BayesianMLP([2, 2, 3]), engine=engine)
        with pytest.raises(ValueError, match=f"y must hold whole numbers from 0 to 2, got {first}"):
            sampled(driver, kernel, X, y)


@DRIVERS
def test_one_hot_rows_for_class_numbers_say_what_to_do(driver):
    with pytest.raises(ValueError, match=r"'y' has data of shape \(12, 3\).*one-hot.*argmax\(-1\)"):
        sampled(driver, FNBG(classifier), X, torch.eye(3)[CLASSES])


# Numbers of rows


@DRIVERS
@pytest.mark.parametrize("rows", [0, 1, N - 2, N + 2])
def test_x_and_y_of_different_length_are_refused_with_both(driver, rows):
    y = torch.zeros(rows)
    with pytest.raises(ValueError, match=rf"'y' has data of shape \({rows},\) .*shape \(12,\)"):
        sampled(driver, FNBG(regression), X, y)
    for engine in ENGINES:
        kernel = FNBG(BayesianMLP([2, 1], likelihood="normal"), engine=engine)
        with pytest.raises(ValueError, match=rf"y must have shape \(12,\).* got \({rows},\)"):
            sampled(driver, kernel, X, y)


@DRIVERS
def test_no_rows_at_all_are_an_error_that_shows_the_shapes(driver):
    with pytest.raises(ZeroDivisionError) as caught:  # of Pyro's plate
        sampled(driver, FNBG(regression), X[:0], RESPONSES[:0])
    assert "x: tensor of shape (0, 2)" in str(caught.value)
    with pytest.raises(ValueError, match=r"x must be .*at least one row; got \(0, 2\)"):
        sampled(driver, FNBG(BayesianMLP([2, 3])), X[:0], CLASSES[:0])


def indexed(x, y, size):
    weight = pyro.sample("weight", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", size) as rows:
        pyro.sample("y", dist.Normal(x[rows] @ weight, 1.0), obs=y[rows])


@pytest.mark.parametrize(("driver", "batch_size"), [(MCMC, 4), (MultiChainMCMC, None)])
def test_rows_of_an_argument_that_a_plate_never_reaches_are_warned_of(driver, batch_size):
    kernel = FNBG(indexed, batch_size=batch_size)
    with pytest.warns(UserWarning, match="'x' has 12 rows, and plate 'data' has 9, as 'y' has"):
        sampled(driver, kernel, X, RESPONSES[:9], 9)
    with pytest.warns(UserWarning, match="'y' has 12 rows, and plate 'data' has 9, as 'x' has"):
        sampled(driver, kernel, X[:9], RESPONSES, 9)
    sampled(driver, kernel, X, RESPONSES, 9)  # all are cut alike, so it is meant


@DRIVERS
def test_a_table_longer_than_the_data_is_no_fault_where_it_is_read(driver):
    def model(kinds, y, table):
        weight = pyro.sample("weight", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)) as rows:
            pyro.sample("y", dist.Normal(weight * table[kinds[rows]], 1.0), obs=y[rows])

    sampled(driver, FNBG(model), torch.tensor([0, 5, 6]), RESPONSES[:3], RESPONSES[:7])
