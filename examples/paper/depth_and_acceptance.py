"""Look at depth and acceptance on noisy XOR (Figure 4), and at the paper's pilot tuning.

Mean acceptance rates of every node and layer over the ten chains of ``exact_and_approximate.py``;
the same for wider first layers and for other blocks; and what pilot runs make of one high scale
for all blocks, on noisy XOR and, where there are images, on MNIST.
"""

from __future__ import annotations

import argparse
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from common import (
    DEEP,
    PRIOR_SCALE,
    WHICH_SETTINGS,
    fixed,
    image_data,
    image_kernel,
    pilot_scales,
    read_options,
    sample,
    write_figure,
    write_table,
    xor_chains,
    xor_data,
    xor_model,
)
from pyro_fnbg import FNBG
from pyro_fnbg.data.xor import NoisyXOR
from pyro_fnbg.plots import plot_acceptance_by_layer, plot_acceptance_by_node

# Standard deviations for all blocks of the network for images
COMMON_SCALES = (1.0, 10**-0.5, 0.1, 0.01)
# Widths of the first layer, of a network of three
FIRST_LAYERS = (2, 8, 32)
# Blocks of the deep network, as arguments of FNBG
BLOCKS: dict[str, dict[str, Any]] = {
    "all of a layer": {"blocks": "layer"},
    "node": {},
    "single parameters": {"max_block_size": 1},
}


def main() -> None:
    """Run the chains and the pilots, and write tables and pictures."""
    options = read_options(
        __doc__,
        pilot={"type": int, "help": "sweeps of a pilot (5000; on images 500)"},
        **WHICH_SETTINGS,
    )
    data = xor_data(options)
    by_depth(data, options)
    by_width_and_blocks(data, options)
    pilots(data, options)


def by_depth(data: NoisyXOR, options: argparse.Namespace) -> None:
    """Tabulate and draw acceptance rates by node and layer."""
    chains = {
        settings: xor_chains(data, options, settings=settings) for settings in options.settings
    }
    rows = [
        {
            "settings": settings,
            "of": name,
            "mean acceptance (%)": rate,
            "sweeps": one.sweeps,
            "seed": options.seed,
        }
        for settings, one in chains.items()
        for by in ("layer", "node")
        for name, rate in one.mean_rates(by).items()
    ]
    write_table(options, "depth_and_acceptance", rows)
    figure, (left, right) = plt.subplots(1, 2, figsize=(16, 6), layout="constrained")
    groups = [settings for settings, one in chains.items() for _ in one.reports]
    for plot, by, ax in (
        (plot_acceptance_by_node, "node", left),
        (plot_acceptance_by_layer, "layer", right),
    ):
        plot([rate for one in chains.values() for rate in one.rates(by)], groups=groups, ax=ax)
    write_figure(options, "depth_and_acceptance", figure)


def by_width_and_blocks(data: NoisyXOR, options: argparse.Namespace) -> None:
    """Tabulate what a wider first layer and smaller blocks do, at one scale for all."""
    nets = {f"first layer of {width}": ((2, width, 2, 1), {}) for width in FIRST_LAYERS}
    nets |= {f"blocks: {name}": (DEEP, how) for name, how in BLOCKS.items()}
    rows = []
    for name, (widths, how) in nets.items():
        kernel = FNBG(
            xor_model(widths), batch_size=100, likelihood_scale="batch", **fixed("paper"), **how
        )
        store = f"xor-{name.replace(' ', '-').replace(':', '')}"
        chains = sample(store, kernel, data.x_train, data.y_train, options, chains=10)
        accuracies = 100 * chains.accuracies(data.x_test, data.y_test)
        found = {f"{layer} (%)": rate for layer, rate in chains.mean_rates().items()}
        rows.append(
            {
                "network": "-".join(map(str, widths)),
                "what": name,
                "sweeps": chains.sweeps,
                "median accuracy (%)": float(np.median(accuracies)),
                "seed": options.seed,
            }
            | found
        )
    write_table(options, "width_blocks_and_acceptance", rows)


def pilots(data: NoisyXOR, options: argparse.Namespace) -> None:
    """Tune as the paper does, from one high scale everywhere."""

    def on_xor(scales: dict[str, float]) -> FNBG:
        return FNBG(
            xor_model(),
            batch_size=100,
            likelihood_scale="batch",
            proposal_scale=scales,
            adapt=False,
        )

    long = options.pilot or (40 if options.quick else 5000)
    _, table = pilot_scales(
        on_xor, data.x_train, data.y_train, len(DEEP) - 1, PRIOR_SCALE, long, options.seed
    )
    write_table(options, "pilots_xor", table)
    if options.data is None and not options.quick:
        return
    images = image_data(options, "MNIST")

    def on_images(scales: dict[str, float]) -> FNBG:
        return image_kernel(len(images.x_train), 0.05, "paper", proposal_scale=scales)

    long = options.pilot or (20 if options.quick else 500)
    about = images.x_train, images.y_train, 4
    _, table = pilot_scales(on_images, *about, PRIOR_SCALE, long, options.seed)
    write_table(options, "pilots_mnist", table)
    # A rate below nothing does not vanish: one pilot a scale
    single = [
        pilot_scales(on_images, *about, scale, long, options.seed, lowest=0.0)[1]
        for scale in COMMON_SCALES
    ]
    write_table(options, "common_scales_mnist", pd.concat(single))


if __name__ == "__main__":
    main()
