"""Measure what minibatches cost: how far chains end from what they stand for (the open question).

A chain in batches of n of N rows approximates prior x likelihood^(factor n/N). On noisy XOR and
on a regression, both small enough for exact chains of either target to agree (R-hat of
predictions at 1.01 or less), the distance of the chain in batches from prior x likelihood^(n/N)
and from the posterior is measured in function space, for both likelihood scales: the Wasserstein
distance between the draws of P(y = 1), or of the regression's mean, at each test point, averaged
over the points. What two halves of the exact chains differ by is below what can be told.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import wasserstein_distance
from torch import Tensor

from common import Chains, read_options, sample, write_figure, write_table
from pyro_fnbg import FNBG, BayesianMLP, diagnose_predictions, noisy_xor, predictive_probabilities

CHAINS, SHARES = 4, (0.02, 0.05, 0.1, 0.2, 0.5)
# Draws of each chain that distances are computed from, evenly spaced
COMPARED = 1_000
# Exact chains are made longer, twice at a time, until R-hat is here
AGREED, LONGER = 1.01, 4


@dataclass(frozen=True)
class Problem:
    """Hold a model with its data, and the points at which predictions are compared."""

    model: BayesianMLP
    x: Tensor
    y: Tensor
    points: Tensor


def noisy_xor_problem() -> Problem:
    """Set up 400 rows of noisy XOR."""
    data = noisy_xor(400, 400)
    model = BayesianMLP((2, 8, 1), prior_scale=10**0.5, likelihood="bernoulli")
    return Problem(model, data.x_train, data.y_train, data.x_test[::10])


def regression_problem() -> Problem:
    """Set up 200 rows of a sine in noise."""
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(200, 1, generator=generator) - 2
    y = torch.sin(2 * x[:, 0]) + 0.5 * torch.randn(200, generator=generator)
    model = BayesianMLP(
        (1, 4, 1), prior_scale=1.0, activation="tanh", likelihood="normal", observation_scale=0.5
    )
    return Problem(model, x, y, torch.linspace(-2.5, 2.5, 41)[:, None])


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "noisy XOR": noisy_xor_problem,
    "regression": regression_problem,
}


def main() -> None:
    """Run all chains, and write the table and the picture."""
    options = read_options(__doc__, sweeps=100_000)
    rows: list[dict[str, Any]] = []
    for name, make in PROBLEMS.items():
        problem = make()
        posterior, (half, other) = exact(name, problem, 1.0, options)
        floor = distance(half, other)
        for share in SHARES:
            tempered, _ = exact(name, problem, share, options)
            for scale in ("batch", "full"):
                size = round(share * len(problem.x))
                kernel = FNBG(problem.model, batch_size=size, likelihood_scale=scale)
                chains = run(f"cost-{name}-{size}-{scale}", kernel, problem, options)
                samples = evenly_spaced(chains)
                draws = predictions(samples, problem)
                report = chains.reports[0]
                rows.append(
                    {
                        "problem": name,
                        "likelihood scale": scale,
                        "batch size": size,
                        "rows": len(problem.x),
                        "nominal temperature": report["nominal likelihood temperature"],
                        "from prior x likelihood^(n/N)": distance(draws, tempered),
                        "from the posterior": distance(draws, posterior),
                        "halves of the exact chains": floor,
                        "tempered target from the posterior": distance(tempered, posterior),
                        "reversed by another batch (%)": np.mean(
                            [
                                100
                                * one["share of decisions that another batch would reverse"]["all"]
                                for one in chains.reports
                            ]
                        ),
                        "sd of the log ratio": np.mean(
                            [
                                one["standard deviation of the log ratio across batches"]["all"]
                                for one in chains.reports
                            ]
                        ),
                        "largest R-hat": r_hat(samples, problem),
                        "sweeps": chains.sweeps,
                        "seconds": chains.seconds,
                        "seed": options.seed,
                    }
                )
    write_table(options, "cost_of_minibatches", rows)
    draw(rows, options)


def run(
    name: str, kernel: FNBG, problem: Problem, options: argparse.Namespace, times: int = 1
) -> Chains:
    """Run four chains of a target."""
    return sample(
        name.replace(" ", "-"),
        kernel,
        problem.x,
        problem.y,
        options,
        chains=CHAINS,
        sweeps=times * options.sweeps,
    )


def exact(
    name: str, problem: Problem, power: float, options: argparse.Namespace
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """Sample prior x likelihood^power on all rows until chains agree.

    Returns:
        Draws of predictions of all chains, ``(draws, points)``, and of two halves of the chains.
    """
    kernel = FNBG(problem.model, likelihood_scale=None if power == 1 else power)
    for times in range(LONGER):
        chains = run(f"cost-{name}-exact-{power:g}", kernel, problem, options, 2**times)
        samples = evenly_spaced(chains)
        found = r_hat(samples, problem)
        print(
            f"{name}, likelihood to the power of {power:g}: largest R-hat {found:.4f}", flush=True
        )
        if found <= AGREED or options.quick:
            break
    draws = predictions(samples, problem)
    return draws, np.split(draws, 2)


def r_hat(samples: dict[str, Tensor], problem: Problem) -> float:
    """Return the largest R-hat of the predictions."""
    found = diagnose_predictions(problem.model, samples, problem.points, CHAINS)
    return float(found.summary["r_hat"])


def evenly_spaced(chains: Chains) -> dict[str, Tensor]:
    """Read evenly spaced draws, as many of each chain, those of all chains one after another."""
    step = max(1, chains.num_draws // COMPARED)
    whole = {name: chains.samples[name] for name in chains.samples}
    return {
        name: draws.unflatten(0, (CHAINS, -1))[:, step - 1 :: step].flatten(0, 1)
        for name, draws in whole.items()
    }


def predictions(samples: dict[str, Tensor], problem: Problem) -> NDArray[np.float64]:
    """Return P(y = 1), or the mean, of each draw at each point, ``(draws, points)``."""
    found = predictive_probabilities(problem.model, samples, problem.points, progress=False)
    found = found[..., 1] if found.ndim == 3 else found
    values: NDArray[np.float64] = found.double().numpy()
    return values


def distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Average the Wasserstein distance between draws over the points."""
    pairs = zip(one.T, other.T, strict=True)
    return float(np.mean([wasserstein_distance(a, b) for a, b in pairs]))


def draw(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Draw the distances against the batch size."""
    figure, panels = plt.subplots(2, 2, figsize=(13, 9), layout="constrained")
    looks = {"batch": ("#0072B2", "o"), "full": ("#D55E00", "s")}
    for column, name in zip(panels.T, PROBLEMS, strict=True):
        for scale, (colour, marker) in looks.items():
            own = [r for r in rows if (r["problem"], r["likelihood scale"]) == (name, scale)]
            sizes = [one["batch size"] for one in own]
            # What the other scale stands for at these sizes is in the table
            keys = {"from the posterior": "-"}
            keys |= {"from prior x likelihood^(n/N)": "--"} if scale == "batch" else {}
            for key, style in keys.items():
                distances = [one[key] for one in own]
                label = f'scale "{scale}", {key}'
                column[0].plot(sizes, distances, style, color=colour, marker=marker, label=label)
            reversed_ = [one["reversed by another batch (%)"] for one in own]
            column[1].plot(sizes, reversed_, color=colour, marker=marker, label=f'scale "{scale}"')
        column[0].axhline(
            own[0]["halves of the exact chains"],
            color="0.4",
            linestyle=":",
            label="halves of the exact chains",
        )
        column[0].set_title(f"{name}, {own[0]['rows']} rows")
        column[0].set_ylabel("Wasserstein distance, mean over points")
        column[0].set_yscale("log")
        column[1].set_ylabel("decisions that another batch would reverse (%)")
        for panel in column:
            panel.set_xscale("log")
            panel.set_xlabel("batch size (rows)")
            panel.set_xticks(sizes, sizes)
            panel.minorticks_off()
        column[0].legend(fontsize=8, loc="lower left", framealpha=0.9)
        column[1].legend(fontsize=8)
    write_figure(options, "cost_of_minibatches", figure)


if __name__ == "__main__":
    main()
