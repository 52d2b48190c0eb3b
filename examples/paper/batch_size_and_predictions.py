"""Compare batch sizes on MNIST and FashionMNIST (Table 2, and Tables 5 and 6 of Appendix C).

One chain of MLP(784,10,10,10,10) in 810 blocks for batches of 1, 3, 5 and 7 % of the images, with
the paper's proposal variances and tuned: accuracy of the mean prediction over the last 10,000
sweeps, and acceptance rates by layer. ``--all-images SWEEPS`` adds chains on all images at once,
exact ones.
"""

from __future__ import annotations

import argparse
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from common import (
    IMAGES,
    PREDICTING,
    SHARES,
    TUNING,
    WHICH_SETS,
    WHICH_SETTINGS,
    Chains,
    image_chains,
    image_data,
    image_kernel,
    read_options,
    sample,
    write_figure,
    write_table,
)
from pyro_fnbg import score_classes
from pyro_fnbg.data.images import LabelledImages
from pyro_fnbg.plots import plot_acceptance_by_layer


def main() -> None:
    """Run the chains, and write the table and the picture."""
    options = read_options(
        __doc__,
        shares={"type": float, "nargs": "+", "default": SHARES, "help": "of the images, a batch"},
        **WHICH_SETTINGS,
        **WHICH_SETS,
        all_images={"type": int, "default": 0, "metavar": "SWEEPS", "help": "exact chains too"},
    )
    rows: list[dict[str, Any]] = []
    for name in options.sets:
        data = image_data(options, name)
        found = {
            (settings, share): image_chains(name, data, options, share, settings)
            for settings in options.settings
            for share in options.shares
        }
        if options.all_images:
            found["tuned", 1.0] = sample(
                f"{name}-all-tuned",
                image_kernel(len(data.x_train), 1.0, "tuned"),
                data.x_train,
                data.y_train,
                options,
                burn_in=min(TUNING, options.all_images),
                sweeps=options.all_images,
            )
        rows += [
            row(name, settings, share, chains, data, options)
            for (settings, share), chains in found.items()
        ]
    keys = ("set", "settings", "batch size", "seed")
    draw(write_table(options, "batch_size_and_predictions", rows, keys), options)


def draw(table: pd.DataFrame, options: argparse.Namespace) -> None:
    """Draw accuracies by batch size, and acceptance rates by layer."""
    figure, panels = plt.subplots(1, 2, figsize=(17, 5), layout="constrained")
    for (name, settings), own in table.groupby(["set", "settings"], sort=False):
        sizes, accuracies = own["batch size"], own["accuracy (%)"]
        panels[0].plot(sizes, accuracies, marker="o", label=f"{name}, {settings}")
    panels[0].set_xlabel("batch size (images)")
    panels[0].set_ylabel("test accuracy (%)")
    panels[0].legend()
    columns = {f"acceptance layer{n} (%)": f"layer{n}" for n in range(1, len(IMAGES))}
    rates = (table[list(columns)] / 100).rename(columns=columns).to_dict("records")
    groups = (table["set"] + ", " + table["settings"]).tolist()
    plot_acceptance_by_layer(rates, groups=groups, ax=panels[1])
    write_figure(options, "batch_size_and_predictions", figure)


def row(
    name: str,
    settings: str,
    share: float,
    chains: Chains,
    data: LabelledImages,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Describe a chain."""
    prediction = chains.predict(0, data.x_test)
    scores = score_classes(prediction, data.y_test)
    report = chains.reports[0]
    found = {
        "set": name,
        "settings": settings,
        "batch size": round(share * len(data.x_train)),
        "accuracy (%)": 100 * scores["accuracy"],
        "negative log likelihood": scores["nll"],
        "sweeps": chains.sweeps,
        "predicting sweeps": min(PREDICTING, chains.sweeps - chains.burn_in),
    }
    found |= {f"acceptance {layer} (%)": rate for layer, rate in chains.mean_rates().items()}
    scales = report["proposal scale by block"]
    for layer in report["layers"]:
        own = [scale for block, scale in scales.items() if block.startswith(f"{layer}.")]
        found[f"scale {layer}"] = float(np.exp(np.log(own).mean()))
    reversed_ = report.get("share of decisions that another batch would reverse", {"all": 0.0})
    return found | {
        "reversed by another batch (%)": 100 * reversed_["all"],
        "seconds": chains.seconds,
        "seed": options.seed,
    }


if __name__ == "__main__":
    main()
