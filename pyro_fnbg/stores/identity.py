"""What a run must have in common with the one that it goes on from, and where two differ."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.checks import is_list, shown
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.engines.agreement import Terms, terms_at, tolerance
from pyro_fnbg.engines.base import Problem
from pyro_fnbg.model.sites import ModelSites

__all__ = [
    "differences",
    "identity_of",
    "is_log_density",
    "is_of_site",
    "log_density",
    "site_words",
]

OF_SITE = "latent site "

Identity = Mapping[str, str]


def identity_of(problem: Problem) -> dict[str, str]:
    """Say in words what makes the draws of a run: two runs of the same words make the same draws.

    Data are told apart by their bytes. What a model reads from elsewhere, or holds in a form that
    is not known here, is not in the words; ``is_log_density`` sees that.
    """
    plan = problem.plan
    found = site_words(problem.sites)
    found["observed sites"] = shown(list(problem.sites.observed))
    for name, value in problem.bound.arguments_of_run().items():
        found[name] = _described(value)
    found["blocks"] = _blocks(problem.partition)
    moves = Counter(move.name for move in problem.moves.of_block)
    found["moves"] = ", ".join(f"{name} of {count} blocks" for name, count in moves.items())
    if problem.moves.num_rescaled:
        found["moves"] += f", {problem.moves.num_rescaled} relu nodes rescaled"
    found["target"] = plan.target
    found["target_accept_prob"] = _described(problem.moves.targets)
    found["warmup_steps"] = str(problem.warmup_steps)
    found["sweeps that tune"] = str(problem.tuned_sweeps)
    found["thin"] = str(problem.thin)
    found["engine"] = problem.engine.name
    return found


def site_words(sites: ModelSites) -> dict[str, str]:
    """Describe the latent sites, one by one."""
    return {
        f"{OF_SITE}{site.name!r}": (
            f"{_shaped(site.shape, site.dtype)}, support {sites.supports[site.name].constraint}"
        )
        for site in sites.layout.sites
    }


def is_of_site(name: str) -> bool:
    """Whether words with this name describe a latent site."""
    return name.startswith(OF_SITE)


def differences(stored: Identity, found: Identity) -> list[str]:
    """Name what differs, with both values."""
    return [
        f"{name} was {stored.get(name, 'not there')}, and is now {found.get(name, 'not there')}"
        for name in dict.fromkeys([*stored, *found])
        if stored.get(name) != found.get(name)
    ]


def log_density(problem: Problem, chain: ChainState) -> float:
    """Return a chain's log density on its last sweep's batch, by the model; NaN before a sweep."""
    terms = _last_terms(problem, chain)
    return math.nan if terms is None else float(torch.cat(terms).sum())


def is_log_density(problem: Problem, chain: ChainState, stored: float) -> bool:
    """Whether the model gives a chain's position the log density that it had, up to rounding."""
    terms = _last_terms(problem, chain)
    if terms is None or not math.isfinite(stored):
        return True
    allowed = tolerance(terms, terms, problem.sites.layout.dtype, problem.plan.factor)
    return abs(float(torch.cat(terms).sum()) - stored) <= allowed


def _last_terms(problem: Problem, chain: ChainState) -> Terms | None:
    """Evaluate the model where a chain's last sweep has left it."""
    if chain.sweeps == 0:
        return None
    rows = problem.batches.rows(chain.key, chain.sweeps - 1)
    with pyro.validation_enabled(False):
        return terms_at(problem.density, chain.position, rows, problem.sites.observed)


def _blocks(partition: Partition) -> str:
    digest = hashlib.sha256()
    for block in partition.blocks:
        digest.update(f"{block.name} {list(block.index)}\n".encode())
    return f"{partition.num_blocks} with contents {_short(digest)}"


def _described(value: object) -> str:
    """Describe an argument of the model by its type, its shape and its contents."""
    digest, kind = hashlib.sha256(), type(value).__name__
    for part in _parts(value):
        digest.update(part)
    if isinstance(value, Tensor | np.ndarray):
        return f"{kind} of {_shaped(value.shape, value.dtype)}, contents {_short(digest)}"
    return f"{kind}, contents {_short(digest)}"


def _parts(value: object) -> Iterator[bytes | memoryview]:
    """Yield bytes that two values share if they are the same; of what is not known, its type."""
    if isinstance(value, Tensor):
        kind = _shaped(value.shape, value.dtype)
        try:
            value = value.detach().cpu().resolve_conj().contiguous().reshape(-1).view(torch.uint8)
            value = value.numpy()
        except (NotImplementedError, RuntimeError, TypeError):  # sparse ones, and others
            value = None
        yield kind.encode()
    if isinstance(value, np.ndarray) and value.dtype != object:
        yield _shaped(value.shape, value.dtype).encode()
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield repr(value).encode()
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield repr(name).encode()
            yield from _parts(entry)
    elif is_list(value):
        yield str(len(value)).encode()
        for entry in value:
            yield from _parts(entry)
    else:
        yield type(value).__qualname__.encode()


def _shaped(shape: Sequence[int], dtype: object) -> str:
    return f"shape {tuple(shape)}, type {dtype}"


def _short(digest: Any) -> str:
    return str(digest.hexdigest()[:16])
