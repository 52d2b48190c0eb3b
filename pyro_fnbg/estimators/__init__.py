"""Estimators that follow scikit-learn."""

from pyro_fnbg.estimators.classifier import BNNClassifier
from pyro_fnbg.estimators.regressor import BNNRegressor

__all__ = ["BNNClassifier", "BNNRegressor"]
