"""Look at chain length and predictions on MNIST and FashionMNIST (Table 3).

Accuracy of the mean prediction over the last 1,000, 10,000, 20,000 and 30,000 sweeps of the
chains in batches of 3,000, with the paper's proposal variances and tuned. Lengths that a chain
has not got are left out.
"""

from __future__ import annotations

import matplotlib.pyplot as plt

from common import (
    WHICH_SETS,
    WHICH_SETTINGS,
    image_chains,
    image_data,
    read_options,
    write_figure,
    write_table,
)
from pyro_fnbg import score_classes

LENGTHS = (1_000, 10_000, 20_000, 30_000)


def main() -> None:
    """Predict from the chains, and write the table and the picture."""
    options = read_options(__doc__, **WHICH_SETTINGS, **WHICH_SETS)
    rows = []
    figure, panel = plt.subplots(figsize=(9, 4.5), layout="constrained")
    for name in options.sets:
        data = image_data(options, name)
        for settings in options.settings:
            chains = image_chains(name, data, options, 0.05, settings)
            has = chains.sweeps - chains.burn_in
            # Shorter ones show where a short chain is on its way
            lengths = [n for n in (10, 100, 300, *LENGTHS) if n <= has]
            own = []
            for length in lengths:
                scores = score_classes(chains.predict(0, data.x_test, length), data.y_test)
                own.append(100 * scores["accuracy"])
                rows.append(
                    {
                        "set": name,
                        "settings": settings,
                        "last sweeps": length,
                        "accuracy (%)": own[-1],
                        "negative log likelihood": scores["nll"],
                        "sweeps of the chain": chains.sweeps,
                        "seconds": chains.seconds,
                        "seed": options.seed,
                    }
                )
            panel.plot(lengths, own, marker="o", label=f"{name}, {settings}")
    keys = ("set", "settings", "last sweeps", "seed")
    write_table(options, "chain_length_and_predictions", rows, keys)
    panel.set_xscale("log")
    panel.set_xlabel("predicted from the last so many sweeps (one in ten of them)")
    panel.set_ylabel("test accuracy (%)")
    panel.legend()
    write_figure(options, "chain_length_and_predictions", figure)


if __name__ == "__main__":
    main()
