"""What scikit-learn predicts: a linear model, and boosted trees."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import KFold, cross_val_predict

from benchmarks.uci.exchange import Outcome, Task, timed

__all__ = ["fit_boosting", "fit_linear"]

FOLDS = 5
BOOSTING = {
    "max_iter": 2_000,
    "learning_rate": 0.05,
    "early_stopping": True,
    "n_iter_no_change": 50,
}


def fit_linear(task: Task) -> Outcome:
    """Fit least squares, or logistic regression."""
    model = LogisticRegression(max_iter=10_000) if task.num_classes else LinearRegression()
    return fit(model, task)


def fit_boosting(task: Task) -> Outcome:
    """Fit trees, as many as held-out rows ask for."""
    kind = HistGradientBoostingClassifier if task.num_classes else HistGradientBoostingRegressor
    return fit(kind(**BOOSTING, random_state=task.about["seed"]), task)


def fit(model: BaseEstimator, task: Task) -> Outcome:
    """Fit and predict, as one draw of one chain.

    The standard deviation of numbers is the same in all rows: the root of the mean square of
    errors on rows of the training set that a fit to its other folds did not see.
    """
    about: dict[str, Any] = {}
    if task.num_classes:
        with timed(about):
            model.fit(task.x_train, task.y_train)
        # Boosting and floats can say 0, which no row of the test should be lost to
        least = np.finfo(np.float32).tiny
        probabilities = model.predict_proba(task.x_test).clip(least)
        return Outcome(log_probabilities=np.log(probabilities)[None, None], about=about)
    with timed(about):
        model.fit(task.x_train, task.y_train)
        folds = KFold(FOLDS, shuffle=True, random_state=task.about["seed"])
        found = cross_val_predict(model, task.x_train, task.y_train, cv=folds)
        scale = np.sqrt(np.mean((found - task.y_train) ** 2))
    means = model.predict(task.x_test)[None, None]
    return Outcome(means, np.full(means.shape, scale), about=about)
