import copy
import pickle

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from pyro_fnbg.estimators import BNNClassifier, BNNRegressor, base
from support.estimators import SHORT, rows, sides, thirds

X = rows()
Y = sides(X)


def fitted(**changes):
    return BNNClassifier(**SHORT | changes).fit(X, Y)


def last_positions(classifier):
    posterior = classifier.idata_["posterior"]
    return {name: posterior[name].values[:, -1] for name in posterior.data_vars}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 16}, r"hidden must be a sequence .* such as \(16,\); got 16"),
        ({"hidden": (3, 0)}, r"hidden must .* got \(3, 0\)"),
        ({"hidden": "3"}, "hidden must .* got '3'"),
        ({"activation": "elu"}, r"activation must be one of \('sigmoid', .*, got 'elu'"),
        ({"activation": torch.tanh}, "activation must be one of"),
        ({"prior_scale": 0}, "prior_scale must be a positive finite number, or 2, .*; got 0"),
        ({"prior_scale": (1.0,)}, r"prior_scale must .* or 2, one per layer; got \(1.0,\)"),
        ({"prior_scale": (1.0, -2.0)}, r"prior_scale must .* got \(1.0, -2.0\)"),
        ({"num_samples": 0}, "num_samples must be a whole number, 1 or more; got 0"),
        ({"warmup_steps": -1}, "warmup_steps must be .* got -1"),
        ({"thin": 0}, "thin must be .* got 0"),
        ({"num_chains": 1.5}, "num_chains must be .* got 1.5"),
        ({"batch_size": 41}, "batch_size must be 1..40, .* got 41"),
        ({"warm_start": "no"}, "warm_start must be True or False, got 'no'"),
        ({"progress": 1}, "progress must be True or False, got 1"),
        ({"random_state": "a"}, "random_state must be a whole number from 0 .* got 'a'"),
        ({"random_state": -1}, "random_state must be .* got -1"),
    ],
)
def test_arguments_are_checked_in_fit_by_name(changes, message):
    classifier = BNNClassifier(**SHORT | changes)
    with pytest.raises(ValueError, match=message):
        classifier.fit(X, Y)
    assert not hasattr(classifier, "n_features_in_")


@pytest.mark.parametrize("use", ["predict", "predict_proba", "save"])
def test_nothing_works_before_a_fit(use):
    with pytest.raises(NotFittedError):
        getattr(BNNClassifier(), use)("a" if use == "save" else X)
    with pytest.raises(NotFittedError):
        _ = BNNClassifier().idata_


def test_the_seed_decides_on_the_draws_and_torch_stays_where_it_is():
    before = torch.get_rng_state()
    first, same, other = fitted(), fitted(), fitted(random_state=1)
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(first.predict_proba(X), same.predict_proba(X))
    assert not np.array_equal(first.predict_proba(X), other.predict_proba(X))
    state = np.random.RandomState(0)
    one, two = (fitted(random_state=state).predict_proba(X) for _ in range(2))
    assert not np.array_equal(one, two)


def test_sizes_of_the_run_are_those_asked_for():
    draws = fitted(num_samples=7, num_chains=3, thin=2, warmup_steps=5).idata_["posterior"]
    assert draws["layer1.weight"].shape == (3, 7, 3, 2)
    assert (draws.attrs["thin"], draws.attrs["warmup_steps"]) == (2, 5)


def test_the_target_is_stated():
    assert fitted().target_ == "exact: the posterior of the model"
    batched = fitted(batch_size=10)
    assert batched.target_.startswith("approximate: prior x likelihood^0.25, with a fresh")
    assert batched.target_ == batched.idata_["posterior"].attrs["target"]


@pytest.mark.parametrize("make", [BNNClassifier, BNNRegressor])
def test_chains_are_diagnosed_by_their_predictions(make, tmp_path):
    x = rows()
    estimator = make(**SHORT, num_chains=3).fit(x, sides(x))
    found = estimator.diagnose(x[:4])
    assert (found.num_chains, found.num_draws) == (3, SHORT["num_samples"])
    assert found.estimates.sizes["row"] == 4
    assert (found.agreement is None) == (make is BNNRegressor)
    estimator.save(tmp_path / "file")
    again = make.load(tmp_path / "file").diagnose(x[:4])
    assert again.estimates.equals(found.estimates)


def test_a_bar_is_shown_if_asked_for(capsys):
    fitted()
    assert "Sample" not in capsys.readouterr().err
    fitted(progress=True)
    assert capsys.readouterr().err


# Warm starts


@pytest.mark.parametrize("num_chains", [1, 2])
def test_a_warm_start_goes_on_at_the_last_positions(num_chains, monkeypatch):
    starts = []

    class Seen(base.MultiChainMCMC):
        def __init__(self, *args, initial_params, **options):
            starts.append(initial_params)
            super().__init__(*args, initial_params=initial_params, **options)

    monkeypatch.setattr(base, "MultiChainMCMC", Seen)
    classifier = fitted(warm_start=True, num_chains=num_chains)
    expected = last_positions(classifier)
    first = classifier.predict_proba(X)
    classifier.fit(X, Y)
    assert starts[0] is None
    assert starts[1].keys() == expected.keys()
    for name, value in starts[1].items():
        np.testing.assert_array_equal(
            value.numpy() if num_chains > 1 else value.numpy()[None], expected[name]
        )
    assert not np.array_equal(first, classifier.predict_proba(X))


def test_every_fit_of_a_warm_start_has_random_numbers_of_its_own():
    def seed(classifier):
        return classifier.idata_["posterior"].attrs["seed"]

    classifier = fitted(warm_start=True)
    seeds = [seed(classifier)] + [seed(classifier.fit(X, Y)) for _ in range(2)]
    assert len(set(seeds)) == 3
    assert seed(fitted()) == seeds[0]
    # Without a warm start, a second fit is the first again
    assert seed(classifier.set_params(warm_start=False).fit(X, Y)) == seeds[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": (4,)}, r"warm_start=True goes on with the network .*\(3, 2\).*\(4, 2\)"),
        ({"num_chains": 3}, "num_chains must be 2, as in the fit before .* got 3"),
    ],
)
def test_a_warm_start_needs_the_same_network_and_chains(changes, message):
    classifier = fitted(warm_start=True)
    before = classifier.predict_proba(X)
    with pytest.raises(ValueError, match=message):
        classifier.set_params(**changes).fit(X, Y)
    assert np.array_equal(before, classifier.predict_proba(X))


def test_a_fit_that_fails_leaves_the_estimator_as_it_was():
    classifier = fitted()
    before = classifier.predict_proba(X)
    with pytest.raises(ValueError, match="batch_size"):
        classifier.set_params(batch_size=100).fit(np.hstack([X, X]), thirds(X))
    assert classifier.n_features_in_ == 2
    assert np.array_equal(before, classifier.predict_proba(X))


def test_arguments_set_after_the_fit_wait_for_the_next():
    classifier = fitted()
    before = classifier.predict_proba(X)
    classifier.set_params(hidden=(5,), activation="tanh", num_chains=1)
    assert np.array_equal(before, classifier.predict_proba(X))


# Copies


@pytest.mark.parametrize("has_idata", [False, True])
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"]
)
def test_copies_predict_the_same_and_have_the_run(copied, has_idata):
    classifier = fitted(batch_size=10)
    if has_idata:
        _ = classifier.idata_
    other = copied(classifier)
    assert np.array_equal(other.predict_proba(X), classifier.predict_proba(X))
    assert other.target_ == classifier.target_
    for group in ("posterior", "sample_stats", "chain_stats", "observed_data"):
        assert other.idata_[group].equals(classifier.idata_[group])


def test_a_pickle_holds_the_draws_once():
    classifier = fitted(num_samples=2000)
    _ = classifier.idata_
    draws = sum(value.nbytes for value in classifier.idata_["posterior"].data_vars.values())
    statistics = sum(value.nbytes for value in classifier.idata_["sample_stats"].values())
    assert len(pickle.dumps(classifier)) < 1.5 * draws + 2 * statistics


def test_draws_in_a_memory_map_are_read(tmp_path):
    classifier = fitted()
    _ = classifier.idata_
    joblib.dump(classifier, tmp_path / "a.joblib")
    mapped = joblib.load(tmp_path / "a.joblib", mmap_mode="r")
    assert np.array_equal(mapped.predict_proba(X), classifier.predict_proba(X))


def test_a_clone_has_the_arguments_and_no_fit():
    classifier = clone(fitted(prior_scale=(1.0, 3.0)))
    assert classifier.get_params()["prior_scale"] == (1.0, 3.0)
    with pytest.raises(NotFittedError):
        classifier.predict(X)


def test_the_run_is_shown_in_one_object_whose_changes_stay_there(tmp_path):
    classifier = fitted()
    before = classifier.predict_proba(X)
    idata = classifier.idata_
    assert classifier.idata_ is idata
    idata["posterior"]["mine"] = idata["posterior"]["layer1.bias"] ** 2
    assert np.array_equal(before, classifier.predict_proba(X))
    classifier.save(tmp_path / "a")
    assert "mine" not in BNNClassifier.load(tmp_path / "a").idata_["posterior"]
