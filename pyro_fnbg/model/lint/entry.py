"""What is refused or warned of before the first sweep, in the order in which set-up needs it."""

from __future__ import annotations

from torch import Tensor

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.lint.buffers import refusing_changed_buffers
from pyro_fnbg.model.lint.iterators import check_rereadable
from pyro_fnbg.model.lint.lengths import warn_of_unused_rows
from pyro_fnbg.model.lint.observations import check_observations
from pyro_fnbg.model.lint.rows import check_no_broken_rows, check_rows_followed
from pyro_fnbg.model.sites import ModelSites, inspect_model

__all__ = ["check_rows", "checked_sites"]


def checked_sites(bound: BoundModel) -> ModelSites:
    """Inspect a model, after a look at its arguments, and check what it observes.

    Raises:
        TypeError: If an argument can be read only once, or data are of another kind than their
            distribution scores.
        ValueError: If the model has nothing to sample or what cannot be sampled, changes modules
            when it runs, or has data that do not fit their distribution.
    """
    check_rereadable(bound)
    with refusing_changed_buffers():
        sites = inspect_model(bound)
    check_observations(bound, sites)
    warn_of_unused_rows(bound, sites)
    return sites


def check_rows(bound: BoundModel, sites: ModelSites, plan: BatchPlan, rows: Tensor | None) -> None:
    """Check that the model follows the rows of a batch, and can score all rows of the data.

    Args:
        bound: The model.
        sites: What set-up found in it.
        plan: The batches.
        rows: The first batch; None, which needs no check, for all rows.

    Raises:
        ValueError: Naming the site, and the rows.
    """
    if rows is None:
        return
    check_rows_followed(bound, plan, rows)
    is_own = sites.plates[plan.plate or ""].is_subsampled
    check_no_broken_rows(bound, plan, plan.batch_size if is_own else plan.num_rows)
