"""The draws of several chains that go to a store, where a run would else keep them in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pyro_fnbg.chains.keeping import DrawKeeper
from pyro_fnbg.chains.report import ChainReport
from pyro_fnbg.chains.statistics import DrawStatistics
from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.engines.base import Problem
from pyro_fnbg.model.constrained import ConstrainedDraws
from pyro_fnbg.results.attributes import measured_attributes, streams
from pyro_fnbg.stores.archive import Archive
from pyro_fnbg.stores.hierarchy import POSTERIOR, SAMPLE_STATS, Variable, check_variables
from pyro_fnbg.stores.reports import keep_noise
from pyro_fnbg.stores.samples import StoredSamples
from pyro_fnbg.stores.writer import StoreWriter

__all__ = ["StoredDraws", "variables_of"]


def variables_of(problem: Problem, names: Sequence[str] | None) -> list[Variable]:
    """Describe what is stored of each draw: sites, and statistics as in ``to_arviz``."""
    shapes = ConstrainedDraws(problem.sites, names).shapes
    found = [
        Variable(
            POSTERIOR,
            site.name,
            shapes[site.name],
            str(site.dtype).removeprefix("torch."),
            tuple(f"{site.name}_dim_{place}" for place in range(len(shapes[site.name]))),
        )
        for site in problem.sites.layout.sites
        if site.name in shapes
    ]
    num_layers = len(DrawStatistics(problem.partition).layers)
    found += [
        Variable(SAMPLE_STATS, "acceptance_rate", (), "float32", ()),
        Variable(SAMPLE_STATS, "layer_acceptance_rate", (num_layers,), "float32", ("layer",)),
        Variable(SAMPLE_STATS, "batch_log_density", (), "float64", ()),
    ]
    if problem.plan.is_exact:
        found.append(Variable(SAMPLE_STATS, "lp", (), "float64", ()))
    check_variables(found)
    return found


class StoredDraws(DrawKeeper):
    """Take the draws of some chains to a store.

    Args:
        archive: The arrays.
        problem: What the chains share.
        chains: Where the chains are, by their numbers in the store.
        tails: Their draws that fill no chunk yet, by the same numbers.
        attributes: What is said of the draws.
        are_together: Whether chains that are equally far go through the engine together.
    """

    def __init__(
        self,
        archive: Archive,
        problem: Problem,
        chains: Mapping[int, ChainState],
        tails: Mapping[int, Mapping[str, NDArray[Any]]],
        attributes: Mapping[str, Any],
        are_together: bool,
    ) -> None:
        self._numbers = list(chains)
        self._archive, self._attributes = archive, attributes
        self._keys = {(one.group, one.name): key for key, one in archive.variables.items()}
        names = [name for group, name in self._keys if group == POSTERIOR]
        self._constrained = ConstrainedDraws(problem.sites, names)
        self._writer = StoreWriter(archive, problem, chains, tails, are_together)
        self._statistics = [
            _StoredStatistics(problem.partition, self._writer, self._keys, number)
            for number in chains
        ]

    @property
    def counts(self) -> list[int]:
        """Number of draws of each chain of the store that readers are shown."""
        return self._archive.complete_draws

    def statistics(self, partition: Partition) -> list[DrawStatistics]:
        """Return what holds statistics until their draws come, and reads them back from then on."""
        return list(self._statistics)

    def add(self, chain: int, positions: Tensor) -> None:
        """Take unconstrained draws whose statistics were added last."""
        values = {
            self._keys[POSTERIOR, name]: value.cpu().numpy()
            for name, value in self._constrained.of(positions).items()
        }
        for name, numbers in self._statistics[chain].handed_over().items():
            values[self._keys[SAMPLE_STATS, name]] = numbers
        self._writer.take(self._numbers[chain], values)

    def put(self, chain: int, values: Mapping[str, NDArray[Any]], count: int) -> None:
        """Nothing is to be done: the process that made them has written them itself."""

    def pause(self, chains: Sequence[ChainState]) -> None:
        """Commit whole chunks, if it is time."""
        numbered = self._numbered(chains)
        if self._writer.is_due(numbered):
            self._writer.commit(numbered, self._attributes)

    def close(self, chains: Sequence[ChainState]) -> None:
        """Commit all draws."""
        if self._numbers:
            self._writer.close(self._numbered(chains), self._attributes)

    def finish(self, reports: Sequence[ChainReport]) -> None:
        """Say what was measured at the end, and which random streams chains had."""
        keep_noise(self._archive, reports)
        measured = measured_attributes(reports) if reports else {}
        keys = [one.state.key for one in self._archive.saved().values()]
        self._archive.commit({}, {**self._attributes, **streams(keys), **measured})

    def hand_over(self, chains: Sequence[int], num_draws: int) -> StoredSamples:
        """Return the first draws of some chains, which are read when they are asked for."""
        return StoredSamples(self._archive.path, chains, num_draws, group_by_chain=True)

    def _numbered(self, chains: Sequence[ChainState]) -> dict[int, ChainState]:
        return dict(zip(self._numbers, chains, strict=True))


class _StoredStatistics(DrawStatistics):
    """Hold the statistics of draws until the draws are taken, and read them back from then on."""

    def __init__(
        self,
        partition: Partition,
        writer: StoreWriter,
        keys: Mapping[tuple[str, str], str],
        number: int,
    ) -> None:
        super().__init__(partition)
        self._writer, self._keys, self._number = writer, keys, number

    def __len__(self) -> int:
        return self._writer.counts[self._number] + super().__len__()

    def handed_over(self) -> dict[str, NDArray[np.floating]]:
        """Give away what was added since the last time."""
        values = dict(super().arrays(super().__len__()))
        self.keep_first(0)
        has_lp = (SAMPLE_STATS, "lp") in self._keys
        return values | ({"lp": values["batch_log_density"]} if has_lp else {})

    def arrays(self, num_draws: int) -> Mapping[str, NDArray[np.floating]]:
        keys = {name: self._keys[SAMPLE_STATS, name] for name in super().arrays(0)}
        return self._writer.numbers(self._number, keys, num_draws)
