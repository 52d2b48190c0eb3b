"""What every sweep decided: the one place of the frozen cases that knows the package's insides.

If the function that runs a chain's next sweeps moves, or returns something else, adapt this file
and nothing else; the hashes must stay.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from pyro_fnbg.run import next_sweeps

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
    tap = Tap()

    def listening(runs, count):
        results = next_sweeps(runs, count)
        for run, result in zip(runs, results, strict=True):
            tap.add(run.key.chain, run.sweeps, tuple(getattr(result, name) for name in FIELDS))
        return results

    with ExitStack() as stack:
        for module, name in _holders(next_sweeps):
            stack.enter_context(patch.object(sys.modules[module], name, listening))
        yield tap


def _holders(function: Callable) -> list[tuple[str, str]]:
    """Find every module of the package that has a function under some name."""
    return [
        (module, name)
        for module, contents in list(sys.modules.items())
        if module.partition(".")[0] == "pyro_fnbg"
        for name, value in list(vars(contents).items())
        if value is function
    ]
