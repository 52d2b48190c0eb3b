"""What the contestants of a network do in each of their rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

__all__ = ["BUDGETS", "CONTEST", "NETWORKS", "PLANS", "Plan", "widths"]

# Seconds of the processor: 1, 3 and 10 minutes of two cores
BUDGETS = (120, 360, 1200)
# Who runs through all budgets; the others, which show what matters, run through the first
CONTEST = ("ensemble", "chains")


@dataclass(frozen=True)
class Plan:
    """Say what is done in a round, whose networks are pooled with those of the rounds before.

    Attributes:
        name: What it is called.
        steps: Steps of each fit.
        learning_rate: Highest learning rate of a fit.
        prior_scale: Standard deviation of the priors of weights and biases, or "fan_in".
        warmup: Sweeps of warmup of each chain, which starts at its fit.
        draws: Draws of each chain after that; 0 if the fits themselves are what is pooled.
        thin: Sweeps a draw.
        batch_size: Rows in the batch of a sweep; None for all.
        likelihood_scale: Of the kernel: "full" counts a batch N / n times.
        at_a_time: Fits or chains of a round.
        held_out: Share of the training rows that no step of a fit sees.
    """

    name: str
    steps: int
    learning_rate: float
    prior_scale: float | str = 0.3
    warmup: int = 0
    draws: int = 0
    thin: int = 1
    batch_size: int | None = None
    likelihood_scale: str | None = None
    at_a_time: int = 4
    held_out: float = 1 / 60


def _plans(fits: Plan, warmup: int, draws: int) -> dict[str, Plan]:
    """Name the plans of a network, each of which changes one thing of the chains of the contest."""
    chains = replace(fits, name="chains from fits", warmup=warmup, draws=draws)
    short = max(1, fits.steps // 4)
    return {
        "ensemble": fits,
        "chains": chains,
        "one-prior": replace(chains, name="priors N(0, 1)", prior_scale=1.0),
        "fan-in": replace(chains, name="priors by fan-in", prior_scale="fan_in"),
        "short-fits": replace(chains, name="a quarter of the steps of the fits", steps=short),
        "few-chains": replace(
            chains, name="one round of longer chains", warmup=5 * warmup, draws=5 * draws, thin=5
        ),
        "full-scale": replace(
            chains,
            name="batches of 3,000, counted as all rows",
            warmup=10 * warmup,
            thin=10,
            batch_size=3_000,
            likelihood_scale="full",
        ),
        "tempered": replace(
            chains, name="batches of 3,000", warmup=10 * warmup, thin=10, batch_size=3_000
        ),
    }


_DEEP = Plan("ensemble of fits", steps=16_000, learning_rate=0.02)
_WIDE = Plan("ensemble of fits", steps=3_000, learning_rate=0.01)
PLANS: dict[str, Mapping[str, Plan]] = {
    "784-10-10-10-10": _plans(_DEEP, warmup=20, draws=5),
    "784-100-10": _plans(_WIDE, warmup=10, draws=3),
}
NETWORKS = tuple(PLANS)


def widths(network: str) -> list[int]:
    """Return the widths that a network's name tells.

    Example:
        >>> widths("784-100-10")
        [784, 100, 10]
    """
    return [int(width) for width in network.split("-")]
