"""Time the predictions of many draws against one product of matrices and against eeyore.

    PYTHONPATH=tests python -m benchmarks.prediction_speed --draws 10000 --rows 10000

The network is MNIST's, [784, 10, 10, 10, 10]; draws and rows are random numbers, which cost what
others do. The floor is the multiply-adds of the same draws and rows, those of all layers, as
products of large matrices in the same process just before and after. eeyore 0.0.20, the code the
paper ran on, is timed on a few points and scaled, if it is installed: it predicts one point and one
class at a time. Memory is by how far its peak rose over what was resident before, draws and rows
included. Linux only. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample
from torch import Tensor

from benchmarks.memory_probe import resident
from pyro_fnbg import BayesianMLP, marginal_predictive, predict

WIDTHS = (784, 10, 10, 10, 10)


class OwnNetwork(PyroModule):
    """The network as a user of Pyro writes it, without a statement of its structure."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = PyroModule[torch.nn.ModuleList](
            [PyroModule[torch.nn.Linear](below, above) for below, above in pairwise(WIDTHS)]
        )
        for layer in self.layers:
            for name, value in list(layer.named_parameters()):
                prior = dist.Normal(torch.zeros_like(value), 1.0).to_event(value.dim())
                setattr(layer, name, PyroSample(prior))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Sample or observe the labels."""
        values = x
        for number, layer in enumerate(self.layers):
            values = layer(torch.sigmoid(values) if number else values)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Categorical(logits=values), obs=y)


def main() -> None:
    """Time everything and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=2, help="that eeyore predicts")
    parser.add_argument("--eeyore-draws", type=int, default=1000)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = BayesianMLP(WIDTHS)
    samples = {
        name: torch.randn(options.draws, *shape) / shape[-1] ** 0.5
        for name, shape in model.parameter_shapes.items()
    }
    own = {_own_name(name): value for name, value in samples.items()}
    x = torch.randn(options.rows, WIDTHS[0])
    first = {name: value[:20] for name, value in samples.items()}
    marginal_predictive(model, first, x[:2000])  # code that is loaded at first use
    found: dict[str, Any] = {"draws": options.draws, "rows": options.rows}
    found["threads"] = torch.get_num_threads()
    before = floor(samples, x)
    for name, function in {
        "marginal_predictive": lambda: marginal_predictive(model, samples, x, progress=False),
        "predict": lambda: predict(model, samples, x, progress=False),
        "own network": lambda: marginal_predictive(OwnNetwork(), own, x, progress=False),
    }.items():
        seconds, megabytes = measured(function)
        after = floor(samples, x)
        found[name] = {
            "seconds": seconds,
            "floor": (before + after) / 2,
            "times the floor": seconds / ((before + after) / 2),
            "megabytes": megabytes,
        }
        before = after
        print(name, found[name], flush=True)
    per_evaluation = eeyore_seconds(samples, x, options.points, options.eeyore_draws)
    if per_evaluation is not None:
        whole = per_evaluation * options.draws * options.rows * WIDTHS[-1]
        found["eeyore"] = {
            "seconds an evaluation": per_evaluation,
            "scaled to all points and classes, seconds": whole,
            "times slower": whole / found["marginal_predictive"]["seconds"],
        }
    print(json.dumps(found))


def _own_name(name: str) -> str:
    """Name a site of the package's network as the user's own does, which counts from 0."""
    layer, _, kind = name.partition(".")
    return f"layers.{int(layer.removeprefix('layer')) - 1}.{kind}"


def measured(function: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of a call, and by how many megabytes the peak of memory rose."""
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is resident now
    before = resident("VmRSS")
    started = time.perf_counter()
    function()
    return time.perf_counter() - started, (resident("VmHWM") - before) / 1e6


def floor(samples: Mapping[str, Tensor], x: Tensor) -> float:
    """Return the seconds of the multiply-adds alone, as products of large matrices."""
    weights = samples["layer1.weight"].reshape(-1, WIDTHS[0])
    columns = x.T.contiguous()
    started = time.perf_counter()
    for some in weights.split(10_000):
        some @ columns
    seconds = time.perf_counter() - started
    # The other layers: as many multiply-adds more, at the same speed
    others = sum(below * above for below, above in pairwise(WIDTHS[1:]))
    return seconds * (1 + others / (WIDTHS[0] * WIDTHS[1]))


def eeyore_seconds(
    samples: Mapping[str, Tensor], x: Tensor, points: int, draws: int
) -> float | None:
    """Return eeyore's seconds for a draw, a point and a class; None without it."""
    try:
        from eeyore.constants import loss_functions
        from eeyore.models import mlp
    except ImportError:
        return None
    num_layers = len(WIDTHS) - 1
    network = mlp.MLP(
        loss=loss_functions["multiclass_classification"],
        hparams=mlp.Hyperparameters(
            dims=list(WIDTHS),
            bias=[True] * num_layers,
            activations=[torch.sigmoid] * (num_layers - 1) + [None],
        ),
        dtype=torch.float32,
    )
    theta = torch.cat([value[:draws].flatten(1) for value in samples.values()], 1)
    labels = torch.eye(WIDTHS[-1])[:1]
    started = time.perf_counter()
    for point in x[:points]:
        network.predictive_posterior(list(theta), point.unsqueeze(0), labels)
    return (time.perf_counter() - started) / (points * len(theta))


if __name__ == "__main__":
    main()
