"""The log priors of a network's coordinates in torch, for all chains at once."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fnbg.core.priors import Family, ParameterPriors

__all__ = ["PriorTerms"]


class PriorTerms:
    """Score coordinates by their priors in double precision, normalised.

    A coordinate of the family ``OTHER`` scores 0.

    Args:
        priors: The priors of all coordinates.
        device: Where the positions will be.
        coordinates: Those that are scored, shape ``(n,)``; all where left out.
    """

    def __init__(
        self, priors: ParameterPriors, device: torch.device, coordinates: Tensor | None = None
    ) -> None:
        scored = torch.arange(len(priors.locs)) if coordinates is None else coordinates
        self._coordinates = None if coordinates is None else coordinates.to(device)
        self._normalizers = priors.log_normalizers[scored].to(device)
        self._locs = priors.locs[scored].to(device)
        self._scales = priors.scales[scored].to(device)
        families = priors.families[scored]
        self._is_laplace = _mask(families == Family.LAPLACE, device)
        self._is_student = _mask(families == Family.STUDENT, device)
        self._degrees = priors.degrees_of_freedom[scored].to(device)
        holders = priors.scale_coordinates[scored]
        # Any coordinate will do where the scale is fixed: its power is 0 there
        is_sampled = bool((holders >= 0).any())
        self._holders = holders.clamp(min=0).to(device) if is_sampled else None
        self._powers = priors.scale_powers[scored].to(device)
        is_positive = families == Family.POSITIVE
        rows = torch.searchsorted(priors.positives, scored[is_positive])
        self._positives = is_positive.nonzero().squeeze(-1).to(device)
        self._forms = priors.forms[rows].to(device)

    def __call__(self, position: Tensor) -> Tensor:
        """Return the log prior of each scored coordinate.

        Args:
            position: Unconstrained parameters, shape ``(..., num_params)``.
        """
        own = position if self._coordinates is None else position[..., self._coordinates]
        errors = (own.double() - self._locs) / self._scales
        log_scales: Tensor | None = None
        if self._holders is not None:
            log_scales = self._powers * position[..., self._holders].double()
            errors = errors * (-log_scales).exp()
        terms = -0.5 * errors.square()
        if self._is_laplace is not None:
            terms = torch.where(self._is_laplace, -errors.abs(), terms)
        if self._is_student is not None:
            of_student = -0.5 * (self._degrees + 1) * (errors.square() / self._degrees).log1p()
            terms = torch.where(self._is_student, of_student, terms)
        terms = self._normalizers + terms
        if log_scales is not None:
            terms = terms - log_scales
        if len(self._positives):
            terms = terms.index_add(-1, self._positives, self._of_positives(own))
        return terms

    def _of_positives(self, own: Tensor) -> Tensor:
        """Score logarithms of positive numbers up to their constants; see ``forms``."""
        u, c = own[..., self._positives].double(), self._forms.unbind(-1)
        s = u.exp()
        powers = c[0] * u + c[1] * u.square() + c[2] * s + c[3] * s.square()
        return powers + c[4] / s + c[5] * (c[6] * s.square()).log1p()


def _mask(mask: Tensor, device: torch.device) -> Tensor | None:
    """Return a mask on a device; None if it is false everywhere."""
    return mask.to(device) if bool(mask.any()) else None
