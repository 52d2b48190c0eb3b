"""Sample the paper's noisy XOR with the paper's settings, chain by chain, and tabulate the chains.

MLP(2,2,2,2,2,2,2,1), batches of 100 of 5,000 rows, by default at the paper's fixed proposal
variance of 0.04 (standard deviation 0.2) in every layer; ``--adapt`` tunes the scales instead. Each
chain is reported as soon as it is done, and added to ``chains.jsonl`` in the output folder::

    python examples/noisy_xor.py --data FOLDER --chains 4

FOLDER holds training/x.csv, training/y.csv, test/x.csv and test/y.csv; left out, the data are
simulated by the same recipe. A chain of 20,000 sweeps takes minutes.
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
from pyro.infer import MCMC

from pyro_fnbg import FNBG, BayesianMLP, noisy_xor, predictive_probabilities, read_noisy_xor
from pyro_fnbg.data import NoisyXOR

# Test accuracies (%) near which chains on this problem stay for long; 50 is guessing
PLATEAUS = (50, 85, 99)


def main() -> None:
    """Run the chains one by one."""
    options = parse_options()
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    data = noisy_xor(seed=options.seed) if options.data is None else read_noisy_xor(options.data)
    model = BayesianMLP([2] * 7 + [1], prior_scale=10**0.5, likelihood="bernoulli")
    tuning: dict[str, Any] = {} if options.adapt else {"proposal_scale": 0.2, "adapt": False}
    rows = []
    for seed in range(options.seed, options.seed + options.chains):
        pyro.set_rng_seed(seed)
        kernel = FNBG(model, batch_size=100, **tuning)
        mcmc = MCMC(kernel, num_samples=options.draws, warmup_steps=options.warmup)
        started = time.perf_counter()
        mcmc.run(data.x_train, data.y_train)
        seconds = time.perf_counter() - started
        row = describe(model, mcmc, data)
        sweeps = options.warmup + options.draws
        row |= {"seed": seed, "adapt": options.adapt, "sweeps": sweeps, "seconds": seconds}
        rows.append(row)
        with (options.output / "chains.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        if seed == options.seed:
            print(row["target"])
        print_chain(row)
    print_summary(rows)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the paper's files")
    parser.add_argument("--chains", type=int, default=4, help="number of chains (default 4)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first chain (default 1)")
    parser.add_argument("--warmup", type=int, help="sweeps dropped (default 2000)")
    parser.add_argument("--draws", type=int, help="sweeps kept (default 18000)")
    parser.add_argument("--adapt", action="store_true", help="tune the proposal scales")
    parser.add_argument("--output", type=Path, default=Path("noisy-xor-output"), help="folder")
    parser.add_argument("--smoke", action="store_true", help="a run of seconds; shows nothing")
    options = parser.parse_args()
    default = (10, 40) if options.smoke else (2000, 18_000)
    options.warmup = default[0] if options.warmup is None else options.warmup
    options.draws = default[1] if options.draws is None else options.draws
    return options


def describe(model: BayesianMLP, mcmc: MCMC, data: NoisyXOR) -> dict[str, Any]:
    """Compute a chain's row of the table."""
    report: dict[str, Any] = mcmc._diagnostics[0]
    labels = data.y_test.numpy()
    # The paper predicts from the last 10,000 sweeps
    last = {name: values[-10_000:] for name, values in mcmc.get_samples().items()}
    total, single = np.zeros(len(labels)), []
    for first in range(0, len(next(iter(last.values()))), 500):
        chunk = {name: values[first : first + 500] for name, values in last.items()}
        probs = predictive_probabilities(model, chunk, data.x_test)[..., 1].double().numpy()
        total += probs.sum(0)
        single.append(100 * ((probs > 0.5) == labels).mean(1))
    accuracies = np.concatenate(single)
    marginal = total / len(accuracies)
    quarter = len(accuracies) // 4
    recent = float(np.median(accuracies[-quarter:]))
    recent_rates = report["sample_stats"]["layer_acceptance_rate"][-quarter:].mean(0)
    return {
        "target": report["target"],
        "acceptance by layer": report["acceptance rate by layer"],
        "acceptance by layer, last quarter": [float(rate) for rate in recent_rates],
        "lowest node": min(report["acceptance rate by node"].values()),
        "accuracy of the mean prediction": 100 * float(((marginal > 0.5) == labels).mean()),
        "median accuracy of the last quarter's draws": recent,
        "plateau": min(PLATEAUS, key=lambda plateau: abs(plateau - recent)),
    }


def print_chain(row: dict[str, Any]) -> None:
    """Print a chain's row."""
    rates = " ".join(f"{100 * rate:5.1f}" for rate in row["acceptance by layer"].values())
    last = " ".join(f"{100 * rate:5.1f}" for rate in row["acceptance by layer, last quarter"])
    recent = row["median accuracy of the last quarter's draws"]
    print(
        f"seed {row['seed']}: acceptance by layer (%) {rates}, in the last quarter "
        f"{last}; lowest node "
        f"{100 * row['lowest node']:.1f}; test accuracy (%) "
        f"{row['accuracy of the mean prediction']:.2f} of the mean prediction, {recent:.2f} in the "
        f"median of the last quarter's draws; {row['seconds']:.0f} s",
        flush=True,
    )


def print_summary(rows: list[dict[str, Any]]) -> None:
    """Print means over all chains and over those near each plateau."""
    print("\nchains              number   mean acceptance by layer (%)   median accuracy (%)")
    groups = [("all", rows)]
    groups += [(f"near {p} %", [row for row in rows if row["plateau"] == p]) for p in PLATEAUS]
    for name, members in groups:
        if not members:
            print(f"{name:<20}{0:6}")
            continue
        table = np.array([list(row["acceptance by layer"].values()) for row in members])
        rates = " ".join(f"{rate:5.1f}" for rate in 100 * table.mean(0))
        accuracy = np.median([row["accuracy of the mean prediction"] for row in members])
        print(f"{name:<20}{len(members):6}   {rates}   {accuracy:.2f}")


if __name__ == "__main__":
    main()
