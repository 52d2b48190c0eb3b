"""What chains have predicted by when, as a record and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from benchmarks.models.lenet import scores
from benchmarks.report import line, share, unique
from benchmarks.wide.chains import ChainRun

__all__ = ["page", "record_of"]

Record = Mapping[str, Any]

# Minutes that the tables show, as far as chains have come
SHOWN = (1, 2, 5, 10, 20, 30, 45, 60)

INTRODUCTION = """# A wide network from draws of the prior

How far do chains get that nobody has shown a gradient? MLP(784,100,10) on MNIST, N(0, {prior:g}²)
priors of all weights and biases, {blocks:,} blocks ({parts} parts to a hidden node), batches of
{batch:,} of 60,000 rows, {warmup:,} sweeps of warmup that tune the proposal scales, starts at draws
of the prior. All on this page comes from one command:

```sh
PYTHONPATH=tests python -m benchmarks.wide --data FOLDER
```

Machine
: {machine}; one thread a chain

Versions
: {versions}

Time
: minutes of the processor, of each chain, for sweeps with their noise and batches; predictions and
  set-up are not in it. Two chains on two cores take as many minutes as one. Other work ran beside
  them, so that a minute does not have as many sweeps everywhere

Scores
: of the 10,000 test images, by probabilities averaged over every fiftieth sweep of the second half
  of the time so far, pooled over the chains that have had so much time; those of single chains are
  means. The negative log likelihood is in nats a row. In the first minutes this half is of the
  warmup, and no sample of anything

Targets
: "batch-tempered" chains take each batch for all data; "full" ones count it N / n times, so that
  their proposals are judged by noisy likelihoods of all data

What it shows: without any gradient the network learns, within minutes, and then it stays where it
is. Batch-tempered chains are there after two to five minutes: they target the likelihood at a
temperature of N / n, and get no further however long they run. Chains at full scale come within
some thousandths of a nat of their last score in ten minutes. A fit by gradients takes seconds and
predicts better: where there are gradients, use them, for {{doc}}`warm-starts` or altogether. Chains
from the prior are for networks that have none."""

ADAM = """## Beside it, a gradient

AdamW on the same density (`warm_start`; batches of 256, {steps:,} steps, a straight-through
gradient for step activations): what a user would do who has gradients."""


def record_of(runs: Sequence[ChainRun], labels: Tensor) -> dict[str, Any]:
    """Score chains of one plan minute by minute, one by one and pooled: those that came so far."""
    course = []
    for minute in range(1, max(len(run.seconds) for run in runs) + 1):
        these = [run for run in runs if len(run.seconds) >= minute]
        halves = [
            torch.stack(run.predictions[minute // 2 : minute]).sum(0)
            / sum(run.draws[minute // 2 : minute])
            for run in these
        ]
        singles = [scores(half, labels) for half in halves]
        course.append(
            {
                "minute": minute,
                "sweeps": [run.sweeps[minute - 1] for run in these],
                "acceptance": [run.acceptance[minute - 1] for run in these],
                "single": {name: mean(one[name] for one in singles) for name in singles[0]},
                **scores(torch.stack(halves).mean(0), labels),
            }
        )
    return {**runs[0].plan, "target": runs[0].target, "course": course}


def page(records: Sequence[Record], fits: Sequence[Record]) -> str:
    """Write the page from the records of chains, and those of fits."""
    one = records[0]
    sections = [
        INTRODUCTION.format(
            prior=one["prior_scale"],
            blocks=100 * one["parts"] + 10,
            parts=one["parts"],
            batch=one["batch_size"],
            warmup=one["warmup"],
            machine="; ".join(unique(record["machine"] for record in records)),
            versions="; ".join(unique(record["versions"] for record in records)),
        )
    ]
    for record in records:
        sections += [
            f"## {record['activation'].capitalize()}, {record['likelihood_scale']} scale",
            f"{record['target'][0].upper()}{record['target'][1:]}.",
            "\n".join(_lines(record)),
        ]
    if fits:
        sections += [ADAM.format(steps=fits[0]["steps"]), "\n".join(_fit_lines(fits))]
    return "\n\n".join(sections) + "\n"


def _lines(record: Record) -> Iterable[str]:
    yield line(
        ["minutes", "chains", "sweeps", "accuracy, pooled", "NLL, pooled", "accuracy, one chain",
         "NLL, one chain", "acceptance by layer"]
    )  # fmt: skip
    yield line(["---:"] * 7 + ["---"])
    for at in record["course"]:
        if at["minute"] in SHOWN or at is record["course"][-1]:
            by_layer = [mean(rates) for rates in zip(*at["acceptance"], strict=True)]
            yield line(
                [
                    str(at["minute"]),
                    str(len(at["sweeps"])),
                    f"{mean(at['sweeps']):,.0f}",
                    f"{100 * at['accuracy']:.2f} %",
                    f"{at['nll']:.4f}",
                    f"{100 * at['single']['accuracy']:.2f} %",
                    f"{at['single']['nll']:.4f}",
                    ", ".join(map(share, by_layer)),
                ]
            )


def _fit_lines(fits: Sequence[Record]) -> Iterable[str]:
    yield line(["activation", "fits", "seconds", "accuracy, pooled", "NLL, pooled"])
    yield line(["---", *["---:"] * 4])
    for fit in fits:
        yield line(
            [
                fit["activation"],
                str(fit["fits"]),
                f"{fit['seconds']:.0f}",
                f"{100 * fit['accuracy']:.2f} %",
                f"{fit['nll']:.4f}",
            ]
        )
