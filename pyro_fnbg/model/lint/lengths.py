"""Whether arguments of a model have rows that its plate has not."""

from __future__ import annotations

import warnings

from torch import Tensor

from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.sites import ModelSites

__all__ = ["warn_of_unused_rows"]


def warn_of_unused_rows(bound: BoundModel, sites: ModelSites) -> None:
    """Warn where one of a model's two tensors has the rows of its plate, and the other has more.

    Taking ``y[rows]`` of too long a ``y`` raises no error, and pairs ``x`` with the wrong rows.
    Among more tensors the longer one may be a table, and among more plates the rows of another.
    """
    lengths = {
        name: len(value)
        for name, value in bound.named_arguments().items()
        if isinstance(value, Tensor) and value.dim() > 0
    }
    if len(lengths) != 2 or len(sites.plates) != 1:
        return
    (plate,) = sites.plates.values()
    fitting, longer = sorted(lengths, key=lengths.__getitem__)
    if lengths[fitting] == plate.size < lengths[longer] and not plate.is_sequential:
        warnings.warn(
            f"the model's argument {longer!r} has {lengths[longer]} rows, and plate {plate.name!r} "
            f"has {plate.size}, as {fitting!r} has: if rows belong together, give both as many",
            UserWarning,
            stacklevel=2,
        )
