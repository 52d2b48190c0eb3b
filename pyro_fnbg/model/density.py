"""The log density of a Pyro model on a batch, as a function of a flat position."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyro
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Independent

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.core.step import BatchState
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.impossible import is_impossible
from pyro_fnbg.model.sites import ModelSites
from pyro_fnbg.model.supports import (
    KnownSupport,
    check_support,
    is_pushed_forward,
    within_support,
    without_checks,
)

__all__ = ["ModelDensity", "ScoredRun", "ScoredSite"]


class ScoredSite(NamedTuple):
    """Hold a site in one run of the model."""

    distribution: Any
    value: Tensor
    is_observed: bool


class ScoredRun(NamedTuple):
    """Hold what one run of the model computed.

    Attributes:
        terms: Every site's log density, unsummed, and the log Jacobians.
        sites: The sites that count.
    """

    terms: dict[str, Tensor]
    sites: dict[str, ScoredSite]


class _Scorer(Messenger):
    """Set the latent sites of a model, and collect the log density of every site.

    A single handler instead of the usual pile, because it runs once for every block.
    """

    def __init__(
        self,
        values: dict[str, Tensor],
        supports: Mapping[str, KnownSupport],
        plan: BatchPlan,
        rows: Tensor | None,
    ) -> None:
        super().__init__()
        self._values, self._rows, self._plate = values, rows, plan.plate
        self._supports = supports
        # What the plate's own scale of N / n is multiplied by, so that the factor is left
        self._correction = plan.factor * plan.batch_size / plan.num_rows
        self.unseen = set(values)
        self.log_probs: dict[str, Tensor] = {}
        self.sites: dict[str, ScoredSite] = {}

    def _pyro_sample(self, message: Any) -> None:
        name = message["name"]
        if site_is_subsample(message):
            if name == self._plate and self._rows is not None:
                message["value"] = self._rows
        elif not message["is_observed"]:
            if name not in self._values:
                raise ValueError(
                    f"latent site {name!r} was not in the model at set-up: the set of latent "
                    "sites must not depend on sampled values"
                )
            message["value"] = self._values[name]

    def _pyro_post_sample(self, message: Any) -> None:
        if site_is_subsample(message):
            return
        name = message["name"]
        self.unseen.discard(name)
        if message["mask"] is False or message["infer"].get("_deterministic"):
            return
        scale = message["scale"]
        if message["is_observed"] and any(
            frame.name == self._plate for frame in message["cond_indep_stack"]
        ):
            scale = scale * self._correction
        self.sites[name] = ScoredSite(message["fn"], message["value"], message["is_observed"])
        known, has_moved = self._supports.get(name), False
        if known is not None and message["is_observed"]:
            has_moved = not known.is_that_of(message["fn"])
        elif known is not None:
            check_support(name, known, message["fn"])
        self.log_probs[name] = _elementwise_log_prob(message, scale, has_moved)


def _elementwise_log_prob(message: Any, scale: float | Tensor, has_moved: bool) -> Tensor:
    """Score a site coordinate by coordinate where its distribution is independent over events.

    Pyro's own score sums a site's events in the parameters' type; single precision would then
    drown the change of one coordinate of a large weight matrix in rounding.

    Without Pyro's checks some distributions give values off their support a finite density. The
    map to the support and the check of the data at set-up leave two ways there: a support that
    ``has_moved`` since, and a transformed distribution.
    """
    fn, mask, event_dims = message["fn"], message["mask"], 0
    while isinstance(fn, Independent):
        event_dims += fn.reinterpreted_batch_ndims
        fn = fn.base_dist
    try:
        log_prob: Tensor = fn.log_prob(message["value"], *message["args"], **message["kwargs"])
    except ValueError:
        # The model itself may ask for checks, by validate_args=True
        fn = without_checks(fn)
        log_prob = fn.log_prob(message["value"], *message["args"], **message["kwargs"])
    if has_moved or is_pushed_forward(fn):
        log_prob = torch.where(within_support(fn, message["value"]), log_prob, -torch.inf)
    if isinstance(scale, Tensor):
        log_prob = log_prob * scale.reshape(scale.shape + (1,) * event_dims)
    elif scale != 1.0:
        log_prob = log_prob * scale
    if isinstance(mask, Tensor):
        log_prob = torch.where(mask.reshape(mask.shape + (1,) * event_dims), log_prob, 0.0)
    return log_prob


class ModelDensity:
    """Evaluate a Pyro model's log density by running it with the latent sites set.

    Exact for prior x likelihood**factor on the rows given, up to rounding: priors, factors, masks
    and scales are the model's own; only the batched plate's N / n is replaced by the plan's factor.
    Constrained sites enter through their unconstrained values, with the log Jacobian. No gradients
    are taken, so the model need not be differentiable; only ``terms`` leaves them to the caller.

    Args:
        bound: The Pyro model with its arguments.
        sites: What set-up found in it.
        plan: The batched plate and the likelihood's factor.
    """

    def __init__(self, bound: BoundModel, sites: ModelSites, plan: BatchPlan) -> None:
        self._bound = bound
        self.layout, self._plan, self._supports = sites.layout, plan, sites.supports
        # What the first evaluation was made of, and the same with NaN in place of every term
        self._shapes: dict[str, torch.Size] | None = None
        self._impossible: dict[str, Tensor] = {}
        # Under names that no site has, or the terms of one of the two would be lost
        self._jacobians: dict[str, str] = {}
        for name in sites.constrain:
            self._jacobians[name] = f"{name} (log Jacobian)"
            while self._jacobians[name] in sites.supports:
                self._jacobians[name] += "'"
        # The real line's transform is the identity: skipping it saves a third of a small model
        self._constrain = {
            name: bijection
            for name, bijection in sites.constrain.items()
            if name not in sites.real_sites
        }

    def on(self, rows: Tensor | None) -> Callable[[Tensor], BatchState]:
        """Fix the batch: rows of the data of shape ``(batch_size,)``, or None for all."""

        def density(position: Tensor) -> BatchState:
            position = self.layout.rounded(position)
            terms = [term.reshape(-1).double() for term in self.site_terms(position, rows).values()]
            return BatchState(position, torch.cat(terms))

        return density

    def site_terms(self, position: Tensor, rows: Tensor | None) -> dict[str, Tensor]:
        """Return every site's log density, unsummed, and the log Jacobians.

        Where the model raises an error that says no more than that the position is impossible,
        every term is NaN: such a candidate is rejected, and counted as one without a density.

        Raises:
            ValueError: If sites came, went or changed their shape since the first evaluation;
                names them.
        """
        try:
            return self.possible_terms(position, rows)
        except Exception as error:
            if self._shapes is None or not is_impossible(error):
                raise
            return dict(self._impossible)

    def possible_terms(self, position: Tensor, rows: Tensor | None) -> dict[str, Tensor]:
        """Do what ``site_terms`` does, and let the model's errors through."""
        with torch.no_grad():
            return self.terms(position, rows)

    def own_terms(self, site: str) -> set[str]:
        """Name the terms of a latent site itself: its prior, and its log Jacobian."""
        return {site, self._jacobians[site]}

    def terms(self, position: Tensor, rows: Tensor | None) -> dict[str, Tensor]:
        """Do what ``possible_terms`` does, with gradients where the caller records them."""
        # A copy: a model may write to its parameters, and these are the chain's own memory
        return self.terms_of(self.layout.split(position.clone()), rows)

    def terms_of(self, values: dict[str, Tensor], rows: Tensor | None) -> dict[str, Tensor]:
        """Do what ``terms`` does, from the unconstrained values of all sites."""
        return self.run(values, rows).terms

    def run(self, values: dict[str, Tensor], rows: Tensor | None) -> ScoredRun:
        """Do what ``terms_of`` does, and return the sites' distributions, too."""
        values, jacobians = dict(values), {}
        for name, bijection in self._constrain.items():
            unconstrained = values[name]
            values[name] = bijection(unconstrained)
            jacobians[self._jacobians[name]] = bijection.log_abs_det_jacobian(
                unconstrained, values[name]
            )
        scorer = _Scorer(values, self._supports, self._plan, rows)
        # Pyro's checks raise where a candidate is impossible; here that is a matter of the density
        with pyro.validation_enabled(False), scorer:
            self._bound.run()
        if scorer.unseen:
            raise ValueError(
                f"latent sites {sorted(scorer.unseen)} were in the model at set-up and are not any "
                "more: the set of latent sites must not depend on sampled values"
            )
        terms = scorer.log_probs | jacobians
        self._check_structure(terms)
        return ScoredRun(terms, scorer.sites)

    def _check_structure(self, terms: dict[str, Tensor]) -> None:
        """Compare the scored sites and shapes with those of the first evaluation."""
        shapes = {name: term.shape for name, term in terms.items()}
        if self._shapes is None:
            self._shapes = shapes
            self._impossible = {
                name: term.new_tensor(math.nan).expand(term.shape) for name, term in terms.items()
            }
        elif shapes != self._shapes:
            changed = sorted(
                name
                for name in shapes.keys() | self._shapes.keys()
                if shapes.get(name) != self._shapes.get(name)
            )
            raise ValueError(
                f"sites {changed} came, went or changed their shape between two runs of the model: "
                "its sites and data must be the same every time, whatever the parameters (a "
                "one-shot iterator as data is empty after the first run)"
            )
