"""Adaptation through whole runs: acceptance at its targets, then an exact frozen chain."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC

from pyro_fnbg import FNBG
from pyro_fnbg.core.tuning import target_accept_probs
from pyro_fnbg.testing import assert_expectation

# The prior, from which the scales start, is 2 to 1,000 times as wide as the posterior
SIZES = {"a": 1, "b": 3, "c": 11, "d": 1, "e": 3, "f": 11}
SCALES = {"a": 0.01, "b": 1.0, "c": 3.0, "d": 5.0, "e": 0.2, "f": 0.05}


def gaussians():
    score = torch.zeros(())
    for name, size in SIZES.items():
        value = pyro.sample(name, dist.Normal(torch.zeros(size), 10.0).to_event(1))
        score = score - 0.5 * (SCALES[name] ** -2 - 1e-2) * value.square().sum()
    pyro.factor("likelihood", score)


@pytest.mark.slow  # a long chain of trace
def test_acceptance_ends_at_its_targets_and_the_frozen_chain_is_right():
    pyro.set_rng_seed(2)
    kernel, scales = FNBG(gaussians), []

    def hook(kernel, params, stage, i):
        if stage.startswith("Sample"):
            scales.append(kernel.state.adaptation[0].scales)

    mcmc = MCMC(kernel, num_samples=8000, warmup_steps=2000, hook_fn=hook, disable_progbar=True)
    mcmc.run()
    assert len(scales) == 8000
    assert all(torch.equal(scale, scales[0]) for scale in scales)
    targets = target_accept_probs(kernel.partition)
    rates = torch.tensor(list(kernel.diagnostics()["acceptance rate by block"].values()))
    assert ((rates - targets).abs() < 0.05).all(), rates
    assert abs((rates - targets).mean()) < 0.02, rates
    for name, values in mcmc.get_samples().items():
        for i in range(values.shape[1]):
            chains = values[:, i].reshape(4, -1) / SCALES[name]
            assert_expectation(chains, 0.0)
            assert_expectation(chains**2, 1.0)
