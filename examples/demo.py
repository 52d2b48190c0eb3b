"""Sample a small Bayesian neural network on noisy XOR with FNBG, and look at what came out.

Ten chains of 30,000 + 100,000 sweeps run at once through ``MultiChainMCMC``. The script prints what
the chains target, acceptance rates, accuracies and the convergence of the predictions, and writes
pictures and the draws into a folder. ``python examples/demo.py --smoke`` does all of it in seconds,
at a length that means nothing.
"""

from __future__ import annotations

import time

STARTED = time.perf_counter()  # what follows takes seconds, which count

import argparse
import json
import math
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pyro
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, noisy_xor, predictive_probabilities
from pyro_fnbg.data.xor import NoisyXOR
from pyro_fnbg.plots import plot_acceptance_by_node, plot_decision_surface, plot_traces

with warnings.catch_warnings():
    # ArviZ 0.23 announces version 1 on import; the two functions used here exist in both
    warnings.simplefilter("ignore", FutureWarning)
    import arviz as az

Array = NDArray[np.float64]

WIDTHS = (2, 2, 2, 2, 2, 2, 2, 1)
# Test accuracies (%) near which chains on this problem tend to stay for long; 50 is guessing
PLATEAUS = (50, 85, 99)
# A chain with a smaller share of its draws near every plateau is said to move between them
SETTLED_SHARE = 0.9
# The usual limit; see Vehtari and others (2021), "Rank-normalization, folding, and localization"
MAX_R_HAT, MIN_BULK_ESS = 1.01, 400
# Name of the sampler's time
SAMPLING = "sampling"


@dataclass(frozen=True)
class Settings:
    """Hold what a run depends on.

    Attributes:
        draws: Draws kept per chain.
        warmup: Sweeps per chain that tune the proposal scales and are dropped.
        seed: Seed of the data and of the chains.
        output: Folder for pictures and draws.
        chains: Number of chains.
        thin: Sweeps a draw. With 20 the effective sample sizes are nearly those of every sweep, as
            neighbouring draws are much alike, and predicting takes seconds.
        batch_size: Rows of data that a sweep sees.
        train_rows: Rows of data.
        test_rows: Rows for testing.
        diagnosed_points: About as many test points have their predictions diagnosed.
        surface_draws: At most as many draws per chain, evenly spaced, make the decision surface.
        surface_width: Points of the surface's grid in each direction.
    """

    draws: int
    warmup: int
    seed: int
    output: Path
    chains: int = 10
    thin: int = 20
    batch_size: int = 100
    train_rows: int = 5000
    test_rows: int = 1200
    diagnosed_points: int = 50
    surface_draws: int = 200
    surface_width: int = 60


@dataclass(frozen=True)
class Predictions:
    """Hold predictions on the test data.

    Attributes:
        accuracy: Accuracy of each chain's mean prediction, shape (chains,).
        mean_log_likelihood: Mean test log-likelihood of each chain's mean prediction, (chains,).
        draw_accuracy: Accuracy of every single draw, shape (chains, draws).
        log_likelihood: Mean test log-likelihood of every draw, shape (chains, draws).
        at_points: P(y = 1) at the diagnosed points, shape (chains, draws, points).
    """

    accuracy: Array
    mean_log_likelihood: Array
    draw_accuracy: Array
    log_likelihood: Array
    at_points: Array


def main() -> None:
    """Run the demo."""
    settings = parse_settings()
    matplotlib.use("Agg")
    settings.output.mkdir(parents=True, exist_ok=True)
    data = noisy_xor(settings.train_rows, settings.test_rows, settings.seed)
    model = BayesianMLP(WIDTHS, prior_scale=10**0.5, activation="sigmoid", likelihood="bernoulli")
    # As in the paper, a batch stands in for all rows
    kernel = FNBG(model, batch_size=settings.batch_size, likelihood_scale="batch")
    clock = Clock()
    # One sweep, so that the first run on a machine compiles the sampler now, and not in the timing
    MultiChainMCMC(kernel, 1, warmup_steps=0, disable_progbar=True).run(data.x_train, data.y_train)
    clock.lap("set-up (a first run compiles the sampler here)")
    mcmc = sample(kernel, data, settings)
    clock.lap(SAMPLING)
    # Ctrl-C keeps the draws so far
    settings = replace(settings, chains=mcmc.num_chains, draws=mcmc.num_samples)

    chains: list[dict[str, Any]] = list(mcmc.reports)
    samples = mcmc.get_samples(group_by_chain=True)
    # On a network this small a second thread costs more than it gives
    torch.set_num_threads(1)
    predictions = predict(model, samples, data, settings)
    clock.lap("predictions")
    convergence = diagnose(predictions)
    clock.lap("R-hat and ESS")

    print_target(chains)
    print_acceptance(chains, predictions)
    print_accuracy(predictions)
    print_convergence(convergence, predictions)
    print_conclusions(convergence, predictions, chains, settings)
    # Every node has two weights and a bias, so all have the same target
    target = float(np.mean(list(chains[0]["target acceptance rate by block"].values())))
    files = [
        *draw_pictures(model, samples, chains, target, predictions, convergence, data, settings),
        save_draws(samples, chains[0]["target"], settings),
    ]
    clock.lap("pictures and files")
    heading("Files")
    for path in files:
        print(f"  {path}  ({path.stat().st_size / 1024:,.0f} kB)")
    print(
        f"{files[-1].name} holds every {settings.thin}th sweep after the warmup, by site and chain."
    )
    print_seconds(clock)
    if mcmc.is_complete:
        sweeps = settings.chains * (settings.warmup + settings.draws * settings.thin)
        rate = sweeps / clock.laps[SAMPLING]
        print(f"{sweeps:,} sweeps, {rate:,.0f} a second; a sweep decides on every node once.")


class Clock:
    """Share out the time since the script began, imports first."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = STARTED
        self.lap("imports and data")

    def lap(self, name: str) -> None:
        """Give the time since the last lap a name."""
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now


def parse_settings() -> Settings:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--draws", type=positive, help=f"draws per chain, {Settings.thin} sweeps each (5000)"
    )
    parser.add_argument("--warmup", type=positive, help="warmup sweeps per chain (30000)")
    parser.add_argument("--seed", type=int, default=1, help="of data and chains (default 1)")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder to fill")
    parser.add_argument("--smoke", action="store_true", help="a run of seconds; shows nothing")
    given = parser.parse_args()
    draws, warmup = (40, 20) if given.smoke else (5_000, 30_000)
    return Settings(
        draws=given.draws or draws,
        warmup=given.warmup or warmup,
        seed=given.seed,
        output=given.output,
        surface_width=20 if given.smoke else 60,
    )


def positive(text: str) -> int:
    """Read a number of sweeps; R-hat and ESS need four draws at least."""
    number = int(text)
    if number < 4:
        raise argparse.ArgumentTypeError(f"must be 4 or more, got {number}")
    return number


def sample(kernel: FNBG, data: NoisyXOR, settings: Settings) -> MultiChainMCMC:
    """Run the chains, all at once on as many threads as there are cores."""
    pyro.set_rng_seed(settings.seed)
    mcmc = MultiChainMCMC(
        kernel,
        num_samples=settings.draws,
        warmup_steps=settings.warmup,
        num_chains=settings.chains,
        thin=settings.thin,
    )
    print(
        f"Sampling {settings.chains} chains of {settings.warmup:,} + "
        f"{settings.draws * settings.thin:,} sweeps (warmup + rest, of which every "
        f"{settings.thin}th is kept: {settings.draws:,} draws a chain).\n"
        "The bar shows acceptance rates (%) by layer.",
        flush=True,
    )
    with warnings_as_lines():
        mcmc.run(data.x_train, data.y_train)
    return mcmc


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print each warning as one plain line, without the source line it came from."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        print(text, flush=True)


def predict(
    model: BayesianMLP, samples: Mapping[str, torch.Tensor], data: NoisyXOR, settings: Settings
) -> Predictions:
    """Predict the test data with every chain and every draw."""
    labels = data.y_test
    # Test rows come corner by corner, so every so many-th of them spreads over the square
    points = slice(None, None, max(1, len(labels) // settings.diagnosed_points))
    accuracy, of_mean, draw_accuracy, log_likelihood, at_points = [], [], [], [], []
    for chain in range(settings.chains):
        draws = {name: values[chain] for name, values in samples.items()}
        each = predictive_probabilities(model, draws, data.x_test)
        marginal = each.mean(0, dtype=torch.float64)
        accuracy.append(accuracy_score(labels, marginal.argmax(-1)))
        of_mean.append(mean_log_likelihood(marginal, labels))
        right = (each[..., 1] > each[..., 0]) == labels.bool()
        draw_accuracy.append(right.mean(-1, dtype=torch.float64))
        log_likelihood.append(mean_log_likelihood(each, labels))
        at_points.append(each[:, points, 1].double())
    lists = (accuracy, of_mean, draw_accuracy, log_likelihood, at_points)
    return Predictions(*(np.array([np.asarray(value) for value in values]) for values in lists))


def mean_log_likelihood(probabilities: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Average over the rows the log of what their labels were given: ``(..., rows, 2)``."""
    given = torch.where(labels.bool(), probabilities[..., 1], probabilities[..., 0])
    # A probability that rounds to 0 would make a mean of minus infinity
    return given.clamp_(1e-38).log_().mean(-1, dtype=torch.float64)


def diagnose(predictions: Predictions) -> dict[str, tuple[Array, Array]]:
    """Compute split R-hat and bulk ESS of the predictions, by what is predicted."""
    quantities = {
        "P(y = 1) at test points": predictions.at_points,
        "mean test log-likelihood": predictions.log_likelihood[:, :, None],
    }

    def by_column(values: Array, function: Callable[..., Any]) -> Array:
        return np.array([float(function(column)) for column in np.moveaxis(values, -1, 0)])

    return {
        name: (by_column(values, az.rhat), by_column(values, az.ess))
        for name, values in quantities.items()
    }


# --- What is printed ---------------------------------------------------------------------------


def heading(text: str) -> None:
    """Print the title of a section."""
    print(f"\n{text}\n{'-' * len(text)}")


def paragraph(text: str) -> None:
    """Print text in lines of readable length."""
    print(textwrap.fill(text, width=96))


def spread(values: Array, digits: int) -> str:
    """Write the mean and the range."""
    if len(values) == 0:
        return "-"
    low, high = values.min(), values.max()
    return f"{values.mean():.{digits}f} [{low:.{digits}f} .. {high:.{digits}f}]"


def print_target(chains: list[dict[str, Any]]) -> None:
    """Say what the chains target and how noisy their decisions are."""
    heading("What the chains target")
    paragraph(chains[0]["target"])
    print(f"  nominal likelihood temperature: {chains[0]['nominal likelihood temperature']:g}")
    print("Measured at the last position of each chain, mean [range] over the chains:")
    for name in (
        "standard deviation of the log ratio across batches",
        "share of decisions that another batch would reverse",
    ):
        print(f"  {name}: {spread(np.array([chain[name]['all'] for chain in chains]), 2)}")


def layer_rates(chains: list[dict[str, Any]], last_quarter: bool) -> Array:
    """Return acceptance rates (%) over all draws or the last of them, shape (chains, layers)."""
    rates = [chain["sample_stats"]["layer_acceptance_rate"] for chain in chains]
    shown = slice(-quarter(len(rates[0])), None) if last_quarter else slice(None)
    means: Array = 100 * np.array([rate[shown].mean(0, dtype=np.float64) for rate in rates])
    return means


def quarter(num_draws: int) -> int:
    """Return the number of draws in the last quarter of a chain."""
    return max(1, num_draws // 4)


def print_acceptance(chains: list[dict[str, Any]], predictions: Predictions) -> None:
    """Tabulate acceptance rates and proposal scales by layer and by node."""
    heading("Acceptance rates and proposal scales")
    rates, late = layer_rates(chains, False), layer_rates(chains, True)
    best = late[nearest_plateau(predictions) == PLATEAUS[-1]]
    near = f"{len(best)} nearest {PLATEAUS[-1]} %"
    print("         acceptance (%): mean over chains [range]             proposal scale: geometric")
    print("         all draws         last quarter of the draws          mean [range over nodes")
    print(f"layer    {f'all {len(chains)}':<17} {f'all {len(chains)}':<17} {near:<16} and chains]")
    for number, layer in enumerate(chains[0]["acceptance rate by layer"]):
        scales = np.array(
            [
                scale
                for chain in chains
                for block, scale in chain["proposal scale by block"].items()
                if block.startswith(f"{layer}.")
            ]
        )
        cells = (spread(table[:, number], 0) for table in (rates, late, best))
        print(
            f"{layer:<8} "
            + " ".join(f"{cell:<17}" for cell in cells)
            + f"{np.exp(np.log(scales).mean()):.2f} [{scales.min():.2f} .. {scales.max():.2f}]"
        )
    print(
        f"\nnode            acceptance (%) over all draws     proposal scale, {len(chains)} chains"
    )
    print("                   min  median     max              min    median       max")
    for node in chains[0]["acceptance rate by node"]:
        accepted = np.array([100 * chain["acceptance rate by node"][node] for chain in chains])
        scales = np.array([chain["proposal scale by block"][node] for chain in chains])
        print(
            f"{node:<14} "
            + " ".join(f"{value:7.1f}" for value in summary(accepted))
            + " " * 7
            + " ".join(f"{value:9.2f}" for value in summary(scales))
        )


def print_accuracy(predictions: Predictions) -> None:
    """Tabulate test accuracies, and how many chains are nearest to each plateau late in the run."""
    heading("Test accuracy (%)")
    shares, nearest, late = (
        plateau_shares(predictions),
        nearest_plateau(predictions),
        late_median(predictions),
    )
    names = "  ".join(f"near {plateau}" for plateau in PLATEAUS)
    print("       mean prediction over draws     share of single draws (%)   late median")
    print(f"chain  accuracy  log-likelihood       {names}   accuracy  nearest")
    for chain, accuracy in enumerate(predictions.accuracy):
        cells = "  ".join(f"{100 * share:7.0f}" for share in shares[chain])
        print(
            f"{chain:5}  {100 * accuracy:8.2f}  {predictions.mean_log_likelihood[chain]:14.3f}"
            f"       {cells}   {late[chain]:8.1f}  {nearest[chain]:7}"
        )
    print(f"(guessing: 50.00  {-math.log(2):.3f})")
    print(f"Late medians are nearest to {count_by_plateau(predictions)}, of {len(nearest)}.")
    paragraph(
        "A single draw counts as near the closest of these accuracies. The late median is that of "
        "the accuracies of single draws in the last quarter of a chain. The accuracy nearest to it "
        "may be far off, and the chain may move to and fro: the shares and traces.png show it."
    )


def plateau_shares(predictions: Predictions) -> Array:
    """Return the share of each chain's draws near each plateau, shape (chains, plateaus)."""
    accuracy = 100 * predictions.draw_accuracy[:, :, None]
    nearest = np.abs(accuracy - PLATEAUS).argmin(-1)
    return np.stack([(nearest == number).mean(1) for number in range(len(PLATEAUS))], axis=1)


def late_median(predictions: Predictions) -> Array:
    """Return the median accuracy (%) of the last quarter of each chain's draws, (chains,)."""
    late = predictions.draw_accuracy[:, -quarter(predictions.draw_accuracy.shape[1]) :]
    median: Array = 100 * np.median(late, axis=1)
    return median


def nearest_plateau(predictions: Predictions) -> NDArray[np.int64]:
    """Return the plateau nearest to each chain's late median, shape (chains,).

    The accuracy of the mean prediction would not do: a chain whose draws mostly guess, with
    P(y = 1) = 0.5 nearly everywhere, scores high if the rest of its draws tip the balance.
    """
    distances = np.abs(late_median(predictions)[:, None] - PLATEAUS)
    plateaus: NDArray[np.int64] = np.array(PLATEAUS)[distances.argmin(-1)]
    return plateaus


def count_by_plateau(predictions: Predictions) -> str:
    """Write how many chains are nearest to each plateau."""
    nearest = nearest_plateau(predictions)
    return ", ".join(f"{plateau} %: {np.sum(nearest == plateau)}" for plateau in PLATEAUS)


def print_convergence(
    convergence: Mapping[str, tuple[Array, Array]], predictions: Predictions
) -> None:
    """Tabulate R-hat and effective sample sizes of the predictions."""
    heading("Convergence of the predictions (ArviZ)")
    paragraph(
        "Diagnosed are predictions, not weights: hidden nodes can trade places and signs without "
        "changing what the network computes, so chains that agree in every prediction may differ "
        "in every weight, and a weight's R-hat says little."
    )
    num_chains, num_draws = predictions.log_likelihood.shape
    print(f"\n{num_chains} chains x {num_draws:,} draws   {'split R-hat':>20} {'bulk ESS':>23}")
    print(" " * 32 + "min  median     max     min  median     max")
    for name, (r_hat, ess) in convergence.items():
        r_hats = " ".join(f"{value:7.2f}" for value in summary(r_hat))
        sizes = " ".join(f"{value:7.0f}" for value in summary(ess))
        title = f"{name} ({len(r_hat)})" if len(r_hat) > 1 else name
        print(f"{title:<28}{r_hats} {sizes}")


def summary(values: Array) -> tuple[float, float, float]:
    """Return minimum, median and maximum of the numbers that are defined."""
    defined = values[np.isfinite(values)]
    if len(defined) == 0:
        return (np.nan, np.nan, np.nan)
    return float(defined.min()), float(np.median(defined)), float(defined.max())


def worst_r_hat(convergence: Mapping[str, tuple[Array, Array]]) -> float:
    """Return the largest R-hat of all predictions."""
    return summary(np.concatenate([r_hat for r_hat, _ in convergence.values()]))[2]


def named_chains(numbers: Array) -> str:
    """Name chains by their numbers, which count from 0 as everywhere."""
    return f"chain{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))} (from 0)"


def print_conclusions(
    convergence: Mapping[str, tuple[Array, Array]],
    predictions: Predictions,
    chains: list[dict[str, Any]],
    settings: Settings,
) -> None:
    """Say in plain words what this run shows and what it cannot show."""
    heading("What this run can and cannot show")
    nearest, best = nearest_plateau(predictions), PLATEAUS[-1]
    moved = np.flatnonzero(plateau_shares(predictions).max(1) < SETTLED_SHARE)
    r_hat = worst_r_hat(convergence)
    smallest_ess = summary(np.concatenate([ess for _, ess in convergence.values()]))[0]
    text = [
        f"After {settings.warmup:,} + {settings.draws * settings.thin:,} sweeps from random draws "
        f"of the prior, the median accuracy of the last quarter of the draws is nearer to another "
        f"plateau than to that of guessing ({PLATEAUS[0]} %) in {np.sum(nearest != PLATEAUS[0])} "
        f"of {len(nearest)} chains, and nearest to {best} % in {np.sum(nearest == best)}.",
    ]
    if np.any(nearest == best):
        late = layer_rates(chains, True)[nearest == best].mean(0)
        course = "does not fall" if late[-1] >= late[0] else "falls"
        text.append(
            f"Among the chains nearest to {best} %, acceptance over the last quarter of the "
            f"draws {course} from the first layer to the last: {late[0]:.1f} and {late[-1]:.1f} % "
            f"on average; lowest is layer {late.argmin() + 1} with {late.min():.1f} %. The scales "
            "were tuned, which evens the rates out; examples/noisy_xor.py fixes one scale for all."
        )
    if len(moved) > 0:
        text.append(
            f"Moving between plateaus (with less than {100 * SETTLED_SHARE:.0f} % of the draws "
            f"near any one): {named_chains(moved)}; averages over such a chain mix "
            "the plateaus in proportions that more draws would change."
        )
    if len(set(nearest)) > 1:
        text.append(
            "The late draws of the chains are nearest to different plateaus, so what one of them "
            "says depends on where it got to, not only on the data."
        )
    flattered = np.flatnonzero(
        (nearest == PLATEAUS[0]) & (100 * predictions.accuracy > PLATEAUS[0] + 5)
    )
    if len(flattered) > 0:
        text.append(
            f"Most late draws of {named_chains(flattered)} guess, although the "
            "chain's mean prediction scores more: accuracy asks only on which side of 0.5 the mean "
            "falls; the log-likelihood says how far from it."
        )
    if not r_hat <= MAX_R_HAT:
        text.append(
            f"The largest split R-hat is {r_hat:.2f}, above {MAX_R_HAT}: the chains disagree, so "
            "do not trust the pooled prediction, the pooled uncertainty or any effective sample "
            "size above; read the chains one by one, as in decision-surface-by-chain.png. (Chains "
            "that are too short disagree too.)"
        )
    else:
        text.append(
            f"The largest split R-hat is {r_hat:.3f}, within {MAX_R_HAT}: nothing here shows that "
            "the chains disagree, which is no proof that they have seen every mode."
        )
    if not smallest_ess >= MIN_BULK_ESS:
        text.append(
            f"The smallest bulk effective sample size is {smallest_ess:.0f}, below {MIN_BULK_ESS}: "
            "averages over the draws are still noisy."
        )
    text.append(
        "The acceptance rates hold for the region where each chain was, and so do the proposal "
        "scales, which were tuned there during warmup and then frozen."
    )
    text.append(
        f"Longer chains may reach other plateaus; they would not remove the bias of batches of "
        f"{settings.batch_size} rows stated at the top."
    )
    paragraph(" ".join(text))


def print_seconds(clock: Clock) -> None:
    """Say where the time went."""
    heading("Seconds")
    for name, seconds in clock.laps.items():
        print(f"  {seconds:6.1f}  {name}")
    print(f"  {sum(clock.laps.values()):6.1f}  all told")


# --- What is written ---------------------------------------------------------------------------


def draw_pictures(
    model: BayesianMLP,
    samples: Mapping[str, torch.Tensor],
    chains: list[dict[str, Any]],
    target: float,
    predictions: Predictions,
    convergence: Mapping[str, tuple[Array, Array]],
    data: NoisyXOR,
    settings: Settings,
) -> list[Path]:
    """Draw and save all pictures."""
    late, nearest = late_median(predictions), nearest_plateau(predictions)
    traces = plot_traces(
        100 * predictions.draw_accuracy,
        "test accuracy of one draw (%)",
        titles=[
            f"chain {chain}: median accuracy of the last quarter of the draws {median:.1f} %"
            for chain, median in enumerate(late)
        ],
        reference_lines={f"{plateau} %": plateau for plateau in PLATEAUS},
    )
    traces[-1, 0].set_xlabel(f"draw ({settings.thin} sweeps each)")
    by_plateau = nearest.argsort(kind="stable")
    acceptance = plot_acceptance_by_node(
        [chains[chain]["acceptance rate by node"] for chain in by_plateau],
        target,
        groups=[
            f"{np.sum(nearest == plateau)} of {len(nearest)} chains: median accuracy of\n"
            f"the last quarter nearest to {plateau} %"
            for plateau in nearest[by_plateau]
        ],
    )
    # The data's two inputs lie between these
    width = np.linspace(-0.55, 1.55, settings.surface_width)
    surface = predicted_surface(model, samples, width, settings)
    shown = slice(None, None, max(1, len(data.y_test) // 200))
    points, labels = data.x_test[shown].numpy(), data.y_test[shown].numpy()
    r_hat = worst_r_hat(convergence)
    agreement = "" if r_hat <= MAX_R_HAT else f"\n(chains disagree: R-hat up to {r_hat:.2f})"
    pooled = plot_decision_surface(
        surface.reshape(1, -1, *surface.shape[2:]),
        width,
        width,
        points,
        labels,
        titles=[f"all chains pooled{agreement}"],
    )
    by_chain = plot_decision_surface(
        surface,
        width,
        width,
        titles=[
            f"chain {chain}\nmedian accuracy of the\nlast quarter: {median:.1f} %"
            for chain, median in enumerate(late)
        ],
    )
    return [
        save_picture(traces[0, 0], settings.output / "traces.png"),
        save_picture(acceptance, settings.output / "acceptance-by-node.png"),
        save_picture(pooled[0, 0], settings.output / "decision-surface.png"),
        save_picture(by_chain[0, 0], settings.output / "decision-surface-by-chain.png"),
    ]


def predicted_surface(
    model: BayesianMLP, samples: Mapping[str, torch.Tensor], width: Array, settings: Settings
) -> Array:
    """Return P(y = 1) by chain and draw on a square grid, second input by rows."""
    second, first = np.meshgrid(width, width, indexing="ij")
    grid = torch.from_numpy(np.stack([first.ravel(), second.ravel()], axis=1).astype(np.float32))
    step = max(1, settings.draws // settings.surface_draws)
    surfaces = [
        predictive_probabilities(
            model, {name: values[chain, ::step] for name, values in samples.items()}, grid
        )[:, :, 1]
        for chain in range(settings.chains)
    ]
    stacked = torch.stack(surfaces).double().numpy()
    return stacked.reshape(settings.chains, -1, len(width), len(width))


def save_picture(ax: Axes, path: Path) -> Path:
    """Save the figure that axes are in, and free it."""
    figure = ax.get_figure(root=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def save_draws(samples: Mapping[str, torch.Tensor], target: str, settings: Settings) -> Path:
    """Save the draws by site, each of shape (chain, draw, ...), with what they are."""
    path = settings.output / "draws.npz"
    about = asdict(settings) | {"output": settings.output.name, "widths": WIDTHS, "target": target}
    arrays: dict[str, Any] = {name: values.numpy() for name, values in samples.items()}
    np.savez_compressed(path, settings=json.dumps(about), seed=settings.seed, **arrays)
    return path


if __name__ == "__main__":
    main()
