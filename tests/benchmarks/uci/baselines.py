"""What scikit-learn predicts: a linear model, and boosted trees."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict

from benchmarks.uci.exchange import Outcome, Task, timed

__all__ = ["fit_boosting", "fit_linear"]

FOLDS = 5
LEARNING_RATE = 0.05
# Number of trees, and rows in a leaf, of which cross-validation chooses
GRID = {"max_iter": [100, 1_000], "min_samples_leaf": [5, 20]}


def fit_linear(task: Task) -> Outcome:
    """Fit least squares, or logistic regression."""
    model = LogisticRegression(max_iter=10_000) if task.num_classes else LinearRegression()
    return fit(model, task)


def fit_boosting(task: Task) -> Outcome:
    """Fit trees: as many and of such leaves as cross-validation finds best."""
    kind = HistGradientBoostingClassifier if task.num_classes else HistGradientBoostingRegressor
    seed = task.about["seed"]
    model = kind(learning_rate=LEARNING_RATE, early_stopping=False, random_state=seed)
    scoring = "neg_log_loss" if task.num_classes else "neg_mean_squared_error"
    return fit(GridSearchCV(model, GRID, scoring=scoring, cv=folds_of(task)), task)


def folds_of(task: Task) -> KFold:
    """Return the folds of cross-validation."""
    return KFold(FOLDS, shuffle=True, random_state=task.about["seed"])


def fit(model: BaseEstimator, task: Task) -> Outcome:
    """Fit and predict, as one draw of one chain.

    The standard deviation of numbers is the same in all rows: the root of the mean square of
    errors on rows of the training set that a fit to its other folds did not see.
    """
    about: dict[str, Any] = {}
    with timed(about):
        model.fit(task.x_train, task.y_train)
        if isinstance(model, GridSearchCV):
            about["chosen"] = model.best_params_
            model = model.best_estimator_
        if not task.num_classes:
            found = cross_val_predict(model, task.x_train, task.y_train, cv=folds_of(task))
            scale = np.sqrt(np.mean((found - task.y_train) ** 2))
    if task.num_classes:
        # Trees and rounding can say 0, which no score should be infinite for
        probabilities = model.predict_proba(task.x_test).clip(np.finfo(np.float32).tiny)
        return Outcome(log_probabilities=np.log(probabilities)[None, None], about=about)
    means = model.predict(task.x_test)[None, None]
    return Outcome(means, np.full(means.shape, scale), about=about)
