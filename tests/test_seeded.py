"""Fast engines, built past the check at set-up, against the model itself: what kills seeded faults.

The check at set-up refuses an engine that is wrong in most ways, with an error; here its results
themselves are compared, sweep by sweep and in double precision.
"""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import BayesianMLP, Block, Partition
from pyro_fnbg.networks.priors import ScalePrior
from pyro_fnbg.testing import make_inputs, run_on, start
from support.engines import (
    assert_as_trace,
    assert_decides_both_ways,
    assert_identical,
    go_on,
    past_the_check,
)
from support.slow import slowly

ROWS, BATCH = 60, 25
CHAINS, CALLS, SWEEPS = 2, 5, 6  # sweeps of a call


def mixed(layout):
    """A node of layer 2, layer 1 as one block, and the other nodes of layers 2 and 3."""
    cuts = [(8, 9, 12), tuple(range(8)), (10, 11, 13), (14, 15, 18), (16, 17, 19)]
    blocks = tuple(Block(f"b{k}", cut) for k, cut in enumerate(cuts))
    return Partition(blocks, layout.num_params)


def up_and_down(layout):
    """Nodes in no order of layers: what a block finds changed may lie below it or above it."""
    cuts = [(14, 15, 18), (0, 1, 2, 6), (8, 9, 12), (3, 4, 5, 7), (16, 17, 19), (10, 11, 13)]
    blocks = tuple(Block(f"b{k}", cut) for k, cut in enumerate(cuts))
    return Partition(blocks, layout.num_params)


CASES = {
    "classes": ([5, 4, 3, 3], {"likelihood": "categorical"}, {"parts": {1: 3}}),
    "deep": ([2, 3, 2, 2, 1], {"likelihood": "bernoulli", "activation": "tanh"}, {}),
    "layers": ([3, 3, 2], {"likelihood": "categorical", "prior_loc": 0.3}, {"blocks": "layer"}),
    # Wide priors saturate the nodes, so that many rows do not move
    "saturated": ([3, 4, 2, 2], {"likelihood": "categorical", "prior_scale": 30.0}, {"parts": 2}),
    # Layers that are looked up row by row, of a vector of nodes and of more
    "wide": ([3, 6, 18, 5], {"likelihood": "categorical", "activation": "tanh"}, {}),
    "wide saturated": ([3, 9, 6, 7], {"likelihood": "categorical", "prior_scale": 30.0}, {}),
    "mixed": ([3, 2, 2, 2], {"likelihood": "categorical"}, {"blocks": mixed}),
    "up and down": ([3, 2, 2, 2], {"likelihood": "categorical"}, {"blocks": up_and_down}),
    "laplace": (
        [3, 3, 2],
        {"likelihood": "categorical", "prior": "laplace", "prior_loc": 0.3},
        {},
    ),
    "student priors": (
        [2, 3, 1],
        {"likelihood": "bernoulli", "prior": "student", "prior_degrees_of_freedom": 2.5},
        {},
    ),
    "variances": (
        [3, 2, 2],
        {
            "likelihood": "categorical",
            "prior_scale": ScalePrior(dist.InverseGamma(2.0, 1.0), of="variance", per="input"),
            "prior_loc": 0.3,
        },
        {},
    ),
    "scales of priors": (
        [2, 3, 1],
        {
            "likelihood": "bernoulli",
            "prior": "laplace",
            "prior_scale": ScalePrior(dist.HalfCauchy(1.0), per="input"),
        },
        {},
    ),
    "scale": (
        [2, 3, 1],
        {
            "likelihood": "normal",
            "observation_scale": dist.HalfNormal(torch.tensor(1.0, dtype=torch.float64)),
        },
        {"likelihood_scale": "full"},
    ),
    "scale of a linear model": (
        [2, 1],
        {
            "likelihood": "normal",
            "observation_scale": dist.HalfNormal(torch.tensor(1.0, dtype=torch.float64)),
        },
        {},
    ),
    # Scales that are not tiny, of which rounding would be magnified
    "scales": (
        [2, 3, 4],
        {"likelihood": "normal", "observation_scale": "network", "prior_scale": 0.5},
        {"likelihood_scale": "full"},
    ),
    "student": ([2, 3, 2], {"likelihood": "student", "degrees_of_freedom": 2.5}, {}),
    "counts": ([2, 3, 2], {"likelihood": "poisson"}, {"likelihood_scale": 0.5}),
}


def set_up(case, engine):
    """Give a case on random data an engine that was not checked."""
    widths, structure, options = CASES[case]
    model = BayesianMLP(widths, **{"prior_scale": 1.5, **structure})
    x = torch.randn(ROWS, widths[0], dtype=torch.float64)
    labels = 5 if case == "counts" else max(2, widths[-1])
    y = torch.randint(0, labels, (ROWS,))
    if structure["likelihood"] == "normal":
        y = y + 0.1 * torch.randn(ROWS, dtype=torch.float64)
    if case in ("scales", "student", "counts"):
        y = torch.stack([y, y.flip(0)], -1)
    return past_the_check(start("trace", model, x, y, batch_size=BATCH, **options), engine)


def next_call(run, call):
    """Draw batches and noise of one call; steps are as wide as set-up suggests, times 0.4."""
    scale = 0.4 * float(run.chain.adaptation[0].scales.mean())
    return make_inputs(run, CHAINS, SWEEPS, scale=scale, spread=0.3, first=SWEEPS * call, seed=5)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["fused", slowly("feedforward")])
def test_sweeps_are_those_of_the_model(name, case):
    """Decisions, positions, ratios and densities of two chains, every sweep on its own batch."""
    run = set_up(case, name)
    inputs, accepted = next_call(run, 0), []
    for call in range(CALLS):
        # Rounding of sums of at most some hundred terms of size up to about a thousand
        record = assert_as_trace(run, inputs)
        accepted.append(record.accepted)
        here = go_on(inputs, record)
        inputs = next_call(run, call + 1)._replace(positions=here.positions)
    decides = torch.tensor([move.name != "conjugate" for move in run.problem.moves.of_block])
    for chain in torch.stack(accepted, 1):
        assert_decides_both_ways(chain[..., decides])


def test_fused_calls_work_in_memory_of_their_own():
    """Calls run on threads side by side: what one writes, no other may read."""
    run = set_up("deep", "fused")
    engine, inputs = run.problem.engine, next_call(run, 0)
    engine._kept.clear()  # that of set-up is too small to be lent again
    expected = run_on(run, inputs)
    with engine._works(BATCH) as (one,), engine._works(BATCH) as (other,):
        for mine, its in zip(one, other, strict=True):
            assert not np.shares_memory(mine, its)
        for work in (one, other):
            work.log_lik.fill(math.nan)
            work.pre.fill(math.nan)
    # and what an earlier call left there plays no part
    assert_identical(run_on(run, inputs), expected)
