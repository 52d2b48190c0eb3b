"""Sample a small Bayesian neural network on noisy XOR with FNBG, and look at what came out.

Four chains run through Pyro's own ``MCMC``. The script prints what the chains target, acceptance
rates, accuracies and the convergence of the predictions, and writes pictures and the draws into a
folder. ``python examples/demo.py --smoke`` does all of it in seconds, at a length that means
nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pyro
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pyro.infer import MCMC
from sklearn.metrics import accuracy_score

from pyro_fnbg import (
    FNBG,
    BayesianMLP,
    marginal_predictive,
    noisy_xor,
    predictive_probabilities,
)
from pyro_fnbg.data import NoisyXOR
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
# Mean log-likelihood of the prediction P(y = 1) = 0.5
GUESSING = -math.log(2)
# The usual limit; see Vehtari and others (2021), "Rank-normalization, folding, and localization"
MAX_R_HAT, MIN_BULK_ESS = 1.01, 400


@dataclass(frozen=True)
class Settings:
    """Hold what a run depends on.

    Attributes:
        draws: Sweeps kept per chain.
        warmup: Sweeps per chain that tune the proposal scales and are dropped.
        seed: Seed of the data and of the chains.
        output: Folder for pictures and draws.
        chains: Number of chains.
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
    chains: int = 4
    batch_size: int = 100
    train_rows: int = 5000
    test_rows: int = 1200
    diagnosed_points: int = 50
    surface_draws: int = 400
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
    started = time.perf_counter()
    settings = parse_settings()
    matplotlib.use("Agg")
    # The network is tiny: a second thread costs more than it gives
    torch.set_num_threads(1)
    settings.output.mkdir(parents=True, exist_ok=True)
    data = noisy_xor(settings.train_rows, settings.test_rows, settings.seed)
    model = BayesianMLP(WIDTHS, prior_scale=10**0.5, activation="sigmoid", likelihood="bernoulli")
    mcmc = sample(model, data, settings)
    sampled_in = time.perf_counter() - started
    # MCMC.diagnostics() would add the R-hat of every weight, in memory that grows with draws^2
    chains: Any = mcmc._diagnostics
    samples = mcmc.get_samples(group_by_chain=True)
    predictions = predict(model, samples, data, settings)
    convergence = diagnose(predictions)

    print_target(chains)
    print_acceptance(chains)
    print_accuracy(predictions)
    print_convergence(convergence, predictions)
    print_conclusions(convergence, predictions, settings)
    # Every node has two weights and a bias, so all have the same target
    target = float(np.mean(list(chains[0]["target acceptance rate by block"].values())))
    files = [
        *draw_pictures(model, samples, chains, target, predictions, convergence, data, settings),
        save_draws(samples, chains[0]["target"], settings),
    ]
    heading("Files")
    for path in files:
        print(f"  {path}  ({path.stat().st_size / 1024:.0f} kB)")
    elapsed = time.perf_counter() - started
    sweeps = settings.chains * (settings.warmup + settings.draws)
    print(f"\n{elapsed:.0f} s in all, {sampled_in:.0f} s of them for sampling {sweeps:,} sweeps.")


def parse_settings() -> Settings:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=positive, help="draws per chain (default 3000)")
    parser.add_argument("--warmup", type=positive, help="warmup sweeps per chain (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="of data and chains (default 1)")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder to fill")
    parser.add_argument("--smoke", action="store_true", help="a run of seconds; shows nothing")
    given = parser.parse_args()
    draws, warmup = (40, 20) if given.smoke else (3000, 1000)
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


def sample(model: BayesianMLP, data: NoisyXOR, settings: Settings) -> MCMC:
    """Run the chains."""
    pyro.set_rng_seed(settings.seed)
    kernel = FNBG(model, batch_size=settings.batch_size)
    with warnings_as_lines():
        mcmc = MCMC(
            kernel,
            num_samples=settings.draws,
            warmup_steps=settings.warmup,
            num_chains=settings.chains,
        )
    print(
        f"Sampling {settings.chains} chains of {settings.warmup:,} + {settings.draws:,} sweeps "
        f"(warmup + draws); the bar shows acceptance rates (%) by layer.",
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
        if "Chains will be drawn sequentially" in text:
            text = "This machine has too few cores for all chains at once: they run in turn."
        print(text, flush=True)


def predict(
    model: BayesianMLP, samples: Mapping[str, torch.Tensor], data: NoisyXOR, settings: Settings
) -> Predictions:
    """Predict the test data with every chain and every draw."""
    labels = data.y_test.numpy()
    # Test rows come corner by corner, so every so many-th of them spreads over the square
    points = slice(None, None, max(1, len(labels) // settings.diagnosed_points))
    rows = np.arange(len(labels))
    accuracy, of_mean, draw_accuracy, log_likelihood, at_points = [], [], [], [], []
    for chain in range(settings.chains):
        draws = {name: values[chain] for name, values in samples.items()}
        marginal = marginal_predictive(model, draws, data.x_test).double().numpy()
        accuracy.append(accuracy_score(labels, marginal.argmax(-1)))
        of_mean.append(mean_log(marginal[rows, labels]))
        each = predictive_probabilities(model, draws, data.x_test).double().numpy()
        draw_accuracy.append((each.argmax(-1) == labels).mean(-1))
        log_likelihood.append(mean_log(each[:, rows, labels]))
        at_points.append(each[:, points, 1])
    lists = (accuracy, of_mean, draw_accuracy, log_likelihood, at_points)
    return Predictions(*(np.array(values) for values in lists))


def mean_log(probabilities: Array) -> Array:
    """Average the log over the last dimension."""
    # A probability that rounds to 0 would make a mean of minus infinity
    mean: Array = np.log(probabilities.clip(1e-38)).mean(-1)
    return mean


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


def print_target(chains: list[dict[str, Any]]) -> None:
    """Say what the chains target and how noisy their decisions are."""
    heading("What the chains target")
    paragraph(chains[0]["target"])
    print(f"  nominal likelihood temperature: {chains[0]['nominal likelihood temperature']:g}")
    print("Measured at the last position of each chain:")
    for name in (
        "standard deviation of the log ratio across batches",
        "share of decisions that another batch would reverse",
    ):
        figures = ", ".join(f"{chain[name]['all']:.2f}" for chain in chains)
        print(f"  {name}: {figures}")


def print_acceptance(chains: list[dict[str, Any]]) -> None:
    """Tabulate acceptance rates and proposal scales by layer, and rates by node and chain."""
    heading("Acceptance rates and proposal scales over the draws")
    print("layer     acceptance (%)            proposal scale (standard deviation)")
    print("          mean over chains [range]  geometric mean [range over nodes and chains]")
    for layer in chains[0]["acceptance rate by layer"]:
        rates = 100 * np.array([chain["acceptance rate by layer"][layer] for chain in chains])
        scales = np.array(
            [
                scale
                for chain in chains
                for block, scale in chain["proposal scale by block"].items()
                if block.startswith(f"{layer}.")
            ]
        )
        spread = f"[{rates.min():.0f} .. {rates.max():.0f}]"
        print(
            f"{layer:<9} {rates.mean():5.1f} {spread:<19} {np.exp(np.log(scales).mean()):6.2f} "
            f"[{scales.min():.2f} .. {scales.max():.2f}]"
        )
    print("\nnode           acceptance (%), scale by chain")
    print(" " * 14 + "".join(f"{f'chain {chain + 1}':>15}" for chain in range(len(chains))))
    for node in chains[0]["acceptance rate by node"]:
        cells = (
            f"{100 * chain['acceptance rate by node'][node]:.0f}, "
            f"{chain['proposal scale by block'][node]:.2f}"
            for chain in chains
        )
        print(f"{node:<14}" + "".join(f"{cell:>15}" for cell in cells))


def print_accuracy(predictions: Predictions) -> None:
    """Tabulate test accuracies, and how many chains sit near each plateau."""
    heading("Test accuracy (%)")
    shares, sits = plateau_shares(predictions), main_plateaus(predictions)
    quarter = max(1, predictions.draw_accuracy.shape[1] // 4)
    medians = np.median(100 * predictions.draw_accuracy[:, -quarter:], axis=1)
    names = "  ".join(f"near {plateau}" for plateau in PLATEAUS)
    print("       mean prediction over draws     share of single draws (%)   last quarter  mostly")
    print(f"chain  accuracy  log-likelihood       {names}   of draws      near")
    for chain, accuracy in enumerate(predictions.accuracy):
        cells = "  ".join(f"{100 * share:7.0f}" for share in shares[chain])
        print(
            f"{chain + 1:5}  {100 * accuracy:8.2f}  {predictions.mean_log_likelihood[chain]:14.3f}"
            f"       {cells}   {medians[chain]:12.1f}  {sits[chain]:6}"
        )
    counts = [f"{np.sum(sits == plateau)} near {plateau} %" for plateau in PLATEAUS]
    print(f"Of {len(sits)} chains, by where most of their draws are: {', '.join(counts)}.")
    print("(Last quarter: median accuracy of single draws. Log-likelihood: mean over test rows, in")
    print(f"nats; guessing has {GUESSING:.3f}.)")


def plateau_shares(predictions: Predictions) -> Array:
    """Return the share of each chain's draws nearest to each plateau, (chains, plateaus)."""
    distances = np.abs(100 * predictions.draw_accuracy[..., None] - np.array(PLATEAUS))
    nearest = distances.argmin(-1)[..., None] == np.arange(len(PLATEAUS))
    shares: Array = nearest.mean(1)
    return shares


def main_plateaus(predictions: Predictions) -> NDArray[np.int64]:
    """Return the plateau near which most of each chain's draws are, shape (chains,).

    The accuracy of the mean prediction would not do: a chain whose draws mostly guess, with
    P(y = 1) = 0.5 nearly everywhere, scores high if the rest of its draws tip the balance.
    """
    plateaus: NDArray[np.int64] = np.array(PLATEAUS)[plateau_shares(predictions).argmax(-1)]
    return plateaus


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


def print_conclusions(
    convergence: Mapping[str, tuple[Array, Array]], predictions: Predictions, settings: Settings
) -> None:
    """Say in plain words what this run shows and what it cannot show."""
    heading("What this run can and cannot show")
    sits, guessing, best = main_plateaus(predictions), PLATEAUS[0], PLATEAUS[-1]
    moved = np.flatnonzero(plateau_shares(predictions).max(1) < SETTLED_SHARE) + 1
    flattered = np.flatnonzero((sits == guessing) & (100 * predictions.accuracy > guessing + 5))
    r_hat = worst_r_hat(convergence)
    smallest_ess = summary(np.concatenate([ess for _, ess in convergence.values()]))[0]
    text = [
        f"After {settings.warmup:,} + {settings.draws:,} sweeps from random draws of the prior, "
        f"{np.sum(sits != guessing)} of {len(sits)} chains have left the plateau of guessing "
        f"({guessing} %) for most of their draws; mostly near {best} %: {np.sum(sits == best)}.",
    ]
    if len(moved) > 0:
        text.append(
            f"Moving between plateaus (with less than {100 * SETTLED_SHARE:.0f} % of the draws "
            f"near any one): chain {', '.join(map(str, moved))}; averages over such a chain mix "
            "the plateaus in proportions that more draws would change."
        )
    if len(set(sits)) > 1:
        text.append(
            "The chains sit on different plateaus, so what one of them says depends on where it "
            "got to, not only on the data."
        )
    for chain in flattered:
        text.append(
            f"Most draws of chain {chain + 1} guess, although its mean prediction scores "
            f"{100 * predictions.accuracy[chain]:.0f} %: accuracy asks only on which side of 0.5 "
            "the mean falls; its log-likelihood of "
            f"{predictions.mean_log_likelihood[chain]:.3f} (guessing: {GUESSING:.3f}) says how far "
            "from it."
        )
    if not r_hat <= MAX_R_HAT:
        text.append(
            f"The largest split R-hat is {r_hat:.2f}, above {MAX_R_HAT}: the chains disagree, so "
            "do not trust the pooled prediction, the pooled uncertainty or any effective sample "
            "size above; read the chains one by one. (Chains that are too short disagree too.)"
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
    names = [
        f"chain {chain}, mostly near {plateau} %"
        for chain, plateau in enumerate(main_plateaus(predictions), start=1)
    ]
    traces = plot_traces(
        100 * predictions.draw_accuracy,
        "test accuracy of a single draw (%)",
        titles=names,
        reference_lines={f"{plateau} %": plateau for plateau in PLATEAUS},
    )
    acceptance = plot_acceptance_by_node(
        [chain["acceptance rate by node"] for chain in chains], target
    )
    # The data's two inputs lie between these
    width = np.linspace(-0.55, 1.55, settings.surface_width)
    surface = predicted_surface(model, samples, width, settings)
    shown = slice(None, None, max(1, len(data.y_test) // 200))
    points, labels = data.x_test[shown].numpy(), data.y_test[shown].numpy()
    r_hat = worst_r_hat(convergence)
    agreement = "" if r_hat <= MAX_R_HAT else f" (chains disagree: R-hat up to {r_hat:.2f})"
    pooled = plot_decision_surface(
        surface.reshape(1, -1, *surface.shape[2:]),
        width,
        width,
        points,
        labels,
        titles=[f"all chains pooled{agreement}"],
    )
    by_chain = plot_decision_surface(surface, width, width, titles=names)
    return [
        save_picture(traces, settings.output / "traces.png"),
        save_picture(acceptance, settings.output / "acceptance-by-node.png"),
        save_picture(pooled, settings.output / "decision-surface.png"),
        save_picture(by_chain, settings.output / "decision-surface-by-chain.png"),
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


def save_picture(figure: Figure, path: Path) -> Path:
    """Save a figure and free it."""
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
