"""The page on samplers at equal time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.report import line, unique

__all__ = ["OURS", "SAMPLERS", "page"]

Record = Mapping[str, Any]

# Of ours, with what FNBG is told
OURS: Mapping[str, Mapping[str, Any]] = {
    "FNBG, walk (the default)": {"moves": "walk"},
    "FNBG, pcn": {"moves": "pcn"},
    "FNBG, gibbs": {"moves": "gibbs"},
    "FNBG, walk, rescaled": {"moves": "walk", "rescale": True},
    "FNBG, auto": {"moves": "auto"},
}
SAMPLERS = (
    *OURS,
    "NUTS",
    "elliptical slice",
    "slice along random lines",
    "slice by coordinate",
)

INTRODUCTION = """# Samplers at equal time

How many independent draws of its predictions does a sampler give in a second? Ours with each of
its moves, NumPyro's NUTS where there is a gradient, and the slice samplers of BlackJAX, which need
none. All on this page comes from one command:

```sh
make bench-samplers DATA=FOLDER
```

Machine
: {machine}; every sampler on one thread, beside other work

Versions
: {versions}; {peers}

Networks
: N(0, 1) priors of all weights and biases, but N(0, 10) for noisy XOR; the scale of numbers is
  sampled under a half-normal prior, or is the network's second output where it has two

Time
: seconds of the processor for all {chains} chains, a third of them warmup; NUTS adapts for 500
  iterations instead. Compiling is not counted

Moves
: of ours, as `FNBG(moves=...)` has them; *rescaled* is `rescale=True`. "auto" is left out where it
  is the walk

Starts
: the same for all samplers: draws of the prior, or fits by gradients where a title says so

Figures
: effective sample sizes (ESS) and R-hat are of predictions for up to 200 test rows: the median and
  the least ESS, the largest R-hat; ESS a second is of all the time, warmup included. Where R-hat is
  far above 1, chains disagree, and an ESS means nothing. A step is a sweep of ours, an iteration of
  the others; the log predictive density is a mean over test rows, in nats"""


def page(records: Sequence[Record]) -> str:
    """Write the page of all records."""
    ours = next(r for r in records if r["sampler"] in OURS)
    theirs = next((r["about"]["versions"] for r in records if "versions" in r.get("about", {})), {})
    text = INTRODUCTION.format(
        machine=ours["machine"],
        versions=ours["versions"],
        peers=", ".join(f"{name} {number}" for name, number in theirs.items()),
        chains=ours["chains"],
    )
    return "\n".join([text, *_sections(records)]) + "\n"


def _sections(records: Sequence[Record]) -> Iterable[str]:
    order = {name: place for place, name in enumerate(SAMPLERS)}
    for problem in unique(r["problem"] for r in records):
        own = sorted(
            (r for r in records if r["problem"] == problem), key=lambda r: order[r["sampler"]]
        )
        first = own[0]
        yield f"\n## {problem}{', from fits' if first['is_warm'] else ''}\n"
        rows = f"{first['rows']:,} rows to learn from, {first['test']:,} to test"
        yield f"{rows}; {first['seconds']:g} s each.\n"
        yield line(
            ["", "ESS a second", "least", "ESS per 1,000 steps", "largest R-hat"]
            + ["log predictive density", "steps of a chain"]
        )
        yield line(["---", *["---:"] * 6])
        for record in own:
            yield line([record["sampler"], *_cells(record)])


def _cells(record: Record) -> list[str]:
    if record["status"] != "done":
        return [*[""] * 5, record["status"].partition(": ")[2] or record["status"]]
    found, seconds = record["diagnostics"], record["about"]["core_seconds"]
    steps = record["about"]["steps"]
    return [
        f"{found['ess_median'] / seconds:.3g}",
        f"{found['ess_min'] / seconds:.3g}",
        f"{1000 * found['ess_median'] / (steps * record['chains']):.3g}",
        f"{found['r_hat_max']:.2f}",
        f"{record['scores']['lppd']:.3f}",
        f"{steps:,}",
    ]
