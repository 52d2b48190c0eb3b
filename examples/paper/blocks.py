"""Draw the blocks of MLP(3,2,2,2) (Figure 2), and count those of all networks (Table 1).

Sections 3.4 and 3.5 of the paper count the blocks of MLP(3,2,2,2) and MLP(784,10,10,10,10) by
layer, by node and by parts of nodes; its code uses 78 parts of the first layer's nodes on images,
not 10.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes

from common import DEEP, IMAGES, SHALLOW, read_options, write_figure, write_table
from pyro_fnbg import FNBG, BayesianMLP, Layout, Partition

TOY = (3, 2, 2, 2)
WAYS = {
    "layer": {"blocks": "layer"},
    "node": {},
    "2 parts of nodes in layer 1": {"parts": {1: 2}},
    "10 parts of nodes in layer 1": {"parts": {1: 10}},
    "78 parts of nodes in layer 1": {"parts": {1: 78}},
}
# Networks of the paper, with the blocks that it speaks of
NETWORKS = {
    TOY: ("layer", "node", "2 parts of nodes in layer 1"),
    SHALLOW: ("node",),
    DEEP: ("node",),
    IMAGES: ("layer", "node", "10 parts of nodes in layer 1", "78 parts of nodes in layer 1"),
}
YELLOW, BLUE, PURPLE = "#F0E442", "#56B4E9", "#CC79A7"
NODE = "circle,pad=0.35"


def main() -> None:
    """Write the tables and the picture."""
    options = read_options(__doc__)
    rows = []
    for widths, ways in NETWORKS.items():
        for way in ways:
            partition, layout = blocks_of(widths, way)
            name = f"MLP({','.join(map(str, widths))})"
            for layer in range(1, len(widths)):
                sizes = [block.size for block in partition.blocks if block.layer == layer]
                counts = " + ".join(
                    f"{sizes.count(size)} x {size}" for size in sorted(set(sizes), reverse=True)
                )
                rows.append(
                    {
                        "network": name,
                        "blocks": way,
                        "layer": layer,
                        "blocks in layer": len(sizes),
                        "blocks x parameters": counts,
                        "parameters": sum(sizes),
                        "blocks in all": partition.num_blocks,
                    }
                )
    write_table(options, "blocks", rows)
    toy = []
    for way in NETWORKS[TOY]:
        partition, layout = blocks_of(TOY, way)
        toy += [
            {
                "blocks": way,
                "block": block.name,
                "parameters": " ".join(layout.coordinate_name(i) for i in block.index),
            }
            for block in partition.blocks
        ]
    write_table(options, "blocks_of_the_toy", toy)
    figure, panels = plt.subplots(2, 1, figsize=(11, 11), layout="constrained")
    for way, panel in zip(NETWORKS[TOY][1:], panels, strict=True):
        draw(*blocks_of(TOY, way), panel)
        panel.set_title(f"MLP(3,2,2,2), blocks: {way}", loc="left")
    write_figure(options, "blocks", figure)


def blocks_of(widths: tuple[int, ...], way: str) -> tuple[Partition, Layout]:
    """Return the partition that the sampler would use."""
    likelihood = "bernoulli" if widths[-1] == 1 else "categorical"
    model = BayesianMLP(widths, likelihood=likelihood)
    kernel = FNBG(model, **WAYS[way])
    x = torch.randn(20, widths[0])
    kernel.setup(0, x, torch.arange(20) % 2)
    return kernel.partition, kernel.problem.sites.layout


def draw(partition: Partition, layout: Layout, panel: Axes) -> None:
    """Draw the network as a graph, with the blocks of each node as its parents."""
    nodes = {(block.layer, block.node) for block in partition.blocks}
    widths = [TOY[0], *(sum(of == layer for of, _ in nodes) for layer in range(1, len(TOY)))]
    places = {
        (layer, node): (3.0 * layer, 2.6 * ((width + 1) / 2 - node))
        for layer, width in enumerate(widths)
        for node in range(1, width + 1)
    }
    end = 3.0 * len(widths), 0.0
    for (layer, node), place in places.items():
        last = layer == len(widths) - 1
        for (other, _), target in [*places.items(), ((len(widths), 1), end)]:
            if other == layer + 1:
                arrow(panel, place, target, "0.75", 16)
        name = f"$x_{node}$" if layer == 0 else f"${'f' if last else 'h'}_{{{layer},{node}}}$"
        colour = PURPLE if layer == 0 else "0.85" if last else BLUE
        boxed(panel, place, name, colour, NODE, 12)
    boxed(panel, end, "$y_i$", PURPLE, NODE, 12)
    for layer in range(1, len(widths)):
        for node in range(1, widths[layer] + 1):
            own = [b for b in partition.blocks if (b.layer, b.node) == (layer, node)]
            x, y = places[layer, node]
            side = 1.0 if y > 0 else -1.0
            for number, block in enumerate(own):
                at = x - 0.55 + 0.15 * number, y + side * (0.85 + 0.55 * (len(own) - 1 - number))
                arrow(panel, at, (x, y), "0.4", 8)
                numbers = ", ".join(symbol(layout.coordinate_name(i)) for i in block.index)
                boxed(panel, at, numbers, YELLOW, "round", 9)
    panel.set_xlim(-0.8, end[0] + 0.8)
    panel.set_ylim(-4.2, 4.2)
    panel.set_axis_off()


def arrow(
    panel: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, gap: float
) -> None:
    """Draw an arrow, which leaves a gap where it starts."""
    looks = {"arrowstyle": "-|>", "color": colour, "shrinkA": gap, "shrinkB": 16}
    panel.annotate("", end, start, zorder=1, arrowprops=looks)


def boxed(
    panel: Axes, place: tuple[float, float], text: str, colour: str, shape: str, size: float
) -> None:
    """Write a text in a box: a node, or the parameters of a block."""
    box = {"boxstyle": shape, "facecolor": colour, "edgecolor": "0.3"}
    panel.text(*place, text, ha="center", va="center", fontsize=size, zorder=3, bbox=box)


def symbol(coordinate: str) -> str:
    """Write "layer1.weight[0, 2]" as the paper does: w with layer, node and input from 1."""
    site, _, places = coordinate.rstrip("]").partition("[")
    layer, _, kind = site.removeprefix("layer").partition(".")
    numbers = ",".join(str(int(place) + 1) for place in places.split(","))
    return f"${kind[0]}_{{{layer},{numbers}}}$"


if __name__ == "__main__":
    main()
