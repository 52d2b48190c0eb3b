"""What must hold for every engine: no trace of rejected blocks, the right state, known answers."""

import math
from dataclasses import replace

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import BayesianMLP, Block, Partition
from pyro_fnbg.chains.setup import Run
from pyro_fnbg.core.moves.joint import at
from pyro_fnbg.testing import (
    assert_as_model,
    make_inputs,
    one_sweep,
    replay,
    run_on,
    run_sweeps,
    start,
    with_scales,
)
from pyro_fnbg.testing.judging import TOLERANCES
from support.engines import FAST, WITH_COMPILED, assert_identical, go_on, part
from support.slow import slowly

on_every_engine = pytest.mark.parametrize("engine", WITH_COMPILED)


NETS = {
    "deep": ([2, 2, 2, 2, 1], {"likelihood": "bernoulli"}, {}),
    "widening": ([2, 3, 8, 2], {"likelihood": "categorical", "activation": "tanh"}, {}),
    "parts": ([5, 3, 3], {"likelihood": "categorical"}, {"parts": {1: 3}}),
    "layers": ([3, 2, 2], {"likelihood": "categorical", "activation": "step"}, {"blocks": "layer"}),
    "scales": (
        [2, 3, 2],
        # Where a scale is tiny, its rounding is not that of its term
        {"likelihood": "normal", "observation_scale": "network", "prior_scale": 0.5},
        {},
    ),
    "student": (
        [2, 3, 1],
        {"likelihood": "student", "observation_scale": 0.7, "degrees_of_freedom": 3.0},
        {},
    ),
    "counts": ([2, 3, 2], {"likelihood": "poisson", "activation": "tanh"}, {"blocks": "layer"}),
    "regression": ([2, 4, 1], {"likelihood": "normal", "activation": "relu"}, {}),
}


def model_for(net, scale_dtype):
    """Build a network; the scale of "normal" is sampled, in a dtype of its own."""
    widths, options, _ = NETS[net]
    if net == "regression":
        scale = dist.HalfNormal(torch.tensor(1.0, dtype=scale_dtype))
        options = options | {"observation_scale": scale}
    return BayesianMLP(widths, **options)


def data_for(model, dtype=torch.float64, num_rows=30):
    widths = model.widths
    x = torch.randn(num_rows, widths[0], dtype=dtype)
    if model.likelihood in ("normal", "student"):
        return x, torch.randn(num_rows, dtype=dtype)
    if model.likelihood == "poisson":
        return x, torch.randint(0, 6, (num_rows, widths[-1]))
    return x, torch.randint(0, max(widths[-1], 2), (num_rows,))


def assert_every_block_is_judged_where_it_stands(engine, model, dtype, tolerance, **options):
    run = start(engine, model, *data_for(model, dtype), **options)
    inputs = make_inputs(run, 1, 25, scale=0.5)
    record = run_on(run, inputs)
    assert_as_model(run, inputs, record, tolerance)
    rejected = int((~record.accepted).sum())
    assert record.accepted.numel() > rejected >= 10  # both kinds of decisions were seen


@on_every_engine
@pytest.mark.parametrize(
    ("batch_size", "dtype"),
    [
        slowly(None, torch.float32),
        (7, torch.float64),
        slowly(None, torch.float64),
        slowly(7, torch.float32),
    ],
)
@pytest.mark.parametrize("net", NETS)
def test_rejected_blocks_leave_no_trace(engine, net, batch_size, dtype):
    """Every block of every sweep is judged exactly where its accepted predecessors left the chain.

    This reconstructs each state from the accepted blocks alone. Positions agree bit by bit, and
    with the reference engine the log ratios and densities do, too.
    """
    tolerance = 0.0 if engine == "trace" else TOLERANCES[dtype]
    assert_every_block_is_judged_where_it_stands(
        engine, model_for(net, dtype), dtype, tolerance, batch_size=batch_size, **NETS[net][2]
    )


def test_rejected_blocks_leave_no_trace_where_dtypes_mix():
    """Only the reference engine runs this; the flat position is rounded as the sites are."""
    model = model_for("regression", torch.float32)
    assert_every_block_is_judged_where_it_stands("trace", model, torch.float64, 0.0)


@on_every_engine
@pytest.mark.parametrize("batch_size", [None, 7])
def test_many_sweeps_a_call_are_the_same_as_one_at_a_time(engine, batch_size):
    model = BayesianMLP([3, 4, 2], likelihood="categorical")
    run = start(engine, model, *data_for(model), batch_size=batch_size)
    inputs = make_inputs(run, 2, 12, scale=0.5, spread=0.3)
    together, here = run_on(run, inputs), inputs
    for sweep in range(12):
        now = slice(sweep, sweep + 1)
        alone = run_on(run, part(here, sweeps=now))
        assert_identical(alone, part(together, sweeps=now))
        here = go_on(inputs, alone)


@on_every_engine
def test_the_current_position_is_judged_on_the_new_batch(engine):
    """Ratios of a second sweep belong to its own batch, not to the first one's density."""
    model = BayesianMLP([1, 1], likelihood="bernoulli")
    x = torch.tensor([[3.0], [-2.0]], dtype=torch.float64)
    y = torch.tensor([1, 1])
    run = start(engine, model, x, y, batch_size=1)
    position = torch.tensor([1.0, 0.5], dtype=torch.float64)
    z = torch.tensor([[0.0, 0.0], [0.7, -0.4]], dtype=torch.float64)
    log_u = torch.full((2, 1), math.inf, dtype=torch.float64)
    scales = torch.ones(1, dtype=torch.float64)
    rows = [torch.tensor([0]), torch.tensor([1])]
    results = run_sweeps(run, position, rows, z, log_u, scales)

    def log_density(weight, bias):
        logit = torch.tensor(weight * -2.0 + bias)
        return torch.nn.functional.logsigmoid(logit) - 0.5 * (weight**2 + bias**2)

    expected = log_density(1.7, 0.1) - log_density(1.0, 0.5)
    assert results.log_ratios[1, 0].item() == pytest.approx(expected.item(), abs=1e-6)
    alone = one_sweep(run, position, z[1], log_u[1], rows[1])
    assert torch.equal(results.log_ratios[1], alone.log_ratios[0])


def test_one_batch_serves_all_blocks_of_a_sweep():
    """The model sees one set of rows in a sweep, the chain's own, and others in the next."""
    seen = []

    def model(y):
        a = pyro.sample("a", dist.Normal(torch.zeros(6, dtype=y.dtype), 1.0).to_event(1))
        with pyro.plate("data", len(y)) as rows:
            seen.append(tuple(rows.tolist()))
            pyro.sample("y", dist.Normal(a.sum(), 1.0), obs=y[rows])

    blocks = Partition(tuple(Block(f"b{i}", (i,)) for i in range(6)), 6)
    run = start("trace", model, torch.randn(40, dtype=torch.float64), batch_size=8, blocks=blocks)
    batches = []
    for sweep in range(10):
        seen.clear()
        inputs = make_inputs(run, first=sweep)
        run_on(run, inputs)
        assert set(seen) == {tuple(inputs.rows[0, 0].tolist())}
        assert len(seen) == 1 + 6
        batches.append(seen[0])
    assert len(set(batches)) == 10


@on_every_engine
def test_every_block_is_judged_on_the_rows_of_its_sweep(engine):
    """Several sweeps a call: ratios are those of a sweep's own rows, and of no other sweep's."""
    model = BayesianMLP([3, 4, 2], likelihood="categorical")
    run = start(engine, model, *data_for(model, num_rows=40), batch_size=8)
    inputs = make_inputs(run, 1, 10, scale=0.5)
    record, learnt = run_on(run, inputs).of_chain(0), at(inputs.adaptation, 0)
    positions = torch.cat([inputs.positions, record.positions])
    rows, z = inputs.rows[0], inputs.z[0]
    for sweep in range(10):
        for other in range(10):
            judged = replay(
                run.problem, positions[sweep], rows[other], z[sweep], learnt, record.accepted[sweep]
            )
            gaps = (record.log_ratios[sweep] - judged.log_ratios).abs()
            if other == sweep:
                assert (gaps <= TOLERANCES[torch.float64]).all()
            else:
                assert (gaps > 1e-6).all()


def acceptance_by_block(run, num_sweeps, chunk=500, chains=1, spread=0.0):
    """Acceptance rates at scale 0.5 of chains around the run's start."""
    accepted = torch.zeros(run.problem.partition.num_blocks)
    scales = torch.full((chains, run.problem.partition.num_blocks), 0.5, dtype=torch.float64)
    learnt = with_scales(run.problem, scales)
    here = None
    for first in range(0, num_sweeps, chunk):
        inputs = make_inputs(run, chains, chunk, first=first, spread=spread, seed=7)
        positions = inputs.positions if here is None else here
        record = run_on(run, inputs._replace(positions=positions, adaptation=learnt))
        here = record.positions[:, -1]
        accepted += record.accepted.sum((0, 1))
    return accepted / num_sweeps / chains


def assert_accept_alike(rates):
    assert rates.max() - rates.min() < 0.02, rates
    assert (rates > 0.68).all(), rates
    assert (rates < 0.71).all(), rates


@pytest.mark.filterwarnings("ignore:the model has no observed data")
@pytest.mark.slow  # a long chain of every engine
def test_acceptance_does_not_fall_with_the_position_in_the_sweep():
    """The known answer for depth: iid normals accept alike in every block, at 0.68 to 0.71."""

    prior = dist.Normal(torch.zeros(39), 1.0).to_event(1)

    def model():
        pyro.sample("theta", prior)

    blocks = tuple(Block(f"b{q}", tuple(range(3 * q, 3 * q + 3))) for q in range(13))
    run = start("trace", model, blocks=Partition(blocks, 39))
    assert_accept_alike(acceptance_by_block(run, 20_000))


@pytest.mark.parametrize("engine", FAST)
def test_acceptance_does_not_fall_with_the_layer(engine):
    """The same known answer for a network: 13 nodes of three, the likelihood all but switched off.

    A power of 1e-9 leaves enough of it for the comparison with the model at set-up.
    """
    model = BayesianMLP([2] * 7 + [1], likelihood="bernoulli")
    x, y = data_for(model, num_rows=4)
    run = start(engine, model, x, y, likelihood_scale=1e-9)
    assert run.problem.partition.sizes.tolist() == [3] * 13
    # Around zero, as widely as the prior
    run = Run(run.problem, replace(run.chain, position=torch.zeros(39, dtype=torch.float64)))
    assert_accept_alike(acceptance_by_block(run, 500, chains=40, spread=1.0))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_candidates_without_a_finite_density_are_rejected_and_told_apart(value):
    """In any model; the density of a network can be infinite in one direction only, see below."""

    def model():
        a = pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.factor("edge", torch.where(a[0] > 1, value, 0.0))

    blocks = Partition((Block("first", (0,)), Block("second", (1,))), 2)
    at_zero = pyro.infer.autoguide.initialization.init_to_value(values={"a": torch.zeros(2)})
    run = start("trace", model, blocks=blocks, init_strategy=at_zero)
    results = one_sweep(run, torch.zeros(2), torch.tensor([2.0, 0.1]), [-math.inf] * 2)
    assert results.accepted[0].tolist() == [False, True]
    assert results.positions[0].tolist() == [0.0, pytest.approx(0.1)]
    ratio = results.log_ratios[0, 0].item()
    assert math.isnan(ratio) if value != -math.inf else ratio == -math.inf
    # and a chain that is somehow there leaves at the first finite candidate
    results = one_sweep(run, torch.tensor([2.0, 0.0]), torch.tensor([-2.0, 0.0]), [0.0, 0.0])
    assert results.log_ratios[0, 0] == math.inf
    assert bool(results.accepted[0, 0])


# An input is so large that its square is infinite, or its product with the second layer's weights.
# Name: widths; coordinates of the block that overflows; start, in large units; its log ratio
OVERFLOWS = {
    "squared error": ([1, 1], (0,), [0, 0], -math.inf),
    "output": ([1, 2, 1], (0, 1), [0, 0, 0, 0, 1, 0, 0], -math.inf),
    "infinity times zero": ([1, 2, 1, 1], (0, 1), [0, 0, 0, 0, 1, 0, 0, 0, 0], math.nan),
}


@on_every_engine
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", OVERFLOWS)
def test_networks_that_overflow_are_rejected_and_told_apart(engine, case, dtype):
    """The first block moves weights of the first layer by 1, the last moves the last bias."""
    widths, coordinates, start_at, expected = OVERFLOWS[case]
    huge, large = torch.finfo(dtype).max ** 0.6, torch.finfo(dtype).max ** 0.45
    prior_scale = [1.0, large, 1.0][: len(widths) - 1]
    model = BayesianMLP(
        widths, prior_scale, activation="identity", likelihood="normal", bias_prior_scale=1.0
    )
    x = torch.tensor([[huge], [0.0], [1.0]], dtype=dtype)
    last = len(start_at) - 1
    others = tuple(range(len(coordinates), last))
    blocks = [Block("first", coordinates), Block("others", others), Block("last", (last,))]
    blocks = [block for block in blocks if block.index]
    shapes = model.parameter_shapes.items()
    values = {
        name: torch.full(shape, name != "layer1.weight", dtype=dtype) for name, shape in shapes
    }
    init_strategy = pyro.infer.autoguide.initialization.init_to_value(values=values)
    y = torch.ones(3, dtype=dtype)
    run = start(
        engine, model, x, y,
        blocks=Partition(tuple(blocks), last + 1), init_strategy=init_strategy, proposal_scale=1.0,
    )  # fmt: skip
    origin = large * torch.tensor(start_at, dtype=dtype)
    move = torch.zeros_like(origin)
    move[list(coordinates)], move[-1] = 1.0, 0.125
    always, is_first = [-math.inf] * len(blocks), torch.arange(last + 1) < len(coordinates)
    results = one_sweep(run, origin, move, always)
    assert results.accepted[0].tolist() == [False] + [True] * (len(blocks) - 1)
    assert torch.equal(results.positions[0], torch.where(is_first, origin, origin + move))
    assert math.isfinite(results.log_densities[0])
    assert results.log_ratios[0, 0].item() == pytest.approx(expected, nan_ok=True)
    assert math.isfinite(results.log_ratios[0, -1])
    # A chain that is there leaves at the first finite candidate, however unlikely
    there = torch.where(is_first, move, origin)
    results = one_sweep(run, there, torch.where(is_first, -move, move), [1e300, *always[1:]])
    assert results.log_ratios[0, 0] == math.inf
    assert results.accepted.all()
    assert math.isfinite(results.log_densities[0])
    # and not for a candidate that is none
    results = one_sweep(run, there, torch.where(is_first, 0.0, move), always)
    assert not results.accepted.any()
    assert torch.equal(results.positions[0], there)
    assert results.log_ratios[0].tolist() == pytest.approx([expected] * len(blocks), nan_ok=True)


@on_every_engine
def test_no_move_elsewhere_is_accepted_while_a_row_is_impossible(engine):
    """The block in question moves its unit on the second row only, where all is well."""
    huge, large = 1e200, 1e150
    model = BayesianMLP(
        [2, 2, 1], [1.0, large], activation="relu", likelihood="normal", bias_prior_scale=1.0
    )
    x = torch.tensor([[huge, 0.0], [0.0, 1.0]], dtype=torch.float64)
    groups = [(0,), (3,), (1, 2, 4, 5), (6, 7, 8)]
    blocks = Partition(tuple(Block(f"b{k}", group) for k, group in enumerate(groups)), 9)
    values = {
        "layer1.weight": torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64),
        "layer1.bias": torch.zeros(2, dtype=torch.float64),
        "layer2.weight": torch.ones(1, 2, dtype=torch.float64),
        "layer2.bias": torch.zeros(1, dtype=torch.float64),
    }
    init_strategy = pyro.infer.autoguide.initialization.init_to_value(values=values)
    y = torch.zeros(2, dtype=torch.float64)
    run = start(engine, model, x, y, blocks=blocks, init_strategy=init_strategy, proposal_scale=0.1)
    position = torch.cat([value.flatten() for value in values.values()])
    move, leave = torch.zeros(9), torch.zeros(9)
    move[3], leave[0], leave[3] = -0.5, -1.0, -0.5
    never_first = [math.inf, -math.inf, math.inf, math.inf]
    assert one_sweep(run, position, move, never_first).accepted[0, 1]
    position[0] = 1.0  # the first row's output is a huge number, whose square is infinite
    results = one_sweep(run, position, move, never_first)
    assert results.log_ratios[0, 1] == -math.inf
    assert not results.accepted.any()
    # The first block leaves, and the second is judged as usual from where it led
    results = one_sweep(run, position, leave, [0.0, -math.inf, math.inf, math.inf])
    assert results.log_ratios[0, 0] == math.inf
    assert results.log_ratios[0, 1].item() == pytest.approx((2.0**2 - 1.5**2 + 1.0 - 0.5**2) / 2)
    assert results.accepted[0, :2].all()
