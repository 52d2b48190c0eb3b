"""A run whose draws go to a store: how it begins, and how it goes on from where it was."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pyro_fnbg.core.layout import Layout, Site
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.engines.base import Problem
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.sites import inspect_model, seeded
from pyro_fnbg.results.attributes import origin, run_attributes, streams
from pyro_fnbg.results.export import as_arrays, read_data
from pyro_fnbg.stores.archive import Archive
from pyro_fnbg.stores.checkpoint import DamagedStore, Saved, restored
from pyro_fnbg.stores.draws import StoredDraws, variables_of
from pyro_fnbg.stores.hierarchy import POSTERIOR, Variable
from pyro_fnbg.stores.identity import (
    differences,
    identity_of,
    is_log_density,
    is_of_site,
    log_density,
    site_words,
)
from pyro_fnbg.stores.reports import told_of_all

__all__ = ["StoredRun", "at_start"]


class StoredRun(NamedTuple):
    """Hold a run that is in a store.

    Attributes:
        archive: Its arrays.
        saved: Its chains, by number.
    """

    archive: Archive
    saved: Mapping[int, Saved]

    @classmethod
    def begin(
        cls,
        path: Path,
        problem: Problem,
        names: Sequence[str] | None,
        writers: Sequence[Mapping[int, ChainState]],
        num_samples: int,
        num_chains: int,
        run: str,
    ) -> Self:
        """Make a store for the draws of chains that start.

        Args:
            path: Its folder.
            problem: What the chains share.
            names: Sites whose draws are kept; None for all.
            writers: The chains by number, of each of those who will write, or of some.
            num_samples: Draws of each chain that are asked for.
            num_chains: Number of chains.
            run: A name of the run's own.

        Raises:
            FileExistsError: If there is something at the path.
        """
        variables = variables_of(problem, names)
        observed = as_arrays(read_data(problem.bound, problem.sites.plates))
        saved = [at_start(variables, chains) for chains in writers]
        constants = {
            "identity": identity_of(problem),
            "report": told_of_all(problem),
            "sites": [[site.name, list(site.shape)] for site in problem.sites.layout.sites],
        }
        keys = [chain.key for chains in writers for chain in chains.values()]
        attributes = _attributes(problem, keys, num_samples)
        archive = Archive.create(
            path, run, num_chains, variables, saved, constants, attributes, observed
        )
        return cls(archive, {number: one for chains in saved for number, one in chains.items()})

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read a store.

        Raises:
            FileNotFoundError: If there is none.
            DamagedStore: If it is of another format, or was changed.
        """
        archive = Archive(path)
        return cls(archive, archive.saved())

    @property
    def keys(self) -> list[ChainKey]:
        """The random streams of all chains; those that have not begun follow the others."""
        number, one = next(iter(self.saved.items()))
        seed, stream = one.state.key
        followed = [ChainKey(seed, stream + k - number) for k in range(self.archive.num_chains)]
        return [
            self.saved[k].state.key if k in self.saved else key for k, key in enumerate(followed)
        ]

    @property
    def warmup_steps(self) -> int:
        """Sweeps of warmup of each chain."""
        return int(self.archive.constants["identity"]["warmup_steps"])

    @property
    def thin(self) -> int:
        """Sweeps a draw."""
        return int(self.archive.constants["identity"]["thin"])

    @property
    def num_samples(self) -> int:
        """Draws of each chain that the run was asked for."""
        return int(self.archive.attributes["num_samples"])

    @property
    def names(self) -> list[str]:
        """Sites whose draws are kept."""
        return [one.name for one in self.archive.variables.values() if one.group == POSTERIOR]

    def positions(self, bound: BoundModel) -> list[dict[str, Tensor] | None]:
        """Return where the chains are, by site, once it is sure that the model has these sites.

        None stands for those that have not begun.

        Raises:
            ValueError: If it has others; names them.
        """
        with seeded(0), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # set-up gives the same warnings
            found = site_words(inspect_model(bound))
        identity = self.archive.constants["identity"]
        stored = {name: words for name, words in identity.items() if is_of_site(name)}
        _refuse(differences(stored, found))
        sites = tuple(Site(name, tuple(shape)) for name, shape in self.archive.constants["sites"])
        layout = Layout(sites)
        return [
            layout.unflatten(self.saved[number].state.position.clone())
            if number in self.saved
            else None
            for number in range(self.archive.num_chains)
        ]

    def chains(self, problem: Problem, started: Sequence[ChainState]) -> list[ChainState]:
        """Return the chains where they were, once model, data, blocks and moves are the same.

        Args:
            problem: What they share.
            started: The chains at a start, for those that have not begun.

        Raises:
            ValueError: If they are not; names what differs.
            DamagedStore: If a checkpoint does not fit its store.
        """
        _refuse(differences(self.archive.constants["identity"], identity_of(problem)))
        return [self.chain(problem, number, start) for number, start in enumerate(started)]

    def chain(self, problem: Problem, number: int, started: ChainState) -> ChainState:
        """Return one chain where it was, or at its start if it has not begun; see ``chains``."""
        return self._restored(problem, number) if number in self.saved else started

    def draws(
        self,
        problem: Problem,
        chains: Mapping[int, ChainState],
        num_samples: int,
        are_together: bool = False,
    ) -> StoredDraws:
        """Return what takes the next draws of some chains.

        Args:
            problem: What the chains share.
            chains: Where they are, by number.
            num_samples: Draws of each chain that the run is asked for.
            are_together: Whether chains that are equally far go through the engine together.
        """
        attributes = _attributes(problem, self.keys, num_samples)
        tails = {number: self.saved[number].tail for number in chains if number in self.saved}
        return StoredDraws(self.archive, problem, chains, tails, attributes, are_together)

    def _restored(self, problem: Problem, number: int) -> ChainState:
        """Return a chain in the form that engines work with, once it fits store and model."""
        state, before = self.saved[number].state, self.saved[number].log_density
        adaptation = restored(state.adaptation, problem.moves.start())
        if adaptation is None or len(state.position) != problem.partition.num_params:
            raise DamagedStore(f"the checkpoint of chain {number} does not fit the run's model")
        device = problem.sites.layout.sites[0].device
        chain = replace(state, position=state.position.to(device), adaptation=adaptation)
        if not is_log_density(problem, chain, before):
            _refuse(
                [
                    f"the log density where chain {number} is, on its batch, was {before:.6g} and "
                    f"is now {log_density(problem, chain):.6g}, by another prior or likelihood"
                ]
            )
        return chain


def at_start(variables: Iterable[Variable], chains: Mapping[int, ChainState]) -> dict[int, Saved]:
    """Return what is saved of chains without draws."""
    nothing = {one.key: np.empty((0, *one.shape), one.dtype) for one in variables}
    return {number: Saved(chain, math.nan, nothing, {}, {}) for number, chain in chains.items()}


def _refuse(found: Sequence[str]) -> None:
    """Say what differs from the run in a store, if anything does."""
    if found:
        raise ValueError(
            "a run goes on with the model, the data and the options that it began with, but "
            + "; ".join(found)
        )


def _attributes(problem: Problem, keys: Sequence[ChainKey], num_samples: int) -> dict[str, Any]:
    """Say what the chains target, and how many draws they are asked for."""
    told = run_attributes(problem.plan, problem.warmup_steps, problem.thin)
    return told | streams(keys) | origin() | {"num_samples": num_samples}
