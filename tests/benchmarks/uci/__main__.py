"""Run the benchmark, row by row, and write its page.

    PYTHONPATH=tests python -m benchmarks.uci --data FOLDER --peer PYTHON

FOLDER holds ``airfoil.data`` and so on: numbers between spaces, the response last. PYTHON is the
interpreter of an environment with sklearn-contrib-bde and NumPyro (``make bench-uci`` builds it).

A row is a method on a set with a seed. It runs in a process of its own, on one core, and leaves a
JSON in the results folder; a row that has one is not run again, unless it failed. What a row
predicts is kept in the output folder: remove its JSON alone, and it is scored anew.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.report import read_records
from benchmarks.uci.page import page
from benchmarks.uci.plans import PLANS
from benchmarks.uci.rows import METHODS, Options, run_row
from benchmarks.uci.sets import SETS


def main() -> None:
    """Run the rows that are asked for, and write the page from all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--peer", type=Path, metavar="PYTHON")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS, metavar="SET")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3], metavar="SEED")
    parser.add_argument("--rows", nargs="+", choices=METHODS, default=METHODS, metavar="METHOD")
    parser.add_argument(
        "--budget-seconds",
        type=float,
        metavar="SECONDS",
        help="of the processor, for our chains and the deep ensemble; those that the peer took on "
        "the same set and seed, if left out",
    )
    parser.add_argument("--core", type=int, help="run on this core; the first, if left out")
    parser.add_argument("--results", type=Path, default=Path("tests/benchmarks/results/uci"))
    parser.add_argument("--output", type=Path, default=Path("bench-output/uci"))
    parser.add_argument("--page", type=Path, default=Path("docs/uci.md"))
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a run of minutes that shows nothing; its results and page go to the output folder",
    )
    chosen = parser.parse_args()
    output, results, target = chosen.output, chosen.results, chosen.page
    if chosen.quick:
        output = output / "quick"
        results, target = output / "results", output / "uci.md"
    # Processes inherit it
    core = min(os.sched_getaffinity(0)) if chosen.core is None else chosen.core
    os.sched_setaffinity(0, {core})
    options = Options(
        plan=PLANS["quick" if chosen.quick else "full"],
        data=chosen.data,
        peer=chosen.peer,
        budget_seconds=chosen.budget_seconds,
        results=results,
        output=output,
    )
    for name in chosen.sets:
        for seed in chosen.seeds:
            for method in METHODS:
                if method in chosen.rows:
                    record = run_row(name, seed, method, options)
                    print(f"{name} {seed} {method}: {record['status']} {record.get('error', '')}")
    if records := read_records(results):
        target.write_text(page(records, read_records(results / "longer")), "utf-8")


if __name__ == "__main__":
    main()
