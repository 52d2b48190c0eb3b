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

# Chains whose predictions have a larger R-hat disagree
DOUBTFUL = 1.1

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
    return "\n".join([text, *_headline(records), *_sections(records)]) + "\n"


def _headline(records: Sequence[Record]) -> Iterable[str]:
    """Tabulate how much more a second each sampler gives than the walk."""
    done = {(r["problem"], r["sampler"]): r for r in records if r["status"] == "done"}
    walk, *others = [one for one in SAMPLERS if any(one == sampler for _, sampler in done)]
    yield "\n## In one table\n"
    yield (
        "Median ESS a second of the walk, and how many times as much the others gave. A star: the "
        f"largest R-hat is above {DOUBTFUL:g}, and the figure says little.\n"
    )
    yield line(["", walk, *others])
    yield line(["---", *["---:"] * (1 + len(others))])
    for problem in unique(name for name, _ in done):
        base = done.get((problem, walk))
        if base is None:
            continue
        ratios = [
            f"{_rate(r) / _rate(base):.2g}{_star(r)}" if r is not None else ""
            for r in (done.get((problem, other)) for other in others)
        ]
        yield line([problem, f"{_rate(base):.3g}{_star(base)}", *ratios])


def _rate(record: Record) -> float:
    return float(record["diagnostics"]["ess_median"] / record["about"]["core_seconds"])


def _star(record: Record) -> str:
    return "\\*" if record["diagnostics"]["r_hat_max"] > DOUBTFUL else ""


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
        f"{_rate(record):.3g}",
        f"{found['ess_min'] / seconds:.3g}",
        f"{1000 * found['ess_median'] / (steps * record['chains']):.3g}",
        f"{found['r_hat_max']:.2f}",
        f"{record['scores']['lppd']:.3f}",
        f"{steps:,}",
    ]
