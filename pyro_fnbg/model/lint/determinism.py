"""Whether a model's log density is a function of the parameters and the rows alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook

from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.sites import ModelSites

__all__ = ["check_density"]

# Positions at which the model runs twice; at the others it does so if it moves a random generator.
# They go on for so many seconds.
MIN_POSITIONS, SECONDS = 5, 1.0
# Runs of a model that moves a generator: randomness that one run in a hundred shows is found in 95
# of 100 set-ups
NUM_REPEATS = 300
# Rounding that may differ from run to run where threads or a device add in any order, in units of
# the type's precision
ROUNDING = 64.0

Terms = Mapping[str, Tensor]


def check_density(
    density: ModelDensity, sites: ModelSites, positions: Tensor, rows: Tensor | None
) -> None:
    """Check that the log density is a function of the position and the rows alone.

    The model runs at several positions, with its latent sites set. Where it moves a random
    generator of torch, NumPy or Python all the same, it may draw a minibatch or dropout of its own,
    and any difference between two runs counts, however small. A model may also draw numbers that
    do not enter its density, as one does that predicts; so moving a generator is no fault by
    itself.

    Args:
        density: The model's log density.
        sites: What set-up found in the model.
        positions: Unconstrained positions, shape ``(positions, num_params)``.
        rows: A batch, or None for all rows.

    Raises:
        ValueError: If observed data disappeared since the first run of the model, or a site's log
            density differs between two evaluations; names the sites.
    """

    def terms_at(position: Tensor) -> Terms:
        return density.site_terms(position, rows)

    first = terms_at(positions[0])
    lost = sorted(set(sites.observed) - set(first))
    if lost:
        raise ValueError(
            f"sites {lost} came or went between two runs of the model: its sites must be the "
            "same every time (a one-shot iterator as data is empty after the first run)"
        )
    suspect: tuple[Tensor, Terms] | None = None
    started = time.monotonic()
    for number, position in enumerate(positions):
        if number >= MIN_POSITIONS and time.monotonic() - started > SECONDS:
            break
        generators = _generators()
        terms = terms_at(position)
        is_moved = not _are_equal(generators, _generators())
        if is_moved or number < MIN_POSITIONS:
            _compare(terms, position, terms_at, is_moved)
        if is_moved and suspect is None:
            suspect = position, terms
    # After all these runs: a model that changes little by little shows it here
    _compare(first, positions[0], terms_at, False)
    if suspect is not None:
        for _ in range(NUM_REPEATS):
            _compare(suspect[1], suspect[0], terms_at, True)


def _generators() -> tuple[Any, ...]:
    """Return the state of every global random generator."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    states = pyro.util.get_rng_state()
    kind, key, *place = states["numpy"]
    return states["torch"], *devices, torch.from_numpy(key), (kind, *place), states["random"]


def _are_equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for a, b in zip(one, other, strict=True)
    )


def _compare(
    terms: Terms, position: Tensor, terms_at: Callable[[Tensor], Terms], is_moved: bool
) -> None:
    """Compare the terms of a position with those of another run there."""
    again = terms_at(position)
    differing = [name for name in terms if not _agree(terms[name], again[name], is_moved)]
    if not differing:
        return
    dropouts = _active_dropouts(lambda: terms_at(position))
    names = f", here {', '.join(dropouts)}" if dropouts else ""
    raise ValueError(
        f"the log density of {differing} differs between two runs at the same position and rows: "
        "the model draws random numbers of its own, or changes from run to run (a minibatch, a "
        f"shuffled DataLoader, dropout that trains{names}). Give the rows a pyro.plate and let "
        "FNBG(batch_size=...) draw the minibatches; call eval() on networks"
    )


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
