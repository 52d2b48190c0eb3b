"""What every sweep decided: the one place of the frozen cases that knows the package's insides.

If the function that runs a chain's next sweeps moves, or returns something else, adapt this file
and nothing else; the hashes must stay.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from pyro_fnbg.engines.base import Engine

__all__ = ["FIELDS", "Tap", "tapped"]

FIELDS = ("log_ratios", "accepted", "log_densities", "scales")


class Tap:
    """Collect what the sweeps of each chain report, however many sweeps a call makes."""

    def __init__(self) -> None:
        # By chain, the number of a call's first sweep and its results, field by field
        self._calls: dict[int, list[tuple[int, tuple[Tensor, ...]]]] = defaultdict(list)

    def add(self, chain: int, first: int, values: tuple[Tensor, ...]) -> None:
        """Take the results of a call: of ``FIELDS``, each with the sweeps first."""
        self._calls[chain].append((first, tuple(value.detach().clone() for value in values)))

    def by_chain(self, num_sweeps: int) -> dict[str, list[Tensor]]:
        """Put the sweeps of each chain together, and leave out those made ahead and not asked for.

        How many are made ahead depends on the time that they take. So a later call that starts
        before the end of an earlier one stands in its place.
        """
        found: dict[str, list[Tensor]] = {field: [] for field in FIELDS}
        for chain in sorted(self._calls):
            sweeps: list[tuple[Tensor, ...]] = []
            for first, values in self._calls[chain]:
                del sweeps[first:]
                assert len(sweeps) == first, f"chain {chain} lacks sweeps before {first}"
                sweeps += zip(*values, strict=True)
            for field, values in zip(FIELDS, zip(*sweeps[:num_sweeps], strict=True), strict=True):
                assert len(values) == num_sweeps, f"chain {chain} made {len(values)} sweeps"
                found[field].append(torch.stack(values))
        return found


@contextmanager
def tapped() -> Iterator[Tap]:
    """Listen to all chains that run in this process."""
    tap, sweeps = Tap(), Engine.sweeps

    def listening(engine, problem, chains, count):
        after, record = sweeps(engine, problem, chains, count)
        for number, chain in enumerate(chains):
            own = record.of_chain(number)
            scales = own.adaptation[0].scales.expand(count, -1)
            values = (own.log_ratios, own.accepted, own.log_densities, scales)
            tap.add(chain.key.chain, chain.sweeps, values)
        return after, record

    with patch.object(Engine, "sweeps", listening):
        yield tap
