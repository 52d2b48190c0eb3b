"""Turn the JSON of a run of the benchmarks into a page of the documentation.

    PYTHONPATH=tests python -m benchmarks.report bench-output/bench.json docs/benchmarks.md

Of what is timed in several turns, the page has the median over the turns and the range. Those who
are compared are paired turn by turn.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.tables import HEADLINES, MAX_R_HAT, TABLES, Headline, Table

__all__ = ["Record", "page", "read_records", "records_of"]

COMMANDS = {
    "smoke": "BENCH_LENGTH=smoke make bench",
    "bench": "make bench",
    "full": "make bench-full",
}
SMOKE_WARNING = """
**This page was written by a run that only tries everything out. Its figures mean nothing.**
"""
LENGTH = """{turns} turns; {few_turns} of many chains and of memory, {ess_turns} in the last table
: {rounds} timings of a short call in each turn
: {warmup:,} sweeps of warmup before engines are timed
: chains of {xor_sweeps:,} sweeps of noisy XOR and {mnist_sweeps:,} of MNIST's shape, one at a time
: {many_sweeps:,} draws of each of many chains of noisy XOR, fewer of larger networks
: about {ess_seconds:g} s for the {ess_chains} chains of a sampler in the last table"""
OPENING = """# Benchmarks
{warning}
How many times as fast, on {cpu}, {cores} cores, {date}. eeyore 0.0.20 is the code the paper ran on.
Everything on this page comes from one run of one command, which builds an environment of its own,
leaves its JSON in `bench-output/` and writes this page:

```sh
{command}
```"""
METHOD = """## How it was measured

Those who are compared are timed in turn, several times over. A figure is the median over the turns,
with the range in brackets. Ratios are taken pair by pair, within a turn: a machine whose speed
changes from minute to minute changes them little, so they say more than single times. Images are
{images}. No time is asserted anywhere.

Machine
: {cpu}, {cores} cores, {system}

Versions
: Python {python}, {versions}; commit {commit}{changes}

Length
: {length}

Seeds
: t + 1 in turn t, counted from 0; 100 t + c for chain c of the last table; 0 for simulated data and
  for the noise that engines are given"""


class Record(NamedTuple):
    """Hold one timing.

    Attributes:
        table: Key of its table.
        case: What was done.
        who: Who did it.
        turn: Which turn it was.
        seconds: Median seconds a unit in this turn.
        values: Other figures by name.
    """

    table: str
    case: str
    who: str
    turn: int
    seconds: float
    values: Mapping[str, float]


class Value(NamedTuple):
    """Say how a figure is shown.

    Attributes:
        heading: Heading of its column.
        show: From the number to text.
    """

    heading: str
    show: Callable[[float], str]


def number(value: float) -> str:
    """Show three digits, and no exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def share(value: float) -> str:
    """Show per cent."""
    return f"{100 * value:.1f} %"


def seconds(value: float) -> str:
    """Show a time in its natural unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= size:
            return f"{number(value / size)} {unit}"
    return f"{number(value / 1e-6)} µs"


def megabytes(value: float) -> str:
    """Show bytes."""
    return f"{number(value / 1e6)} MB"


VALUES = {
    "acceptance": Value("accepted", share),
    "moved": Value("rows moved", share),
    "sweep_seconds": Value("without set-up", seconds),
    "engine_seconds": Value("in the engine, a sweep", seconds),
    "outside_seconds": Value("outside, a sweep", seconds),
    "outside": Value("outside, share", share),
    "draws_bytes": Value("size of the draws", megabytes),
    "run_bytes": Value("growth in `run`", megabytes),
    "run_share": Value("the same, over the draws", number),
    "samples_share": Value("with `get_samples`, over the draws", number),
    "draws": Value("draws", lambda value: f"{value:,.0f}"),
    "r_hat": Value("largest R-hat", lambda value: f"{value:.2f}" if value < 100 else "over 100"),
    "least_ess": Value("least ESS a second", number),
    "median_ess": Value("median ESS a second", number),
}


def main() -> None:
    """Read the JSON and write the page."""
    source, target = map(Path, sys.argv[1:])
    target.write_text(page(json.loads(source.read_text("utf-8"))), "utf-8")


def records_of(run: Mapping[str, Any]) -> list[Record]:
    """Read the timings from what pytest-benchmark wrote."""
    found = []
    for benchmark in run["benchmarks"]:
        extra = benchmark["extra_info"]
        found.append(
            Record(
                table=extra["table"],
                case=extra["case"],
                who=extra["who"],
                turn=extra["turn"],
                seconds=benchmark["stats"]["median"] / extra["units"],
                values=extra["values"],
            )
        )
    return found


def page(run: Mapping[str, Any]) -> str:
    """Write the page."""
    records = records_of(run)
    opening, method = (text.format(**about(run)) for text in (OPENING, METHOD))
    sections = [opening, *headlines(records), method]
    for name, table in TABLES.items():
        chosen = [record for record in records if record.table == name]
        if chosen:
            lines = [f"## {table.title}", "", table.text.strip(), "", *table_lines(table, chosen)]
            sections.append("\n".join(lines))
    return "\n\n".join(sections) + "\n"


def about(run: Mapping[str, Any]) -> dict[str, Any]:
    """Say what was run, where and when."""
    described, machine, commit = run["run"], run["machine_info"], run["commit_info"]
    length, cpu = described["length"], machine["cpu"]
    is_real = described["images"] == "MNIST"
    versions = ", ".join(f"{name} {found}" for name, found in described["versions"].items())
    return {
        "warning": SMOKE_WARNING if length["name"] == "smoke" else "",
        "command": COMMANDS[length["name"]] + (" DATA=FOLDER" if is_real else ""),
        "cpu": cpu.get("brand_raw", "unknown processor"),
        "cores": cpu.get("count", "unknown number of"),
        "system": f"{machine['system']}, {machine['machine']}",
        "python": machine["python_version"],
        "versions": versions,
        "commit": commit.get("id", "unknown")[:10],
        "changes": ", with changes that were not committed" if commit.get("dirty") else "",
        "length": LENGTH.format(**length),
        "date": run["datetime"][:10],
        "images": "those of MNIST" if is_real else "random numbers of MNIST's shape",
    }


def headlines(records: list[Record]) -> list[str]:
    """Write the table that comes first: how many times as fast."""
    rows = [(headline, speeds(headline, records)) for headline in HEADLINES]
    rows = [(headline, found) for headline, found in rows if found]
    if not rows:
        return []
    heading = [line(["", "times as fast", "time"]), line(["---", "---:", "---:"])]
    return ["\n".join([*heading, *(line([headline.text, *found]) for headline, found in rows)])]


def speeds(headline: Headline, records: list[Record]) -> list[str]:
    """Compare two rows turn by turn; nothing if one of them was not run."""

    def times(who: str) -> dict[int, float]:
        return {
            record.turn: record.values[headline.value] if headline.value else record.seconds
            for record in records
            if (record.table, record.case, record.who) == (headline.table, headline.case, who)
        }

    own, bases = times(headline.who), times(headline.base)
    found = [bases[turn] / taken for turn, taken in own.items() if turn in bases]
    return [spread(found, number), seconds(median(own.values()))] if found else []


def table_lines(table: Table, records: list[Record]) -> list[str]:
    """Write one table: a row for every case and everybody who did it."""
    names = [name for name in VALUES if any(name in record.values for record in records)]
    headings = ["", "by", *([f"time of {table.unit}"] if table.unit else [])]
    headings += [VALUES[name].heading for name in names]
    if table.base:
        headings.append(ratio_heading(table))
    rows = []
    for case in unique(record.case for record in records):
        of_case = [record for record in records if record.case == case]
        bases = {record.turn: record for record in of_case if record.who == table.base}
        for who in unique(record.who for record in of_case):
            mine = [record for record in of_case if record.who == who]
            cells = [case, who]
            if table.unit:
                cells.append(spread([record.seconds for record in mine], seconds))
            for name in names:
                values = [record.values[name] for record in mine if name in record.values]
                cells.append(spread(values, VALUES[name].show))
            if table.base:
                cells.append(ratios(table, mine, bases))
            if not all(map(has_converged, mine)):
                cells[1] += " (not converged)"
            rows.append(cells)
    numbers = ["---:"] * (len(headings) - 2)
    return [line(headings), line(["---", "---", *numbers]), *map(line, rows)]


def ratio_heading(table: Table) -> str:
    """Say what the last column compares."""
    if table.compared:
        return f"{VALUES[table.compared].heading}, as a multiple of {table.base}'s"
    return f"{'times as fast' if table.is_speed else 'times as long'} as {table.base}"


def ratios(table: Table, records: list[Record], bases: Mapping[int, Record]) -> str:
    """Compare with the base turn by turn, where both have converged."""
    found = []
    for record in records:
        base = bases.get(record.turn)
        if base is None or not (has_converged(record) and has_converged(base)):
            continue
        if table.compared:
            found.append(record.values[table.compared] / base.values[table.compared])
        elif table.is_speed:
            found.append(base.seconds / record.seconds)
        else:
            found.append(record.seconds / base.seconds)
    return spread(found, number)


def has_converged(record: Record) -> bool:
    """Whether chains agree, where that was measured; if they never moved, R-hat is NaN."""
    return record.values.get("r_hat", 1.0) <= MAX_R_HAT


def spread(values: list[float], show: Callable[[float], str]) -> str:
    """Show the median and the range."""
    if not values:
        return ""
    middle, low, high = show(median(values)), show(min(values)), show(max(values))
    return middle if low == high else f"{middle} ({low} to {high})"


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Read all records of a folder."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]


def unique(values: Iterable[str]) -> list[str]:
    """Drop what comes again."""
    return list(dict.fromkeys(values))


def line(cells: Iterable[str]) -> str:
    """Write one row."""
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
