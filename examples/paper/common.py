"""What the scripts of this folder share: options, data, networks, chains that go on, tables.

Not in the package: these are the settings of one paper's experiments, and ways to look at them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pyro
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pyro_fnbg import (
    FNBG,
    BayesianMLP,
    ClassPrediction,
    MultiChainMCMC,
    fashion_mnist,
    mnist,
    noisy_xor,
    open_samples,
    predict,
    read_noisy_xor,
    score_classes,
)
from pyro_fnbg.data.images import LabelledImages
from pyro_fnbg.data.xor import NoisyXOR
from pyro_fnbg.stores.samples import StoredSamples

# Sweeps that the paper drops, keeps and predicts from; of the kept, one in so many is stored
BURN_IN, SWEEPS, PREDICTING, THIN = 10_000, 100_000, 10_000, 10
# Sweeps of a tuned chain on images that tune and are dropped, as in examples/mnist.py
TUNING = 1_000
PRIOR_SCALE = 10**0.5
SHALLOW, DEEP, IMAGES = (2, 2, 1), (2, 2, 2, 2, 2, 2, 2, 1), (784, 10, 10, 10, 10)
SETS = ("MNIST", "FashionMNIST")
# The paper's numbers of images in a batch, as shares of 60,000
SHARES = (0.01, 0.03, 0.05, 0.07)
# Variances of its proposals by layer at the two larger sizes, and what they are times at others.
# (Its tables head them "standard deviation"; in its code they are variances.)
VARIANCES = {"layer1": 1e-2, "layer2": 1e-4, "layer3": 1e-4, "layer4": 1e-5}
TIMES = {0.01: 5.0, 0.03: 2.0, 0.05: 1.0, 0.07: 1.0}
SETTINGS = ("paper", "tuned")
# Options of several scripts, for ``read_options``
WHICH_SETTINGS = {
    "settings": {
        "nargs": "+",
        "default": SETTINGS,
        "choices": SETTINGS,
        "help": "the paper's scales and blocks, this package's tuned scales, or both (default)",
    }
}
WHICH_SETS = {
    "sets": {"nargs": "+", "default": SETS, "choices": SETS, "help": "of images (default both)"}
}

Rates = Mapping[str, float]


def read_options(doc: str | None, sweeps: int = SWEEPS, **further: Any) -> argparse.Namespace:
    """Read the command line that all scripts share.

    Args:
        doc: The script's docstring.
        sweeps: Sweeps that are kept of each chain, unless told otherwise.
        **further: Arguments of the script's own, by name: keywords for ``add_argument``.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a run of seconds; shows nothing")
    parser.add_argument(
        "--data", type=Path, help="folder that holds noisy_xor, MNIST/raw and FashionMNIST/raw"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the chains (default 1)")
    parser.add_argument("--out", type=Path, help="folder for tables and pictures (paper-output)")
    parser.add_argument("--stores", type=Path, help="folder for draws (OUT/stores)")
    parser.add_argument(
        "--sweeps",
        type=int,
        help=f"kept of each chain, default {sweeps}; more than there are makes the chains longer",
    )
    for name, how in further.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    options = parser.parse_args()
    options.out = options.out or Path("paper-output", *(["quick"] if options.quick else []))
    options.stores = options.stores or options.out / "stores"
    options.sweeps = options.sweeps or (200 if options.quick else sweeps)
    if options.sweeps < THIN or options.sweeps % THIN:
        parser.error(f"--sweeps must be a multiple of {THIN}, got {options.sweeps}")
    options.burn_in = 50 if options.quick else BURN_IN
    options.stores.mkdir(parents=True, exist_ok=True)
    matplotlib.use("Agg")
    torch.set_num_threads(1)  # so that seconds compare
    return options


# --- Data and networks -------------------------------------------------------------------------


def xor_data(options: argparse.Namespace) -> NoisyXOR:
    """Read the paper's noisy XOR, or simulate it where no folder is given."""
    return noisy_xor() if options.data is None else read_noisy_xor(options.data / "noisy_xor")


def image_data(options: argparse.Namespace, name: str) -> LabelledImages:
    """Read a set of images; for a quick run fewer of them, or made-up ones without a folder."""
    if options.data is not None:
        data = {"MNIST": mnist, "FashionMNIST": fashion_mnist}[name](options.data)
        few = slice(None, 1000 if options.quick else None)
        return LabelledImages(*(values[few] for values in data))
    if not options.quick:
        raise SystemExit(f"--data must name the folder that holds {name}/raw")
    generator = torch.Generator().manual_seed(SETS.index(name))
    y = torch.arange(1200) % 10
    # A bright bar whose height is the class, in noise; between 0 and 255 as pixels are
    pixels = 200.0 * torch.rand(len(y), 28, 28, generator=generator)
    pixels[torch.arange(len(y)), 2 * y + 4] = 255.0
    pixels[:, 0, 0] = 0.0
    x = standardised(pixels.flatten(1), pixels[:1000])
    return LabelledImages(x[:1000], y[:1000], x[1000:], y[1000:])


def standardised(x: Tensor, by: Tensor) -> Tensor:
    """Standardise numbers with the mean and the standard deviation of others."""
    return (x - by.double().mean().float()) / by.double().std(correction=0).float()


def xor_model(widths: Sequence[int] = DEEP, likelihood: str = "bernoulli") -> BayesianMLP:
    """Make one of the paper's networks for noisy XOR."""
    return BayesianMLP(widths, prior_scale=PRIOR_SCALE, likelihood=likelihood)


def image_kernel(num_rows: int, share: float, settings: str, **changed: Any) -> FNBG:
    """Make the sampler of the paper's network for images.

    Args:
        num_rows: Number of training images.
        share: Share of them in a batch.
        settings: "paper", with its blocks, batches and fixed variances, or "tuned", this package's
            default in the same blocks.
        **changed: Arguments of ``FNBG`` that are to be others.
    """
    model = BayesianMLP(IMAGES, prior_scale=PRIOR_SCALE, likelihood="categorical")
    arguments: dict[str, Any] = {"parts": {1: 78}, "likelihood_scale": "batch"}
    if share < 1:
        arguments["batch_size"] = round(share * num_rows)
    if settings == "paper":
        scales = {layer: (TIMES[share] * v) ** 0.5 for layer, v in VARIANCES.items()}
        arguments |= {"proposal_scale": scales, "adapt": False, "batch_order": "stratified"}
    return FNBG(model, **(arguments | changed))


# --- Chains ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chains:
    """Hold chains in a store.

    Attributes:
        model: The model.
        samples: Their draws, a sweep in ``THIN``.
        reports: What is told of each chain, over the sweeps that are kept.
        burn_in: Sweeps dropped.
        seconds: Of the processor, for all chains and sweeps, set-up included.
    """

    model: BayesianMLP
    samples: StoredSamples
    reports: Sequence[Mapping[str, Any]]
    burn_in: int
    seconds: float

    @property
    def num_draws(self) -> int:
        """Number of draws of each chain."""
        return self.samples.num_draws // self.samples.num_chains

    @property
    def sweeps(self) -> int:
        """Number of sweeps of each chain."""
        return self.burn_in + THIN * self.num_draws

    def last(self, chain: int, sweeps: int = PREDICTING) -> dict[str, Tensor]:
        """Read the draws of the last sweeps of a chain, or all where there are fewer."""
        end = (chain + 1) * self.num_draws
        return self.samples.read(slice(end - min(self.num_draws, sweeps // THIN), end))

    def predict(self, chain: int, x: Tensor, sweeps: int = PREDICTING) -> ClassPrediction:
        """Predict from the last sweeps of a chain."""
        prediction = predict(self.model, self.last(chain, sweeps), x, progress=False)
        assert isinstance(prediction, ClassPrediction)
        return prediction

    def accuracies(self, x: Tensor, y: Tensor) -> NDArray[np.float64]:
        """Return the accuracy of each chain's prediction from its last sweeps."""
        chains = range(self.samples.num_chains)
        return np.array([score_classes(self.predict(c, x), y)["accuracy"] for c in chains])

    def rates(self, by: str = "layer") -> list[Rates]:
        """Return the acceptance rates of each chain by "layer", "node" or "block"."""
        return [report[f"acceptance rate by {by}"] for report in self.reports]

    def mean_rates(self, by: str = "layer") -> dict[str, float]:
        """Return the same in per cent, means over the chains."""
        return {name: 100 * rate for name, rate in pd.DataFrame(self.rates(by)).mean().items()}


def sample(
    name: str,
    kernel: FNBG,
    x: Tensor,
    y: Tensor,
    options: argparse.Namespace,
    chains: int = 1,
    burn_in: int | None = None,
    sweeps: int | None = None,
    seed: int | None = None,
) -> Chains:
    """Run chains, go on with them where they were, or take them as they are if they are done.

    Args:
        name: Of the store; experiments that give the same share chains.
        kernel: The sampler.
        x: Inputs.
        y: Observed responses.
        options: The command line.
        chains: Number of chains.
        burn_in: Sweeps dropped, in which scales are tuned if any are; the options' if left out.
        sweeps: Sweeps kept; the options' if left out.
        seed: Of the chains; the options' if left out.
    """
    seed = options.seed if seed is None else seed
    burn_in = options.burn_in if burn_in is None else burn_in
    draws = (options.sweeps if sweeps is None else sweeps) // THIN
    path = options.stores / f"{name}-seed{seed}.zarr"
    quiet = options.quick
    started = time.process_time()
    if path.exists():
        mcmc = MultiChainMCMC.resume(path, kernel, disable_progbar=quiet)
        if mcmc.num_samples < draws:
            more = draws - mcmc.num_samples
            mcmc = MultiChainMCMC.resume(path, kernel, more, disable_progbar=quiet)
    else:
        pyro.set_rng_seed(seed)
        mcmc = MultiChainMCMC(
            kernel, draws, burn_in, num_chains=chains, thin=THIN, store=path, disable_progbar=quiet
        )
    clock = path.with_suffix(".json")
    before = json.loads(clock.read_text()) if clock.exists() else {"draws": 0, "seconds": 0.0}
    mcmc.run(x, y)
    # A look at chains that are done costs seconds that are no part of them
    if mcmc.num_samples > before["draws"]:
        seconds = before["seconds"] + time.process_time() - started
        before = {"draws": mcmc.num_samples, "seconds": seconds}
        clock.write_text(json.dumps(before))
    found = Chains(
        kernel.model, open_samples(path), mcmc.reports, mcmc.warmup_steps, before["seconds"]
    )
    print(
        f"{path.name}: {chains} chain(s) of {found.sweeps:,} sweeps, {found.seconds:.0f} s; "
        f"{mcmc.reports[0]['target'].partition(',')[0]}",
        flush=True,
    )
    return found


def image_chains(
    name: str, data: LabelledImages, options: argparse.Namespace, share: float, settings: str
) -> Chains:
    """Return the chain on a set of images that several experiments look at."""
    kernel = image_kernel(len(data.x_train), share, settings)
    return sample(
        f"{name}-{kernel.config.batch_size}-{settings}",
        kernel,
        data.x_train,
        data.y_train,
        options,
        burn_in=None if settings == "paper" or options.quick else TUNING,
    )


def xor_chains(
    data: NoisyXOR,
    options: argparse.Namespace,
    widths: Sequence[int] = DEEP,
    settings: str = "paper",
    likelihood: str = "bernoulli",
) -> Chains:
    """Return the ten chains in batches of 100 that several experiments look at."""
    kernel = FNBG(
        xor_model(widths, likelihood), batch_size=100, likelihood_scale="batch", **fixed(settings)
    )
    name = f"xor-{'-'.join(map(str, widths))}-{likelihood}-100-{settings}"
    return sample(name, kernel, data.x_train, data.y_train, options, chains=10)


def fixed(settings: str, variance: float = 0.04) -> dict[str, Any]:
    """Return the arguments of the paper's common scale for all blocks, or none to have it tuned."""
    return {"proposal_scale": variance**0.5, "adapt": False} if settings == "paper" else {}


def pilot_scales(
    kernel_with: Callable[[dict[str, float]], FNBG],
    x: Tensor,
    y: Tensor,
    num_layers: int,
    high: float,
    sweeps: int,
    seed: int,
    lowest: float = 0.05,
    shrink: float = 10**-0.5,
) -> tuple[dict[str, float], pd.DataFrame]:
    """Tune scales by pilot runs, as the paper describes it.

    "The proposal variances have been set initially to a single relatively high value across all
    parameter blocks. Subsequently, the proposal variances of blocks in each hidden layer have been
    reduced to smaller values in deeper layers until non-vanishing acceptance rates have been
    attained." Each pilot starts at the same draw from the prior.

    Args:
        kernel_with: From scales by layer to a sampler that does not tune.
        x: Inputs.
        y: Observed responses.
        num_layers: Number of layers.
        high: The scale to begin with.
        sweeps: Length of a pilot; rates are over its second half.
        seed: Of the pilots.
        lowest: A rate below it counts as vanishing. (The paper gives no number.)
        shrink: What the scale of a layer whose rate vanishes is multiplied by.

    Returns:
        The scales by layer, and a table with a row for each pilot: scales and rates.
    """
    scales = {f"layer{layer + 1}": high for layer in range(num_layers)}
    rows: list[dict[str, float]] = []
    while True:
        pyro.set_rng_seed(seed)
        half = sweeps // 2
        mcmc = MultiChainMCMC(kernel_with(scales), half, half, disable_progbar=True)
        mcmc.run(x, y)
        rates = mcmc.reports[0]["acceptance rate by layer"]
        rows.append(
            {f"scale {layer}": scale for layer, scale in scales.items()}
            | {f"rate {layer} (%)": 100 * rate for layer, rate in rates.items()}
        )
        vanishing = [layer for layer, rate in rates.items() if rate < lowest]
        if not vanishing:
            return scales, pd.DataFrame(rows)
        scales = {
            layer: scale * shrink if layer in vanishing else scale
            for layer, scale in scales.items()
        }


# --- Results -----------------------------------------------------------------------------------


def write_table(
    options: argparse.Namespace,
    name: str,
    rows: Sequence[Mapping[str, Any]] | pd.DataFrame,
    keys: Sequence[str] = (),
) -> pd.DataFrame:
    """Write a table, show and return it.

    Args:
        options: The command line.
        name: Of the file.
        rows: The rows.
        keys: Columns that name a row, where a run may make some rows only: others that are in the
            file stay.
    """
    table = pd.DataFrame(rows)
    path = options.out / f"{name}.csv"
    if keys and path.exists():
        old = pd.read_csv(path)
        table = pd.concat([table, old]).drop_duplicates(list(keys)).sort_values(list(keys))
    table.to_csv(path, index=False, float_format="%.6g")
    print(f"\n{table.to_string(index=False, float_format='%.4g')}\n{path}", flush=True)
    return table


def write_figure(options: argparse.Namespace, name: str, figure: Any) -> None:
    """Write a picture, and close it."""
    assert isinstance(figure, Figure)
    path = options.out / f"{name}.png"
    figure.savefig(path, dpi=72, bbox_inches="tight")
    matplotlib.pyplot.close(figure)
    # A palette makes the file a third as large
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)
    print(path, flush=True)
