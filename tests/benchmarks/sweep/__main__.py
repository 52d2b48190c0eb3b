"""Say where the time of a fused sweep goes, and what its arithmetic takes alone.

    PYTHONPATH=tests python -m benchmarks.sweep --data FOLDER

FOLDER holds MNIST/raw. A copy of the package reads the processor's clock after each part of a sweep
on MNIST; then the same arithmetic is timed alone. The page goes to docs/sweep.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.sweep.marks import PARTS, marked_copy

ROOT = Path(__file__).resolve().parents[3]
NETWORKS = ("784,10,10,10,10", "784,100,10")


INTRODUCTION = """# Where the time of a sweep goes

{{doc}}`mathematics` says what a sweep does; this page, how long each part of it takes.

The fused engine on MNIST, batches of 3,000 of 60,000 rows, 78 parts to a node of the first layer,
sigmoid activations, N(0, 10) priors, one chain on one thread in float32, after {warmup} sweeps of
warmup from a draw of the prior. A copy of the package reads the processor's clock after each part,
which itself takes a few per cent. All on this page comes from one command:

```sh
PYTHONPATH=tests python -m benchmarks.sweep --data FOLDER
```

Machine
: {machine}

Versions
: {versions}

Date, length, seed
: {date}; the last of three turns of {sweeps} sweeps; seed 0

Inputs are read anew for every chunk of increments that the last cache holds: once for the first
network, six times for the second.

"Alone" is the same arithmetic on as many rows, over and over on arrays that stay in the first cache
(for the rows of the batch: a mere copy of each, from memory). What is above it is the way to and
from memory, what is done between the parts, and rows that come in groups of 64."""


def main() -> None:
    """Measure each network in a process of its own, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "sweep.md")
    parser.add_argument("--warmup", type=int, default=200, help="sweeps before the timed ones")
    parser.add_argument("--sweeps", type=int, default=60, help="sweeps of each of three turns")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        marked_copy(ROOT / "pyro_fnbg", Path(folder))
        found = [_measured(folder, network, options) for network in options.networks]
    options.page.write_text(page(found), "utf-8")


def _measured(folder: str, network: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run the marked copy."""
    paths = os.pathsep.join([folder, str(ROOT / "tests")])
    arguments = [network, str(options.data.resolve()), str(options.warmup), str(options.sweeps)]
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.sweep.measure", *arguments],
        cwd=folder,  # else Python would find the package that is here first
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def page(found: list[dict[str, Any]]) -> str:
    """Write the page of what was measured."""
    lines = [INTRODUCTION.format(**found[0])]
    for one in found:
        total = sum(one["seconds"].values())
        lines += [
            "",
            f"## MLP({one['network']})",
            "",
            f"{one['blocks']:,} blocks, {total * 1e3:.2f} ms a sweep, "
            f"{total / one['blocks'] * 1e6:.2f} µs a block; {one['accepted']:.1%} accepted; "
            f"{one['moved']:.1%} of the rows notice the change of a block.",
            "",
            "| part | ms a sweep | of the sweep | alone, ms | times as long |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for part, name in PARTS.items():
            seconds, least = one["seconds"][str(part)], one["least"].get(str(part))
            alone = ["", ""] if not least else [f"{least * 1e3:.3f}", f"{seconds / least:.1f}"]
            row = [name, f"{seconds * 1e3:.3f}", f"{seconds / total:.1%}", *alone]
            lines.append(f"| {' | '.join(row)} |")
        known = [part for part in one["seconds"] if part in one["least"]]
        spent = sum(one["seconds"][part] for part in known)
        least = sum(one["least"].values())
        ratio = f"{least * 1e3:.3f} | {spent / least:.1f}"
        lines.append(f"| all of these | {spent * 1e3:.3f} | {spent / total:.1%} | {ratio} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
