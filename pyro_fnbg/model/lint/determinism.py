"""Whether a model's log density is a function of the parameters and the rows alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook

from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.impossible import drawn_again
from pyro_fnbg.model.sites import ModelSites

__all__ = ["check_density"]

# Positions at which the model runs twice
NUM_POSITIONS = 5
# Rounding that may differ from run to run where threads or a device add in any order, in units of
# the type's precision
ROUNDING = 64.0


def check_density(
    density: ModelDensity, sites: ModelSites, positions: Tensor, rows: Tensor | None
) -> None:
    """Check that the log density is a function of the position and the rows alone.

    The model runs twice at a few positions, with its latent sites set. Where it moves a random
    generator all the same, it may draw a minibatch or dropout of its own, and any difference
    counts, however small. A model may also draw numbers that do not enter its density, as one does
    that predicts; so moving a generator is no fault by itself.

    Args:
        density: The model's log density.
        sites: What set-up found in the model.
        positions: Unconstrained positions, shape ``(positions, num_params)``.
        rows: A batch, or None for all rows.

    Raises:
        ValueError: If observed data disappeared since the first run of the model, or a site's log
            density differs between two evaluations; names the sites.
    """
    places = cycle(positions)
    # First at a position where the model can be evaluated: that says what the terms are
    first = drawn_again(lambda: density.possible_terms(next(places), rows))
    lost = sorted(set(sites.observed) - set(first))
    if lost:
        raise ValueError(
            f"sites {lost} came or went between two runs of the model: its sites must be the "
            "same every time (a one-shot iterator as data is empty after the first run)"
        )
    for position in positions[:NUM_POSITIONS]:
        before = _generators()
        terms = density.site_terms(position, rows)
        is_moved = before != _generators()
        again = density.site_terms(position, rows)
        differing = [name for name in terms if not _agree(terms[name], again[name], is_moved)]
        if differing:
            dropouts = _active_dropouts(partial(density.site_terms, position, rows))
            names = f", here {', '.join(dropouts)}" if dropouts else ""
            raise ValueError(
                f"the log density of {differing} differs between two runs at the same position and "
                "rows: the model draws random numbers of its own, or changes from run to run (a "
                f"minibatch, a shuffled DataLoader, dropout that trains{names}). Give the rows a "
                "pyro.plate and let FNBG(batch_size=...) draw the minibatches; call eval() on "
                "networks"
            )


def _generators() -> tuple[Any, ...]:
    """Return the states of the global random generators, in a form that can be compared."""
    states = pyro.util.get_rng_state()
    _, key, *place = states["numpy"]
    return states["torch"].numpy().tobytes(), key.tobytes(), place, states["random"]


def _agree(term: Tensor, again: Tensor, is_moved: bool) -> bool:
    is_exact = is_moved and not term.is_cuda
    tolerance = 0.0 if is_exact else ROUNDING * torch.finfo(term.dtype).eps
    return torch.allclose(term, again, rtol=tolerance, atol=tolerance, equal_nan=True)


def _active_dropouts(run: Callable[[], object]) -> list[str]:
    """Name the dropout modules that a run goes through in training mode."""
    found: dict[str, None] = {}

    def note(module: nn.Module, _: Any) -> None:
        if isinstance(module, _DropoutNd) and module.training:
            found[str(module)] = None

    handle = register_module_forward_pre_hook(note)
    try:
        run()
    finally:
        handle.remove()
    return list(found)
