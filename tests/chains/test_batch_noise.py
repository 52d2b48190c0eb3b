"""The noise of minibatch decisions: many batches judge the same candidates from one place."""

import math
from dataclasses import replace

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import BayesianMLP, Block, Partition
from pyro_fnbg.chains.batch_noise import measure_batch_noise
from pyro_fnbg.core.noise import Stream, sweep_noise
from pyro_fnbg.engines.base import Engine, Record
from pyro_fnbg.testing import start
from support.engines import ENGINES

ROWS = 30


class FirstRow(Engine):
    """Answers with log ratios that depend on the first row of each batch."""

    name, is_compiled, joins_chains = "first row", False, False

    @staticmethod
    def knows(move):
        return True

    def run(self, inputs):
        self.inputs = inputs
        first = inputs.rows[0, :, 0].double()
        ratios = torch.zeros(1, len(first), inputs.log_u.shape[2], dtype=torch.float64)
        ratios[0, :, 0], ratios[0, :, 2] = -first / 10, math.nan
        positions = inputs.positions[:, None].expand(1, len(first), -1)
        return Record(positions, ratios, ratios > math.inf, first[None], inputs.adaptation)


def on_first_rows(num_blocks):
    """Return a problem with so many blocks of one parameter each, and its chain."""

    def model(y):
        weights = pyro.sample("w", dist.Normal(torch.zeros(num_blocks), 1.0).to_event(1))
        with pyro.plate("data", len(y)) as rows:
            pyro.sample("y", dist.Normal(weights.sum(), 1.0), obs=y[rows])

    blocks = Partition(tuple(Block(f"w{i}", (i,)) for i in range(num_blocks)), num_blocks)
    problem, chain = start("trace", model, torch.ones(ROWS), batch_size=5, blocks=blocks)
    return replace(problem, engine=FirstRow()), chain


@pytest.fixture
def run():
    return on_first_rows(3)


def test_noise_is_measured_over_independent_batches(run):
    problem, chain = run
    noise = measure_batch_noise(problem, chain, 6)
    batches = [problem.batches.independent_rows(chain.key, i) for i in range(6)]
    first = torch.stack([rows[0] for rows in batches]).double()
    assert first.unique().numel() > 1
    assert noise.log_ratio_sd[0].item() == pytest.approx((first / 10).std().item(), rel=1e-6)
    probs = (-first / 10).exp()
    gaps = [(probs[i] - probs[j]).abs().item() for i in range(6) for j in range(6) if i != j]
    assert noise.reversed_share[0].item() == pytest.approx(sum(gaps) / 30, rel=1e-6)
    assert noise.log_ratio_sd[1] == noise.reversed_share[1] == 0
    assert noise.log_ratio_sd[2].isnan()
    assert noise.reversed_share[2] == 0


def test_every_batch_judges_the_same_candidates_from_the_chains_position(run):
    problem, chain = run
    measure_batch_noise(problem, chain, 6)
    inputs = problem.engine.inputs
    assert torch.equal(inputs.positions[0], chain.position)
    assert torch.equal(inputs.adaptation[0].scales[0], chain.adaptation[0].scales)
    assert (inputs.log_u == math.inf).all()
    assert inputs.gains is None
    z = sweep_noise(chain.key, 0, 3, 3, Stream.PROBE).z
    assert torch.equal(inputs.z, z.expand(1, 6, -1))
    # with noise of its own, which no sweep of the chain has
    assert not torch.equal(z, sweep_noise(chain.key, 0, 3, 3).z)


@pytest.mark.parametrize(("num_blocks", "num_batches"), [(3, 66), (50, 4), (60, 4)])
def test_batches_are_as_many_as_judge_two_hundred_candidates_and_four_at_least(
    num_blocks, num_batches
):
    problem, chain = on_first_rows(num_blocks)
    measure_batch_noise(problem, chain)
    assert problem.engine.inputs.rows.shape == (1, num_batches, 5)


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_judge_as_the_model_does(engine):
    """The model itself, run on every batch before and after each candidate."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 2, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 2, (ROWS,), generator=generator)
    net = BayesianMLP([2, 2, 2], likelihood="categorical")
    problem, chain = start(engine, net, x, y, batch_size=6, proposal_scale=0.5)
    num_batches, partition = 5, problem.partition
    noise = measure_batch_noise(problem, chain, num_batches)
    z = sweep_noise(chain.key, 0, partition.num_params, partition.num_blocks, Stream.PROBE).z
    ratios = torch.empty(num_batches, partition.num_blocks, dtype=torch.float64)
    for number in range(num_batches):
        density = problem.density.on(problem.batches.independent_rows(chain.key, number))
        for block, index in enumerate(partition.indices):
            moved = chain.position.clone()
            moved[index] += 0.5 * z[index]
            ratios[number, block] = density(moved).log_density - density(chain.position).log_density
    assert (noise.log_ratio_sd > 0.01).all()
    torch.testing.assert_close(noise.log_ratio_sd, ratios.std(0), rtol=1e-8, atol=0.0)
    probs = ratios.exp().clamp(max=1.0)
    gaps = (probs[:, None] - probs[None]).abs().sum((0, 1)) / (num_batches * (num_batches - 1))
    torch.testing.assert_close(noise.reversed_share, gaps, rtol=1e-8, atol=1e-12)
    # The same question has the same answer: the chain was not moved
    again = measure_batch_noise(problem, chain, num_batches)
    assert torch.equal(again.log_ratio_sd, noise.log_ratio_sd)
