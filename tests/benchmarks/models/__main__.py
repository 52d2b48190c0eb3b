"""Time models as users write them, or compare them with NUTS, and write the page.

    PYTHONPATH=tests python -m benchmarks.models
    PYTHONPATH=tests python -m benchmarks.models --agreement

The first times all models in one process, in a few minutes; the second takes two minutes a model,
and does not repeat what has a record. One thread.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path
from statistics import median

from benchmarks.models.agreement import Effort, run_agreement
from benchmarks.models.cases import CASES
from benchmarks.models.page import page
from benchmarks.models.records import keep, path_of
from benchmarks.models.speed import Length, run_speed
from benchmarks.report import read_records


def main() -> None:
    """Run what is asked for, and write the page from all records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agreement", action="store_true", help="compare with NUTS")
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES), metavar="MODEL")
    parser.add_argument("--turns", type=int, default=Length().turns, help="how often each is timed")
    parser.add_argument("--seconds", type=float, help="of each turn, or of each sampler")
    parser.add_argument("--core", type=int, help="run on this core")
    parser.add_argument("--results", type=Path, default=Path("tests/benchmarks/results/models"))
    parser.add_argument("--page", type=Path, default=Path("docs/models-users-write.md"))
    chosen = parser.parse_args()
    if chosen.core is not None:
        os.sched_setaffinity(0, {chosen.core})
    # What NUTS and its tracing of a model say is no matter here
    warnings.simplefilter("ignore")
    speeds, agreements = chosen.results / "speed", chosen.results / "agreement"
    if not chosen.agreement:
        # What a process does once is not the first model's
        run_speed(chosen.models[0], Length(warmup=1, turns=1, seconds=0.0))
    for name in chosen.models:
        if not chosen.agreement:
            length = Length(turns=chosen.turns, seconds=chosen.seconds or Length().seconds)
            found = keep(path_of(speeds, name), run_speed(name, length))
            speeds_of = found["sweeps_a_second"].items()
            print(name, found["engine"], {who: median(each) for who, each in speeds_of}, flush=True)
        elif not path_of(agreements, name).exists():
            effort = Effort(seconds=chosen.seconds or Effort().seconds)
            found = keep(path_of(agreements, name), run_agreement(name, effort))
            print(name, found["fnbg"], found["nuts"], flush=True)
    records = read_records(speeds), read_records(agreements), read_records(chosen.results / "lenet")
    chosen.page.write_text(page(*records), "utf-8")


if __name__ == "__main__":
    main()
