"""The estimators pass scikit-learn's own checks."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_fnbg.estimators import BNNClassifier, BNNRegressor

# Some of the checks fit a few rows, or rows without noise, on which a short warmup does not do
pytestmark = pytest.mark.filterwarnings("ignore:.* blocks hardly moved:UserWarning")

BRIEF = {"num_samples": 200, "warmup_steps": 300}


@pytest.mark.slow
@parametrize_with_checks([BNNClassifier(**BRIEF), BNNRegressor(**BRIEF)])
def test_a_brief_run_passes(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([BNNClassifier(), BNNRegressor()])
def test_defaults_pass(estimator, check):
    check(estimator)
