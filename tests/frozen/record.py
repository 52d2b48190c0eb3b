"""Write the hashes of all cases, or compare with those written before.

    PYTHONPATH=tests python -m frozen.record              # writes tests/frozen/hashes.json
    PYTHONPATH=tests python -m frozen.record --compare    # says which parts differ
    PYTHONPATH=tests python -m frozen.record --only thin  # cases with that in their name

Record only what is known to be right: a hash says that something is the same as before, no more.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import arviz
import llvmlite.binding
import numba
import numpy as np
import pyro
import torch

from frozen.cases import CASES
from frozen.parts import parts_of

__all__ = ["HASHES", "differences", "environment", "environment_differences"]

HASHES = Path(__file__).with_name("hashes.json")
CPU_INFO = Path("/proc/cpuinfo")


def environment() -> dict[str, str]:
    """Say what the bits depend on besides the package: versions and the kind of processor."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    entries = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "pyro": str(pyro.__version__),
        "arviz": arviz.__version__,
        "machine": platform.machine(),
        "cpu": entries.get("model name", platform.processor()),
        "cpu as the compiler names it": llvmlite.binding.get_host_cpu_name(),
        "avx512": str("avx512f" in entries.get("flags", "").split()),
    }


def environment_differences(known: dict[str, str]) -> list[str]:
    """Name what is otherwise here than where the hashes were made."""
    here = environment()
    return [
        f"{name}: {here.get(name)} here, {known.get(name)} there"
        for name in sorted(here.keys() | known.keys())
        if here.get(name) != known.get(name)
    ]


def differences(known: dict[str, Any], found: dict[str, Any]) -> Iterator[str]:
    """Name the parts of a case that differ, with the numbers kept of them."""
    for part in sorted(known.keys() | found.keys()):
        before, now = known.get(part), found.get(part)
        if before != now:
            yield f"{part}: {_shown(before)} before, {_shown(now)} now"


def _shown(part: dict[str, Any] | None) -> str:
    if part is None:
        return "nothing"
    return f"{part['length']} numbers ({part['first, middle, last']}; {part['sha256'][:8]})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m frozen.record",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--compare", action="store_true", help="compare, and write nothing")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    parser.add_argument("--reverse", action="store_true", help="run the last case first")
    options = parser.parse_args(arguments)
    names = [name for name in CASES if options.only in name]
    if not names:
        parser.error(f"no case has {options.only!r} in its name")
    stored = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    known = stored.get("cases", {})
    elsewhere = environment_differences(stored.get("environment", {}))
    if elsewhere and (options.compare or (options.only and known)):
        print("the hashes are of another machine or other versions:", *elsewhere, sep="\n  ")
        if not options.compare:
            return 1
    started = time.perf_counter()
    found = {name: parts_of(CASES[name]) for name in (names[::-1] if options.reverse else names)}
    seconds = time.perf_counter() - started
    print(f"{len(found)} cases in {seconds:.0f} s")
    if options.compare:
        gone = [] if options.only else [name for name in known if name not in CASES]
        differ = [
            f"{name} | {text}"
            for name in [*names, *gone]
            for text in differences(known.get(name, {}), found.get(name, {}))
        ]
        print(*differ, f"{len(differ)} parts differ" if differ else "all the same", sep="\n")
        return int(bool(differ))
    cases = (known if options.only else {}) | found
    kept = {name: cases[name] for name in cases if name in CASES}
    content = {"environment": environment(), "cases": kept}
    HASHES.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
