"""Show images that the chains are sure and unsure of (Figure 8).

Of the test images that the chains in batches of 3,000 classify rightly: two whose highest
probability is among the largest, and two whose is among the least, with the two highest
probabilities of each.
"""

from __future__ import annotations

import torch

from common import WHICH_SETS, image_chains, image_data, read_options, write_figure, write_table
from pyro_fnbg.plots import plot_images

CLOTHES = "T-shirt trouser pullover dress coat sandal shirt sneaker bag boot"
NAMES = {"MNIST": tuple("0123456789"), "FashionMNIST": tuple(CLOTHES.split())}


def main() -> None:
    """Predict the test images, and write the table and the pictures."""
    options = read_options(__doc__, **WHICH_SETS)
    rows = []
    for name in options.sets:
        data = image_data(options, name)
        chains = image_chains(name, data, options, 0.05, "tuned")
        prediction = chains.predict(0, data.x_test)
        is_right = (prediction.labels == data.y_test).nonzero().flatten()
        # From the surest to the least sure: one in a thousand from either end, of unlike classes
        order = is_right[prediction.confidence[is_right].argsort(descending=True)]
        step = max(1, len(order) // 1000)
        shown = torch.cat(
            [unlike(order[::step], data.y_test), unlike(order.flip(0)[::step], data.y_test)]
        )
        classes, shares = prediction.top(2)
        for image in shown.tolist():
            rows.append(
                {
                    "set": name,
                    "test image": image,
                    "label": NAMES[name][data.y_test[image]],
                    "first": NAMES[name][classes[image, 0]],
                    "probability": float(shares[image, 0]),
                    "second": NAMES[name][classes[image, 1]],
                    "probability of it": float(shares[image, 1]),
                    "mutual information": float(prediction.mutual_information[image]),
                    "sweeps of the chain": chains.sweeps,
                    "seed": options.seed,
                }
            )
        panels = plot_images(
            data.x_test[shown].reshape(-1, 28, 28),
            prediction.probabilities[shown],
            data.y_test[shown],
            top=2,
            class_names=NAMES[name],
        )
        write_figure(options, f"uncertainty_{name}", panels[0].figure)
    write_table(options, "uncertainty", rows)


def unlike(order: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the first image, and the first after it of another class."""
    others = order[labels[order] != labels[order[0]]]
    return torch.cat([order[:1], others[:1]])


if __name__ == "__main__":
    main()
