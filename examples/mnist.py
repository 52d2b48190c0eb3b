"""Sample a Bayesian neural network on MNIST with FNBG, in the blocks and batches of the paper.

MLP(784,10,10,10,10) on all 60,000 images: 8,180 parameters, the nodes of the first layer in 78
parts each. The folder holds torchvision's layout, MNIST/raw or FashionMNIST/raw::

    python examples/mnist.py --data FOLDER
    python examples/mnist.py --data FOLDER --fashion --seed 2

The default is 1,000 sweeps of warmup and 3,000 draws. The script times some sweeps and says how
long the run will take before it starts, and at the end what it cannot show.
"""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from numpy.typing import NDArray
from pyro.infer import MCMC
from torch import Tensor

from pyro_fnbg import FNBG, BayesianMLP, fashion_mnist, mnist, predictive_probabilities
from pyro_fnbg.data.images import LabelledImages

# At most so many draws have a line of their own in the table
MAX_LINES = 20

# Sweeps timed before the run
TIMED_SWEEPS = 5

# Acceptance rates are averaged over so many draws at a time
WINDOW = 500

# Proposal standard deviations of the paper's experiments at batch size 3000, by layer
PAPER_SCALES = {"layer1": 0.1, "layer2": 0.01, "layer3": 0.01, "layer4": 0.00316}


class Pace(NamedTuple):
    """Hold seconds per sweep, on the clock and of the processor."""

    wall: float
    processor: float


class Accuracies(NamedTuple):
    """Hold test accuracies, draw by draw.

    Attributes:
        single: Accuracy of each draw alone, shape (draws,).
        so_far: Accuracy of the mean prediction of each draw and all before it, shape (draws,).
    """

    single: NDArray[np.float64]
    so_far: NDArray[np.float64]


def main() -> None:
    """Run one chain and report on it."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    read = fashion_mnist if options.fashion else mnist
    try:
        data = read(options.data, download=options.download)
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(str(error)) from error
    model = BayesianMLP(
        [784, 10, 10, 10, 10], prior_scale=10**0.5, activation="sigmoid", likelihood="categorical"
    )

    def make_kernel() -> FNBG:
        return FNBG(
            model,
            blocks="node",
            parts={1: options.parts},
            batch_size=options.batch_size,
            likelihood_scale="batch",  # as in the paper: a batch stands in for all rows
        )

    pyro.set_rng_seed(options.seed)
    # A kernel of its own: the chain then does not depend on the sweep that was timed
    timed = make_kernel()
    print_plan(timed, model, data, time_sweep(timed, data), options)

    pyro.set_rng_seed(options.seed)
    kernel = make_kernel()
    mcmc, paces = sample(kernel, data, options)
    # MCMC.diagnostics() would add the R-hat of every weight, in memory that grows with draws^2
    chains: Any = mcmc._diagnostics
    chain = chains[0]
    accuracies = predict(model, mcmc.get_samples(), data)
    print_pace(kernel, paces)
    print_layers(kernel, model, chain)
    print_draws(chain, accuracies)
    print_batches(chain)
    print_conclusions(chain, data, accuracies, options)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="folder that holds MNIST/raw or FashionMNIST/raw"
    )
    parser.add_argument("--download", action="store_true", help="fetch missing files into it")
    parser.add_argument("--fashion", action="store_true", help="FashionMNIST instead of MNIST")
    parser.add_argument("--sweeps", type=positive, help="sweeps kept as draws (default 3000)")
    parser.add_argument("--warmup", type=positive, help="sweeps before them (default 1000)")
    parser.add_argument("--batch-size", type=positive, help="rows that a sweep sees (default 3000)")
    parser.add_argument("--parts", type=positive, help="parts of a first-layer node (default 78)")
    parser.add_argument("--seed", type=int, default=1, help="of the chain (default 1)")
    parser.add_argument("--threads", type=positive, default=1, help="threads of torch (default 1)")
    parser.add_argument(
        "--smoke", action="store_true", help="a run of seconds in few blocks; shows nothing"
    )
    options = parser.parse_args()
    names = ("sweeps", "warmup", "batch_size", "parts")
    for name, value in zip(
        names, (4, 2, 100, 4) if options.smoke else (3000, 1000, 3000, 78), strict=True
    ):
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def positive(text: str) -> int:
    """Read a whole number of 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


def time_sweep(kernel: FNBG, data: LabelledImages) -> Pace:
    """Time sweeps from a draw of the prior, as Pyro's ``MCMC`` would run them."""
    kernel.setup(TIMED_SWEEPS, data.x_train, data.y_train)
    params = kernel.initial_params
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(TIMED_SWEEPS):
        params = kernel.sample(params)
    passed = time.perf_counter() - wall, time.process_time() - processor
    return Pace(*(seconds / TIMED_SWEEPS for seconds in passed))


def sample(
    kernel: FNBG, data: LabelledImages, options: argparse.Namespace
) -> tuple[MCMC, list[Pace]]:
    """Run the chain, and time its sweeps."""
    clocks: list[Pace] = []

    def record(*_: Any) -> None:
        clocks.append(Pace(time.perf_counter(), time.process_time()))

    mcmc = MCMC(kernel, num_samples=options.sweeps, warmup_steps=options.warmup, hook_fn=record)
    mcmc.run(data.x_train, data.y_train)
    paces = [
        Pace(after.wall - before.wall, after.processor - before.processor)
        for before, after in zip(clocks, clocks[1:], strict=False)
    ]
    return mcmc, paces


def predict(model: BayesianMLP, samples: Mapping[str, Tensor], data: LabelledImages) -> Accuracies:
    """Predict the test images with each draw and with all draws up to it."""
    single, so_far = [], []
    total = torch.zeros((), dtype=torch.float64)
    for draw in range(len(next(iter(samples.values())))):
        one = {name: values[draw : draw + 1] for name, values in samples.items()}
        probabilities = predictive_probabilities(model, one, data.x_test)[0]
        # The sum orders classes as the mean does
        total = total + probabilities
        single.append(accuracy(probabilities, data.y_test))
        so_far.append(accuracy(total, data.y_test))
    return Accuracies(np.array(single), np.array(so_far))


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the share of rows whose highest score is that of the label."""
    return float((scores.argmax(-1) == labels).double().mean())


# --- What is printed ---------------------------------------------------------------------------


def heading(text: str) -> None:
    """Print the title of a section."""
    print(f"\n{text}\n{'-' * len(text)}")


def paragraph(text: str) -> None:
    """Print text in lines of readable length."""
    print(textwrap.fill(text, width=96))


def print_plan(
    kernel: FNBG, model: BayesianMLP, data: LabelledImages, pace: Pace, options: argparse.Namespace
) -> None:
    """Say what will be run, and how long that should take."""
    heading("What is run")
    num_params = sum(int(np.prod(shape)) for shape in model.parameter_shapes.values())
    name = "FashionMNIST" if options.fashion else "MNIST"
    print(f"{name}: {len(data.x_train):,} training and {len(data.x_test):,} test images")
    print(f"{num_params:,} parameters in {kernel.partition.num_blocks:,} blocks")
    paragraph(f"target: {kernel.target}")
    sweeps = options.warmup + options.sweeps
    print(
        f"Engine: {kernel.engine}. A sweep, timed: {1000 * pace.wall:.0f} ms "
        f"({1000 * pace.processor:.0f} ms of processor time). Expected for {options.warmup:,} + "
        f"{options.sweeps:,}\nsweeps (warmup + draws): about {duration(pace.wall * sweeps)}; then "
        "the time of a few sweeps to judge the batches, and of the predictions.",
        flush=True,
    )


def duration(seconds: float) -> str:
    """Write a duration in the unit that suits it."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def print_pace(kernel: FNBG, paces: list[Pace]) -> None:
    """Report the time per sweep and per block."""
    heading("Time")
    # The clock is read after each sweep, so the first has no beginning
    walls, processors = (np.array(values) for values in zip(*paces, strict=True))
    per_block = 1000 * np.median(walls) / kernel.partition.num_blocks
    print(
        f"milliseconds per sweep: median {1000 * np.median(walls):.1f} [{1000 * walls.min():.1f} "
        f".. {1000 * walls.max():.1f}], of processor time {1000 * np.median(processors):.1f}\n"
        f"milliseconds per block: {per_block:.3f}   ({torch.get_num_threads()} thread(s) of torch)"
    )


def print_layers(kernel: FNBG, model: BayesianMLP, chain: Mapping[str, Any]) -> None:
    """Tabulate blocks, acceptance rates and proposal scales by layer."""
    heading("Acceptance over the draws, by layer")
    targets = chain["target acceptance rate by block"]
    print(
        "layer    parameters  blocks  acceptance, aim (%)  proposal scale: geometric mean [range]"
        "  the paper's"
    )
    for layer, rate in chain["acceptance rate by layer"].items():
        num_params = sum(
            int(np.prod(shape))
            for name, shape in model.parameter_shapes.items()
            if name.startswith(f"{layer}.")
        )
        scale_of = chain["proposal scale by block"]
        blocks = [block for block in scale_of if block.startswith(f"{layer}.")]
        scales = np.array([scale_of[block] for block in blocks])
        aim = np.mean([targets[block] for block in blocks])
        spread = f"{np.exp(np.log(scales).mean()):.3f} [{scales.min():.3f} .. {scales.max():.3f}]"
        print(
            f"{layer:<8} {num_params:10,}  {len(scales):6,}  {100 * rate:11.1f}, {100 * aim:4.1f}  "
            f"{spread:>40}  {PAPER_SCALES[layer]:11.3g}"
        )
    rates = chain["acceptance rate by block"]
    gaps = np.array([abs(rates[block] - targets[block]) for block in rates])
    print(
        f"blocks within 0.10 of their aim: {100 * (gaps < 0.1).mean():.1f} %; rates of single "
        f"blocks: {100 * min(rates.values()):.1f} .. {100 * max(rates.values()):.1f} %"
    )
    by_draw = chain["sample_stats"]["layer_acceptance_rate"]
    if len(by_draw) >= 2 * WINDOW:
        heading(f"Acceptance by layer (%), {WINDOW} draws at a time")
        for first in range(0, len(by_draw) - WINDOW + 1, WINDOW):
            means = 100 * by_draw[first : first + WINDOW].mean(0)
            print(f"draws {first + 1:5} to {first + WINDOW:5}: ", *(f"{m:5.1f}" for m in means))


def print_draws(chain: Mapping[str, Any], accuracies: Accuracies) -> None:
    """Tabulate log density and test accuracies along the chain."""
    heading("Draw by draw")
    print("      log density on    test accuracy (%)")
    print("draw  the sweep's batch  this draw  mean prediction so far")
    densities = chain["sample_stats"]["batch_log_density"]
    shown = np.unique(np.linspace(0, len(densities) - 1, MAX_LINES).round().astype(int))
    for draw in shown:
        print(
            f"{draw + 1:4}  {densities[draw]:17.1f}  {100 * accuracies.single[draw]:9.2f}  "
            f"{100 * accuracies.so_far[draw]:22.2f}"
        )


def print_batches(chain: Mapping[str, Any]) -> None:
    """Say how tempered the target is, and how noisy the decisions are."""
    heading("What the batches do")
    print(f"nominal likelihood temperature: {chain['nominal likelihood temperature']:g}")
    for name in (
        "standard deviation of the log ratio across batches",
        "share of decisions that another batch would reverse",
    ):
        # A single batch, that of all rows, has no such figures
        if name in chain:
            figures = ", ".join(f"{layer} {value:.2f}" for layer, value in chain[name].items())
            print(f"{name}, at the last position:\n  {figures}")


def print_conclusions(
    chain: Mapping[str, Any],
    data: LabelledImages,
    accuracies: Accuracies,
    options: argparse.Namespace,
) -> None:
    """Say in plain words what this run shows and what it cannot show."""
    heading("What this run can and cannot show")
    sweeps = options.warmup + options.sweeps
    commonest = data.y_test.bincount().max().item() / len(data.y_test)
    epochs = sweeps * options.batch_size / len(data.x_train)
    text = [
        f"It shows what a sweep costs here, and how well one chain predicts. In {sweeps:,} "
        f"sweeps from a draw of the prior each parameter was proposed {sweeps:,} times, and the "
        f"batches went through the training images {epochs:.2g} times. The mean prediction of the "
        f"draws is right for {100 * accuracies.so_far[-1]:.2f} % of the test images; naming the "
        f"commonest class every time would be for {100 * commonest:.2f} %."
    ]
    densities = chain["sample_stats"]["batch_log_density"]
    third = len(densities) // 3
    if third > 0:
        first, last = densities[:third].mean(), densities[-third:].mean()
        text.append(
            f"The mean log density on the batches went from {first:.0f} in the first third of the "
            f"draws to {last:.0f} in the last."
        )
    text.append(
        "It does not show where a longer chain would end, in accuracy or anything else: a chain "
        "that still moves away from its start is no sample of what it targets, and its draws are "
        "neighbours, not independent. The proposal scales were tuned once per warmup sweep, here "
        f"{options.warmup:,} times, and the chain moved on from where they were tuned. One chain "
        "cannot disagree with itself: R-hat needs several."
    )
    if len(data.x_train) > options.batch_size:
        text.append(
            "Several longer chains would show more; they would not remove the bias of batches "
            f"of {options.batch_size:,} rows stated at the top."
        )
    paragraph(" ".join(text))


if __name__ == "__main__":
    main()
