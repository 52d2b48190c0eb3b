"""Compare ways to fit warm starts, by the fits and by the chains that start there.

    PYTHONPATH=tests python -m benchmarks.warm_starts --data FOLDER --seeds 1 2 3

FOLDER holds airfoil.data of the UCI repository, separated by blanks. Prints the table of
docs/warm-starts.md. A row takes about half a minute of one idle core for each seed.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, optim

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from pyro_fnbg.fitting.warm_start import warm_start

NUM_CHAINS, WARMUP, SWEEPS, THIN = 4, 2_000, 4_000, 10
Optimizer = Callable[..., Any]
Data = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Variant:
    """Say how a fit differs from what ``warm_start`` does without being told.

    Attributes:
        name: What it is called in the table.
        arguments: Of ``warm_start``.
        optimizer: What makes the optimizer of parameters and a learning rate.
        is_cold: Whether chains start at draws from the prior instead.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Optimizer = partial(optim.AdamW, weight_decay=0.0)
    is_cold: bool = False


VARIANTS = (
    Variant("cold: draws from the prior", is_cold=True),
    Variant("as it is"),
    Variant("1,000 steps", {"steps": 1_000}),
    Variant("2,500 steps", {"steps": 2_500}),
    Variant("10,000 steps", {"steps": 10_000}),
    Variant("learning rate 0.005", {"learning_rate": 0.005}),
    Variant("learning rate 0.05", {"learning_rate": 0.05}),
    Variant("batches of 64 rows", {"batch_size": 64}),
    Variant("all rows in every step", {"batch_size": 1_202}),
    Variant("no rows held out", {"held_out": 0.0}),
    Variant("AdamW with decay 0.01", optimizer=partial(optim.AdamW, weight_decay=0.01)),
    Variant("NAdam", optimizer=optim.NAdam),
    Variant("RMSprop", optimizer=optim.RMSprop),
    Variant(
        "SGD, momentum 0.9, learning rate 0.003",
        {"learning_rate": 0.003},
        partial(optim.SGD, momentum=0.9),
    ),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--smoke", action="store_true", help="a run of seconds; shows nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # of blocks that hardly move after a short warmup
    data = read_airfoil(options.data)
    model = BayesianMLP(
        [5, 16, 16, 16, 16, 1],
        activation="relu",
        likelihood="normal",
        observation_scale=dist.HalfNormal(1.0),
    )
    print("| fits | seconds | RMSE of a fit | of the chains | log predictive density |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for variant in VARIANTS:
        rows = [measure(variant, model, data, seed, options.smoke) for seed in options.seeds]
        columns = [_over_seeds(column) for column in zip(*rows, strict=True)]
        print(f"| {variant.name} | {' | '.join(columns)} |", flush=True)


def read_airfoil(folder: Path) -> Data:
    """Read the rows to learn from, and those to predict: standardised inputs and responses."""
    table = np.loadtxt(folder / "airfoil.data")
    parts = train_test_split(table[:, :-1], table[:, -1:], test_size=0.2, random_state=0)
    of_x, of_y = StandardScaler().fit(parts[0]), StandardScaler().fit(parts[2])
    x, x_test = (torch.as_tensor(of_x.transform(part)).float() for part in parts[:2])
    y, y_test = (torch.as_tensor(of_y.transform(part)[:, 0]).float() for part in parts[2:])
    return x, y, x_test, y_test


def measure(
    variant: Variant, model: BayesianMLP, data: Data, seed: int, is_smoke: bool
) -> tuple[float, float, float, float]:
    """Return a row of the table: seconds of the processor, and scores of fits and of chains."""
    x, y, x_test, y_test = data
    pyro.set_rng_seed(seed)
    start, seconds, fitted = None, math.nan, math.nan
    arguments = dict(variant.arguments) | ({"steps": 20} if is_smoke else {})
    if not variant.is_cold:
        began = time.process_time()
        with _optimizer(variant.optimizer):
            start = warm_start(
                model, x, y, num_chains=NUM_CHAINS, disable_progbar=True, **arguments
            )
        seconds = time.process_time() - began
        fitted = float((_means(model, start, x_test) - y_test).square().mean(-1).sqrt().mean())
    shrink = 100 if is_smoke else 1
    mcmc = MultiChainMCMC(
        FNBG(model, thin=THIN),
        SWEEPS // THIN // shrink,
        WARMUP // shrink,
        initial_params=start,
        num_chains=NUM_CHAINS,
        disable_progbar=True,
    )
    mcmc.run(x, y)
    draws = mcmc.get_samples()
    means = _means(model, draws, x_test).double()
    scales = draws["obs_scale"].unsqueeze(-1).double()
    log_probs = dist.Normal(means, scales).log_prob(y_test)
    density = float((log_probs.logsumexp(0) - math.log(len(means))).mean())
    error = float((means.mean(0) - y_test).square().mean().sqrt())
    return seconds, fitted, error, density


def _means(model: BayesianMLP, draws: Mapping[str, Tensor], x: Tensor) -> Tensor:
    parameters = {name: draws[name] for name in model.parameter_shapes}
    return model.forward(parameters, x).squeeze(-1).detach()


@contextmanager
def _optimizer(make: Optimizer) -> Iterator[None]:
    """Put another optimizer in the place of the one that fits use."""
    with patch.object(optim, "AdamW", lambda params, lr, weight_decay: make(params, lr=lr)):
        yield


def _over_seeds(values: Sequence[float]) -> str:
    mean = sum(values) / len(values)
    return "" if math.isnan(mean) else f"{mean:.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    main()
