"""Look at the log likelihood of batches of many sizes on MNIST and FashionMNIST (Figure 6).

Ten batches of each size, from a twelfth of the images to all of them, at one draw from the prior,
as the paper's code has it, and at the last draw of the tuned chain in batches of 3,000; the line
is that of all images.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from common import (
    IMAGES,
    PRIOR_SCALE,
    WHICH_SETS,
    image_chains,
    image_data,
    read_options,
    write_figure,
    write_table,
)
from pyro_fnbg import BayesianMLP, log_likelihood
from pyro_fnbg.plots import plot_by_batch_size

SIZES, BATCHES = 12, 10


def main() -> None:
    """Evaluate the batches, and write the table and the picture."""
    options = read_options(__doc__, **WHICH_SETS)
    figure, panels = plt.subplots(2, 2, figsize=(15, 8), layout="constrained")
    rows = []
    for name, line in zip(options.sets, panels, strict=True):
        data = image_data(options, name)
        chains = image_chains(name, data, options, 0.05, "tuned")
        end = chains.last(0, sweeps=10)
        places = {"a draw from the prior": prior_draw(options.seed), "a late draw": end}
        for (place, draw), panel in zip(places.items(), line, strict=True):
            model = BayesianMLP(IMAGES, prior_scale=PRIOR_SCALE, likelihood="categorical")
            by_row = log_likelihood(model, draw, data.x_train, data.y_train, progress=False)[0]
            of_batches = means_of_batches(by_row.double(), options.seed)
            whole = float(by_row.double().mean())
            plot_by_batch_size(of_batches, "log likelihood per image", whole, ax=panel)
            panel.set_title(f"{name}, {place}")
            for size, means in of_batches.items():
                rows.append(
                    {
                        "set": name,
                        "at": place,
                        "batch size": size,
                        "batches": len(means),
                        "mean": means.mean(),
                        "standard deviation": means.std(ddof=1),
                        "all images": whole,
                        "expected standard deviation": float(by_row.double().std())
                        * ((1 - size / len(by_row)) / size) ** 0.5,
                        "sweeps of the chain": chains.sweeps,
                        "seed": options.seed,
                    }
                )
    write_table(options, "batch_size_and_likelihood", rows)
    write_figure(options, "batch_size_and_likelihood", figure)


def prior_draw(seed: int) -> dict[str, Tensor]:
    """Draw all parameters from the prior."""
    generator = torch.Generator().manual_seed(seed)
    shapes = BayesianMLP(IMAGES, likelihood="categorical").parameter_shapes
    return {
        name: PRIOR_SCALE * torch.randn(1, *shape, generator=generator)
        for name, shape in shapes.items()
    }


def means_of_batches(by_row: Tensor, seed: int) -> dict[int, np.ndarray]:
    """Average over random batches without replacement, by their size."""
    rng = np.random.default_rng(seed)
    values = by_row.numpy()
    return {
        size: np.array([rng.choice(values, size, replace=False).mean() for _ in range(BATCHES)])
        for size in (len(values) * k // SIZES for k in range(1, SIZES + 1))
    }


if __name__ == "__main__":
    main()
