"""Output weights drawn from their conditionals, on every engine, beside closed forms."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP, Block, MultiChainMCMC, Partition
from pyro_fnbg.core.noise import ChainKey, sweep_noise
from pyro_fnbg.core.tasks import torch_threads
from pyro_fnbg.engines.fused import allocation
from pyro_fnbg.networks.priors import ScalePrior
from pyro_fnbg.testing import (
    assert_as_model,
    assert_expectation,
    assert_joint_distribution,
    make_inputs,
    run_on,
    run_sweeps,
    start,
)
from support.engines import (
    WITH_COMPILED,
    assert_as_trace,
    assert_identical,
    past_the_check,
    put_labels,
)
from support.slow import first_quickly, slowly

on_every_engine = pytest.mark.parametrize("engine", WITH_COMPILED)
ROWS = 30


def scaled(dtype, widths=(2, 3, 1)):
    return BayesianMLP(
        list(widths), 1.5, -0.4, activation="tanh", likelihood="normal",
        observation_scale=dist.HalfNormal(torch.ones((), dtype=dtype)),
    )  # fmt: skip


def shared(dtype):
    """Output weights have a prior whose variance is sampled, and the scale is fixed."""
    one = torch.ones((), dtype=dtype)
    variance = ScalePrior(dist.InverseGamma(2 * one, one), of="variance")
    return BayesianMLP(
        [2, 3, 1], [1.0, variance], activation="relu", likelihood="normal", observation_scale=0.5,
        bias_prior_scale=2.0,
    )  # fmt: skip


def apart(layout):
    """Parts of the output node, one of them with the bias first, and one that walks."""
    output = [layout.offsets()[f"layer2.{name}"] for name in ("weight", "bias")]
    cuts = [((output[1], output[0] + 2), None), ((output[0] + 1,), "walk"), ((output[0],), None)]
    blocks = [Block(f"part{number}", cut, move=move) for number, (cut, move) in enumerate(cuts)]
    rest = sorted(set(range(layout.num_params)) - {at for cut, _ in cuts for at in cut})
    blocks += [Block(f"c{at}", (at,)) for at in rest]
    return Partition(tuple(blocks), layout.num_params)


CASES = {
    "scale": (scaled, {}),
    # More nodes than the fused engine keeps node by node
    "responses, batches": (
        lambda dtype: scaled(dtype, (2, 3, 2, 5)),
        {"batch_size": 9, "likelihood_scale": "full"},
    ),
    "parts": (scaled, {"blocks": apart, "batch_size": 20}),
    "shared": (shared, {"likelihood_scale": 0.3}),
}


def set_up(engine, case, dtype=torch.float64, **more):
    build, options = CASES[case]
    model = build(dtype)
    x = torch.randn(ROWS, model.widths[0], dtype=dtype)
    y = (x.sum(1, keepdim=True) * torch.linspace(0.5, 1, model.widths[-1])).to(dtype).squeeze(-1)
    run = start("trace", model, x, y, moves="gibbs", **options, **more)
    assert "gibbs" in {move.name for move in run.problem.moves.moves}
    return past_the_check(run, engine)


def is_drawn(run):
    return torch.tensor([move.name == "gibbs" for move in run.problem.moves.of_block])


# --- Engines -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["feedforward", "fused"])
@pytest.mark.parametrize("case", CASES)
def test_fast_engines_make_the_draws_of_the_trace_engine(engine, case):
    run = set_up(engine, case)
    record = assert_as_trace(run, make_inputs(run, chains=2, sweeps=4, scale=0.4), 1e-8)
    drawn = is_drawn(run)
    assert record.accepted[..., drawn].all()
    assert float(record.log_ratios[..., drawn].abs().max()) < 1e-8


@on_every_engine
@pytest.mark.parametrize("dtype", [slowly(torch.float32), torch.float64])
@pytest.mark.parametrize("case", first_quickly(CASES))
def test_every_block_is_judged_as_by_the_model(engine, dtype, case):
    run = set_up(engine, case, dtype)
    inputs = make_inputs(run, sweeps=2, scale=0.4)
    assert_as_model(run, inputs, run_on(run, inputs))


@on_every_engine
def test_the_conditional_in_closed_form(engine):
    """Only output weights move: every draw is the mean and noise through the precision's root."""
    run = set_up(engine, "responses, batches")
    inputs = make_inputs(run, sweeps=3, scale=0.4)
    drawn = is_drawn(run)
    log_u = torch.where(drawn, -math.inf, math.inf).expand_as(inputs.log_u).double()
    found = run_on(run, inputs._replace(log_u=log_u)).positions[0]
    x, y = run.problem.bound.args
    layout = run.problem.sites.layout
    values = layout.unflatten(inputs.positions[0])
    for sweep in range(3):
        rows = inputs.rows[0, sweep]
        hidden = x[rows]
        for layer in (1, 2):
            weight, bias = values[f"layer{layer}.weight"], values[f"layer{layer}.bias"]
            hidden = (hidden @ weight.mT + bias).tanh()
        design = torch.cat([hidden, torch.ones(len(rows), 1).double()], 1)
        power = run.problem.plan.factor / float(values["obs_scale"].exp()) ** 2
        precision = torch.eye(3).double() / 1.5**2 + power * design.mT @ design
        root = torch.linalg.cholesky(precision)
        noise = layout.unflatten(inputs.z[0, sweep])
        after = layout.unflatten(found[sweep])
        for node in range(5):
            target = -0.4 / 1.5**2 + power * design.mT @ y[rows, node]
            z = torch.cat([noise["layer3.weight"][node], noise["layer3.bias"][node : node + 1]])
            expected = torch.linalg.solve(precision, target) + torch.linalg.solve(root.mT, z)
            own = torch.cat([after["layer3.weight"][node], after["layer3.bias"][node : node + 1]])
            torch.testing.assert_close(own, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("count", [2, 3])
def test_threads_make_the_same_draws_bit_for_bit(count, monkeypatch):
    monkeypatch.setattr(allocation, "FEWEST_ROWS", 64)
    model = scaled(torch.float64)
    x = torch.randn(300, 2, dtype=torch.float64)
    run = start("trace", model, x, x.sum(1), moves="gibbs", likelihood_scale=0.1)
    run = past_the_check(run, "fused")
    inputs = make_inputs(run, 2, 4, scale=0.4)
    found = []
    for threads in (1, count):
        with torch_threads(threads):
            found.append(run_on(run, inputs))
    assert_identical(found[1], found[0])
    assert found[0].accepted[..., is_drawn(run)].all()
    assert_as_trace(run, inputs, 1e-8)


@on_every_engine
def test_what_is_drawn_is_told(engine):
    x = torch.randn(ROWS, 2)
    kernel = FNBG(scaled(torch.float32), engine=engine, moves="gibbs")
    mcmc = MultiChainMCMC(kernel, 5, 10, disable_progbar=True)
    mcmc.run(x, x.sum(1))
    told = mcmc._diagnostics[0]
    assert told["move by block"]["layer2.node1"] == "gibbs"
    assert told["acceptance rate by block"]["layer2.node1"] == 1.0
    assert len(told["proposal scale by block"]) == 4  # three hidden nodes, and the scale
    assert mcmc.kernel.engine == engine


# --- Posteriors ----------------------------------------------------------------------------------

X = torch.tensor([[-2.0], [-0.7], [0.1], [0.9], [2.2]], dtype=torch.float64)
NOISE = 1.0
NET = BayesianMLP([1, 1, 1], likelihood="normal", observation_scale=NOISE, activation="tanh")


def outputs(theta):
    """Of parameters (..., 4)."""
    hidden = (theta[..., :1] * X[:, 0] + theta[..., 1:2]).tanh()
    return theta[..., 2:3] * hidden + theta[..., 3:]


def statistics(theta, y):
    found = {
        f"theta{i} theta{j}": theta[..., i] * theta[..., j] for i in range(4) for j in range(i + 1)
    }
    found |= {f"theta{i}": theta[..., i] for i in range(4)}
    found |= {f"theta{i} y": theta[..., i] * y.mean(-1) for i in range(4)}
    found["fit"] = (outputs(theta) * y).sum(-1)
    found["slope"] = theta[..., 0] * theta[..., 2] * (y * X.squeeze(-1)).mean(-1)
    return found


@pytest.mark.slow  # long chains
@pytest.mark.parametrize("engine", ["trace", "fused"])  # the plain form and the compiled one
def test_joint_distribution(engine):
    """Geweke's test, with two moves in every sweep."""
    scales = torch.full((2,), 1.8, dtype=torch.float64)
    run = start(engine, NET, X, torch.zeros(5, dtype=torch.float64), moves="gibbs")

    def sweep(theta, labels, number):
        put_labels(run, labels)
        noise = sweep_noise(ChainKey(9, 0), number, 4, 2)
        with pyro.validation_enabled(False):
            record = run_sweeps(run, theta, [None], noise.z[None], noise.log_u[None], scales)
        return record.positions[0]

    def sample_prior(draws, rng):
        return torch.randn(draws, 4, generator=rng, dtype=torch.float64)

    def simulate(theta, rng):
        errors = torch.randn(*theta.shape[:-1], 5, generator=rng, dtype=torch.float64)
        return outputs(theta) + NOISE * errors

    draws = assert_joint_distribution(sweep, sample_prior, simulate, statistics, 10_000, seed=8)
    for i in range(4):
        assert_expectation(draws.parameters[..., i], 0.0, min_ess=400)
        assert_expectation(draws.parameters[..., i] ** 2, 1.0, min_ess=400)
