"""What must hold for every engine: no trace of rejected blocks, the right state, known answers."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import BayesianMLP, Block, Partition
from pyro_fnbg.density import ModelDensity
from pyro_fnbg.noise import ChainKey, sweep_noise
from pyro_fnbg.step import log_accept_ratio
from support.engines import ENGINES, one_sweep, run_sweeps, start

pytestmark = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(autouse=True)
def _as_under_mcmc():
    """Switch distributions' own checks off, as Pyro's MCMC does."""
    with pyro.validation_enabled(False):
        yield


NETS = {
    "deep": ([2, 2, 2, 2, 1], {"likelihood": "bernoulli"}, {}),
    "widening": ([2, 3, 8, 2], {"likelihood": "categorical", "activation": "tanh"}, {}),
    "parts": ([5, 3, 3], {"likelihood": "categorical"}, {"parts": {1: 3}}),
    "layers": ([3, 2, 2], {"likelihood": "categorical", "activation": "step"}, {"blocks": "layer"}),
    "regression": (
        [2, 4, 1],
        {
            "likelihood": "normal",
            "activation": "relu",
            "observation_scale": dist.HalfNormal(1.0),
        },
        {},
    ),
}


def data_for(widths, likelihood, dtype=torch.float64, num_rows=30):
    x = torch.randn(num_rows, widths[0], dtype=dtype)
    if likelihood == "normal":
        return x, torch.randn(num_rows, dtype=dtype)
    return x, torch.randint(0, max(widths[-1], 2), (num_rows,))


def direct_density(run, model, x, y):
    return ModelDensity(model, (x, y), {}, run.sites, run.plan)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.parametrize("net", NETS)
def test_rejected_blocks_leave_no_trace(engine, net, batch_size, dtype):
    """Every block of every sweep is judged exactly where its accepted predecessors left the chain.

    Bitwise, position and log density: this reconstructs each state from the accepted blocks alone.
    """
    widths, model_options, options = NETS[net]
    model = BayesianMLP(widths, **model_options)
    x, y = data_for(widths, model_options["likelihood"], dtype)
    run = start(engine, model, x, y, batch_size=batch_size, **options)
    density, position = direct_density(run, model, x, y), run.position
    scales = torch.full((run.partition.num_blocks,), 0.5, dtype=torch.float64)
    rejected = 0
    for sweep in range(25):
        rows = run.batches.rows(sweep)
        noise = sweep_noise(run.key, sweep, len(position), run.partition.num_blocks)
        results = run_sweeps(
            run, position, [rows], noise.z.unsqueeze(0), noise.log_u.unsqueeze(0), scales
        )
        increments = (0.5 * noise.z).to(position.dtype)
        state = density.on(rows)(position)
        for number, index in enumerate(run.partition.indices):
            moved = state.position.clone()
            moved[index] += increments[index]
            candidate = density.on(rows)(moved)
            ratio = log_accept_ratio(candidate.log_terms, state.log_terms)
            assert torch.equal(results.log_ratios[0, number], ratio)
            assert bool(results.accepted[0, number]) == bool(noise.log_u[number] < ratio)
            if results.accepted[0, number]:
                state = candidate
            else:
                rejected += 1
        assert torch.equal(results.positions[0], state.position)
        assert torch.equal(results.log_densities[0], state.log_density)
        position = results.positions[0]
    assert 25 * run.partition.num_blocks > rejected >= 10  # both kinds of decisions were seen


@pytest.mark.parametrize("batch_size", [None, 7])
def test_many_sweeps_a_call_are_the_same_as_one_at_a_time(engine, batch_size):
    model = BayesianMLP([3, 4, 2], likelihood="categorical")
    x, y = data_for([3, 4, 2], "categorical")
    run = start(engine, model, x, y, batch_size=batch_size)
    rows = [run.batches.rows(sweep) for sweep in range(12)]
    noise = [
        sweep_noise(run.key, s, len(run.position), run.partition.num_blocks) for s in range(12)
    ]
    z, log_u = torch.stack([n.z for n in noise]), torch.stack([n.log_u for n in noise])
    together = run_sweeps(run, run.position, rows, z, log_u, run.scales)
    position = run.position
    for sweep in range(12):
        alone = run_sweeps(
            run, position, rows[sweep : sweep + 1], z[sweep, None], log_u[sweep, None], run.scales
        )
        for one, many in zip(alone, together, strict=True):
            assert torch.equal(one[0], many[sweep])
        position = alone.positions[0]


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


def test_one_batch_serves_all_blocks_of_a_sweep(engine):
    """The model sees one set of rows in a sweep, the chain's own, and others in the next."""
    seen = []

    def model(y):
        a = pyro.sample("a", dist.Normal(torch.zeros(6, dtype=y.dtype), 1.0).to_event(1))
        with pyro.plate("data", len(y)) as rows:
            seen.append(tuple(rows.tolist()))
            pyro.sample("y", dist.Normal(a.sum(), 1.0), obs=y[rows])

    blocks = Partition(tuple(Block(f"b{i}", (i,)) for i in range(6)), 6)
    run = start(engine, model, torch.randn(40, dtype=torch.float64), batch_size=8, blocks=blocks)
    position, batches = run.position, []
    for sweep in range(10):
        seen.clear()
        noise = sweep_noise(run.key, sweep, 6, 6)
        rows = run.batches.rows(sweep)
        run_sweeps(run, position, [rows], noise.z[None], noise.log_u[None], run.scales)
        assert set(seen) == {tuple(rows.tolist())}
        assert len(seen) == 1 + 6
        batches.append(seen[0])
    assert len(set(batches)) == 10


@pytest.mark.filterwarnings("ignore:the model has no observed data")
def test_acceptance_does_not_fall_with_the_position_in_the_sweep(engine):
    """The known answer for depth: iid normals accept alike in every block, at 0.68 to 0.71."""

    prior = dist.Normal(torch.zeros(39), 1.0).to_event(1)

    def model():
        pyro.sample("theta", prior)

    blocks = tuple(Block(f"b{q}", tuple(range(3 * q, 3 * q + 3))) for q in range(13))
    run = start(engine, model, blocks=Partition(blocks, 39))
    position, accepted = run.position, torch.zeros(13)
    scales = torch.full((13,), 0.5, dtype=torch.float64)
    sweeps, chunk = 20_000, 500
    for first in range(0, sweeps, chunk):
        noise = [sweep_noise(ChainKey(7, 0), first + k, 39, 13) for k in range(chunk)]
        z, log_u = torch.stack([n.z for n in noise]), torch.stack([n.log_u for n in noise])
        results = run_sweeps(run, position, [None] * chunk, z, log_u, scales)
        position = results.positions[-1]
        accepted += results.accepted.sum(0)
    rates = accepted / sweeps
    print("acceptance by position:", [round(rate, 4) for rate in rates.tolist()])
    assert rates.max() - rates.min() < 0.02, rates
    assert (rates > 0.68).all(), rates
    assert (rates < 0.71).all(), rates


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_candidates_without_a_finite_density_are_rejected_and_told_apart(engine, value):
    def model():
        a = pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.factor("edge", torch.where(a[0] > 1, value, 0.0))

    blocks = Partition((Block("first", (0,)), Block("second", (1,))), 2)
    at_zero = pyro.infer.autoguide.initialization.init_to_value(values={"a": torch.zeros(2)})
    run = start(engine, model, blocks=blocks, init_strategy=at_zero)
    results = one_sweep(run, torch.zeros(2), torch.tensor([2.0, 0.1]), [-math.inf] * 2)
    assert results.accepted[0].tolist() == [False, True]
    assert results.positions[0].tolist() == [0.0, pytest.approx(0.1)]
    ratio = results.log_ratios[0, 0].item()
    assert math.isnan(ratio) if value != -math.inf else ratio == -math.inf
    # and a chain that is somehow there leaves at the first finite candidate
    results = one_sweep(run, torch.tensor([2.0, 0.0]), torch.tensor([-2.0, 0.0]), [0.0, 0.0])
    assert results.log_ratios[0, 0] == math.inf
    assert bool(results.accepted[0, 0])
