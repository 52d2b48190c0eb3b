"""Fast engines, built past the check at set-up, against the model itself: what kills seeded faults.

The check at set-up refuses an engine that is wrong in most ways, with an error; here its results
themselves are compared, sweep by sweep and in double precision.
"""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP, Block, Partition
from pyro_fnbg.core.noise import ChainKey, sweep_noise
from pyro_fnbg.engines.choice import FAST
from pyro_fnbg.engines.network import read_network
from pyro_fnbg.model.bound import BoundModel

ROWS, BATCH = 60, 25
CHAINS, CALLS, SWEEPS = 2, 5, 6  # sweeps of a call


def mixed(layout):
    """A node of layer 2, layer 1 as one block, and the other nodes of layers 2 and 3."""
    cuts = [(8, 9, 12), tuple(range(8)), (10, 11, 13), (14, 15, 18), (16, 17, 19)]
    blocks = tuple(Block(f"b{k}", cut) for k, cut in enumerate(cuts))
    return Partition(blocks, layout.num_params)


CASES = {
    "classes": ([5, 4, 3, 3], {"likelihood": "categorical"}, {"parts": {1: 3}}),
    "deep": ([2, 3, 2, 2, 1], {"likelihood": "bernoulli", "activation": "tanh"}, {}),
    "layers": ([3, 3, 2], {"likelihood": "categorical", "prior_loc": 0.3}, {"blocks": "layer"}),
    # Wide priors saturate the nodes, so that many rows do not move
    "saturated": ([3, 4, 2, 2], {"likelihood": "categorical", "prior_scale": 30.0}, {"parts": 2}),
    "mixed": ([3, 2, 2, 2], {"likelihood": "categorical"}, {"blocks": mixed}),
    "scale": (
        [2, 3, 1],
        {
            "likelihood": "normal",
            "observation_scale": dist.HalfNormal(torch.tensor(1.0, dtype=torch.float64)),
        },
        {"likelihood_scale": "full"},
    ),
}


class Setup:
    """A case, the engine of a name for it, and the model itself to compare with."""

    def __init__(self, name, case):
        widths, structure, options = CASES[case]
        pyro.set_rng_seed(5)
        model = BayesianMLP(widths, **{"prior_scale": 1.5, **structure})
        x = torch.randn(ROWS, widths[0], dtype=torch.float64)
        y = torch.randint(0, max(2, widths[-1]), (ROWS,))
        if structure["likelihood"] == "normal":
            y = y + 0.1 * torch.randn(ROWS, dtype=torch.float64)
        kernel = FNBG(model, engine="trace", batch_size=BATCH, **options)
        kernel.setup(0, x, y)
        run = kernel._running()
        network = read_network(BoundModel(model, (x, y)), run.sites, run.plan)
        self.trace, self.engine = run.engine, FAST[name](network, run.partition)
        self.size = len(run.position), run.partition.num_blocks
        self.positions = run.position + 0.3 * torch.randn(CHAINS, self.size[0]).double()
        self.scales = run.scales * torch.tensor([[0.3], [0.5]])

    def noise(self, call):
        """Batches and noise of one call, in the order of ``Engine.sweeps``."""
        drawn = [
            sweep_noise(ChainKey(5, chain), sweep, *self.size)
            for chain in range(CHAINS)
            for sweep in range(SWEEPS * call, SWEEPS * (call + 1))
        ]
        parts = (
            torch.stack([torch.randperm(ROWS)[:BATCH] for _ in drawn]),
            torch.stack([noise.z for noise in drawn]),
            torch.stack([noise.log_u for noise in drawn]),
        )
        return [part.unflatten(0, (CHAINS, SWEEPS)) for part in parts]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FAST)
def test_sweeps_are_those_of_the_model(name, case):
    """Decisions, positions, ratios and densities of two chains, every sweep on its own batch."""
    setup = Setup(name, case)
    positions, rates = setup.positions, []
    with pyro.validation_enabled(False):
        for call in range(CALLS):
            noise = setup.noise(call)
            expected = setup.trace.sweeps(positions, *noise, setup.scales)
            found = setup.engine.sweeps(positions, *noise, setup.scales)
            assert torch.equal(found.accepted, expected.accepted)
            assert torch.equal(found.positions, expected.positions)
            # Rounding of sums of at most some hundred terms of size up to about a thousand
            assert torch.allclose(found.log_ratios, expected.log_ratios, rtol=1e-9, atol=1e-9)
            assert torch.allclose(found.log_densities, expected.log_densities, rtol=1e-9)
            rates.append(expected.accepted.double().mean((1, 2)))
            positions = expected.positions[:, -1]
    rates = torch.stack(rates).mean(0)
    assert ((rates > 0.05) & (rates < 0.95)).all(), f"decisions of one kind only: {rates}"


def test_fused_calls_work_in_memory_of_their_own():
    """Calls run on threads side by side: what one writes, no other may read."""
    setup = Setup("fused", "deep")
    noise = setup.noise(0)
    setup.engine._works.clear()  # that of set-up is too small to be lent again
    expected = setup.engine.sweeps(setup.positions, *noise, setup.scales)
    with setup.engine._work(BATCH) as one, setup.engine._work(BATCH) as other:
        for mine, its in zip(one, other, strict=True):
            assert not np.shares_memory(mine, its)
        for work in (one, other):
            work.log_lik.fill(math.nan)
            work.pre.fill(math.nan)
    # and what an earlier call left there plays no part
    again = setup.engine.sweeps(setup.positions, *noise, setup.scales)
    for before, after in zip(expected, again, strict=True):
        assert torch.equal(before, after)
