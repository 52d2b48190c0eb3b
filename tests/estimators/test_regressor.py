import re

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pyro_fnbg.estimators import BNNClassifier, BNNRegressor, base
from pyro_fnbg.estimators.files import read_archive, write_archive
from pyro_fnbg.networks.mlp import BayesianMLP
from pyro_fnbg.testing import assert_expectation
from support.estimators import SHORT, rows, sides, slope

X = rows()
Y = slope(X)
ENOUGH = SHORT | {"num_samples": 200, "warmup_steps": 300}


def draws_of_means(regressor, x, hidden=(3,), outputs=1):
    """Return the means of the standardised response, (chains, draws, rows, outputs)."""
    posterior = regressor.idata_["posterior"]
    model = BayesianMLP([2, *hidden, outputs], activation="relu", likelihood="normal")
    samples = {name: torch.tensor(posterior[name].values) for name in model.parameter_shapes}
    shape = samples["layer1.weight"].shape[:2]
    flat = {name: value.flatten(0, 1) for name, value in samples.items()}
    return model.forward(flat, torch.tensor(x)).unflatten(0, shape).numpy()


# Against known answers


def test_without_hidden_layers_it_is_bayesian_linear_regression():
    """The posterior of Normal weights with known noise is Normal, in closed form."""
    noise, new = 3.0, np.array([[1.5, -0.5], [0.0, 0.0]])
    regressor = BNNRegressor(
        (), prior_scale=0.7, observation_scale=noise, num_samples=20_000, random_state=0
    ).fit(X, Y)
    centre, spread = Y.mean(), Y.std()
    design, at = (np.column_stack([part, np.ones(len(part))]) for part in (X, new))
    prior = np.array([0.7 / 2**0.5, 0.7 / 2**0.5, 0.7]) * spread
    covariance = np.linalg.inv(np.diag(prior**-2) + design.T @ design / noise**2)
    mean = centre + at @ covariance @ design.T @ (Y - centre) / noise**2
    variance = np.einsum("ij,jk,ik->i", at, covariance, at)

    found = centre + spread * draws_of_means(regressor, new, hidden=())[..., 0]
    for row in range(2):
        assert_expectation(found[..., row], mean[row])
        assert_expectation((found[..., row] - mean[row]) ** 2, variance[row])
    # The rest is arithmetic on these draws
    answers = regressor.predict(new, return_std=True)
    np.testing.assert_allclose(answers[0], found.mean((0, 1)), rtol=1e-9)
    np.testing.assert_allclose(answers[1], np.sqrt(found.var((0, 1)) + noise**2), rtol=1e-9)


def test_the_noise_is_learnt():
    x = rows(200)
    regressor = BNNRegressor(num_samples=500, random_state=0).fit(x, slope(x))
    scale = regressor.idata_["posterior"]["obs_scale"].values * slope(x).std()
    assert 1.7 < scale.mean() < 2.3  # it is 2
    _, std = regressor.predict(x, return_std=True)
    assert 1.7 < std.mean() < 2.5


def test_intervals_are_those_of_the_mixture():
    regressor = BNNRegressor(**ENOUGH).fit(X, Y)
    means = Y.mean() + Y.std() * draws_of_means(regressor, X[:5])[..., 0].reshape(-1, 5)
    scales = Y.std() * regressor.idata_["posterior"]["obs_scale"].values.reshape(-1, 1)
    lower, upper = regressor.predict(X[:5], intervals=0.8)[1]
    np.testing.assert_allclose(norm.cdf(lower, means, scales).mean(0), 0.1, atol=1e-6)
    np.testing.assert_allclose(norm.cdf(upper, means, scales).mean(0), 0.9, atol=1e-6)


@pytest.mark.parametrize(
    ("factor", "shift"),
    [(1e-6, 0.0), (1e6, -1e9), (1e-300, 0.0), (1e297, 0.0), (2.0**-10, 2.0**20)],
)
def test_predictions_follow_the_units_of_the_response(factor, shift):
    plain = BNNRegressor(**SHORT).fit(X, Y)
    other = BNNRegressor(**SHORT).fit(X, shift + factor * Y)
    one, two = (each.predict(X, return_std=True, intervals=0.9) for each in (plain, other))
    np.testing.assert_allclose(two[0], shift + factor * one[0], rtol=1e-6)
    np.testing.assert_allclose(two[1], factor * one[1], rtol=1e-6)
    np.testing.assert_allclose(two[2], shift + factor * one[2], rtol=1e-6)


# Forms


def test_what_is_asked_for_is_returned():
    regressor = BNNRegressor(**SHORT).fit(X, Y)
    mean = regressor.predict(X)
    assert mean.shape == (40,)
    assert mean.dtype == np.float64
    both, std = regressor.predict(X, return_std=True)
    assert np.array_equal(both, mean)
    assert std.shape == (40,)
    one = regressor.predict(X, intervals=0.5)[1]
    assert one.shape == (2, 40)
    several = regressor.predict(X, return_std=True, intervals=[0.5, 0.9])[2]
    assert several.shape == (2, 2, 40)
    assert np.array_equal(several[0], one)
    assert np.all(several[1, 0] < several[0, 0])
    assert np.all(several[0, 1] < several[1, 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"intervals": 95}, "intervals must be between 0 and 1, got 95"),
        ({"intervals": [0.5, 1.0]}, "intervals must be between 0 and 1, got 1.0"),
        ({"intervals": "0.9"}, "intervals must be between 0 and 1, got '0.9'"),
        ({"intervals": 1 - 1e-16}, "intervals must be between 0 and 1, .* got 0.9999999999999999"),
        ({"intervals": [0.5, 1 - 1e-16]}, r"intervals must be .* got \[0.5, 0.99999"),
        ({"return_std": "yes"}, "return_std must be True or False, got 'yes'"),
    ],
)
def test_options_of_predictions_are_checked_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        BNNRegressor(**SHORT).fit(X, Y).predict(X, **options)


def test_several_outputs():
    y = np.column_stack([Y, -1e-3 * X[:, 1]])
    regressor = BNNRegressor(**ENOUGH | {"hidden": (8,)}).fit(X, y)
    mean, std, (lower, upper) = regressor.predict(X, return_std=True, intervals=0.9)
    assert mean.shape == std.shape == lower.shape == upper.shape == (40, 2)
    assert regressor.score(X, y) > 0.7
    assert (std[:, 0] / std[:, 1]).min() > 100
    assert np.all((lower < mean) & (mean < upper))
    means = draws_of_means(regressor, X, hidden=(8,), outputs=2).mean((0, 1))
    np.testing.assert_allclose(mean, y.mean(0) + y.std(0) * means, rtol=1e-9)


def test_a_column_of_responses_gives_columns():
    flat = BNNRegressor(**SHORT).fit(X, Y)
    column = BNNRegressor(**SHORT).fit(X, Y[:, None])
    answers = column.predict(X, return_std=True, intervals=[0.5])
    assert [answer.shape for answer in answers] == [(40, 1), (40, 1), (1, 2, 40, 1)]
    assert np.array_equal(answers[0][:, 0], flat.predict(X))


# The noise shrinks without end, and no proposal scale fits it for long
@pytest.mark.filterwarnings("ignore:.* blocks hardly moved:UserWarning")
@pytest.mark.parametrize(
    ("y", "scale"), [(0.1, 0.1), (-2020.0, 1.0), (0.0, 1.0), (1e-290, 1e-290), (1e299, 1.0)]
)
def test_a_constant_response_is_predicted(y, scale):
    mean, std = BNNRegressor(**ENOUGH).fit(X, np.full(40, y)).predict(X, return_std=True)
    assert np.abs(mean - y).max() <= 0.5 * scale
    assert std.max() < scale


def test_the_spread_that_there_is_is_the_unit():
    noise = Y - Y.mean()
    columns = np.column_stack([1e9 + 1e-6 * noise, np.full(40, 7.0), 1e-290 * noise, Y])
    observed = BNNRegressor(**SHORT).fit(X, columns).idata_["observed_data"]["obs"].values
    np.testing.assert_allclose(observed.mean(0), 0, atol=1e-2)
    np.testing.assert_allclose(observed.std(0), [1, 0, 1, 1], rtol=1e-12)


@pytest.mark.parametrize("factor", [1e-322, 1e-310, 1e304])
def test_a_response_at_the_end_of_the_numbers_is_refused(factor):
    with pytest.raises(ValueError, match="y must be up to 1e.300 in size .*: use other units; got"):
        BNNRegressor(**SHORT).fit(X, Y * factor)


@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 9), (np.float64, 76)])
def test_a_scale_of_the_noise_works_or_is_refused_by_name(dtype, most):
    x = X.astype(dtype)
    for exponent in (most, -most):
        regressor = BNNRegressor(**SHORT, observation_scale=Y.std() * 10.0**exponent).fit(x, Y)
        answers = regressor.predict(x, return_std=True, intervals=0.9)
        assert all(np.isfinite(answer).all() for answer in answers)
    for scale in (10.0 ** (most + 3), 10.0 ** (-most - 3), 1e155, 1e300, 1e-300):
        regressor = BNNRegressor(**SHORT, observation_scale=scale)
        with pytest.raises(
            ValueError, match=rf"observation_scale must be between .* got {re.escape(str(scale))}"
        ):
            regressor.fit(x, Y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parameters_have_the_type_of_the_inputs(dtype):
    regressor = BNNRegressor(**SHORT).fit(X.astype(dtype), 1e8 + Y)
    assert {v.dtype for v in regressor.idata_["posterior"].values()} == {np.dtype(dtype)}
    assert np.abs(regressor.predict(X) - 1e8 - 100).max() < 100


@pytest.mark.parametrize(
    ("scale", "y", "message"),
    [
        (0, Y, "observation_scale must be None, 'network', or a positive .* got 0 for 1 outputs"),
        ("a", Y, "observation_scale must be .* got 'a'"),
        (1.0, np.column_stack([Y, Y]), "observation_scale must .* got 1.0 for 2 outputs"),
    ],
)
def test_the_scale_of_the_noise_is_checked(scale, y, message):
    with pytest.raises(ValueError, match=message):
        BNNRegressor(**SHORT, observation_scale=scale).fit(X, y)


@pytest.mark.parametrize("y", [np.full(40, np.inf), np.array(["a"] * 40), Y[:-1]])
def test_unfit_responses_are_refused(y):
    regressor = BNNRegressor(**SHORT)
    with pytest.raises(ValueError, match=r"infinity|could not convert|inconsistent"):
        regressor.fit(X, y)
    assert not hasattr(regressor, "n_features_in_")


# In company


def test_pandas_in():
    frame = pd.DataFrame(X, columns=["first", "second"])
    regressor = BNNRegressor(**SHORT).fit(frame, pd.Series(Y, index=range(5, 45)))
    assert regressor.feature_names_in_.tolist() == ["first", "second"]
    expected = BNNRegressor(**SHORT).fit(X, Y).predict(X)
    assert np.array_equal(regressor.predict(frame), expected)


def test_in_a_pipeline_and_in_searches():
    pipeline = make_pipeline(StandardScaler(), BNNRegressor(**ENOUGH))
    assert cross_val_score(pipeline, 100 * X, Y, cv=2).min() > 0.7
    grid = {"bnnregressor__prior_scale": [0.01, 1.0]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(100 * X, Y)
    assert search.best_params_ == {"bnnregressor__prior_scale": 1.0}
    _, std = search.best_estimator_.predict(100 * X, return_std=True)
    assert std.shape == (40,)


def test_a_warm_start_goes_on_in_the_units_of_the_first_fit(monkeypatch):
    starts = []

    class Seen(base.MultiChainMCMC):
        def __init__(self, *args, initial_params, **options):
            starts.append(initial_params)
            super().__init__(*args, initial_params=initial_params, **options)

    monkeypatch.setattr(base, "MultiChainMCMC", Seen)
    regressor = BNNRegressor(**SHORT, warm_start=True).fit(X, Y)
    before = regressor.idata_["posterior"]
    regressor.fit(X, 3 * Y)
    assert starts[1].keys() == before.data_vars.keys()
    for name, value in starts[1].items():
        value = value.exp() if name == "obs_scale" else value
        np.testing.assert_allclose(value.numpy(), before[name].values[:, -1], rtol=1e-12)
    observed = regressor.idata_["observed_data"]["obs"].values
    np.testing.assert_allclose(observed, (3 * Y - Y.mean()) / Y.std(), rtol=1e-12)
    assert np.corrcoef(regressor.predict(X), Y)[0, 1] > 0.5


def test_a_warm_start_needs_the_same_outputs():
    regressor = BNNRegressor(**SHORT, warm_start=True).fit(X, Y)
    with pytest.raises(ValueError, match=r"y must have 1 outputs, .* got shape \(40, 2\)"):
        regressor.fit(X, np.column_stack([Y, Y]))
    with pytest.raises(ValueError, match="warm_start=True goes on with the network"):
        regressor.set_params(observation_scale=1.0).fit(X, Y)


@pytest.mark.parametrize("outputs", [1, 2])
def test_noise_that_depends_on_the_inputs_is_found(outputs):
    """In units of its own for each output, and larger where the response is wilder."""
    rng = np.random.default_rng(0)
    x = np.linspace(-1.5, 1.5, 300)[:, None]
    noise = np.where(x < 0, 1.0, 0.1) * rng.standard_normal((300, outputs))
    y = 50 + 10 * np.array([1.0, 1e-3])[:outputs] * (x + noise)
    regressor = BNNRegressor(
        (6,), observation_scale="network", num_samples=400, warmup_steps=600, random_state=0
    ).fit(x, y)
    assert "obs_scale" not in regressor.idata_["posterior"]
    _, std = regressor.predict(np.array([[-1.0], [1.0]]), return_std=True)
    std = std.reshape(2, outputs) / (10 * np.array([1.0, 1e-3])[:outputs])
    assert ((std[0] > 0.7) & (std[0] < 1.4)).all()
    assert ((std[1] > 0.05) & (std[1] < 0.3)).all()


@pytest.mark.parametrize("scale", [None, 2.5, "network"])
@pytest.mark.parametrize("y", [Y, Y[:, None]], ids=["flat", "column"])
def test_a_file_gives_back_what_was_saved(scale, y, tmp_path):
    regressor = BNNRegressor(**SHORT, observation_scale=scale, batch_size=20).fit(X, y)
    regressor.save(tmp_path / "a")
    loaded = BNNRegressor.load(tmp_path / "a")
    options = {"return_std": True, "intervals": [0.5, 0.9]}
    found, expected = (each.predict(X, **options) for each in (loaded, regressor))
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)
    assert loaded.target_ == regressor.target_
    assert loaded.get_params() == regressor.get_params()
    assert loaded.idata_["posterior"].identical(regressor.idata_["posterior"])


@pytest.mark.parametrize(
    "change",
    [
        lambda words, arrays: arrays.update(y_mean=np.array([np.nan])),
        lambda words, arrays: arrays.update(y_mean=np.array([1])),
        lambda words, arrays: arrays.update(y_scale=np.array([0.0])),
        lambda words, arrays: arrays.update(y_scale=np.ones(2)),
        lambda words, arrays: words["response"].update(is_one_column="yes"),
        lambda words, arrays: words["network"].update(likelihood="bernoulli"),
        lambda words, arrays: words["network"].update(observation_scale=1.0),
        lambda words, arrays: arrays.update(
            {"posterior/obs_scale": -arrays["posterior/obs_scale"]}
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(change, tmp_path):
    BNNRegressor(**SHORT).fit(X, Y).save(tmp_path / "a")
    words, arrays = read_archive(tmp_path / "a")
    change(words, arrays)
    write_archive(tmp_path / "a", words, arrays)
    with pytest.raises(ValueError, match="a is damaged: "):
        BNNRegressor.load(tmp_path / "a")


def test_a_file_of_the_other_estimator_is_refused_by_name(tmp_path):
    BNNRegressor(**SHORT).fit(X, Y).save(tmp_path / "a")
    BNNClassifier(**SHORT).fit(X, sides(X)).save(tmp_path / "b")
    with pytest.raises(ValueError, match="a holds a BNNRegressor, not a BNNClassifier"):
        BNNClassifier.load(tmp_path / "a")
    with pytest.raises(ValueError, match="b holds a BNNClassifier, not a BNNRegressor"):
        BNNRegressor.load(tmp_path / "b")
