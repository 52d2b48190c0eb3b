"""The page: what was run, tables at each budget, who is better, and what matters for chains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.images.plans import CONTEST
from benchmarks.report import line, number, share, unique

__all__ = ["page"]

Record = Mapping[str, Any]

NAMES = {"mnist": "MNIST", "fashion": "FashionMNIST"}
SCORES: Mapping[str, Callable[[float], str]] = {
    "accuracy": lambda value: f"{100 * value:.2f} %",
    "nll": lambda value: f"{value:.4f}",
    "calibration_error": lambda value: f"{value:.4f}",
}
ENSEMBLE, CHAINS = CONTEST
COUNTS = ("chains", "networks", "seconds")

INTRODUCTION = """# Images at equal time

Are chains that start from fits better than more fits? The same networks, priors and fits
(`warm_start`) for both, and as many seconds of the processor. The ensemble pools fits, which are
modes of the posterior or on the way to one; the chains spend a part of the time on sweeps of all
rows, from fewer fits, and pool draws. All on this page comes from one command, which keeps a record
of each row in `tests/benchmarks/results/images` and writes this page from them:

```sh
PYTHONPATH=tests python -m benchmarks.images --data FOLDER
```

with `--rows` for the rows of the last section, and `--budgets 120 360` for those that end there.

Machine
: {machines}. One thread a row; two rows ran side by side

Versions
: {versions}

Time
: seconds of the processor, set-up included, without compiling and without predictions: 120, 360
  and 1,200 are 1, 3 and 10 minutes of two cores. Networks come in rounds of {at_a_time}; a round
  that would not end in time is not begun

Target of the chains
: {target}

Scores
: of the 10,000 test rows, by probabilities averaged over all networks; means over seeds. The
  negative log likelihood is in nats a row, the calibration error is of 15 bins

Chains
: are far from converged, since a few sweeps do not lead far from a fit. Read them as an ensemble of
  draws near many fits. A round of chains takes longer than one of fits, so that more of a short
  budget is left over"""


def page(records: Sequence[Record]) -> str:
    """Write the page from all records."""
    contest = [record for record in records if record["method"] in CONTEST]
    chains = [record for record in records if record["method"] == CHAINS]
    sections = [
        INTRODUCTION.format(
            machines="; ".join(unique(record["machine"] for record in records)),
            versions="; ".join(unique(record["versions"] for record in records)),
            at_a_time=records[0]["plan"]["at_a_time"],
            target="; ".join(unique(record["last_round"]["target"] for record in chains)),
        ),
        "## Which is better",
    ]
    for network in unique(record["network"] for record in contest):
        plan = next(one["plan"] for one in contest if one["network"] == network)
        about = next((one["plan"] for one in chains if one["network"] == network), None)
        sections += [
            f"### {network}",
            _settings(plan, about),
            "\n".join(_contest_lines([one for one in contest if one["network"] == network])),
            "\n".join(_verdicts([one for one in contest if one["network"] == network])),
        ]
    if varied := _varied(records):
        sections += [
            "## What matters",
            "Each row changes the chains in what it says; those on batches also warm up ten times "
            "as long, and keep every tenth sweep. The first budget, the same seeds for all.",
            "\n".join(_variant_lines([one for one in records if one["network"] in varied])),
        ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _settings(plan: Mapping[str, Any], chains: Mapping[str, Any] | None) -> str:
    """Say what a network's fits and chains are."""
    words = (
        f"Fits of {plan['steps']:,} steps of 256 rows, at a learning rate of "
        f"{plan['learning_rate']:g} at most; priors N(0, {plan['prior_scale']:g}²)."
    )
    if chains is None:
        return words
    return (
        f"{words} Chains: {chains['warmup']} sweeps of warmup and {chains['draws']} draws each, "
        "blocks of nodes."
    )


def _contest_lines(records: Sequence[Record]) -> Iterable[str]:
    yield line(
        ["set", "budget", "", *_headings(), "chains or fits", "networks", "seconds", "seeds"]
    )
    yield line(["---", "---:", "---", *["---:"] * (len(SCORES) + 4)])
    for images in unique(record["images"] for record in records):
        for budget in _budgets(records):
            for method in CONTEST:
                found = _at(records, images, budget, method)
                if found:
                    yield line(
                        [
                            NAMES[images],
                            f"{budget:,.0f} s",
                            _name(records, method),
                            *_cells(found),
                            *(f"{mean(one[key] for one in found):,.0f}" for key in COUNTS),
                            str(len(found)),
                        ]
                    )


def _verdicts(records: Sequence[Record]) -> Iterable[str]:
    """Say who has the lower negative log likelihood, and by how much."""
    for images in unique(record["images"] for record in records):
        for budget in _budgets(records):
            pairs = [_at(records, images, budget, method) for method in (CHAINS, ENSEMBLE)]
            if not all(pairs):
                continue
            ours, theirs = (mean(one["nll"] for one in found) for found in pairs)
            who = "chains" if ours < theirs else "the ensemble"
            gap = number(abs(ours - theirs))
            yield f"- {NAMES[images]}, {budget:,.0f} s: {who} by {gap} nats a row"


def _variant_lines(records: Sequence[Record]) -> Iterable[str]:
    yield line(["set", "network", "", *_headings(), "chains", "networks", "acceptance by layer"])
    yield line(["---", "---", "---", *["---:"] * (len(SCORES) + 2), "---"])
    for images in unique(record["images"] for record in records):
        for network in _varied(records):
            of_both = [
                one for one in records if (one["images"], one["network"]) == (images, network)
            ]
            seeds = {one["seed"] for one in of_both if one["method"] not in CONTEST}
            own = [one for one in of_both if one["seed"] in seeds]
            for method in unique(one["method"] for one in own):
                found = _at(own, images, _budgets(own)[0], method)
                rates = [
                    one["last_round"].get("acceptance") for one in own if one["method"] == method
                ]
                yield line(
                    [
                        NAMES[images],
                        network,
                        _name(own, method),
                        *_cells(found),
                        *(f"{mean(one[key] for one in found):,.0f}" for key in COUNTS[:2]),
                        ", ".join(share(rate) for rate in rates[0] or []),
                    ]
                )


def _varied(records: Sequence[Record]) -> list[str]:
    """Name the networks that have rows beside the contest's."""
    return unique(one["network"] for one in records if one["method"] not in CONTEST)


def _headings() -> list[str]:
    return [name.replace("_", " ").replace("nll", "negative log likelihood") for name in SCORES]


def _budgets(records: Sequence[Record]) -> list[int]:
    return sorted({each["budget"] for record in records for each in record["at_budgets"]})


def _at(records: Sequence[Record], images: str, budget: int, method: str) -> list[Record]:
    """Find the scores of all seeds at a budget."""
    return [
        each
        for record in records
        if record["images"] == images and record["method"] == method
        for each in record["at_budgets"]
        if each["budget"] == budget
    ]


def _name(records: Sequence[Record], method: str) -> str:
    return str(next(one["plan"]["name"] for one in records if one["method"] == method))


def _cells(found: Sequence[Record]) -> Iterable[str]:
    return (show(mean(one[name] for one in found)) for name, show in SCORES.items())
