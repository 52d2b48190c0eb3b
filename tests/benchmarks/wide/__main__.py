"""Follow chains of a wide network on MNIST from draws of the prior, and write the page.

    PYTHONPATH=tests python -m benchmarks.wide --data FOLDER

FOLDER holds MNIST/raw. Chains run one after the other on one thread, each for as many minutes of
the processor as asked; what there is of each is kept in the output folder after every minute, and a
later call goes on from there. With --minutes 0 what there is is scored.
"""

from __future__ import annotations

import argparse
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pyro
import torch

from benchmarks.models.records import keep
from benchmarks.report import read_records
from benchmarks.wide.chains import Plan, network, run_chain
from benchmarks.wide.page import page, record_of
from pyro_fnbg import mnist, predict, score_classes, warm_start
from pyro_fnbg.data.images import LabelledImages

ACTIVATIONS, SCALES = ("sigmoid", "step"), ("full", "batch")
FITS, STEPS = 2, 3_000


def main() -> None:
    """Run the chains that are asked for, score what there is, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--activations", nargs="+", choices=ACTIVATIONS, default=ACTIVATIONS)
    parser.add_argument("--scales", nargs="+", choices=SCALES, default=SCALES)
    parser.add_argument("--chains", nargs="+", type=int, default=[0, 1], metavar="CHAIN")
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--core", type=int, help="run on this core")
    parser.add_argument("--output", type=Path, default=Path("bench-output/wide"))
    parser.add_argument("--results", type=Path, default=Path("tests/benchmarks/results/wide"))
    parser.add_argument("--page", type=Path, default=Path("docs/wide-from-the-prior.md"))
    chosen = parser.parse_args()
    if chosen.core is not None:
        os.sched_setaffinity(0, {chosen.core})
    chosen.output.mkdir(parents=True, exist_ok=True)
    data = mnist(chosen.data)
    for scale in chosen.scales:
        for activation in chosen.activations:
            name = f"{activation}-{scale}"
            for chain in chosen.chains:
                path = chosen.output / f"{name}-{chain}.pickle"
                run_chain(Plan(activation, scale), chain, data, chosen.minutes, path)
            paths = sorted(chosen.output.glob(f"{name}-*.pickle"))
            # Files of this script's own
            runs = [pickle.loads(path.read_bytes()) for path in paths]
            if runs:
                keep(chosen.results / f"{name}.json", record_of(runs, data.y_test))
    for activation in chosen.activations:
        path = chosen.results / "fits" / f"{activation}.json"
        if not path.exists():
            keep(path, fits_of(activation, data))
    chosen.page.write_text(
        page(read_records(chosen.results), read_records(chosen.results / "fits")), "utf-8"
    )


def fits_of(activation: str, data: LabelledImages) -> dict[str, Any]:
    """Fit the network by its gradient, and score the fits together."""
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)
    model = network(Plan(activation, "full"))
    started = time.process_time()
    found = warm_start(
        model,
        data.x_train,
        data.y_train,
        num_chains=FITS,
        steps=STEPS,
        learning_rate=0.01,
        held_out=1 / 60,
        disable_progbar=True,
    )
    seconds = time.process_time() - started
    prediction: Any = predict(model, dict(found), data.x_test, progress=False)
    scores = score_classes(prediction, data.y_test)
    return {
        "activation": activation,
        "fits": FITS,
        "steps": STEPS,
        "seconds": seconds,
        "accuracy": scores["accuracy"],
        "nll": scores["nll"],
    }


if __name__ == "__main__":
    main()
