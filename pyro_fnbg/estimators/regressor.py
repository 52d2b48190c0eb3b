"""``BNNRegressor``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data
from torch import Tensor

from pyro_fnbg.core.checks import as_finite, as_probability, check_flag, is_list, shown
from pyro_fnbg.estimators.base import NetworkEstimator
from pyro_fnbg.networks.likelihoods import FROM_NETWORK
from pyro_fnbg.prediction.outcomes import NumberPrediction
from pyro_fnbg.prediction.predictive import predict

__all__ = ["BNNRegressor"]

# Up to here, what is predicted has room in double precision
LARGEST = 1e300


class BNNRegressor(RegressorMixin, NetworkEstimator):  # type: ignore[misc]
    r"""Predict numbers by a Bayesian neural network; follows scikit-learn.

    The network is a ``BayesianMLP`` with a Normal response, sampled by ``FNBG`` under
    ``MultiChainMCMC``. Predictions are of the mixture over the draws of all chains. With all rows
    in every sweep, the default, the chains are exact for the network's posterior; with
    ``batch_size`` they approximate another distribution, which ``target_`` states. Neither says
    that the chains have converged: see ``idata_``.

    Inputs are taken as they are. Standardise them, as by ``StandardScaler`` in a pipeline: the
    priors are made for that. The response is standardised inside, each output by its own mean and
    standard deviation, and predictions are in its own units again; ``idata_`` is of the
    standardised response. Several outputs share the standard deviation of the noise on that scale,
    unless the network gives one to each, and are independent given the network.

    The parameters have the inputs' type if that is float32 or float64, and float64 otherwise.
    Weights of rows (``sample_weight``) are not supported by ``fit``.

    ``fit`` leaves torch's random stream alone. If it fails or is stopped in warmup, the estimator
    stays as it was. Stopped by Ctrl-C later, it keeps the draws so far, with a warning.

    Args:
        hidden: Numbers of nodes of the hidden layers; ``()`` for none, which is linear regression.
        activation: Of the hidden layers: "relu", "tanh", "sigmoid", "step" or "identity".
        prior_scale: Of the Normal priors: a bias has this standard deviation, a weight this over
            the square root of the number of nodes below, so that it means the same for any width
            (Neal, 1996, "Bayesian learning for neural networks"). One number, or one per layer. It
            is on the scale of the standardised response.
        observation_scale: Standard deviation of the noise in the units of the response, where there
            is a single output and it is known. None samples it, with a prior HalfNormal(1) on the
            scale of the standardised response. "network" lets it depend on the inputs: the network
            has a second output v for each, with the standard deviation log(1 + exp(v)) + 1e-6 on
            that scale.
        num_samples: Draws of each chain.
        warmup_steps: Sweeps of each chain that tune the proposals and are dropped.
        thin: Sweeps a draw.
        num_chains: Number of chains.
        batch_size: Rows in a sweep, drawn anew for each; None for all of them.
        warm_start: Whether ``fit`` goes on where the chains of the fit before ended, with new
            random numbers, a warmup of its own and the given data. It replaces the draws. Network
            and ``num_chains`` must stay; the response is standardised as in the first fit.
        random_state: Seed: the same whole number gives the same draws.
        progress: Whether to show a bar, of the sampling and of predictions that take long.

    Attributes:
        n_features_in_: Number of columns of the inputs.
        feature_names_in_: Their names, where all were text.
        target_: What the chains target, in one line.

    Raises:
        ValueError: In ``fit``, if an argument or the data do not fit; names it.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 40).reshape(-1, 1)
        >>> regressor = BNNRegressor((4,), num_samples=200, random_state=0)
        >>> regressor.fit(x, 100 + 10 * x[:, 0]).score(x, 100 + 10 * x[:, 0]) > 0.9
        True
        >>> mean, std, (lower, upper) = regressor.predict(x, return_std=True, intervals=0.9)
        >>> bool(np.all((lower < mean) & (mean < upper)))
        True
        >>> regressor.target_
        'exact: the posterior of the model'
    """

    def __init__(
        self,
        hidden: tuple[int, ...] = (16,),
        *,
        activation: str = "relu",
        prior_scale: float | tuple[float, ...] = 1.0,
        observation_scale: float | str | None = None,
        num_samples: int = 1000,
        warmup_steps: int = 1000,
        thin: int = 1,
        num_chains: int = 2,
        batch_size: int | None = None,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        progress: bool = False,
    ) -> None:
        super().__init__(
            hidden,
            activation=activation,
            prior_scale=prior_scale,
            num_samples=num_samples,
            warmup_steps=warmup_steps,
            thin=thin,
            num_chains=num_chains,
            batch_size=batch_size,
            warm_start=warm_start,
            random_state=random_state,
            progress=progress,
        )
        self.observation_scale = observation_scale

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803 as scikit-learn calls it
        """Sample the network given inputs and responses.

        Args:
            X: Inputs, ``(rows, features)``; finite.
            y: Finite numbers, ``(rows,)`` or ``(rows, outputs)``. Predictions have its form.

        Returns:
            The estimator.

        Raises:
            ValueError: If an argument or the data do not fit; names it.
        """
        with self._unchanged_by_errors():
            x, response = validate_data(
                self, X, y, dtype=(np.float64, np.float32), multi_output=True, y_numeric=True
            )
            columns = response.astype(np.float64).reshape(len(x), -1)
            if not self._goes_on():
                self._y_mean, self._y_scale = _moments(columns)
            elif columns.shape[1] != len(self._y_mean):
                raise ValueError(
                    f"y must have {len(self._y_mean)} outputs, as in the fit before that "
                    f"warm_start=True goes on from; got shape {response.shape}"
                )
            self._is_one_column = response.ndim == 1
            noise = self._noise(x.dtype)
            self._sample(
                x,
                torch.tensor(((columns - self._y_mean) / self._y_scale).astype(x.dtype)),
                columns.shape[1] * (2 if noise == FROM_NETWORK else 1),
                "normal",
                noise,
            )
        return self

    def _noise(self, dtype: np.dtype[Any]) -> float | str | None:
        """Return the observation scale of the standardised y."""
        given = self.observation_scale
        if given is None or (isinstance(given, str) and given == FROM_NETWORK):
            return given
        scale = as_finite(self.observation_scale)
        if scale is None or scale <= 0 or len(self._y_scale) > 1:
            raise ValueError(
                f"observation_scale must be None, {FROM_NETWORK!r}, or a positive finite number "
                f"where y has a single output; got {shown(self.observation_scale)} for "
                f"{len(self._y_scale)} outputs"
            )
        spread = float(self._y_scale[0])
        # Its square, and squares of errors in units of it, must be numbers of the type with ease
        limit = float(np.finfo(dtype).max) ** 0.25
        if not 1 / limit < scale / spread < limit:
            raise ValueError(
                f"observation_scale must be between {spread / limit:.3g} and {spread * limit:.3g} "
                f"for y of standard deviation {spread:.3g} and inputs of type {dtype}; got {scale}"
            )
        return scale / spread

    def predict(
        self,
        X: ArrayLike,  # noqa: N803
        return_std: bool = False,
        intervals: float | Sequence[float] | None = None,
    ) -> Any:
        """Predict the mean of each row, with standard deviations and intervals if asked for.

        All are of the predictive distribution, the mixture over draws with the noise of the data,
        and exact given the draws. Memory does not grow with the rows beyond that of the result.

        Args:
            X: Inputs, ``(rows, features)``.
            return_std: Whether to return standard deviations.
            intervals: Probabilities of central intervals: one, or several in a list.

        Returns:
            The mean, ``(rows,)`` or ``(rows, outputs)`` as ``y`` was; or a tuple of it, the
            standard deviations of the same shape if asked for, and the intervals if asked for:
            ``(2, rows, ...)`` with lower and upper ends for one probability, and
            ``(probabilities, 2, rows, ...)`` for a list.

        Raises:
            sklearn.exceptions.NotFittedError: Before ``fit``.
            ValueError: If an argument does not fit; names it.
        """
        check_flag("return_std", return_std)
        asked = [] if intervals is None else intervals if is_list(intervals) else [intervals]
        probabilities = [as_probability("intervals", one) for one in asked]
        if any(1 + p == 2 for p in probabilities):
            raise ValueError(
                "intervals must be between 0 and 1, and 2.3e-16 or more away from 1; got "
                f"{shown(intervals)}"
            )
        levels = tuple((1 + side * p) / 2 for p in probabilities for side in (-1, 1))
        x = self._inputs(X)
        found = predict(self._model, self._samples(), x, quantiles=levels, progress=self.progress)
        assert isinstance(found, NumberPrediction)
        mean = self._in_units(found.mean, self._y_mean)
        answers = [mean]
        if return_std:
            answers.append(self._in_units(found.scale))
        if intervals is not None:
            ends = [
                self._in_units(end, self._y_mean)
                for p in probabilities
                for end in found.interval(p)
            ]
            shape = (len(probabilities), 2) if is_list(intervals) else (2,)
            answers.append(np.reshape(ends, (*shape, *mean.shape)))
        return answers[0] if len(answers) == 1 else tuple(answers)

    def _in_units(self, values: Tensor, origin: NDArray[Any] | float = 0.0) -> NDArray[Any]:
        """Bring values of the standardised response to its own units, and to the form of y."""
        columns = values.double().numpy().reshape(-1, len(self._y_scale))
        found: NDArray[Any] = origin + self._y_scale * columns
        return found[:, 0] if self._is_one_column else found

    def _response_to_file(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        arrays = {"y_mean": self._y_mean, "y_scale": self._y_scale}
        return {"is_one_column": self._is_one_column}, arrays

    def _response_from_file(
        self, words: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        self._is_one_column = words["is_one_column"]
        self._y_mean, self._y_scale = arrays["y_mean"], arrays["y_scale"]
        check_flag("is_one_column", self._is_one_column)
        outputs, likelihood = self._model.widths[-1], self._model.likelihood
        if likelihood != "normal":
            raise ValueError(f"the likelihood is {likelihood}, not normal")
        if self._model.observation_scale == FROM_NETWORK:
            outputs //= 2
        if self._is_one_column and outputs > 1:
            raise ValueError(f"the network has {outputs} responses, not one column")
        for name, values in {"y_mean": self._y_mean, "y_scale": self._y_scale}.items():
            if values.shape != (outputs,) or values.dtype != float or not np.isfinite(values).all():
                raise ValueError(f"{name} must be {outputs} finite numbers, got {shown(values)}")
        if (self._y_scale <= 0).any():
            raise ValueError(f"y_scale must be positive, got {shown(self._y_scale)}")


def _moments(columns: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of each column, however small or far from 0 it is.

    A column that does not vary has 1 for the standard deviation, or its size if that is smaller.

    Raises:
        ValueError: If results in its units could leave the range of double precision.
    """
    first = columns[0]
    size = np.minimum(np.abs(first), 1.0)
    constant = np.where(size > 0, size, 1.0)
    # Differences are exact where a column varies little, and their squares can be taken in units
    # of the largest
    differences = columns / 2 - first / 2
    unit = np.abs(differences).max(0)
    varies = unit > 0
    in_units = differences / np.where(varies, unit, 1.0)
    mean = first + 2 * (unit * in_units.mean(0))
    scale = np.where(varies, 2 * (unit * in_units.std(0)), constant)
    if np.abs(columns).max() > LARGEST or scale.min() < 1 / LARGEST:
        raise ValueError(
            f"y must be up to {LARGEST:g} in size and have a standard deviation of {1 / LARGEST:g} "
            f"or more: use other units; got {shown(columns[:5])}, standard deviations {scale}"
        )
    return mean, scale
