"""Transition matrices on a lattice, built from the real engine's ratios and decisions."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import BayesianMLP, Block, Partition
from pyro_fnbg.testing import (
    Lattice,
    assert_invariant,
    assert_reversible,
    block_matrix,
    one_sweep,
    start,
    sweep_matrix,
    sweep_of,
)
from support.engines import WITH_COMPILED

LATTICE = Lattice([[-1.0, 0.5, 2.0], [-0.5, 1.5]])
GRID = LATTICE.points
X = torch.tensor([[-1.0], [0.3], [2.0]], dtype=torch.float64)
Y = torch.tensor([1, 0, 1])
PARTITION = Partition((Block("weight", (0,)), Block("bias", (1,))), 2)
ALWAYS = -math.inf

on_every_engine = pytest.mark.parametrize("engine", WITH_COMPILED)


def network(engine, x=X, y=Y, **options):
    model = BayesianMLP([1, 1], prior_scale=1.3, likelihood="bernoulli")
    return start(engine, model, x, y, blocks=PARTITION, **options)


def rows_of(run, sweep):
    """The rows of the batch that the run's chain gets in a sweep."""
    return run.problem.batches.rows(run.chain.key, sweep)


def log_target(rows, factor):
    """Prior x likelihood**factor of the rows at every point of the grid, by hand."""
    logits = GRID[:, :1] * X[rows, 0] + GRID[:, 1:]
    likelihood = torch.nn.functional.logsigmoid(torch.where(Y[rows] == 1, logits, -logits)).sum(1)
    prior = dist.Normal(torch.tensor(0.0, dtype=torch.float64), 1.3).log_prob(GRID).sum(1)
    return prior + factor * likelihood


@on_every_engine
def test_each_block_is_reversible_and_the_sweep_leaves_the_posterior_invariant(engine):
    run = network(engine)
    log_pi = log_target(torch.arange(3), factor=1.0)
    sweep = sweep_of(run)
    matrices = [block_matrix(sweep, LATTICE, PARTITION, block) for block in (0, 1)]
    for matrix in matrices:
        assert_invariant(matrix, log_pi)
        assert_reversible(matrix, log_pi)
    whole = sweep_matrix(sweep, LATTICE, PARTITION)
    assert_invariant(whole, log_pi)
    assert torch.allclose(whole, matrices[0] @ matrices[1], rtol=0, atol=1e-12)


@on_every_engine
@pytest.mark.parametrize("scale", ["batch", "full"])
@pytest.mark.parametrize("size", [1, 2])
def test_each_batch_leaves_prior_times_its_likelihood_invariant(engine, size, scale):
    run = network(engine, batch_size=size, likelihood_scale=scale)
    factor = 1.0 if scale == "batch" else 3 / size
    batches = [torch.tensor(rows) for rows in itertools.combinations(range(3), size)]
    matrices = {
        tuple(rows.tolist()): sweep_matrix(sweep_of(run, rows), LATTICE, PARTITION)
        for rows in batches
    }
    for rows in batches:
        assert_invariant(matrices[tuple(rows.tolist())], log_target(rows, factor))
    # A fresh-batch sweep is the average over the batches that the chain really gets
    sweeps = 3 if size == 1 else 3000
    seen = [tuple(sorted(rows_of(run, sweep).tolist())) for sweep in range(sweeps)]
    counts = torch.tensor([seen.count(batch) for batch in matrices], dtype=torch.float64)
    if size == 1:
        assert counts.tolist() == [1, 1, 1]
    assert (abs(counts / sweeps - 1 / 3) < 4.5 * (2 / 9 / sweeps) ** 0.5).all()
    fresh = sum(matrices.values()) / len(matrices)
    visited = sum(matrices[batch] for batch in seen) / sweeps
    # Probabilities are at most 1, so the two averages differ by no more than the shares do
    gap = float((counts / sweeps - 1 / 3).abs().sum()) + 1e-12
    assert torch.allclose(visited, fresh, rtol=0, atol=gap)
    # The average is invariant for no single batch's target, nor for the full posterior: a
    # minibatch chain is an approximation, and this is where one sees it
    pi = log_target(torch.arange(3), factor * size / 3).softmax(0)
    assert (pi @ fresh - pi).abs().max() > 1e-4


@on_every_engine
def test_over_an_epoch_each_row_is_used_once(engine):
    run = network(engine, batch_size=1)
    for epoch in range(5):
        rows = [rows_of(run, 3 * epoch + i).item() for i in range(3)]
        assert sorted(rows) == [0, 1, 2]


def test_candidates_off_the_support_are_rejected():
    """In the reference engine; ``test_every_engine`` has networks whose density is not finite."""

    def model():
        a = pyro.sample("a", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        pyro.factor("box", torch.where((a.abs() <= 1).all(), 0.0, -math.inf))

    blocks = Partition((Block("first", (0,)), Block("second", (1,))), 2)
    initial = {"a": torch.zeros(2, dtype=torch.float64)}
    run = start("trace", model, blocks=blocks, init_strategy=_at(initial))
    results = one_sweep(run, initial["a"], torch.tensor([1.5, -0.5]), [ALWAYS, ALWAYS])
    assert results.log_ratios[0, 0] == -math.inf
    assert results.accepted[0].tolist() == [False, True]
    assert results.positions[0].tolist() == [0.0, -0.5]


def _at(values):
    return pyro.infer.autoguide.initialization.init_to_value(values=values)
