"""``BNNClassifier``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from pyro_fnbg.core.checks import check_names, shown
from pyro_fnbg.estimators.base import NetworkEstimator
from pyro_fnbg.prediction.predictive import marginal_predictive

__all__ = ["BNNClassifier"]


class BNNClassifier(ClassifierMixin, NetworkEstimator):  # type: ignore[misc]
    r"""Classify rows by a Bayesian neural network; follows scikit-learn.

    The network is a ``BayesianMLP``, sampled by ``FNBG`` under ``MultiChainMCMC``. The response is
    Bernoulli with two classes, and categorical with more. Probabilities are averages over the draws
    of all chains. With all rows in every sweep, the default, the chains are exact for the
    network's posterior; with ``batch_size`` they approximate another distribution, which
    ``target_`` states. Neither says that the chains have converged: see ``idata_``.

    Inputs are taken as they are. Standardise them, as by ``StandardScaler`` in a pipeline: the
    priors are made for that. The parameters have the inputs' type if that is float32 or float64,
    and float64 otherwise. Weights of rows (``sample_weight``) are not supported by ``fit``.

    ``fit`` leaves torch's random stream alone. If it fails or is stopped in warmup, the estimator
    stays as it was. Stopped by Ctrl-C later, it keeps the draws so far, with a warning.

    Args:
        hidden: Numbers of nodes of the hidden layers; ``()`` for none, which is logistic
            regression.
        activation: Of the hidden layers: "relu", "tanh", "sigmoid", "step" or "identity".
        prior_scale: Of the Normal priors: a bias has this standard deviation, a weight this over
            the square root of the number of nodes below, so that it means the same for any width
            (Neal, 1996, "Bayesian learning for neural networks"). One number, or one per layer.
        num_samples: Draws of each chain.
        warmup_steps: Sweeps of each chain that tune the proposals and are dropped.
        thin: Sweeps a draw.
        num_chains: Number of chains.
        batch_size: Rows in a sweep, drawn anew for each; None for all of them.
        warm_start: Whether ``fit`` goes on where the chains of the fit before ended, with new
            random numbers, a warmup of its own and the given data. It replaces the draws. Network,
            classes and ``num_chains`` must stay.
        random_state: Seed: the same whole number gives the same draws.
        progress: Whether to show a bar, of the sampling and of predictions that take long.

    Attributes:
        classes_: The labels, sorted.
        n_features_in_: Number of columns of the inputs.
        feature_names_in_: Their names, where all were text.
        target_: What the chains target, in one line.

    Raises:
        ValueError: In ``fit``, if an argument or the data do not fit; names it.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 40).reshape(-1, 1)
        >>> y = np.where(x[:, 0] > 0, "right", "left")
        >>> classifier = BNNClassifier((4,), num_samples=200, random_state=0).fit(x, y)
        >>> classifier.predict([[-0.9], [0.9]]).tolist()
        ['left', 'right']
        >>> classifier.predict_proba([[0.0]]).shape
        (1, 2)
        >>> classifier.target_
        'exact: the posterior of the model'
    """

    classes_: NDArray[Any]

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803 as scikit-learn calls it
        """Sample the network given inputs and labels.

        Args:
            X: Inputs, ``(rows, features)``; finite.
            y: Labels of one type that NumPy can sort, ``(rows,)``; of two classes or more, and none
                missing.

        Returns:
            The estimator.

        Raises:
            ValueError: If an argument or the data do not fit; names it.
        """
        with self._unchanged_by_errors():
            x, labels = validate_data(self, X, _as_labels(y), dtype=(np.float64, np.float32))
            check_classification_targets(labels)
            classes, codes = np.unique(column_or_1d(labels, warn=True), return_inverse=True)
            if len(classes) < 2:
                raise ValueError(f"y must have two classes or more, got 1 class: {shown(classes)}")
            if self._goes_on() and not np.array_equal(classes, self.classes_):
                raise ValueError(
                    "y must have the classes of the fit before that warm_start=True goes on from, "
                    f"{shown(self.classes_)}; got {shown(classes)}"
                )
            is_binary = len(classes) == 2
            self._sample(
                x,
                torch.tensor(codes),
                1 if is_binary else len(classes),
                "bernoulli" if is_binary else "categorical",
            )
            self.classes_ = classes
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """Average the probabilities of the classes over the draws.

        Exact given the draws; see ``marginal_predictive``.

        Args:
            X: Inputs, ``(rows, features)``.

        Returns:
            An array ``(rows, classes)``, in the order of ``classes_``.

        Raises:
            sklearn.exceptions.NotFittedError: Before ``fit``.
            ValueError: If ``X`` does not fit.
        """
        x = self._inputs(X)
        found: NDArray[Any] = marginal_predictive(
            self._model, self._samples(), x, progress=self.progress
        ).numpy()
        return found

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """Give the most probable class of each row; arguments and errors as ``predict_proba``.

        Returns:
            An array ``(rows,)`` of labels.
        """
        codes = self.predict_proba(X).argmax(1)
        found: NDArray[Any] = self.classes_[codes]
        return found

    def _response_to_file(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        # NumPy would pickle objects, which are text here: scikit-learn allows no others
        if self.classes_.dtype == object:
            return {"classes": self.classes_.tolist()}, {}
        return {}, {"classes": self.classes_}

    def _response_from_file(
        self, words: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        if self._model.likelihood not in ("bernoulli", "categorical"):
            raise ValueError(
                f"the likelihood is {self._model.likelihood}, of numbers and not of classes"
            )
        if "classes" in words:
            check_names("classes", words["classes"], "text")
            self.classes_ = np.array(words["classes"], dtype=object)
        else:
            self.classes_ = arrays["classes"]
        expected = max(2, self._model.widths[-1])
        is_sorted = np.array_equal(np.unique(self.classes_), self.classes_)
        if self.classes_.shape != (expected,) or not is_sorted:
            raise ValueError(
                f"the network has {expected} classes in order, not {shown(self.classes_)}"
            )


def _as_labels(y: Any) -> Any:
    """Take numbers out of an array of objects; of text and all else, nothing is changed.

    Raises:
        ValueError: If objects are of several types, as where one is missing, or of an unknown one.
    """
    labels = np.asarray(y)
    if (
        labels.dtype != object
        or labels.ndim == 0
        or all(isinstance(one, str) for one in labels.flat)
    ):
        return y
    types = sorted({type(one).__name__ for one in labels.flat})
    plain = np.array(labels.tolist())
    if len(types) > 1 or plain.dtype == object:
        raise ValueError(
            "y must have labels of one type, such as text or whole numbers, and none missing; got "
            f"objects of type {', '.join(types)}"
        )
    return plain
