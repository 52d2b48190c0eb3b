"""What is in a store, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import fill

from pyro_fnbg.command_line.summary import Summary

__all__ = ["lines_of"]

WIDTH = 88
NO_PREDICTIONS = (
    "none are stored, so whether chains agree is not known: store_predictions(STORE, model, x), of "
    "pyro_fnbg, keeps those of some rows"
)


def lines_of(summary: Summary) -> Iterator[str]:
    """Say what a store holds, line by line."""
    yield str(summary.contents.archive.path)
    yield from _listed({"target": summary.target, **summary.facts, **summary.origin})
    yield from _titled("sites", _listed(summary.sites))
    if summary.layers:
        rates = {
            row.layer: f"{row.rate:.1%}"
            + ("" if len(summary.reports) == 1 else f" ({row.least:.1%} to {row.largest:.1%})")
            + (
                ""
                if row.reversed_share is None
                else f"; another batch would reverse {row.reversed_share:.1%} of decisions"
            )
            for row in summary.layers
        }
        yield from _titled("acceptance by layer, over the chains", _listed(rates))
    if summary.diagnosed is not None:
        which = summary.diagnosed[1]
        told = (_filled(line, "  ", "    ") for line in summary.diagnosed_lines)
        yield from _titled(f"predictions of {which}", told)
    elif summary.contents.num_draws:
        yield from _titled("predictions", iter([_filled(NO_PREDICTIONS, "  ", "  ")]))
    if summary.cautions:
        marked = (_filled(line, "  - ", "    ") for line in summary.cautions)
        yield from _titled("warnings", marked)


def _titled(title: str, lines: Iterator[str]) -> Iterator[str]:
    yield ""
    yield title
    yield from lines


def _listed(words: Mapping[str, str]) -> Iterator[str]:
    """Write names and what they stand for in two columns."""
    width = min(max(map(len, words), default=0), WIDTH // 3) + 2
    for name, value in words.items():
        yield _filled(value, f"  {name:<{width}}", " " * (width + 2))


def _filled(text: str, first: str, others: str) -> str:
    return fill(text, WIDTH, initial_indent=first, subsequent_indent=others)
