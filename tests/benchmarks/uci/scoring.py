"""Scores and diagnostics of what a method predicts: the same code for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal

from benchmarks.uci.exchange import Outcome
from pyro_fnbg import ClassPrediction, NumberPrediction, score_classes, score_numbers
from pyro_fnbg.prediction.responses import ClassResponse, NumberResponse
from pyro_fnbg.prediction.totals import ClassTotals, NumberTotals
from pyro_fnbg.results.function_space import diagnostics_of_predictions

__all__ = ["course", "diagnostics", "scores"]

# Ends of the intervals whose coverage is counted
LEVELS = (0.025, 0.05, 0.1, 0.25, 0.75, 0.9, 0.95, 0.975)
MAX_NUMBERS = 2**24
# Rows that are diagnosed, at most: ArviZ takes them one by one
MAX_DIAGNOSED = 200
# Fewer draws of a chain have no R-hat
MIN_DRAWS = 4
OF_COURSE = ("rmse", "accuracy", "lppd", "gaussian_nll")
# After so many chains there are scores in between, and after these shares of the draws
CHAINS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500)
SHARES = (0.1, 0.25, 0.5, 1.0)

Prediction = NumberPrediction | ClassPrediction


def scores(outcome: Outcome, y: Any) -> dict[str, float]:
    """Score the mixture over all chains and draws."""
    return _scores(_predicted(_responses(outcome), torch.as_tensor(y), LEVELS), y)


def course(outcome: Outcome, y: Any) -> dict[str, Any]:
    """Score the first chains pooled, and the first draws of all chains pooled."""
    responses = _responses(outcome)
    num_chains, num_draws = responses[0].shape[:2]
    counts = sorted({*(count for count in CHAINS if count < num_chains), num_chains})
    lengths = sorted({max(1, round(share * num_draws)) for share in SHARES})

    def of(num_first: int, length: int) -> dict[str, float]:
        some = [each[:num_first, :length] for each in responses]
        return _scores(_predicted(some, torch.as_tensor(y), ()), y)

    return {
        "chains": counts,
        "by_chains": _by_name([of(count, num_draws) for count in counts]),
        "draws": lengths,
        "by_draws": _by_name([of(num_chains, length) for length in lengths]),
    }


def diagnostics(outcome: Outcome) -> dict[str, float]:
    """Diagnose the chains by their predictions: of means, or of probabilities of classes.

    Returns:
        Largest and median R-hat, least and median effective sample size over rows and classes, and
        how many rows those are: evenly spaced ones. Nothing if chains have too few draws. What
        never moved is passed over, and R-hat is infinite where no chain did.
    """
    log_probabilities = torch.as_tensor(outcome.log_probabilities)
    values = log_probabilities.exp() if len(log_probabilities) else torch.as_tensor(outcome.means)
    num_chains, num_draws, num_rows = values.shape[:3]
    if num_draws < MIN_DRAWS:
        return {}
    rows = np.unique(np.linspace(0, num_rows - 1, min(num_rows, MAX_DIAGNOSED)).round().astype(int))
    found = diagnostics_of_predictions(values[:, :, rows]).estimates
    r_hat, ess = found["r_hat"].values, found["ess_bulk"].values
    of_r_hat = {}
    if num_chains > 1:
        of_r_hat = {
            "r_hat_max": float(np.nanmax(r_hat)),
            "r_hat_median": float(np.nanmedian(r_hat)),
        }
    of_ess = {"ess_min": float(np.nanmin(ess)), "ess_median": float(np.nanmedian(ess))}
    return of_r_hat | of_ess | {"rows": len(rows)}


def _responses(outcome: Outcome) -> list[Tensor]:
    """Return what describes the responses: shape ``(chains, draws, rows, ...)`` each."""
    if len(outcome.log_probabilities):
        return [torch.as_tensor(outcome.log_probabilities).double()]
    return [torch.as_tensor(each).double() for each in (outcome.means, outcome.scales)]


def _predicted(responses: list[Tensor], y: Tensor, levels: tuple[float, ...]) -> Prediction:
    """Pool chains and draws, as `pyro_fnbg.predict` does."""
    draws = [each.flatten(0, 1) for each in responses]
    if len(draws) == 1:
        # Rows last
        return ClassTotals.of(ClassResponse(draws[0].mT), False).prediction(torch.float64)
    means, scales = draws
    response = NumberResponse(Normal(means, scales))
    totals = NumberTotals.of(response, y.double(), bool(levels))
    return totals.prediction(torch.float64, levels, MAX_NUMBERS)


def _scores(prediction: Prediction, y: Any) -> dict[str, float]:
    if isinstance(prediction, ClassPrediction):
        return dict(score_classes(prediction, torch.as_tensor(y)))
    return dict(score_numbers(prediction, torch.as_tensor(y)))


def _by_name(found: list[Mapping[str, float]]) -> dict[str, list[float]]:
    return {name: [each[name] for each in found] for name in OF_COURSE if name in found[0]}
