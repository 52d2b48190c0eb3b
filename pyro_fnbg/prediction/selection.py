"""Selective prediction: the errors that are left if the least certain rows are passed over."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pyro_fnbg.core.checks import as_one_a_row

__all__ = ["RiskCoverage", "risk_coverage"]


class RiskCoverage(NamedTuple):
    """Hold risk against coverage, for a plot.

    Attributes:
        coverage: Share of rows that are predicted, the most certain first: 1 / rows, 2 / rows and
            so on to 1.
        risk: Mean error of these rows.
        area: Mean of the risk over all coverages.

    Example:
        >>> found = risk_coverage(uncertainty=[0.1, 0.3], errors=[0.0, 1.0])
        >>> found.risk[found.coverage <= 0.5], found.area
        (array([0.]), 0.25)
    """

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]
    area: float


def risk_coverage(uncertainty: ArrayLike | Tensor, errors: ArrayLike | Tensor) -> RiskCoverage:
    """Return the mean error of the most certain rows, for each number of them.

    The area is smaller the better uncertainty orders the rows by their errors, but also the fewer
    errors there are: compare it between uncertainties of one and the same prediction (Geifman and
    El-Yaniv, 2017, "Selective classification for deep neural networks"; Geifman and others, 2019,
    for the area). Rows of equal uncertainty count with their mean error, so the result does not
    depend on the rows' order. Exact.

    Args:
        uncertainty: Of each row, shape ``(rows,)``: larger for what is less certain, such as
            `ClassPrediction.entropy`, or `NumberPrediction.scale`.
        errors: Of each row: whether the label was wrong, or a loss in any units.

    Raises:
        ValueError: If they are not one-dimensional, not as many, empty or not finite.

    Example:
        >>> found = risk_coverage([0.1, 0.4, 0.3, 0.2], [False, True, True, False])
        >>> found.coverage, found.risk.round(2)
        (array([0.25, 0.5 , 0.75, 1.  ]), array([0.  , 0.  , 0.33, 0.5 ]))
        >>> round(found.area, 4)
        0.2083
    """
    certain = as_one_a_row("uncertainty", uncertainty)
    wrong = as_one_a_row("errors", errors)
    if len(certain) != len(wrong):
        raise ValueError(f"errors must be as many as uncertainty, {len(certain)}; got {len(wrong)}")
    _, groups, sizes = np.unique(certain, return_inverse=True, return_counts=True)
    means = np.bincount(groups, weights=wrong) / sizes
    counts = np.arange(1, len(wrong) + 1)
    risk = np.cumsum(np.repeat(means, sizes)) / counts
    return RiskCoverage(counts / len(wrong), risk, float(risk.mean()))
