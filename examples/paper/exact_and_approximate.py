"""Compare exact and approximate blocked Gibbs sampling on noisy XOR (Figure 3).

Ten chains of MLP(2,2,2,2,2,2,2,1) in batches of 100 at a proposal variance of 0.04, and ten on
all 5,000 rows at 0.001: without a floor, with every block's acceptance rate at 5 % or more, and
at 20 % or more, over all sweeps, burn-in included. Chains below a floor are discarded until there
are ten. The three exact scenarios pick from the same chains, in their order. Beside the paper's
scales, the same with tuned ones.
"""

from __future__ import annotations

import argparse
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from common import (
    WHICH_SETTINGS,
    Chains,
    Rates,
    fixed,
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
from pyro_fnbg.plots import plot_acceptance_by_node, plot_accuracy
from pyro_fnbg.stores.runs import StoredRun

# Chains of a scenario, and floors of the exact ones
WANTED, FLOORS = 10, (0.0, 0.05, 0.2)


def main() -> None:
    """Run the chains, and write the table and the picture."""
    options = read_options(
        __doc__,
        pools={"type": int, "default": 3, "help": "at most so many times ten exact chains (3)"},
        **WHICH_SETTINGS,
    )
    data = xor_data(options)
    rows: list[dict[str, Any]] = []
    rates: list[Rates] = []
    groups: list[str] = []
    boxes: dict[str, NDArray[np.float64]] = {}
    for settings in options.settings:
        found = [("approximate, batch 100", [xor_chains(data, options, settings=settings)], 0.0)]
        pools = exact_pools(data, options, settings)
        found += [
            (f"exact{f', floor {100 * floor:g} %' if floor else ''}", pools, floor)
            for floor in FLOORS
        ]
        for scenario, chains, floor in found:
            kept, tried = retained(options, chains, floor)
            by_node = [one for pool in chains for one in pool.rates("node")]
            if floor == 0:
                rates += [by_node[chain] for chain in kept]
                groups += [f"{settings}: {scenario}"] * len(kept)
            accuracies = np.concatenate([p.accuracies(data.x_test, data.y_test) for p in chains])
            boxes[f"{settings}: {scenario}"] = accuracies[np.array(kept, dtype=int)]
            seconds = sum(one.seconds for one in chains) / (WANTED * len(chains))
            about = {"settings": settings, "scenario": scenario, "chains kept": len(kept)}
            about |= {"chains run": tried, "sweeps": chains[0].sweeps, "seed": options.seed}
            about |= {"seconds of chains kept": seconds * len(kept)}
            about |= {"of chains discarded": seconds * (tried - len(kept))}
            if kept:
                about |= summary(accuracies[kept], [by_node[chain] for chain in kept])
            rows.append(about)
    write_table(options, "exact_and_approximate", rows, ("settings", "scenario", "seed"))
    draw(options, rows, rates, groups, boxes)


def summary(accuracies: NDArray[np.float64], by_node: list[Rates]) -> dict[str, float]:
    """Tabulate the accuracies and acceptance rates of chains, in per cent."""
    rates = 100 * np.array([list(rates.values()) for rates in by_node])
    return {
        "median accuracy (%)": 100 * float(np.median(accuracies)),
        "least": 100 * float(accuracies.min()),
        "largest": 100 * float(accuracies.max()),
        "median acceptance, node 1 (%)": float(np.median(rates[:, 0])),
        "node 13": float(np.median(rates[:, -1])),
        "lowest node of any chain": float(rates.min()),
    }


def exact_pools(data: NoisyXOR, options: argparse.Namespace, settings: str) -> list[Chains]:
    """Run exact chains ten at a time, until ten are above the highest floor."""
    kernel = FNBG(xor_model(), **fixed(settings, 0.001))
    pools: list[Chains] = []
    while len(pools) < options.pools:
        number = len(pools)
        seed = options.seed + 1000 * number
        name = f"xor-exact-{settings}"
        pools.append(
            sample(name, kernel, data.x_train, data.y_train, options, chains=WANTED, seed=seed)
        )
        if len(retained(options, pools, max(FLOORS))[0]) == WANTED:
            break
    return pools


def retained(
    options: argparse.Namespace, pools: list[Chains], floor: float
) -> tuple[list[int], int]:
    """Return which chains are kept, and how many had to be run."""
    kept: list[int] = []
    chain = 0
    for pool in pools:
        saved = StoredRun.open(pool.samples.path).saved
        for number in range(WANTED):
            tallies = saved[number].state.warmup_tally, saved[number].state.draw_tally
            accepted = sum(tally.accepted for tally in tallies)
            if float(accepted.min()) >= floor * sum(tally.sweeps for tally in tallies):
                kept.append(chain)
            chain += 1
            if len(kept) == WANTED:
                return kept, chain
    return kept, chain


def draw(
    options: argparse.Namespace,
    rows: list[dict[str, Any]],
    rates: list[Rates],
    groups: list[str],
    boxes: dict[str, NDArray[np.float64]],
) -> None:
    """Draw acceptance by node, accuracies and run times."""
    figure, panels = plt.subplot_mosaic(
        [["rates", "accuracies"], ["rates", "times"]], figsize=(15, 11), layout="constrained"
    )
    plot_acceptance_by_node(rates, groups=groups, ax=panels["rates"])
    plot_accuracy(
        {name: values for name, values in boxes.items() if len(values)}, ax=panels["accuracies"]
    )
    names = [f"{row['settings']}: {row['scenario']}" for row in rows]
    kept = [row["seconds of chains kept"] / 60 for row in rows]
    gone = [row["of chains discarded"] / 60 for row in rows]
    panels["times"].barh(names, kept, color="#0072B2", label="kept")
    panels["times"].barh(names, gone, left=kept, color="0.6", label="discarded")
    panels["times"].set_xlabel("minutes of the processor")
    panels["times"].invert_yaxis()
    panels["times"].legend()
    write_figure(options, "exact_and_approximate", figure)


if __name__ == "__main__":
    main()
