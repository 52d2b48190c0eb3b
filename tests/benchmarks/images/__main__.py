"""Score chains from fits beside ensembles of fits on images, at equal time, and write the page.

    PYTHONPATH=tests python -m benchmarks.images --data FOLDER

FOLDER holds MNIST/raw and FashionMNIST/raw. A row is a set, a network, a method and a seed. It
leaves a JSON in the results folder, and is not run again while it is there. One thread; the two
methods of the contest take 20 minutes a row, the others two.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.images.page import page
from benchmarks.images.plans import BUDGETS, CONTEST, NETWORKS, PLANS
from benchmarks.images.rows import Row, run_row
from benchmarks.report import read_records
from pyro_fnbg import fashion_mnist, mnist

SETS = {"mnist": mnist, "fashion": fashion_mnist}
METHODS = tuple(PLANS[NETWORKS[0]])


def main() -> None:
    """Run the rows that are asked for, and write the page from all records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), metavar="SET")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS, metavar="NET")
    parser.add_argument("--rows", nargs="+", choices=METHODS, default=CONTEST, metavar="METHOD")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="SEED")
    parser.add_argument("--budgets", nargs="+", type=float, default=BUDGETS, metavar="SECONDS")
    parser.add_argument("--core", type=int, help="run on this core")
    parser.add_argument("--results", type=Path, default=Path("tests/benchmarks/results/images"))
    parser.add_argument("--page", type=Path, default=Path("docs/images-at-equal-time.md"))
    chosen = parser.parse_args()
    if chosen.core is not None:
        os.sched_setaffinity(0, {chosen.core})
    for images in chosen.sets:
        data = SETS[images](chosen.data)
        for network in chosen.networks:
            for seed in chosen.seeds:
                for method in chosen.rows:
                    row = Row(images, network, method, seed)
                    budgets = chosen.budgets if method in CONTEST else chosen.budgets[:1]
                    found = run_row(row, chosen.results, data, budgets)
                    print(*row, found["at_budgets"], flush=True)
    chosen.page.write_text(page(read_records(chosen.results)), "utf-8")


if __name__ == "__main__":
    main()
