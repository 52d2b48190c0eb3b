"""How much every method of the benchmark does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PLANS", "Plan"]


@dataclass(frozen=True)
class Plan:
    """Say how much every method does; the same for all sets and seeds.

    Attributes:
        name: "full" or "quick", which only tries everything out.
        hidden: Nodes of each hidden layer.
        num_chains: Chains of each sampler, and members of the peer.
        num_draws: Draws that each of our chains and of NUTS gives to the prediction.
        warmup_share: Of the sweeps of our chains, by method.
        kernel: Further arguments of ``FNBG``.
        warm_start: Further arguments of ``warm_start`` for chains.
        member: The same for members of the deep ensemble: those that predict best together, of some
            that were tried.
        annealing_share: Of the budget of warm chains, for the warm start with its annealing.
        members_at_a_time: Of the deep ensemble.
        peer: Arguments of the peer's estimators: those of its authors' benchmark.
        nuts: Warmup, draws and depth of trees of each NUTS chain, and seconds after which no
            further chain is begun.
        max_rows: Rows of a set that are used at most.
    """

    name: str
    hidden: tuple[int, ...] = (16, 16, 16, 16)
    num_chains: int = 10
    num_draws: int = 100
    warmup_share: Mapping[str, float] = field(default_factory=lambda: {"cold": 0.5, "warm": 1 / 3})
    kernel: Mapping[str, Any] = field(default_factory=dict)
    warm_start: Mapping[str, Any] = field(default_factory=lambda: {"steps": 3_000})
    member: Mapping[str, Any] = field(
        default_factory=lambda: {"steps": 10_000, "learning_rate": 0.05, "held_out": 0.0}
    )
    annealing_share: float = 0.6
    members_at_a_time: int = 10
    peer: Mapping[str, Any] = field(
        default_factory=lambda: {
            "epochs": 1_200,
            "validation_split": 0.15,
            "lr": 1e-3,
            "weight_decay": 1e-4,
            "patience": 20,
            "warmup_steps": 50_000,
            "n_samples": 1_000,
            "n_thinning": 10,
        }
    )
    nuts: Mapping[str, int] = field(
        default_factory=lambda: {
            "num_warmup": 500,
            "num_samples": 500,
            "max_tree_depth": 10,
            "limit_seconds": 3_600,
        }
    )
    max_rows: int | None = None

    def of(self, method: str) -> dict[str, Any]:
        """Return what the plan says of a method, as JSON takes it."""
        chains = {"num_chains": self.num_chains, "num_draws": self.num_draws}
        settings: dict[str, dict[str, Any]] = {
            "linear": {},
            "boosting": {},
            "bde": {"num_chains": self.num_chains, "peer": dict(self.peer)},
            "nuts": {**chains, "nuts": dict(self.nuts)},
            "ensemble": {
                "members_at_a_time": self.members_at_a_time,
                "warm_start": dict(self.member),
            },
        }
        for name, share in self.warmup_share.items():
            settings[name] = {**chains, "warmup_share": share, "kernel": dict(self.kernel)}
        settings["warm"] |= {
            "warm_start": dict(self.warm_start),
            "annealing_share": self.annealing_share,
        }
        return {"hidden": list(self.hidden), **settings[method]}


PLANS = {
    "full": Plan("full"),
    "quick": Plan(
        name="quick",
        member={"steps": 100},
        num_chains=2,
        num_draws=5,
        members_at_a_time=2,
        peer=dict(Plan("").peer)
        | {"epochs": 5, "warmup_steps": 20, "n_samples": 10, "n_thinning": 2},
        nuts={"num_warmup": 5, "num_samples": 5, "max_tree_depth": 3, "limit_seconds": 60},
        max_rows=200,
    ),
}
