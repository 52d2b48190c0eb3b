"""Draw traces of four coordinates of the MNIST chain, near and wide (Figure 5).

One parameter from each layer of the chain in batches of 3,000: the whole run on an axis that all
share, and its last part on an axis of its own; with the paper's scales, and tuned.
"""

from __future__ import annotations

import numpy as np

from common import (
    WHICH_SETTINGS,
    Chains,
    image_chains,
    image_data,
    read_options,
    write_figure,
    write_table,
)
from pyro_fnbg.plots import plot_traces

# The paper's theta_i, counted from 0 as in its code
COORDINATES = {"layer 1": 1005, "layer 2": 7872, "layer 3": 8008, "output layer": 8107}


def main() -> None:
    """Draw the chains, and tabulate how far each coordinate went."""
    options = read_options(__doc__, **WHICH_SETTINGS)
    data = image_data(options, "MNIST")
    rows = []
    for settings in options.settings:
        chains = image_chains("MNIST", data, options, 0.05, settings)
        values = coordinates(chains)
        for (layer, number), trace in zip(COORDINATES.items(), values, strict=True):
            rows.append(
                {
                    "settings": settings,
                    "coordinate": f"theta_{number} ({layer})",
                    "standard deviation": trace.std(),
                    "range": np.ptp(trace),
                    "sd of the last tenth": trace[-max(2, len(trace) // 10) :].std(),
                    "mean step between stored draws": np.abs(np.diff(trace)).mean(),
                    "sweeps": chains.sweeps,
                    "seed": options.seed,
                }
            )
        titles = [f"theta_{number} ({layer})" for layer, number in COORDINATES.items()]
        panels = plot_traces(values, "value", titles=titles, every=10)
        write_figure(options, f"traces_{settings}", panels[0, 0].figure)
    write_table(options, "traces", rows, ("settings", "coordinate", "seed"))


def coordinates(chains: Chains) -> np.ndarray:
    """Return the draws of the coordinates, ``(coordinates, draws)``."""
    numbers = list(COORDINATES.values())
    found, first = {}, 0
    for site in chains.samples:
        draws = chains.samples.site(site)
        for number in numbers:
            if first <= number < first + draws.num_columns:
                place = number - first
                found[number] = draws.columns(place, place + 1)[0, :, 0]
        first += draws.num_columns
    return np.array([found[number] for number in numbers], dtype=np.float64)


if __name__ == "__main__":
    main()
