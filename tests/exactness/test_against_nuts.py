"""The same posterior by another sampler: predictions of a small net against NUTS."""

import arviz as az
import pyro
import pytest
import torch
from pyro.infer import MCMC, NUTS

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.testing import assert_same_expectation

NET = BayesianMLP([1, 2, 1], 1.0, activation="tanh", likelihood="normal", observation_scale=1.0)
X = torch.linspace(-2, 2, 20, dtype=torch.float64).unsqueeze(-1)
Y = torch.sin(1.5 * X.squeeze(-1))
POINTS = torch.linspace(-3, 3, 7, dtype=torch.float64).unsqueeze(-1)


def predictions(kernel, num_samples, warmup_steps):
    pyro.set_rng_seed(5)
    mcmc = MCMC(
        kernel,
        num_samples=num_samples,
        warmup_steps=warmup_steps,
        num_chains=4,
        disable_progbar=True,
    )
    mcmc.run(X, Y)
    values = NET.forward(mcmc.get_samples(group_by_chain=True), POINTS).squeeze(-1)
    for point in range(len(POINTS)):
        draws = values[..., point].numpy()
        assert float(az.rhat(draws)) < 1.01, (point, float(az.rhat(draws)))
        assert float(az.ess(draws)) > 400, (point, float(az.ess(draws)))
    return values


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:FutureWarning")
def test_predictions_agree_with_nuts():
    # Pyro runs NUTS three times as fast when it traces the potential once
    kernel = NUTS(NET, jit_compile=True, ignore_jit_warnings=True)
    nuts = predictions(kernel, num_samples=250, warmup_steps=150)
    fnbg = predictions(FNBG(NET), num_samples=3000, warmup_steps=500)
    for point in range(len(POINTS)):
        assert_same_expectation(fnbg[..., point], nuts[..., point], min_ess=400)
        assert_same_expectation(fnbg[..., point] ** 2, nuts[..., point] ** 2, min_ess=400)
