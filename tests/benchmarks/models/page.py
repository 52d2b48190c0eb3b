"""The page: how fast each model is sampled, what NUTS says of it, and a network on images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Any

from benchmarks.models.agreement import MOST_R_HAT, ROWS
from benchmarks.models.cases import CASES
from benchmarks.report import line, number, seconds, share, spread, unique

__all__ = ["page"]

Record = Mapping[str, Any]

# What the ratios are held against
AIM, NEAR = 5.0, 0.9
# Of the times when test images were predicted
SHOWN_EVERY = 6

INTRODUCTION = """# Models as users write them

How fast is a model that was written for Pyro, and not for this package? Here are {count} of them,
as tutorials, textbooks and threads in forums write them: modules of layers, a lifted `Sequential`,
matrices by hand, priors with scales of their own, layers that are no linear ones, responses of all
kinds. Their code is in `tests/benchmarks/models/`. None tells `FNBG` anything but itself."""

SPEED = """## Sweeps a second

```sh
PYTHONPATH=tests python -m benchmarks.models
```

Before
: `engine="trace"`, which runs the model itself once a block. Each of these models got that before
  there were engines for it

After
: `engine="auto"`, the default, and which engine it took

Compiled
: `engine="compiled"`, which "auto" takes in place of "captured" for long runs

Machine
: {machines}; one thread

Versions
: {versions}

Length
: {warmup} sweeps of warmup. Then each of these from the same state of the same chain, taking the
  same decisions, in turn {turns} times over, about {length} s each. All rows in every sweep. What
  is given are medians, of ratios to "before" those of pairs, with the range in brackets

`BayesianMLP`
: where the model is a feedforward network: the speed in multiples of that of the `BayesianMLP` of
  the same shape, which states what it is, in the same blocks. Its chain is another one

Set-up
: of a kernel, with the comparison of the engine with the model. What the fused engine compiles was
  compiled earlier; what is compiled of a model was not

"""

AGREEMENT = """## The same posterior

```sh
PYTHONPATH=tests python -m benchmarks.models --agreement
```

{chains} chains of `FNBG` and of Pyro's NUTS each, on the first rows of the data. What is
compared are means of what the model and the data identify: the expected responses of the first
{rows} rows (of classes, the probability of the first), the log likelihood, and scales, slopes and
levels where these mean something by themselves; never the weights of a network, whose nodes can be
exchanged. Differences are in units of their Monte Carlo standard errors, from ArviZ's effective
sample sizes of both samplers. Of {least} means and more in a row, some are beyond 2 by chance.

Versions
: {versions}

Length
: each sampler had about the seconds of the processor in the table, all chains together: as many
  sweeps of `FNBG` as fit, a third of them warmup; and as many steps of NUTS, of which the first
  {nuts_warmup} are warmup. Trajectories of NUTS have 63 steps at most, and its aim of acceptance is
  0.9; hierarchical weights it moves in multiples of their scales. Where a largest R-hat is above
  {most}, or a chain of NUTS has fewer than {least_draws} draws, nothing is compared

"""

LENET = """## A network on images

```sh
PYTHONPATH=tests python -m benchmarks.models.lenet --data FOLDER --seconds {seconds:.0f}
```

LeNet's shape on MNIST, priors N(0, 0.3²), nothing stated: {parameters:,} parameters in {blocks:,}
blocks, which are filters and nodes. `engine="auto"` took `"{engine}"`: {speed} sweeps a second, of
any of the {chains} chains, which start from fits (test accuracy {fit_accuracy}).

Target
: {target}

Time
: seconds of the processor, predictions not counted: {fit_seconds:.0f} s of fits,
  {setup_seconds:.0f} s of set-up, and sweeps, of which the first {warmup} of each chain are warmup

Scores
: of the 10,000 test images: of the probabilities averaged over the networks kept since the warmup,
  and of the last network of each chain

"""


def page(
    speeds: Sequence[Record], agreements: Sequence[Record], images: Sequence[Record] = ()
) -> str:
    """Write the page from all records."""
    sections = [INTRODUCTION.format(count=len(CASES))]
    if speeds := _in_order(speeds):
        sections.append(_speed_section(speeds))
    if agreements := _in_order(agreements):
        sections.append(_agreement_section(agreements))
    sections += map(_lenet_section, images)
    return "\n\n".join(sections) + "\n"


def _in_order(records: Sequence[Record]) -> list[Record]:
    names = list(CASES)
    return sorted(records, key=lambda record: names.index(record["name"]))


def _ratios(record: Record, who: str, to: str) -> list[float]:
    speeds = record["sweeps_a_second"]
    return [one / other for one, other in zip(speeds[who], speeds[to], strict=True)]


def _speed_section(records: Sequence[Record]) -> str:
    length = records[0]["length"]
    heading = SPEED.format(
        machines="; ".join(unique(record["machine"] for record in records)),
        versions="; ".join(unique(record["versions"] for record in records)),
        warmup=length["warmup"],
        turns=length["turns"],
        length=length["seconds"],
    )
    parts = [_speed_lines(records), [""], _verdicts(records), [""], _setup_lines(records)]
    return heading + "\n".join(chain.from_iterable(parts))


def _speed_lines(records: Sequence[Record]) -> Iterable[str]:
    yield line(["", "engine", "before", "after", "ratio", "compiled", "ratio", "of `BayesianMLP`"])
    yield line(["---", "---", *["---:"] * 6])
    for record in records:
        speeds = record["sweeps_a_second"]
        yield line(
            [
                record["name"],
                record["engine"],
                number(median(speeds["trace"])),
                *_speed_cells(record, "auto"),
                *_speed_cells(record, "compiled"),
                spread(_ratios(record, "auto", "network"), number) if "network" in speeds else "",
            ]
        )


def _setup_lines(records: Sequence[Record]) -> Iterable[str]:
    headings = ["", "parameters", "blocks", "rows", "set-up before", "set-up after"]
    yield line([*headings, "set-up compiled"])
    yield line(["---", *["---:"] * 6])
    for record in records:
        setup = record["setup_seconds"]
        yield line(
            [
                record["name"],
                *(f"{record[key]:,}" for key in ("parameters", "blocks", "rows")),
                *(seconds(setup[who]) if setup[who] else "" for who in setup),
            ]
        )


def _speed_cells(record: Record, who: str) -> Sequence[str]:
    speeds = record["sweeps_a_second"]
    if who not in speeds:
        return ["", ""]
    return [number(median(speeds[who])), spread(_ratios(record, who, "trace"), number)]


def _verdicts(records: Sequence[Record]) -> Iterable[str]:
    """Say what is reached of the aims, and what is not."""
    gains = {record["name"]: median(_ratios(record, "auto", "trace")) for record in records}
    slower = [name for name, gain in gains.items() if gain < 1]
    yield f"- Slower than before: {'; '.join(slower) or 'none'}"
    recognised = {
        record["name"]: median(_ratios(record, "auto", "network"))
        for record in records
        if record["engine"] == record["network_engine"]
    }
    if recognised:
        far = [name for name, ratio in recognised.items() if ratio < NEAR]
        yield (
            f"- Recognised as networks: {len(recognised)}, of which {len(recognised) - len(far)} "
            f"are within a tenth of `BayesianMLP`; not: {'; '.join(far) or 'none'}"
        )
    others = {name: gain for name, gain in gains.items() if name not in recognised}
    yield f"- Of the {len(others)} others, {_fast_enough(others)}"
    compiled = {
        record["name"]: median(_ratios(record, "compiled", "trace"))
        for record in records
        if "compiled" in record["sweeps_a_second"]
    }
    if compiled:
        yield f"- Of the {len(compiled)} compiled, {_fast_enough(compiled)}"


def _fast_enough(gains: Mapping[str, float]) -> str:
    short = [f"{name} ({number(gain)})" for name, gain in gains.items() if gain < AIM]
    return (
        f"{len(gains) - len(short)} are {AIM:g} times as fast as before or more; "
        f"not: {'; '.join(short) or 'none'}"
    )


def _agreement_section(records: Sequence[Record]) -> str:
    effort = records[0]["effort"]
    compared = [record for record in records if _is_compared(record)]
    heading = AGREEMENT.format(
        chains=effort["chains"],
        rows=ROWS,
        least=ROWS + 1,
        versions="; ".join(unique(record["versions"] for record in records)),
        nuts_warmup=effort["nuts_warmup"],
        least_draws=effort["least_nuts_draws"],
        most=MOST_R_HAT,
    )
    zs = [abs(each["z"]) for record in compared for each in record["quantities"].values()]
    verdict = f"Compared: {len(compared)} models of {len(records)}, {len(zs)} means."
    if zs:
        beyond = sum(z > 2 for z in zs)
        verdict += (
            f" {share(beyond / len(zs))} of the differences are beyond 2 standard errors, where "
            f"4.6 % are expected; the largest is {max(zs):.1f}."
        )
    return heading + "\n".join([*_agreement_lines(records), "", verdict])


def _is_compared(record: Record) -> bool:
    hats = record["fnbg"]["r_hat"], record["nuts"]["r_hat"]
    return "quantities" in record and max(hats) <= MOST_R_HAT


def _agreement_lines(records: Sequence[Record]) -> Iterable[str]:
    yield line(
        [
            "",
            "rows",
            "engine",
            "seconds",
            "sweeps a chain",
            "R-hat, FNBG",
            "draws of a NUTS chain",
            "R-hat, NUTS",
            "means",
            "beyond 2",
            "largest difference",
        ]
    )
    yield line(["---", "---:", "---", *["---:"] * 8])
    for record in records:
        fnbg, nuts = record["fnbg"], record["nuts"]
        cells = ["", "", "not compared"]
        if _is_compared(record):
            found = record["quantities"]
            sizes = {name: abs(each["z"]) for name, each in found.items()}
            worst = max(sizes, key=sizes.__getitem__)
            beyond = sum(size > 2 for size in sizes.values())
            cells = [str(len(sizes)), str(beyond), f"{sizes[worst]:.1f} ({worst})"]
        yield line(
            [
                record["name"],
                f"{record['rows']:,}",
                fnbg["engine"],
                f"{record['effort']['seconds']:,.0f}",
                f"{fnbg['sweeps']:,}",
                f"{fnbg['r_hat']:.2f}",
                f"{nuts['draws']:,}",
                "" if nuts["r_hat"] is None else f"{nuts['r_hat']:.2f}",
                *cells,
            ]
        )


def _lenet_section(record: Record) -> str:
    course = record["course"]
    heading = LENET.format(
        seconds=record["budget"],
        parameters=record["parameters"],
        blocks=record["blocks"],
        engine=record["engine"],
        speed=number(record["sweeps"] * record["chains"] / record["sampling_seconds"]),
        chains=record["chains"],
        fit_accuracy=_accuracy(record["fit"]),
        target=record["target"],
        fit_seconds=record["fit_seconds"],
        setup_seconds=record["setup_seconds"],
        warmup=record["warmup"],
    )
    heads = ["seconds", "sweeps a chain", "networks", "accuracy", "negative log likelihood"]
    lines = [line([*heads, "accuracy of the last"]), line(["---:"] * (len(heads) + 1))]
    lines += [
        line(
            [
                f"{each['seconds']:,.0f}",
                f"{each['sweeps']:,}",
                f"{each['networks']:,}" if each["networks"] else "warmup",
                _accuracy(each),
                f"{each['nll']:.4f}",
                _accuracy(each["last"]),
            ]
        )
        for each in course[(len(course) - 1) % SHOWN_EVERY :: SHOWN_EVERY]
    ]
    rates = ", ".join(f"{layer} {share(rate)}" for layer, rate in course[-1]["acceptance"].items())
    return heading + "\n".join([*lines, "", f"Acceptance by layer: {rates}."])


def _accuracy(scores: Record) -> str:
    return f"{100 * scores['accuracy']:.2f} %"
