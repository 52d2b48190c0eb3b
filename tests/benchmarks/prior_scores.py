"""Score priors of the weights on held-out rows of two data sets of scikit-learn.

    PYTHONPATH=tests python -m benchmarks.prior_scores --sweeps 6000 --hidden 32 32

Diabetes (442 rows, 10 inputs, regression; response standardised) and breast cancer (569 rows, 30
inputs, two classes), a fifth held out, inputs standardised by the training rows; and either with as
many inputs of noise besides. Prints a line for each data set and prior: root mean squared error or
accuracy, mean log predictive density, the largest R-hat of a prediction, seconds of sampling.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, predict, score_classes, score_numbers
from pyro_fnbg.networks.priors import ScalePrior
from pyro_fnbg.results.function_space import diagnose_predictions

VARIANCE = dist.InverseGamma(1.0, 0.1)
CHAINS = 4


def priors(layers: int) -> dict[str, dict]:
    """Arguments of ``BayesianMLP`` by what the table calls them."""
    per_layer = ScalePrior(VARIANCE, of="variance")
    per_input = ScalePrior(VARIANCE, of="variance", per="input")
    return {
        "Normal(0, 1)": {},
        "fan_in": {"prior_scale": "fan_in"},
        "fan_in, laplace": {"prior_scale": "fan_in", "prior": "laplace"},
        "fan_in, student": {"prior_scale": "fan_in", "prior": "student"},
        "a variance a layer": {"prior_scale": per_layer},
        "a variance an input of layer 1": {"prior_scale": [per_input] + [per_layer] * (layers - 1)},
    }


def rows(name: str, noise: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Return inputs and labels for training, inputs and labels held out."""
    load = load_diabetes if name == "diabetes" else load_breast_cancer
    x, y = load(return_X_y=True)
    x = np.column_stack([x, np.random.default_rng(seed).standard_normal((len(x), noise))])
    if name == "diabetes":
        y = (y - y.mean()) / y.std()
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=seed)
    scaler = StandardScaler().fit(x_train)
    inputs = (torch.tensor(scaler.transform(part)).float() for part in (x_train, x_test))
    dtype = torch.float32 if name == "diabetes" else torch.long
    labels = (torch.tensor(part, dtype=dtype) for part in (y_train, y_test))
    return (*inputs, *labels)


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=6_000)
    parser.add_argument("--hidden", type=int, nargs="*", default=[32, 32])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name, noise in (("diabetes", 0), ("diabetes", 10), ("cancer", 0), ("cancer", 30)):
        x, x_test, y, y_test = rows(name, noise, arguments.seed)
        for words, prior in priors(len(arguments.hidden) + 1).items():
            pyro.set_rng_seed(arguments.seed)
            response = {"likelihood": "normal" if name == "diabetes" else "bernoulli"}
            if name == "diabetes":
                response["observation_scale"] = dist.HalfNormal(1.0)
            widths = [x.shape[1], *arguments.hidden, 1]
            model = BayesianMLP(widths, activation="tanh", **response, **prior)
            kernel = FNBG(model, thin=10)
            mcmc = MultiChainMCMC(
                kernel,
                num_samples=arguments.sweeps // 10,
                warmup_steps=arguments.sweeps,
                num_chains=CHAINS,
                disable_progbar=True,
            )
            started = time.perf_counter()
            mcmc.run(x, y)
            seconds = time.perf_counter() - started
            samples = mcmc.get_samples()
            prediction = predict(model, samples, x_test, y_test, progress=False)
            score = score_numbers if name == "diabetes" else score_classes
            found = score(prediction, y_test, target=kernel.target)
            worst = diagnose_predictions(model, samples, x_test, num_chains=CHAINS).summary
            label = f"{name} + {noise}" if noise else name
            print(
                f"| {label} | {words} | {found['rmse' if name == 'diabetes' else 'accuracy']:.3f} "
                f"| {found['lppd']:.3f} | {max(v for k, v in worst.items() if 'r_hat' in k):.2f} "
                f"| {seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
