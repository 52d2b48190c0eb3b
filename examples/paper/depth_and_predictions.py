"""Compare a shallow and a deep network on noisy XOR (Figure 7), and draw the data (Figure 9).

Ten chains each of MLP(2,2,1) and MLP(2,2,2,2,2,2,2,1) in batches of 100, at the paper's proposal
variance of 0.04 and tuned; and the deep network with two outputs and softmax in place of one
sigmoid.
"""

from __future__ import annotations

import argparse

import matplotlib.pyplot as plt
import numpy as np

from common import (
    DEEP,
    SHALLOW,
    WHICH_SETTINGS,
    read_options,
    write_figure,
    write_table,
    xor_chains,
    xor_data,
)
from pyro_fnbg.data.xor import NoisyXOR
from pyro_fnbg.plots import plot_accuracy

NETWORKS = {
    "MLP(2,2,1)": (SHALLOW, "bernoulli"),
    "MLP(2,2,2,2,2,2,2,1)": (DEEP, "bernoulli"),
    "MLP(2,2,2,2,2,2,2,2), softmax": ((*DEEP[:-1], 2), "categorical"),
}


def main() -> None:
    """Run the chains, and write the table and the picture."""
    options = read_options(__doc__, **WHICH_SETTINGS)
    data = xor_data(options)
    boxes, rows = {}, []
    for settings in options.settings:
        for name, (widths, likelihood) in NETWORKS.items():
            chains = xor_chains(data, options, widths, settings, likelihood)
            accuracies = chains.accuracies(data.x_test, data.y_test)
            boxes[f"{settings}: {name}"] = accuracies
            low, median, high = 100 * np.quantile(accuracies, (0.25, 0.5, 0.75))
            rates = [rate for one in chains.rates("node") for rate in one.values()]
            rows.append(
                {
                    "settings": settings,
                    "network": name,
                    "chains": len(accuracies),
                    "sweeps": chains.sweeps,
                    "median accuracy (%)": median,
                    "first quartile": low,
                    "third quartile": high,
                    "least": 100 * accuracies.min(),
                    "largest": 100 * accuracies.max(),
                    "mean acceptance (%)": 100 * np.mean(rates),
                    "seconds": chains.seconds,
                    "seed": options.seed,
                }
            )
    write_table(options, "depth_and_predictions", rows)
    figure, panel = plt.subplots(figsize=(10, 4), layout="constrained")
    plot_accuracy(boxes, ax=panel)
    write_figure(options, "depth_and_predictions", figure)
    draw(data, options)


def draw(data: NoisyXOR, options: argparse.Namespace) -> None:
    """Draw the training and the test rows."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 5), layout="constrained")
    for part, x, y, panel in (
        ("training", data.x_train, data.y_train, panels[0]),
        ("test", data.x_test, data.y_test, panels[1]),
    ):
        for label, colour, marker in ((0, "#0072B2", "o"), (1, "#D55E00", "^")):
            own = x[y == label]
            panel.scatter(*own.T, s=4, color=colour, marker=marker, label=f"y = {label}")
        panel.set_title(f"{len(x):,} {part} rows")
        panel.set_xlabel("first input")
    panels[0].set_ylabel("second input")
    panels[0].legend(loc="center", markerscale=3)
    write_figure(options, "noisy_xor", figure)


if __name__ == "__main__":
    main()
