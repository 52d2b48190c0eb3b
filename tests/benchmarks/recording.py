"""One way to time things in turn, and to leave in the JSON what the report needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

__all__ = ["Label", "in_turn", "keep", "measure", "seconds_of"]


class Label(NamedTuple):
    """Say what a timing is of.

    Attributes:
        table: Key of the table in ``report.TABLES``.
        case: What is done.
        who: Who does it; those with the same case are compared.
        turn: Which turn it is; those of the same turn are paired.
    """

    table: str
    case: str
    who: str
    turn: int


def in_turn(pairs: Iterable[tuple[str, str]], turns: int) -> pytest.MarkDecorator:
    """Parametrise a test with ``case``, ``who`` and ``turn``, so that those compared alternate.

    Pytest runs the parameters in this order, so the machine's mood, which changes over minutes, is
    much the same for the members of a pair.
    """
    by_case: dict[str, list[str]] = {}
    for case, who in pairs:
        by_case.setdefault(case, []).append(who)
    parameters = [
        pytest.param(case, who, turn, id=f"{case}-{who}-{turn}")
        for case, members in by_case.items()
        for turn in range(turns)
        for who in members
    ]
    return pytest.mark.parametrize(("case", "who", "turn"), parameters)


def measure(
    benchmark: BenchmarkFixture,
    label: Label,
    call: Callable[..., Any],
    units: int,
    rounds: int = 1,
    prepare: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]] | None = None,
) -> Any:
    """Time calls.

    Args:
        benchmark: The fixture of pytest-benchmark.
        label: What is timed.
        call: What to call.
        units: Sweeps, draws or whatever is counted in one call.
        rounds: Number of calls.
        prepare: Makes the arguments of each call, outside the timed part.

    Returns:
        What the last call returned.
    """
    benchmark.group = f"{label.table}: {label.case}"
    benchmark.extra_info |= label._asdict() | {"units": units, "values": {}}
    return benchmark.pedantic(call, setup=prepare, rounds=rounds)


def keep(benchmark: BenchmarkFixture, **values: float) -> None:
    """Keep figures other than times under the names that ``report.VALUES`` knows."""
    benchmark.extra_info["values"] |= values


def seconds_of(call: Callable[..., Any], *args: Any) -> float:
    """Time one call that is no benchmark itself: a pilot, or what is to be subtracted from one."""
    started = time.perf_counter()
    call(*args)
    return time.perf_counter() - started
