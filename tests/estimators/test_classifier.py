from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pyro_fnbg.estimators import BNNClassifier
from pyro_fnbg.networks.mlp import BayesianMLP
from support.estimators import SHORT, rows, sides, thirds

X = rows()
ENOUGH = SHORT | {"num_samples": 100, "warmup_steps": 200}


def objects(*labels):
    found = np.empty(len(labels), object)
    found[:] = labels
    return found


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        (np.array(["left", "right"]), "<U5"),
        (np.array(["left", "right"], dtype=object), object),
        (np.array([-3, 70]), np.int64),
        (np.array([2, 5], dtype=np.int8), np.int8),
        (np.array([1.0, 4.0]), np.float64),
        (np.array([False, True]), bool),
        (pd.Series(["left", "right"], dtype="category").array, object),
        (np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[s]"), "datetime64[s]"),
    ],
)
@pytest.mark.parametrize("container", [np.asarray, pd.Series])
def test_labels_of_any_type_come_back(labels, dtype, container):
    y = container(labels[sides(X)])
    classifier = BNNClassifier(**ENOUGH).fit(X, y)
    assert classifier.classes_.dtype == (object if y.dtype == "str" else dtype)
    assert list(classifier.classes_) == sorted(labels)
    assert classifier.predict(X).dtype == classifier.classes_.dtype
    assert classifier.score(X, y) > 0.9


def by_hand(classifier, model, x):
    """Average the probabilities of a network over the draws that ``idata_`` shows."""
    posterior = classifier.idata_["posterior"]
    samples = {
        name: torch.tensor(posterior[name].values).flatten(0, 1) for name in model.parameter_shapes
    }
    outputs = model.forward(samples, torch.tensor(x))
    if model.likelihood == "bernoulli":
        outputs = torch.cat([torch.zeros_like(outputs), outputs], -1)
    return outputs.softmax(-1).mean(0).numpy()


@pytest.mark.parametrize(
    ("label", "outputs", "likelihood"), [(sides, 1, "bernoulli"), (thirds, 3, "categorical")]
)
def test_probabilities_by_hand(label, outputs, likelihood):
    classifier = BNNClassifier(**SHORT, activation="tanh").fit(X, label(X))
    model = BayesianMLP([2, 3, outputs], activation="tanh", likelihood=likelihood)
    found = classifier.predict_proba(X)
    np.testing.assert_allclose(found, by_hand(classifier, model, X), rtol=1e-12)
    assert np.array_equal(classifier.predict(X), found.argmax(1))


def test_classes_are_in_the_order_of_the_probabilities():
    y = np.array(["b", "c", "a"])[thirds(X)]
    classifier = BNNClassifier(**ENOUGH).fit(X, y)
    assert classifier.classes_.tolist() == ["a", "b", "c"]
    ends = classifier.predict_proba([[-3.0, 0.0], [3.0, 0.0]])
    assert ends.argmax(1).tolist() == [1, 0]
    assert classifier.predict([[-3.0, 0.0]]).tolist() == ["b"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parameters_have_the_type_of_the_inputs(dtype):
    classifier = BNNClassifier(**SHORT).fit(X.astype(dtype), sides(X))
    assert classifier.idata_["posterior"]["layer1.weight"].dtype == dtype
    assert classifier.predict_proba(X.astype(np.float32)).dtype == dtype
    assert classifier.predict_proba(X).dtype == dtype


def test_whole_numbers_are_taken_in_double_precision():
    classifier = BNNClassifier(**SHORT).fit(np.arange(40).reshape(20, 2), sides(X[:20]))
    assert classifier.predict_proba([[1, 2]]).dtype == np.float64


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [([3, 7], np.int64), ([False, True], bool), ([1.0, 4.0], np.float64)],
)
@pytest.mark.parametrize("container", [np.asarray, pd.Series])
def test_objects_of_one_type_are_taken_as_that(labels, dtype, container):
    classifier = BNNClassifier(**ENOUGH).fit(X, container(objects(*labels)[sides(X)]))
    assert classifier.classes_.dtype == dtype
    assert classifier.classes_.tolist() == labels
    plain = BNNClassifier(**ENOUGH).fit(X, sides(X))
    assert np.array_equal(classifier.predict_proba(X), plain.predict_proba(X))


@pytest.mark.parametrize(
    ("labels", "types"),
    [
        (["a", pd.NA], "NAType, str"),
        (["a", None], "NoneType, str"),
        (["a", np.nan], "float, str"),
        ([1, pd.NA], "NAType, int"),
        ([1, "a"], "int, str"),
        ([1, True], "bool, int"),
        ([2**70, 2**71], "int"),
        ([Fraction(1, 2), Fraction(1, 3)], "Fraction"),
    ],
)
@pytest.mark.parametrize("container", [np.asarray, lambda y: pd.Series(y, dtype=object), list])
def test_objects_of_several_or_other_types_are_refused(labels, types, container):
    y = container(objects(*labels)[sides(X)])
    if np.asarray(y).dtype == object:  # NumPy makes text of a list of numbers and text
        with pytest.raises(ValueError, match=f"y must have labels of one type, .* type {types}$"):
            BNNClassifier(**SHORT).fit(X, y)


@pytest.mark.parametrize("dtype", ["string", "category"])
def test_missing_text_of_pandas_is_refused(dtype):
    y = pd.Series(objects("a", "b")[sides(X)], dtype=dtype).where(np.arange(40) != 3)
    with pytest.raises(ValueError, match="y must have labels of one type, .* none missing; got"):
        BNNClassifier(**SHORT).fit(X, y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.ones(40), "two classes or more, got 1 class: array"),
        (X[:, 0], "continuous"),
        (sides(X)[:-1], "inconsistent numbers of samples"),
        (np.full(40, np.nan), "NaN"),
    ],
)
def test_unfit_labels_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        BNNClassifier(**SHORT).fit(X, y)


def test_pandas_in():
    frame = pd.DataFrame(X, columns=["first", "second"])
    classifier = BNNClassifier(**SHORT).fit(frame, pd.Series(sides(X), index=range(5, 45)))
    assert classifier.feature_names_in_.tolist() == ["first", "second"]
    assert classifier.n_features_in_ == 2
    plain = BNNClassifier(**SHORT).fit(X, sides(X))
    assert np.array_equal(classifier.predict_proba(frame), plain.predict_proba(X))
    with pytest.raises(ValueError, match="feature names should match"):
        classifier.predict(frame[["second", "first"]])


def test_in_a_pipeline_and_in_searches():
    y = np.array(["left", "right"])[sides(X)]
    pipeline = make_pipeline(StandardScaler(), BNNClassifier(**ENOUGH))
    scores = cross_val_score(pipeline, 100 * X, y, cv=2)
    assert scores.min() > 0.8
    grid = {"bnnclassifier__hidden": [(2,), (3, 2)], "bnnclassifier__batch_size": [None, 10]}
    search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(100 * X, y)
    assert search.best_estimator_.score(100 * X, y) > 0.8


def test_a_warm_start_needs_the_same_classes():
    classifier = BNNClassifier(**SHORT, warm_start=True).fit(X, sides(X))
    with pytest.raises(ValueError, match=r"y must have the classes .*array\(\[0, 1\]\)"):
        classifier.fit(X, sides(X) + 1)
    classifier.fit(X, sides(X))
