"""Fast engines, built past the check at set-up, against the model itself: what kills seeded faults.

The check at set-up refuses an engine that is wrong in most ways, with an error; here its results
themselves are compared, sweep by sweep and in double precision.
"""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.engines.choice import FAST
from pyro_fnbg.engines.network import read_network
from pyro_fnbg.noise import sweep_noise

CASES = {
    "classes": ([5, 4, 3, 3], {"likelihood": "categorical"}, {"parts": {1: 3}}),
    "deep": ([2, 3, 2, 2, 1], {"likelihood": "bernoulli", "activation": "tanh"}, {}),
    "layers": ([3, 3, 2], {"likelihood": "categorical"}, {"blocks": "layer"}),
    # Wide priors saturate the nodes, so that many rows do not move
    "saturated": ([3, 4, 2, 2], {"likelihood": "categorical", "prior_scale": 30.0}, {"parts": 2}),
    "scale": (
        [2, 3, 1],
        {
            "likelihood": "normal",
            "observation_scale": dist.HalfNormal(torch.tensor(1.0, dtype=torch.float64)),
        },
        {"likelihood_scale": "full"},
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FAST)
def test_sweeps_are_those_of_the_model(name, case):
    """Decisions, positions, ratios and densities over 40 sweeps, each on a batch of its own."""
    widths, structure, options = CASES[case]
    pyro.set_rng_seed(5)
    model = BayesianMLP(widths, **{"prior_scale": 1.5, **structure})
    x = torch.randn(60, widths[0], dtype=torch.float64)
    y = torch.randint(0, max(2, widths[-1]), (60,))
    if structure["likelihood"] == "normal":
        y = y + 0.1 * torch.randn(60, dtype=torch.float64)
    kernel = FNBG(model, engine="trace", batch_size=25, **options)
    kernel.setup(0, x, y)
    run = kernel._run
    network = read_network(model, (x, y), {}, run.sites, run.plan)
    with pyro.validation_enabled(False):
        engine = FAST[name](network, run.partition)
        position, scales, decisions = run.position[None], 0.4 * run.scales[None], set()
        for sweep in range(40):
            noise = sweep_noise(run.key, sweep, position.shape[-1], run.partition.num_blocks)
            drawn = (
                run.batches.rows(sweep)[None, None],
                noise.z[None, None],
                noise.log_u[None, None],
            )
            expected = run.engine.sweeps(position, *drawn, scales)
            found = engine.sweeps(position, *drawn, scales)
            assert torch.equal(found.accepted, expected.accepted)
            assert torch.equal(found.positions, expected.positions)
            # Rounding of sums of at most some hundred terms of size up to about a thousand
            assert torch.allclose(found.log_ratios, expected.log_ratios, rtol=1e-9, atol=1e-9)
            assert torch.allclose(found.log_densities, expected.log_densities, rtol=1e-9)
            decisions |= set(expected.accepted.flatten().tolist())
            position = expected.positions[:, 0]
    assert decisions == {True, False}
