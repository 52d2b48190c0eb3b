"""Sample the paper's noisy XOR with the paper's settings, and tabulate the chains.

MLP(2,2,2,2,2,2,2,1), batches of 100 of 5,000 rows, by default at the paper's fixed proposal
variance of 0.04 (standard deviation 0.2) in every layer and at the paper's length of 10,000 +
100,000 sweeps, of which every tenth is kept; ``--adapt`` tunes the scales during the first 10,000
instead. All chains run at once, from one seed, each with random numbers of its own. Each gets a row
in ``chains.jsonl`` in the output folder, added to what is there::

    python examples/noisy_xor.py --data FOLDER --chains 10

FOLDER holds training/x.csv, training/y.csv, test/x.csv and test/y.csv; left out, the data are
simulated by the same recipe.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score

from pyro_fnbg import (
    FNBG,
    BayesianMLP,
    MultiChainMCMC,
    noisy_xor,
    predictive_probabilities,
    read_noisy_xor,
)
from pyro_fnbg.data.xor import NoisyXOR

Array = NDArray[np.float64]

# Test accuracies (%) near which chains on this problem stay for long; 50 is guessing
PLATEAUS = (50, 85, 99)
# Chains whose mean prediction is better than this (%) have found the best mode
FOUND = 98
# Sweeps a draw, and the sweeps at the end from which the paper predicts
THIN, PREDICTING_SWEEPS = 10, 10_000


def main() -> None:
    """Run the chains, and write and print their rows."""
    options = parse_options()
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        data = (
            noisy_xor(seed=options.seed) if options.data is None else read_noisy_xor(options.data)
        )
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from error
    model = BayesianMLP([2] * 7 + [1], prior_scale=10**0.5, likelihood="bernoulli")
    tuning: dict[str, Any] = {} if options.adapt else {"proposal_scale": 0.2, "adapt": False}
    pyro.set_rng_seed(options.seed)
    mcmc = MultiChainMCMC(
        FNBG(model, batch_size=100, likelihood_scale="batch", **tuning),
        num_samples=options.draws,
        warmup_steps=options.warmup,
        num_chains=options.chains,
        thin=THIN,
    )
    started = time.perf_counter()
    mcmc.run(data.x_train, data.y_train)
    seconds = time.perf_counter() - started
    # On a network this small a second thread costs more than it gives
    torch.set_num_threads(1)
    sweeps = mcmc.warmup_steps + mcmc.num_samples * THIN
    rows = [describe(model, mcmc, chain, data) for chain in range(mcmc.num_chains)]
    about = {"seed": options.seed, "adapt": options.adapt, "sweeps": sweeps}
    with (options.output / "chains.jsonl").open("a") as file:
        for row in rows:
            file.write(json.dumps(about | row) + "\n")
    print(mcmc.kernel.target)
    print(
        f"{len(rows)} chains of {sweeps:,} sweeps, the first {mcmc.warmup_steps:,} dropped: "
        f"{seconds:.0f} s; proposal scales {'tuned' if options.adapt else 'fixed at 0.2'}"
    )
    print_chains(rows)
    print_summary(rows)
    print_course(rows)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds training/ and test/")
    parser.add_argument("--chains", type=int, default=10, help="number of chains (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="of all chains (default 1)")
    parser.add_argument("--warmup", type=int, help="sweeps dropped (default 10000)")
    parser.add_argument("--draws", type=int, help=f"draws, {THIN} sweeps each (default 10000)")
    parser.add_argument("--adapt", action="store_true", help="tune the proposal scales")
    parser.add_argument("--output", type=Path, default=Path("noisy-xor-output"), help="folder")
    parser.add_argument("--smoke", action="store_true", help="a run of seconds; shows nothing")
    options = parser.parse_args()
    default = (10, 40) if options.smoke else (10_000, 10_000)
    options.warmup = default[0] if options.warmup is None else options.warmup
    options.draws = default[1] if options.draws is None else options.draws
    return options


def describe(
    model: BayesianMLP, mcmc: MultiChainMCMC, chain: int, data: NoisyXOR
) -> dict[str, Any]:
    """Compute a chain's row of the table."""
    report = mcmc.reports[chain]
    quarter, predicting = max(1, mcmc.num_samples // 4), PREDICTING_SWEEPS // THIN
    samples = mcmc.get_samples(group_by_chain=True)
    late = {name: values[chain, -max(quarter, predicting) :] for name, values in samples.items()}
    probabilities = predictive_probabilities(model, late, data.x_test)[..., 1]
    singles = ((probabilities[-quarter:] > 0.5) == data.y_test.bool()).mean(1, dtype=torch.float64)
    recent = 100 * float(np.median(singles))
    marginal = probabilities[-predicting:].mean(0, dtype=torch.float64)
    rates = report["sample_stats"]["layer_acceptance_rate"][-quarter:].mean(0, dtype=np.float64)
    return {
        "chain": chain,
        "target": report["target"],
        "acceptance by layer": report["acceptance rate by layer"],
        "acceptance by layer, last quarter": dict(zip(report["layers"], rates, strict=True)),
        "lowest node": min(report["acceptance rate by node"].values()),
        "accuracy of the mean prediction": 100 * accuracy_score(data.y_test, marginal > 0.5),
        "median accuracy of late draws": recent,
        "plateau": min(PLATEAUS, key=lambda plateau: abs(plateau - recent)),
    }


def print_chains(rows: list[dict[str, Any]]) -> None:
    """Print a row for each chain."""
    print("\n       acceptance by layer (%)               lowest   test accuracy (%)")
    print(f"chain  {'1 .. 7':<37} node     mean prediction  late median  nearest")
    for row in rows:
        rates = percentages(np.array(list(row["acceptance by layer"].values())))
        print(
            f"{row['chain']:5}  {rates:<37} {100 * row['lowest node']:4.1f}  "
            f"{row['accuracy of the mean prediction']:14.2f}  "
            f"{row['median accuracy of late draws']:12.2f}  {row['plateau']:7}"
        )


def percentages(rates: Array) -> str:
    """Write rates side by side, in per cent."""
    return " ".join(f"{100 * rate:4.1f}" for rate in rates)


def groups(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Sort the chains: all, by the plateau nearest to their late median, and the best mode's."""
    found = {"all": rows}
    found |= {f"nearest {p} %": [row for row in rows if row["plateau"] == p] for p in PLATEAUS}
    better = [row for row in rows if row["accuracy of the mean prediction"] > FOUND]
    return found | {f"above {FOUND} %": better}


def layer_table(rows: list[dict[str, Any]], when: str) -> Array:
    """Return acceptance rates by chain and layer."""
    return np.array([list(row[f"acceptance by layer{when}"].values()) for row in rows])


def print_summary(rows: list[dict[str, Any]]) -> None:
    """Print means over all chains, those nearest each plateau and those that found the best."""
    for when in ("", ", last quarter"):
        print(f"\nMean acceptance by layer (%){when or ', all draws'}, 1 .. 7")
        for name, members in groups(rows).items():
            rates = percentages(layer_table(members, when).mean(0)) if members else "-"
            print(f"{name:<12} {len(members):3} chains  {rates}")
    print(
        "The late median is that of the accuracies of single draws in the last quarter of a chain;"
        "\nthe accuracy that it is nearest to may still be far off.\n"
        f"Above {FOUND} % are those whose mean prediction is, over the last {PREDICTING_SWEEPS:,} "
        "sweeps."
    )


def print_course(rows: list[dict[str, Any]]) -> None:
    """Say whether acceptance falls with depth in the chains that found the best mode."""
    better = groups(rows)[f"above {FOUND} %"]
    if not better:
        print(f"No chain is above {FOUND} %, so nothing is said of acceptance and depth.")
        return
    mean = layer_table(better, "").mean(0)
    lowest = mean.argmin()
    print(
        f"In the {len(better)} above {FOUND} %, over all draws: lowest is layer {lowest + 1} with "
        f"{100 * mean[lowest]:.1f} %; the first has {100 * mean[0]:.1f} %, the last "
        f"{100 * mean[-1]:.1f} %."
    )


if __name__ == "__main__":
    main()
