"""Diagnostics of what a network predicts, which has no symmetries, in place of its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pyro_fnbg.core.checks import check_count
from pyro_fnbg.prediction.predictive import predictive_probabilities
from pyro_fnbg.prediction.samples import check_chains
from pyro_fnbg.results.datasets import dataset
from pyro_fnbg.results.estimates import estimated, import_arviz
from pyro_fnbg.results.nested import check_superchains, nested_r_hat

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["PredictionDiagnostics", "diagnose_predictions", "diagnostics_of_predictions"]

# The effective sample size of the tails is the smaller one of these two quantiles, in either ArviZ
TAILS = (0.05, 0.95)
# Which of a variable's numbers is the worst
WORST = {
    "r_hat": np.argmax,
    "nested_r_hat": np.argmax,
    "ess_bulk": np.argmin,
    "ess_tail": np.argmin,
    "mcse": np.argmax,
}


@dataclass(frozen=True, eq=False, repr=False)
class PredictionDiagnostics:
    """Hold what chains say of predictions; ``print`` shows the worst of it.

    Attributes:
        estimates: A Dataset with one number for each ``row`` and ``class`` (or ``output``):
            ``mean``; ``r_hat`` (rank-normalised and split); ``ess_bulk`` and ``ess_tail``, the
            effective sample sizes; ``mcse``, the Monte Carlo standard error of the mean; and
            ``nested_r_hat`` if superchains were given. NaN where draws are too few, or for a
            prediction that never moved; R-hat needs two chains.
        agreement: Of classes, a Dataset with ``labels_agree``, whether all chains give a ``row``
            the same most probable class; and for each ``chain`` and ``other_chain``,
            ``label_agreement``, the share of rows on which the two do, and ``total_variation``,
            half the sum over classes of the distances of their averaged probabilities, averaged
            over rows: 0 if they are equal, 1 if they have nothing in common. None for numbers.
        num_chains: Number of chains.
        num_draws: Draws of each.

    Example:
        >>> rng = torch.Generator().manual_seed(0)
        >>> p = torch.rand(2, 100, 3, generator=rng)  # chains, draws, rows
        >>> found = diagnostics_of_predictions(torch.stack([1 - p, p], -1))
        >>> dict(found.estimates["r_hat"].sizes), found.summary["labels_agree"] <= 1
        ({'row': 3, 'class': 2}, True)
    """

    estimates: xr.Dataset
    agreement: xr.Dataset | None
    num_chains: int
    num_draws: int

    @property
    def summary(self) -> dict[str, float]:
        """The largest R-hat and Monte Carlo error, the least effective sample sizes, agreement.

        NaN in the estimates are passed over; ``unknown`` is the share of R-hats that are. Of the
        agreement, ``labels_agree`` is the share of rows on which all chains agree, and the other
        two are those of the two chains that agree least.
        """
        found = {name: value for name, value, _ in self._worst()}
        found["unknown"] = float(self.estimates["r_hat"].isnull().mean())
        if self.agreement is not None:
            found |= {
                "labels_agree": float(self.agreement["labels_agree"].mean()),
                "label_agreement": float(self.agreement["label_agreement"].min()),
                "total_variation": float(self.agreement["total_variation"].max()),
            }
        return found

    def _worst(self) -> Iterator[tuple[str, float, int]]:
        """Yield the worst number of each estimate, and its row; NaN and -1 if there is none."""
        for name, worst in WORST.items():
            if name not in self.estimates:
                continue
            values = self.estimates[name].values
            known = np.flatnonzero(~np.isnan(values))
            if len(known):
                place = known[worst(values.ravel()[known])]
                yield (
                    name,
                    float(values.ravel()[place]),
                    int(np.unravel_index(place, values.shape)[0]),
                )
            else:
                yield name, np.nan, -1

    def __repr__(self) -> str:
        num_rows = self.estimates.sizes["row"]
        lines = [f"{self.num_chains} chains of {self.num_draws} draws, {num_rows} rows"]
        for name, value, row in self._worst():
            word = "least" if WORST[name] is np.argmin else "largest"
            where = f"in row {row}" if row >= 0 else "in no row"
            lines.append(f"{word} {name}: {value:.4g} {where}")
        summary = self.summary
        if summary["unknown"]:
            lines.append(
                f"r_hat is not known of {summary['unknown']:.1%} of predictions: they never moved, "
                "or there are too few draws or chains, or draws that are no numbers"
            )
        if self.agreement is not None:
            lines.append(f"all chains agree on the class of {summary['labels_agree']:.1%} of rows")
            lines.append(
                f"least agreement of two chains: {summary['label_agreement']:.1%} of rows, total "
                f"variation {summary['total_variation']:.3g}"
            )
        return "\n".join(lines)


def diagnose_predictions(
    model: Callable[..., Any],
    samples: Mapping[str, Tensor],
    x: Tensor,
    num_chains: int,
    *,
    superchain_ids: Sequence[int] | None = None,
) -> PredictionDiagnostics:
    """Diagnose chains by what they predict for some rows.

    Weights of a network are the wrong thing to diagnose: nodes can trade places and signs without
    any change in what the network computes. Predictions have no such symmetries. The predictions of
    each draw are exact; the diagnostics are ArviZ's.

    Args:
        model: As in `predictive_probabilities`.
        samples: Draws by site name, those of all chains one after another and as many of each, as
            from `mcmc.get_samples()`.
        x: Inputs of some rows, rows first: the draws' predictions of all of them are held at once,
            draws x rows x classes numbers. Choose rows that matter, and not all alike.
        num_chains: Number of chains.
        superchain_ids: For many short chains, the number of the superchain of each chain: chains of
            a superchain started from the same position. Nested R-hat is then estimated as well.

    Returns:
        The diagnostics.

    Raises:
        TypeError: As in `predictive_probabilities`.
        ValueError: As in `predictive_probabilities`; or if the chains cannot have as many draws
            each, or superchains not as many chains each.

    References:
        Vehtari and others (2021), "Rank-normalization, folding, and localization: an improved R-hat
        for assessing convergence of MCMC"; Margossian and others (2024), "Nested R-hat: assessing
        the convergence of Markov chain Monte Carlo when running many short chains".

    Example:
        >>> from pyro_fnbg.networks.mlp import BayesianMLP
        >>> model = BayesianMLP([1, 1], likelihood="bernoulli")
        >>> weights = torch.linspace(-1, 1, 40)[torch.arange(40) * 7 % 40]
        >>> samples = {"layer1.weight": weights.view(40, 1, 1), "layer1.bias": torch.ones(40, 1)}
        >>> found = diagnose_predictions(model, samples, torch.ones(3, 1), num_chains=2)
        >>> found.estimates["r_hat"].sizes
        Frozen({'row': 3, 'class': 2})
        >>> found.summary["labels_agree"]
        1.0
    """
    check_count("num_chains", num_chains, 1)
    predictions = predictive_probabilities(model, samples, x)
    check_chains(len(predictions), num_chains)
    by_chain = predictions.unflatten(0, (num_chains, -1))
    return diagnostics_of_predictions(by_chain, superchain_ids=superchain_ids)


def diagnostics_of_predictions(
    predictions: Tensor, *, superchain_ids: Sequence[int] | None = None
) -> PredictionDiagnostics:
    """Diagnose chains by predictions that were made already; see `diagnose_predictions`.

    Args:
        predictions: Shape ``(chains, draws, rows, classes)``, probabilities; or numbers of shape
            ``(chains, draws, rows)`` or ``(chains, draws, rows, outputs)``.
        superchain_ids: As in `diagnose_predictions`.

    Returns:
        The diagnostics.

    Raises:
        ValueError: If ``predictions`` has another number of dimensions, or is empty; or if
            superchains have not as many chains each.

    Example:
        >>> rng = torch.Generator().manual_seed(0)
        >>> means = torch.randn(4, 100, 5, generator=rng)  # chains, draws, rows
        >>> bool(diagnostics_of_predictions(means).estimates["r_hat"].max() < 1.1)
        True
    """
    if predictions.dim() not in (3, 4) or not predictions.numel():
        raise ValueError(
            "predictions must have shape (chains, draws, rows) or (chains, draws, rows, classes), "
            f"got {tuple(predictions.shape)}"
        )
    num_chains, num_draws = predictions.shape[:2]
    arviz = import_arviz()
    estimators: dict[str, Callable[[Any], Any]] = {
        "r_hat": arviz.rhat,
        "ess_bulk": partial(arviz.ess, method="bulk"),
        "ess_tail": partial(arviz.ess, method="tail", prob=TAILS),
        "mcse": partial(arviz.mcse, method="mean"),
    }
    if superchain_ids is not None:
        check_superchains(superchain_ids, num_chains)
        estimators["nested_r_hat"] = partial(nested_r_hat, superchain_ids=superchain_ids)
    is_of_classes = _are_probabilities(predictions)
    values = estimated(predictions.double(), estimators)
    values["mean"] = predictions.detach().mean((0, 1), dtype=torch.float64).cpu()
    arrays = {name: value.numpy() for name, value in values.items()}
    last = ["class" if is_of_classes else "output"][: predictions.dim() - 3]
    estimates = dataset(arrays, ("row",), dict.fromkeys(arrays, last), {})
    agreement = _agreement(predictions) if is_of_classes else None
    return PredictionDiagnostics(estimates, agreement, num_chains, num_draws)


def _are_probabilities(predictions: Tensor) -> bool:
    """Whether every row of every draw is a distribution over classes, apart from NaN."""
    if predictions.dim() != 4 or predictions.shape[-1] < 2 or bool((predictions < 0).any()):
        return False
    sums = predictions.sum(-1)
    ones = torch.ones_like(sums).where(~sums.isnan(), sums)
    return torch.allclose(sums, ones, atol=1e-3, equal_nan=True)


def _agreement(predictions: Tensor) -> xr.Dataset:
    """Compare the chains' averaged probabilities with each other."""
    import xarray as xr
    from scipy.spatial.distance import cdist

    means = predictions.detach().mean(1, dtype=torch.float64).numpy(force=True)
    labels = means.argmax(-1)
    num_rows = labels.shape[1]
    flat = means.reshape(len(means), -1)
    pairs = ("chain", "other_chain")
    return xr.Dataset(
        {
            "labels_agree": ("row", (labels == labels[0]).all(0)),
            "label_agreement": (pairs, 1 - cdist(labels, labels, "hamming")),
            "total_variation": (pairs, cdist(flat, flat, "cityblock") / (2 * num_rows)),
        }
    )
