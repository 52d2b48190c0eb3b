"""Write the page of `mnist_scores`: what was run, its tables, and who is better in what."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from statistics import mean
from typing import Any, NamedTuple

from benchmarks.report import SMOKE_WARNING, line, number, share, unique

__all__ = ["ADAM", "ADAMS", "CHAIN", "CHAINS", "COVERAGES", "DRAW", "TEMPERED", "page"]

DRAW, CHAIN, CHAINS = "one draw", "one chain", "pooled chains"
ADAM, ADAMS = "one Adam", "pooled Adams"
TEMPERED = ", temperature fitted"
COVERAGES = (0.5, 0.8, 0.9, 0.95, 1.0)
PACKAGES = ("pyro-fnbg", "torch", "numpy", "numba", "pyro-ppl", "scikit-learn", "torchmetrics")

INTRODUCTION = """# Scores on MNIST
{warning}
How well do chains predict, compared with gradient training of the same network? Everything on this
page comes from one command, which keeps its draws, fits and scores in `bench-output/mnist-scores`
and writes this page:

```sh
PYTHONPATH=tests python -m benchmarks.mnist_scores --data FOLDER --seeds {seeds}
```

Machine
: {cores} cores, {machine}; one thread. Seconds are those of the processor, not of the clock, so
  that other work on the machine counts for little

Versions
: Python {python}, {versions}

Network
: 784-10-10-10-10, sigmoid, 8,180 parameters; for the chains Normal priors of variance 10

Rows
: {rows_train:,} of MNIST's training rows to learn from and {rows_held_out:,} held out, which choose
  step size and epoch of Adam and fit the temperatures; they are drawn once, and are the same for
  everybody and in all seeds. Scores are of the {rows_test:,} test rows

From elsewhere
: the {rows_elsewhere:,} test images of FashionMNIST, standardised by the mean and the standard
  deviation of the pixels of MNIST's training images

Chains
: {num_chains} a seed, of {warmup:,} sweeps of warmup and {sweeps:,} more, of which every
  {thin}th is kept; predictions are from the last {used:,} draws of each. Batches of
  {chain_batch:,} rows, blocks of nodes, in the first layer each in {parts} parts, tuned proposals.
  One draw is the last of its chain

Target of the chains
: {target}

Adam
: {num_fits} fits a seed, from the starts of `torch.nn.Linear`, to maximum likelihood without a
  prior, in batches of {adam_batch}. Each is the best of step sizes {rates} and of {epochs} epochs
  by held-out log likelihood, and its seconds have all of them. Chosen were
  {chosen}; where that is near the last, longer fits would do better still.
  Pooled Adams average the probabilities of the {num_fits} fits

## Scores

Means over all draws, chains, fits and pools of the {num_seeds} seeds, and in brackets the least and
the largest. The negative log likelihood is in nats a row. The Brier score is summed over classes (0
to 2), the calibration error is of 15 bins."""

ELSEWHERE = """AUROC is the probability that a row of FashionMNIST is more uncertain than a test row
of MNIST, by mutual information and by maximum probability. Mutual information needs more than one
network, and no network has the temperature of their average. Seconds are of the processor for one
draw, chain, fit or pool, set-up and warmup included, predictions and temperatures not."""

WINNERS = """Who wins a score has the better mean in every seed. Seconds are those of the table
above. Pooled Adams are what is called a deep ensemble (Lakshminarayanan and others, 2017, "Simple
and scalable predictive uncertainty estimation using deep ensembles")."""

TEMPERING = """Batches temper what the chains target (see {{doc}}`minibatches`), so the chains are
expected to be under-confident, less sure than they are right: one chain is {chain_right} right at a
mean confidence of {chain_sure}, pooled chains are {chains_right} right at {chains_sure}. Tempering
is not all of it. An average is never surer than its members are on average, so averaging lowers
confidence whatever is averaged: one Adam is {adam_right} right at {adam_sure}, pooled Adams are
{adams_right} right at {adams_sure}.

A temperature is nothing that a prediction has unless you ask for it: `fit_temperature` finds it on
held-out rows, and `with_temperature` applies it. It changes no label, so neither does it change the
accuracy. It repairs the probabilities on average; the draws stay those of the tempered target."""


class Score(NamedTuple):
    """Say how a score is shown.

    Attributes:
        heading: Heading of its column.
        show: From the number to text.
        sign: 1 where more is better, -1 where less is, 0 where neither is.
    """

    heading: str
    show: Callable[[float], str]
    sign: int


SCORES = {
    "accuracy": Score("accuracy", lambda value: f"{100 * value:.2f} %", 1),
    "nll": Score("negative log likelihood", number, -1),
    "brier_score": Score("Brier score", number, -1),
    "calibration_error": Score("calibration error", lambda value: f"{value:.4f}", -1),
    "confidence": Score("mean confidence", lambda value: f"{100 * value:.2f} %", 0),
    "auroc_information": Score("AUROC by mutual information", lambda value: f"{value:.3f}", 1),
    "auroc_probability": Score("AUROC by maximum probability", lambda value: f"{value:.3f}", 1),
    "temperature": Score("temperature", number, 0),
    "networks": Score("networks averaged", lambda value: f"{value:,.0f}", 0),
}
PAIRS = (
    (CHAIN, ADAM),
    (CHAINS, ADAM),
    (CHAINS, ADAMS),
    (CHAINS + TEMPERED, ADAM + TEMPERED),
    (CHAINS + TEMPERED, ADAMS + TEMPERED),
)
# What the course has, by its name there, and the sign that turns it into the score
COURSE = {"accuracy": ("accuracy", 1), "nll": ("lppd", -1)}
OF_ELSEWHERE = ("auroc_information", "auroc_probability", "networks")
OF_TEST_ROWS = tuple(key for key in SCORES if key not in OF_ELSEWHERE)


def page(records: Sequence[Mapping[str, Any]]) -> str:
    """Write the page from the scores of all seeds."""
    sections = [
        introduction(records),
        "\n".join(score_lines(records, OF_TEST_ROWS, False)),
        tempering(records),
        "## Rows from elsewhere, and what it all costs",
        ELSEWHERE,
        "\n".join(score_lines(records, OF_ELSEWHERE, True)),
        "## Where gradient training wins",
        WINNERS,
        "\n".join(verdict(records, *pair) for pair in PAIRS),
        "## How many draws and chains it takes",
        "Scores of the first draws of those predicted from: of each chain alone, over all chains "
        "and seeds, and of so many draws of each of the first chains pooled. Warmup and dropped "
        "draws have gone before the first. Where the last line still differs from the one above "
        "it, more draws or longer chains would predict otherwise.",
        "\n".join(course_lines(records)),
        "## Reliability",
        "Test rows of all seeds by the confidence of their prediction: how many, and how many of "
        "them were right. Where more are right than the confidence says, the prediction is "
        "under-confident. Pictures of each seed are beside the scores in `bench-output`.",
        "\n".join(reliability_lines(records)),
        "## Risk and coverage",
        "Share of wrong labels if only so many test rows are predicted, the most certain ones; "
        "means over the seeds. The area is the mean over all coverages.",
        "\n".join(risk_lines(records)),
    ]
    return "\n\n".join(sections) + "\n"


def introduction(records: Sequence[Mapping[str, Any]]) -> str:
    """Say what was run, and how."""
    first = records[0]
    chains, adam, rows = first["plans"]["chains"], first["plans"]["adam"], first["rows"]
    rates, epochs = zip(*(one for record in records for one in record["chosen"]), strict=True)
    counts = [f"{rate:g} in {rates.count(rate)}" for rate in sorted(set(rates))]
    return INTRODUCTION.format(
        warning=SMOKE_WARNING if first["smoke"] else "",
        seeds=" ".join(str(record["seed"]) for record in records),
        cores=os.cpu_count(),
        machine=f"{platform.system()}, {platform.machine()}",
        python=platform.python_version(),
        versions=", ".join(f"{name} {version(name)}" for name in PACKAGES),
        rows_train=rows["x_train"],
        rows_held_out=rows["x_held_out"],
        rows_test=rows["x_test"],
        rows_elsewhere=rows["x_elsewhere"],
        num_chains=chains["num_chains"],
        warmup=chains["warmup"],
        sweeps=chains["sweeps"],
        thin=chains["thin"],
        used=first["used"],
        chain_batch=chains["batch_size"],
        parts=chains["parts"],
        target=first["target"],
        num_fits=adam["num_fits"],
        adam_batch=adam["batch_size"],
        rates=", ".join(f"{rate:g}" for rate in adam["learning_rates"]),
        epochs=adam["epochs"],
        chosen=f"{', '.join(counts)} fits; epochs {min(epochs)} to {max(epochs)}",
        num_seeds=len(records),
    )


def tempering(records: Sequence[Mapping[str, Any]]) -> str:
    """Say how right and how sure everybody is, and what a temperature does."""
    words = {}
    for key, name in (("chain", CHAIN), ("chains", CHAINS), ("adam", ADAM), ("adams", ADAMS)):
        scores = mean_of(records, name)
        words[f"{key}_right"] = SCORES["accuracy"].show(scores["accuracy"])
        words[f"{key}_sure"] = SCORES["confidence"].show(scores["confidence"])
    return TEMPERING.format(**words)


def score_lines(
    records: Sequence[Mapping[str, Any]], keys: Sequence[str], with_seconds: bool
) -> Iterable[str]:
    """Tabulate some scores of everybody."""
    seconds = ["seconds"] if with_seconds else []
    yield line(["", *(SCORES[key].heading for key in keys), *seconds])
    yield line(["---", *["---:"] * len([*keys, *seconds])])
    for name in unique(name for record in records for name in record["scores"]):
        every = [scores for record in records for scores in record["scores"][name]]
        cells = [
            spread([scores[key] for scores in every if key in scores], SCORES[key].show)
            for key in keys
        ]
        if with_seconds:
            of_name = [record["seconds"][name.removesuffix(TEMPERED)] for record in records]
            cells.append(f"{mean(of_name):.0f}")
        yield line([name, *cells])


def spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Show the mean and the range."""
    if not values:
        return ""
    middle, low, high = show(mean(values)), show(min(values)), show(max(values))
    return middle if low == high else f"{middle} ({low} to {high})"


def mean_of(records: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """Average a contestant's scores, over its members of a seed and then over the seeds."""
    by_seed = [record["scores"][name] for record in records]
    return {key: mean(scores[key] for each in by_seed for scores in each) for key in by_seed[0][0]}


def verdict(records: Sequence[Mapping[str, Any]], chains: str, adam: str) -> str:
    """Say in words who has the better scores, and where the seeds do not agree."""
    verbs = "the chains win in", "Adam wins in", "the seeds disagree on"
    found: dict[str, list[str]] = {verb: [] for verb in verbs}
    for key, score in SCORES.items():
        by_seed = [(mean_of([record], chains), mean_of([record], adam)) for record in records]
        if score.sign == 0 or not all(key in one for both in by_seed for one in both):
            continue
        are_better = {score.sign * (ours[key] - theirs[key]) > 0 for ours, theirs in by_seed}
        place = 2 if len(are_better) > 1 else 0 if True in are_better else 1
        found[verbs[place]].append(score.heading)
    cost = {
        name: mean(record["seconds"][name.removesuffix(TEMPERED)] for record in records)
        for name in (chains, adam)
    }
    words = "; ".join(f"{verb} {', '.join(names)}" for verb, names in found.items() if names)
    return f"- {chains} ({cost[chains]:.0f} s) against {adam} ({cost[adam]:.0f} s): {words}"


def course_lines(records: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Tabulate accuracy and negative log likelihood by how many draws and chains they are of."""
    courses = [record["course"] for record in records]
    num_chains = len(courses[0]["pooled"]["accuracy"])
    chains = sorted({1, min(2, num_chains), num_chains})
    headings = [f"{SCORES[key].heading}, {count} pooled" for key in COURSE for count in chains]
    yield line(["draws of a chain", *(name.replace("1 pooled", "one chain") for name in headings)])
    yield line(["---:"] * (1 + len(headings)))
    for place, length in enumerate(courses[0]["lengths"]):
        cells = []
        for key, (name, sign) in COURSE.items():
            for count in chains:
                lines = [
                    each
                    for course in courses
                    for each in (
                        course["by chain"][name]
                        if count == 1
                        else course["pooled"][name][count - 1 : count]
                    )
                ]
                cells.append(spread([sign * each[place] for each in lines], SCORES[key].show))
        yield line([f"{length:,}", *cells])


def reliability_lines(records: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Tabulate how many rows are right in each bin of confidence."""
    names = list(records[0]["reliability"])
    yield line(["confidence", *(f"{name}: rows, confidence, right" for name in names)])
    yield line(["---", *["---:"] * len(names)])
    sums = {
        (name, key): [sum(bins) for bins in zip(*found, strict=True)]
        for name in names
        for key in ("rows", "confidence", "right")
        if (found := [record["reliability"][name][key] for record in records])
    }
    num_bins = len(sums[names[0], "rows"])
    for place in range(num_bins):
        cells = []
        for name in names:
            rows, sure, right = (sums[name, key][place] for key in ("rows", "confidence", "right"))
            cells.append(
                f"{rows:,.0f}, {share(sure / rows)}, {share(right / rows)}" if rows else ""
            )
        if any(cells):
            yield line([f"{place / num_bins:g} to {(place + 1) / num_bins:g}", *cells])


def risk_lines(records: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Tabulate the share of wrong labels by coverage."""
    yield line(
        ["", "certain by", *(f"{100 * coverage:g} % predicted" for coverage in COVERAGES), "area"]
    )
    yield line(["---", "---", *["---:"] * (len(COVERAGES) + 1)])
    for name, of_name in records[0]["risk"].items():
        for uncertainty in of_name:
            found = [record["risk"][name][uncertainty] for record in records]
            risks = [mean(risk) for risk in zip(*(one["risk"] for one in found), strict=True)]
            area = mean(one["area"] for one in found)
            shown = [f"{100 * risk:.2f} %" for risk in risks]
            yield line([name, uncertainty, *shown, f"{area:.4f}"])
