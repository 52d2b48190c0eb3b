"""Score predictions of MNIST by chains of FNBG, and by Adam on the same network.

    PYTHONPATH=tests python -m benchmarks.mnist_scores --data FOLDER --seeds 1 2 3

FOLDER holds MNIST/raw and FashionMNIST/raw. The draws and fits of each seed are kept in the output
folder, and not made again under the same plan. Pictures and the scores, as JSON, go there too, and
the page is written from the scores. A seed takes about five minutes of one idle core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from benchmarks.mnist_fits import (
    NETWORK,
    AdamPlan,
    ChainPlan,
    Images,
    cached,
    fit_adam,
    read_images,
    run_chains,
)
from benchmarks.mnist_page import ADAM, ADAMS, CHAIN, CHAINS, COVERAGES, DRAW, TEMPERED, page
from pyro_fnbg import (
    ClassPrediction,
    fit_temperature,
    ood_auroc,
    plots,
    predict,
    risk_coverage,
    score_classes,
)

# Of the draws of a chain, this share is predicted from: its last
USED = 2 / 3
# After so many draws of a chain there are scores in between
LENGTHS = (1, 2, 5, 10, 20, 50, 100)
BINS = 10
PLANS = ChainPlan(), AdamPlan()
SMOKE_PLANS = (
    ChainPlan(held_out=20, num_chains=2, warmup=20, sweeps=6, thin=1, batch_size=30, parts=2),
    AdamPlan(held_out=20, num_fits=2, epochs=9, batch_size=20, learning_rates=(0.005, 0.02)),
)

# Whose curves are shown
POOLS = (CHAINS, CHAINS + TEMPERED, ADAMS)

Samples = Mapping[str, Tensor]


def main() -> None:
    """Score the seeds, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--output", type=Path, default=Path("bench-output/mnist-scores"))
    parser.add_argument("--page", type=Path, default=Path("docs/mnist-scores.md"))
    parser.add_argument("--smoke", action="store_true", help="a run of seconds; shows nothing")
    options = parser.parse_args()
    # Of one thread: seconds of the processor are then comparable
    torch.set_num_threads(1)
    chain_plan, adam_plan = SMOKE_PLANS if options.smoke else PLANS
    images = read_images(options.data, chain_plan.held_out)
    records = []
    for seed in options.seeds:
        chains = cached(
            options.output / f"chains-{seed}.pt",
            chain_plan,
            lambda seed=seed: run_chains(images, seed, chain_plan),
        )
        fits = cached(
            options.output / f"adam-{seed}.pt",
            adam_plan,
            lambda seed=seed: fit_adam(images, seed, adam_plan),
        )
        found = contestants(images, chains, fits)
        draw(found, images.y_test, options.output / f"curves-{seed}.png")
        about = {"seed": seed, "smoke": options.smoke}
        records.append(about | scored(images, chains, fits, found))
    (options.output / "scores.json").write_text(json.dumps(records, indent=1), "utf-8")
    options.page.write_text(page(records), "utf-8")


@dataclass(frozen=True)
class Predictions:
    """Hold what a contestant predicts of all three sets of rows."""

    held_out: ClassPrediction
    test: ClassPrediction
    elsewhere: ClassPrediction

    def with_temperature(self, temperature: float) -> Predictions:
        """Give all three a temperature."""
        parts = (self.held_out, self.test, self.elsewhere)
        return Predictions(*(part.with_temperature(temperature) for part in parts))


def contestants(
    images: Images, chains: Mapping[str, Any], fits: Mapping[str, Any]
) -> dict[str, list[Predictions]]:
    """Predict by everybody of one seed, first without and then with temperatures."""
    draws = {name: values[:, -num_used(chains) :] for name, values in chains["samples"].items()}
    by_chain = [
        {name: values[chain] for name, values in draws.items()}
        for chain in range(chains["plan"]["num_chains"])
    ]
    entries = {
        DRAW: [{name: values[-1:] for name, values in samples.items()} for samples in by_chain],
        CHAIN: by_chain,
        CHAINS: [pooled(chains)],
        ADAM: [
            {name: values[fit : fit + 1] for name, values in fits["samples"].items()}
            for fit in range(len(fits["chosen"]))
        ],
        ADAMS: [fits["samples"]],
    }
    found = {name: [predicted(images, one) for one in every] for name, every in entries.items()}
    for name in (CHAINS, ADAM, ADAMS):
        found[name + TEMPERED] = [
            one.with_temperature(fit_temperature(one.held_out, images.y_held_out))
            for one in found[name]
        ]
    return found


def num_used(chains: Mapping[str, Any]) -> int:
    """Count the draws of a chain that are predicted from."""
    return round(USED * chains["samples"]["layer1.bias"].shape[1])


def pooled(chains: Mapping[str, Any]) -> Samples:
    """Put the draws that are predicted from one chain after the other."""
    used = num_used(chains)
    return {name: values[:, -used:].flatten(0, 1) for name, values in chains["samples"].items()}


def predicted(images: Images, samples: Samples) -> Predictions:
    """Predict all rows; fits by Adam are given as if they were draws."""
    every = (images.x_held_out, images.x_test, images.x_elsewhere)
    return Predictions(*(predict(NETWORK, samples, x, progress=False) for x in every))


def scored(
    images: Images,
    chains: Mapping[str, Any],
    fits: Mapping[str, Any],
    found: Mapping[str, list[Predictions]],
) -> dict[str, Any]:
    """Score everybody of one seed."""
    num_chains, used = chains["plan"]["num_chains"], num_used(chains)
    course = predict(
        NETWORK,
        pooled(chains),
        images.x_test,
        images.y_test,
        num_chains=num_chains,
        lengths=[*(length for length in LENGTHS if length < used), used],
        progress=False,
    ).course
    curves = {name: found[name][0] for name in POOLS}
    return {
        "target": chains["target"],
        "plans": {"chains": chains["plan"], "adam": fits["plan"]},
        "used": used,
        "rows": {name: len(values) for name, values in vars(images).items()},
        "seconds": {
            DRAW: chains["seconds"] / num_chains,
            CHAIN: chains["seconds"] / num_chains,
            CHAINS: chains["seconds"],
            ADAM: fits["seconds"] / len(fits["chosen"]),
            ADAMS: fits["seconds"],
        },
        "chosen": fits["chosen"],
        "scores": {
            name: [scores_of(one, images.y_test) for one in every] for name, every in found.items()
        },
        "course": {
            "lengths": course.lengths,
            "by chain": {name: values.tolist() for name, values in course.by_chain.items()},
            "pooled": {name: values.tolist() for name, values in course.pooled.items()},
        },
        "reliability": {name: reliability(one.test, images.y_test) for name, one in curves.items()},
        "risk": {name: risks(one.test, images.y_test) for name, one in curves.items()},
    }


def scores_of(predictions: Predictions, y: Tensor) -> dict[str, float]:
    """Score one contestant; where it has no mutual information, there is no score of it."""
    test, elsewhere = predictions.test, predictions.elsewhere
    found = dict(score_classes(test, y))
    found["networks"] = test.num_draws
    found["confidence"] = float(test.confidence.double().mean())
    found["auroc_probability"] = ood_auroc(-test.confidence, -elsewhere.confidence)
    if test.num_draws > 1 and test.temperature == 1.0:
        found["auroc_information"] = ood_auroc(
            test.mutual_information, elsewhere.mutual_information
        )
    if test.temperature != 1.0:
        found["temperature"] = test.temperature
    return found


def draw(found: Mapping[str, list[Predictions]], y: Tensor, path: Path) -> None:
    """Draw reliability, and risk against coverage, of the pools."""
    figure, axes = plt.subplots(2, len(POOLS), figsize=(24, 9), layout="constrained")
    for name, (above, below) in zip(POOLS, axes.T, strict=True):
        probabilities = found[name][0].test.probabilities
        plots.plot_reliability(probabilities, y, BINS, ax=above).set_title(name)
        plots.plot_risk_coverage(probabilities, y, ax=below)
    figure.savefig(path)
    plt.close(figure)


def reliability(prediction: ClassPrediction, y: Tensor) -> dict[str, list[float]]:
    """Sum confidence and right predictions over the rows in bins of confidence."""
    bins = (prediction.confidence * BINS).long().clamp_max(BINS - 1)
    sums = {
        "rows": torch.ones(len(y), dtype=torch.float64),
        "confidence": prediction.confidence.double(),
        "right": (prediction.labels == y).double(),
    }
    return {name: bins.bincount(each, minlength=BINS).tolist() for name, each in sums.items()}


def risks(prediction: ClassPrediction, y: Tensor) -> dict[str, dict[str, Any]]:
    """Find the share of wrong labels among the most certain rows."""
    uncertainties = {"maximum probability": -prediction.confidence}
    if prediction.temperature == 1.0:
        uncertainties["mutual information"] = prediction.mutual_information
    found = {}
    for name, uncertainty in uncertainties.items():
        curve = risk_coverage(uncertainty, (prediction.labels != y).double())
        at = [max(1, round(coverage * len(y))) - 1 for coverage in COVERAGES]
        found[name] = {"risk": curve.risk[at].tolist(), "area": curve.area}
    return found


if __name__ == "__main__":
    main()
