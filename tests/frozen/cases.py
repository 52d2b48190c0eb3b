"""The runs whose results are frozen: models x engines x types x drivers, each pair somewhere.

Not the full product: the chains are short and the data tiny, so that all cases together take less
than a minute. Cases of one problem that differ in engine, type or driver alone have the same seed,
so that in double precision their draws can be compared by eye in the file.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from pyro.infer.autoguide.initialization import init_to_median, init_to_uniform

from pyro_fnbg import Block, Partition

__all__ = ["CASES", "Case"]

ENGINES, DTYPES = ("trace", "feedforward", "fused"), ("float32", "float64")


@dataclass(frozen=True)
class Case:
    """One run of some chains.

    Attributes:
        name: A unique name, by which the hashes are kept.
        problem: What is sampled, by its name in ``PROBLEMS``.
        driver: What runs the kernel: a key of ``DRIVERS`` in ``frozen.parts``.
        chains: Number of chains.
        dtype: Type of the data, and so of the parameters.
        kernel: Arguments of ``FNBG`` but the model.
        options: Arguments of the driver but the numbers of draws, warmup steps and chains.
        starts: Makes a site's start values, given some of their shape, with chains in front where
            there are several; None to start as the kernel would.
        warmup: Steps of the warmup.
        draws: Draws.
        threads: Torch's threads, on which the fused engine runs chains side by side.
        seed: What ``pyro.set_rng_seed`` is given.
    """

    name: str
    problem: str
    driver: str = "stock"
    chains: int = 1
    dtype: str = "float64"
    kernel: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    starts: Callable[[torch.Tensor], torch.Tensor] | None = None
    warmup: int = 30
    draws: int = 40
    threads: int = 1
    seed: int = 1

    @property
    def num_sweeps(self) -> int:
        """Sweeps of each chain, those of the warmup included."""
        thin = self.options.get("thin", self.kernel.get("thin", 1))
        return self.warmup + self.draws * thin


def scattered(layout):
    """Blocks inside one node, across nodes and across layers, in no order."""
    places = list(range(layout.num_params))
    pieces = [places[start::4][::-1] for start in (2, 0, 3, 1)]
    blocks = tuple(Block(f"b{number}", tuple(piece)) for number, piece in enumerate(pieces))
    return Partition(blocks, layout.num_params)


def named_layers(layout):
    """Two layers of one's own, with a node each and a block that spans nodes."""
    half = layout.num_params // 2
    lower, upper = tuple(range(half)), tuple(range(half, layout.num_params))
    blocks = (
        Block("low.a", lower[::2], layer=1, node=1),
        Block("low.b", lower[1::2], layer=1),
        Block("high", upper, layer=2, node=1),
    )
    return Partition(blocks, layout.num_params, layer_names=("low", "high"))


def spread(values):
    """Start every coordinate of every chain elsewhere."""
    return 0.3 * torch.arange(values.numel()).to(values).view(values.shape).sin()


def _case(
    problem: str,
    label: str = "",
    engine: str = "auto",
    driver: str = "stock",
    chains: int = 1,
    dtype: str = "float64",
    run: dict[str, Any] | None = None,
    **kernel: Any,
) -> Case:
    """Name a case by what it is made of; ``run`` has the other fields of ``Case``."""
    name = "/".join([problem, *([label] if label else []), engine, dtype, f"{driver} x{chains}"])
    return Case(name, problem, driver, chains, dtype, kernel | {"engine": engine}, **(run or {}))


def _everywhere(problem: str, label: str = "", **options: Any) -> list[Case]:
    """Run a network by each engine in each type."""
    return [
        _case(problem, label, engine, dtype=dtype, **options)
        for engine in ENGINES
        for dtype in DTYPES
    ]


BATCHES = {"batch_size": 7, "batch_order": "stratified"}
SCALE = {"adapt": False, "proposal_scale": 0.4}

_ALL = [
    # Networks
    *_everywhere("xor"),
    *_everywhere("deep xor", "parts", driver="vectorized", chains=2, batch_size=10, parts={1: 2}),
    *_everywhere(
        "widening relu", "stratified", driver="vectorized", chains=3, likelihood_scale="full",
        **BATCHES,
    ),
    *_everywhere("half-normal scale", "sites", blocks="site"),
    *[_case("widening tanh", "layers", e, "sequential", 2, blocks="layer") for e in ENGINES],
    _case("widening tanh", "layers", "fused", "sequential", 2, "float32", blocks="layer"),
    *[_case("module", "small blocks", e, batch_size=10, max_block_size=2) for e in ENGINES],
    _case("module", "small blocks", "fused", "vectorized", 2, "float32", batch_size=10),
    _case("module without biases", "", "fused", "vectorized"),
    _case("module without biases", "", "feedforward", "sequential", 2, "float32"),
    _case("shallow", "parts", "fused", "vectorized", 2, parts=2, batch_size=23),
    _case("shallow", "parts", "feedforward", "stock", parts=2, likelihood_scale=0.3),
    *[_case("steps", "small blocks", e, max_block_size=3, batch_size=9) for e in ENGINES],
    _case("steps", "single coordinates", "fused", "vectorized", 2, "float32", max_block_size=1),
    _case("softplus", "", driver="vectorized", chains=2),
    _case("softplus", "", "trace", dtype="float32", batch_size=11),
    *[_case("two outputs", "power", e, likelihood_scale=0.3, batch_size=8) for e in ENGINES],
    # Scales of observations, each prior known to the fused engine by itself
    *[
        _case(f"{prior} scale", "", "fused", "vectorized")
        for prior in ("half-Cauchy", "exponential", "gamma", "inverse gamma", "log-normal")
    ],
    _case("half-normal scale", "batches", "fused", "vectorized", 2, "float32", batch_size=10),
    _case("gamma scale", "", "feedforward", "vectorized", 2),
    _case("log-normal scale", "", "feedforward", "sequential", 2, "float32"),
    _case("log-normal scale", "", "fused", dtype="float32"),
    # Other models
    *[_case("hierarchy", driver="stock", dtype=dtype) for dtype in DTYPES],
    *[_case("hierarchy", "", "trace", dtype=dtype) for dtype in DTYPES],
    _case("constrained", "", "trace", "vectorized", 2),
    _case("mixed", "", "trace"),
    _case("hierarchy", driver="vectorized", chains=2, dtype="float32"),
    _case("hierarchy", driver="sequential", chains=2),
    _case("hierarchy", "batches", batch_size=8),
    _case("hierarchy", "batches", "trace", "vectorized", 2, likelihood_scale="full", batch_size=8),
    _case("hierarchy", "batches", "trace", "processes", 2, batch_size=8),
    *[_case("constrained", driver="stock", dtype=dtype) for dtype in DTYPES],
    _case("constrained", driver="vectorized", chains=2, run={"starts": spread}),
    _case("constrained", "median", "trace", "sequential", 2, init_strategy=init_to_median),
    _case("constrained", "one scale", dtype="float32", **SCALE),
    _case("subsampled", driver="vectorized", chains=2, batch_order="stratified"),
    _case("subsampled", "batch", "trace", likelihood_scale="batch", blocks="layer"),
    _case("two plates", driver="sequential", batch_size=6, batch_plate="data"),
    _case("two plates", "uniform", driver="stock", dtype="float32", init_strategy=init_to_uniform),
    _case("scaled", driver="stock", batch_size=9),
    _case("scaled", driver="vectorized", chains=2, dtype="float32", likelihood_scale=2.0),
    _case("mixed", driver="vectorized", chains=2),
    _case("mixed", driver="stock"),
    _case("broken", driver="stock", **SCALE),
    _case("broken", driver="vectorized", chains=2, dtype="float32", proposal_scale=2.0),
    _case("without data", driver="stock"),
    # Several chains of Pyro's driver, and chains in workers
    *[_case("xor", "batches", e, "stock", 2, batch_size=10) for e in ENGINES],
    _case("xor", "batches", "fused", "processes", 2, batch_size=10),
    _case("xor", "batches", "fused", "forked stock", 2, batch_size=10),
    _case("constrained", driver="stock", chains=2),
    # Side by side on threads
    _case("deep xor", "two threads", "fused", "vectorized", 4, run={"threads": 2}, **BATCHES),
    _case("deep xor", "two threads", "fused", "vectorized", 3, "float32", run={"threads": 2}),
    # Scales given and tuned
    *[_case("deep xor", "scale by layer", e, adapt=False, proposal_scale=[0.3, 0.5, 0.6, 0.9])
      for e in ENGINES],
    _case("xor", "one scale", "fused", "vectorized", 2, "float32", **SCALE),
    _case("xor", "one scale", "trace", "stock", **SCALE),
    _case("xor", "scale tuned", "fused", "vectorized", 2, proposal_scale=0.05),
    _case("xor", "not tuned", "feedforward", "vectorized", 2, adapt=False),
    _case("xor", "target", "fused", "stock", target_accept_prob=0.6, **BATCHES),
    _case("xor", "stuck", "fused", "vectorized", 2, adapt=False, proposal_scale=1e4, thin=3),
    # Thinning, starts, hooks, sites kept, no warmup
    *[_case("xor", "thin", e, "vectorized", 2, thin=3, batch_size=10) for e in ENGINES],
    _case("xor", "thin", "fused", "stock", 1, "float32", thin=3),
    _case("hierarchy", "thin", driver="sequential", chains=2, run={"options": {"thin": 2}}),
    _case("xor", "starts", "fused", "vectorized", 2, run={"starts": spread}, batch_size=10),
    _case("xor", "starts", "feedforward", "stock", 2, run={"starts": spread}),
    _case("xor", "starts", "trace", "sequential", 1, "float32", run={"starts": spread}),
    _case("xor", "hook", "fused", "hooked", 2, batch_size=10),
    _case("hierarchy", "hook", driver="hooked stock", dtype="float32"),
    _case("xor", "hook", "fused", "hooked stock", batch_size=10),
    _case("xor", "", "fused", "stopped", 2, batch_size=10),
    _case(
        "xor", "one site", driver="vectorized", chains=2,
        run={"options": {"save_params": ["layer2.bias", "layer1.weight"]}},
    ),
    _case("xor", "no warmup", "fused", run={"warmup": 0}),
    # Blocks of one's own
    *[_case("widening tanh", "scattered", e, "vectorized", 2, blocks=scattered) for e in ENGINES],
    _case(
        "hierarchy", "own layers", driver="vectorized", blocks=named_layers,
        proposal_scale=[0.2, 0.3], adapt=False,
    ),
    # The kernel by itself, step by step
    _case("xor", driver="by hand", batch_size=10),
    _case("xor", "thin", "fused", "by hand, moved", dtype="float32", thin=2),
    _case("constrained", driver="by hand"),
    _case("xor", "", "feedforward", "by hand, moved", batch_size=10),
]  # fmt: skip

CASES = {case.name: case for case in _ALL}
assert len(CASES) == len(_ALL), "two cases have the same name"
