"""Scores against the number of draws, from the same pass over draws as a prediction."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from pyro_fnbg.core.checks import check_count, is_count, is_list, shown
from pyro_fnbg.prediction.evaluation import Totals
from pyro_fnbg.prediction.outcomes import ScoreCourse
from pyro_fnbg.prediction.totals import ClassTotals, NumberTotals

__all__ = ["CourseSums", "checked_lengths", "segments"]


def checked_lengths(
    lengths: object, y: object, num_chains: object, num_draws: int
) -> tuple[int, ...]:
    """Return at how many draws a chain scores are wanted, in increasing order.

    Raises:
        ValueError: If they, or the number of chains, are not allowed, or there is no ``y``.
    """
    check_count("num_chains", num_chains, 1)
    count = int(cast("int", num_chains))
    if num_draws % count:
        raise ValueError(
            f"samples must hold as many draws of each of num_chains={num_chains} chains, one chain "
            f"after the other; got {num_draws} draws"
        )
    if lengths is None:
        return ()
    longest = num_draws // count
    if not is_list(lengths) or not all(is_count(length, 1, longest) for length in lengths):
        raise ValueError(
            f"lengths must be whole numbers from 1 to the {longest} draws of a chain, got "
            f"{shown(lengths)}"
        )
    if y is None:
        raise ValueError("lengths need y, what the predictions are compared with; got y=None")
    return tuple(sorted({int(length) for length in lengths}))


def segments(lengths: Sequence[int], num_chains: int, num_draws: int) -> list[list[slice]]:
    """Cut each chain's draws where scores are wanted, and at its end.

    Example:
        >>> segments([1], 2, 6)
        [[slice(0, 1, None), slice(1, 3, None)], [slice(3, 4, None), slice(4, 6, None)]]
    """
    of_chain = num_draws // num_chains
    edges = sorted({0, *lengths, of_chain})
    return [
        [slice(chain * of_chain + a, chain * of_chain + b) for a, b in itertools.pairwise(edges)]
        for chain in range(num_chains)
    ]


@dataclass
class CourseSums:
    """Sum scores over rows, for every length and chain.

    Attributes:
        lengths: Numbers of draws of each chain.
        sums: By name, shape ``(2, chains, lengths)``: of each chain alone, and of the first chain,
            the first two, and so on together.
    """

    lengths: tuple[int, ...]
    sums: dict[str, Tensor] = field(default_factory=dict)

    def add(self, totals: Sequence[Sequence[Totals]], y: Tensor) -> None:
        """Add some rows, given the totals of each chain's segments."""
        by_chain = [list(itertools.accumulate(chain))[: len(self.lengths)] for chain in totals]
        pooled = itertools.accumulate(by_chain, _added)
        for kind, lines in enumerate((by_chain, pooled)):
            for number, line in enumerate(lines):
                for place, one in enumerate(line):
                    for name, value in _row_scores(one, y).items():
                        zeros = torch.zeros(2, len(totals), len(self.lengths), dtype=torch.float64)
                        self.sums.setdefault(name, zeros)[kind, number, place] += value.sum().item()

    def course(self, num_rows: int) -> ScoreCourse:
        """Return the scores of all rows."""
        means = {name: value / num_rows for name, value in self.sums.items()}
        found = {name: v.sqrt() if name == "rmse" else v for name, v in means.items()}
        return ScoreCourse(
            self.lengths,
            {name: alone for name, (alone, _) in found.items()},
            {name: pooled for name, (_, pooled) in found.items()},
        )


def _added(some: list[Totals], others: list[Totals]) -> list[Totals]:
    """Add the totals of one chain to those of others, length by length."""
    return list(map(operator.add, some, others))


def _row_scores(totals: Totals, y: Tensor) -> dict[str, Tensor]:
    """Score each row, in double precision; "rmse" is the root of its mean over rows."""
    if isinstance(totals, ClassTotals):
        of_labels = totals.mean.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        return {"accuracy": (totals.mean.argmax(-1) == y).double(), "lppd": of_labels.log()}
    assert isinstance(totals, NumberTotals)
    assert totals.log_densities is not None
    num_draws = torch.tensor(totals.num_draws, dtype=torch.float64)
    errors = (totals.mean - y).square()
    return {
        "rmse": errors.flatten(1).mean(1) if errors.dim() > 1 else errors,
        "lppd": totals.log_densities - num_draws.log(),
    }
