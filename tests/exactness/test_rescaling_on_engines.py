"""Rescaling of relu nodes on every engine: decisions, the prior, and Geweke's test."""

from dataclasses import replace

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP, Feedforward
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.core.tasks import torch_threads
from pyro_fnbg.engines.base import next_inputs
from pyro_fnbg.engines.fused import allocation
from pyro_fnbg.networks.priors import ScalePrior
from pyro_fnbg.testing import (
    assert_as_model,
    assert_expectation,
    assert_joint_distribution,
    make_inputs,
    run_on,
    start,
)
from support.engines import (
    WITH_COMPILED,
    assert_as_trace,
    assert_decides_both_ways,
    assert_identical,
    past_the_check,
    put_labels,
)
from support.slow import first_quickly, slowly

ROWS = 30


def normal(dtype):
    scale = dist.HalfNormal(torch.ones((), dtype=dtype))
    return BayesianMLP([3, 4, 2, 1], activation="relu", likelihood="normal",
                       observation_scale=scale)  # fmt: skip


def one_layer_of_three(dtype):
    """Nodes of the second layer alone are rescaled."""
    return BayesianMLP(
        [2, 3, 5, 2, 1], 1.5, -0.3, activation=["tanh", "relu", "sigmoid"],
        likelihood="bernoulli", prior="laplace",
    )  # fmt: skip


def student(dtype):
    return BayesianMLP([2, 3, 3], prior="student", activation="relu", likelihood="categorical")


def sampled(dtype):
    """Scales of weights are sampled, one of them as a variance that is drawn."""
    one = torch.ones((), dtype=dtype)
    variance = ScalePrior(dist.InverseGamma(2 * one, one), of="variance")
    each = ScalePrior(dist.HalfNormal(one), per="input")
    return BayesianMLP([2, 3, 1], [each, variance], bias_prior_scale=2.0, activation="relu",
                       likelihood="normal", observation_scale=0.5)  # fmt: skip


CASES = {
    "normal": (normal, {"moves": "gibbs"}),
    "one layer": (one_layer_of_three, {"batch_size": 9, "likelihood_scale": "full"}),
    "student": (student, {"parts": 2}),
    "sampled": (sampled, {"blocks": "layer"}),
}


def set_up(engine, case, dtype=torch.float64):
    build, options = CASES[case]
    model = build(dtype)
    x = torch.randn(ROWS, model.widths[0], dtype=dtype)
    y = x.sum(1) if model.likelihood == "normal" else (x.sum(1) > 0).to(dtype)
    y = y.long() if model.likelihood == "categorical" else y
    return past_the_check(start("trace", model, x, y, rescale=True, **options), engine)


@pytest.mark.parametrize("engine", [slowly("captured"), "feedforward", "fused"])
@pytest.mark.parametrize("case", CASES)
def test_engines_rescale_as_the_trace_engine_does(engine, case):
    run = set_up(engine, case)
    inputs = make_inputs(run, chains=2, sweeps=6, scale=0.3, spread=0.5)
    record = assert_as_trace(run, inputs, 1e-8)
    # Nothing else moves where no block is accepted
    alone = inputs._replace(log_u=torch.full_like(inputs.log_u, torch.inf))
    if any(move.name == "conjugate" for move in run.problem.moves.moves):
        return
    moved = run_on(run, alone).positions
    before = torch.cat([inputs.positions[:, None], moved[:, :-1]], 1)
    own = run.problem.moves.rescaling.nodes[0].incoming[:, 0]
    assert_decides_both_ways((moved != before)[..., own], 0.2, 0.95)
    assert not torch.equal(record.positions, moved)


@pytest.mark.parametrize("engine", ["trace", slowly("captured"), "feedforward", "fused"])
def test_without_noise_nothing_is_rescaled(engine):
    """As set-up and the noise of batches ask for: each node of many, of which one would show."""
    x = torch.randn(ROWS, 3, dtype=torch.float64)
    model = BayesianMLP([3, 200, 1], activation="relu", likelihood="normal")
    run = past_the_check(start("trace", model, x, x.sum(1), rescale=True), engine)
    inputs = make_inputs(run, chains=2, sweeps=3, scale=0.3)
    refused = torch.full_like(inputs.log_u, torch.inf)
    found = run_on(run, inputs._replace(log_u=refused, rescaling=None))
    assert torch.equal(found.positions, inputs.positions[:, None].expand_as(found.positions))


@pytest.mark.parametrize("engine", WITH_COMPILED)
@pytest.mark.parametrize("dtype", [slowly(torch.float32), torch.float64])
@pytest.mark.parametrize("case", first_quickly(CASES))
def test_every_node_is_judged_as_by_the_model(engine, dtype, case):
    run = set_up(engine, case, dtype)
    inputs = make_inputs(run, sweeps=2, scale=0.3)
    assert_as_model(run, inputs, run_on(run, inputs))


def test_threads_rescale_alike_bit_for_bit(monkeypatch):
    monkeypatch.setattr(allocation, "FEWEST_ROWS", 64)
    x = torch.randn(200, 3, dtype=torch.float64)
    run = start("fused", normal(torch.float64), x, x.sum(1), rescale=True)
    inputs = make_inputs(run, 2, 4, scale=0.3)
    found = []
    for threads in (1, 2):
        with torch_threads(threads):
            found.append(run_on(run, inputs))
    assert_identical(found[1], found[0])


def test_draws_from_the_prior_stay_draws_from_the_prior_on_fused():
    """Rescalings alone, of 12,000 chains."""
    run = start("fused", normal(torch.float64), torch.zeros(4, 3).double(), torch.zeros(4).double(),
                rescale=True)  # fmt: skip
    size, rng = 12_000, torch.Generator().manual_seed(0)
    theta = torch.randn(size, run.problem.partition.num_params, generator=rng)
    noise = run.problem.moves.rescaling.noise(ChainKey(5, 0), 0, 2 * size)
    inputs = make_inputs(run, chains=1, sweeps=2)
    inputs = inputs._replace(
        positions=theta.double(),
        z=inputs.z.expand(size, -1, -1),
        log_u=torch.full_like(inputs.log_u, torch.inf).expand(size, -1, -1),
        adaptation=tuple(
            type(state)(*(values.expand(size, *values.shape[1:]) for values in state))
            for state in inputs.adaptation
        ),
        rescaling=type(noise)(*(values.view(size, 2, -1) for values in noise)),
    )
    after = run_on(run, inputs).positions[:, -1]
    assert_decides_both_ways(after != theta)
    scale = run.problem.sites.layout.offsets()["obs_scale"]
    squares = after.square().view(4, -1, after.shape[1])
    for i in range(after.shape[1]):
        if i == scale:
            continue
        assert_expectation(after[:, i].view(4, -1), 0.0)
        assert_expectation(squares[..., i], 1.0)
        assert_expectation(squares[..., i].square(), 3.0)
        if 0 < i != scale + 1:
            assert_expectation(squares[..., i] * squares[..., i - 1], 1.0)


def by_hand(x, y):
    """A network that is stated nowhere, its weights by input and node, with no bias below."""
    weights = dist.Normal(torch.zeros(2, 4, dtype=torch.float64), 1.0).to_event(2)
    hidden = (x @ pyro.sample("w", weights)).relu()
    out = dist.Normal(torch.zeros(4, dtype=torch.float64), 0.7).to_event(1)
    mean = hidden @ pyro.sample("v", out)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def test_nodes_of_a_network_that_was_found_are_rescaled():
    x = torch.randn(ROWS, 2, dtype=torch.float64)
    run = start("fused", by_hand, x, x.sum(1), rescale=True)
    inputs = make_inputs(run, chains=2, sweeps=4, scale=0.3)
    assert_as_model(run, inputs, assert_as_trace(run, inputs))
    (nodes,) = run.problem.moves.rescaling.nodes
    assert nodes.incoming.shape == (4, 2)
    assert nodes.outgoing.shape == (4, 1)


# --- What is refused -----------------------------------------------------------------------------


class NotRelu:
    """States relu nodes, and has those of another activation."""

    def __init__(self):
        self.net = BayesianMLP([2, 2, 1], activation="relu", likelihood="bernoulli")
        self.other = BayesianMLP([2, 2, 1], activation="tanh", likelihood="bernoulli")

    def __call__(self, x, y=None):
        return self.other(x, y)

    def feedforward(self, x, y=None) -> Feedforward:
        return self.net.feedforward(x, y)


def no_network(x, y):
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(pyro.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (BayesianMLP([2, 2, 1], activation="tanh", likelihood="bernoulli"), r"\['tanh'\]: leave"),
        (no_network, "needs a feedforward network with a hidden layer of activation 'relu'"),
        (NotRelu(), "nodes of layer 1 cannot be rescaled: the model's log density changes by"),
    ],
)
def test_what_has_no_relu_nodes_is_refused(model, words):
    x = torch.randn(20, 2)
    with pytest.raises(ValueError, match=words):
        FNBG(model, rescale=True, engine="trace").setup(0, x, (x[:, 0] > 0).float())


# --- Posteriors ----------------------------------------------------------------------------------

X = torch.tensor([[-2.0], [-0.7], [0.1], [0.9], [2.2]], dtype=torch.float64)
NET = BayesianMLP([1, 2, 1], activation="relu", likelihood="bernoulli")
NUM_PARAMS = 7


def logits(theta):
    hidden = (theta[..., None, 0:2] * X + theta[..., None, 2:4]).relu()
    return (theta[..., None, 4:6] * hidden).sum(-1) + theta[..., 6:]


def statistics(theta, y):
    found = {f"theta{i}": theta[..., i] for i in range(NUM_PARAMS)}
    found |= {f"theta{i} squared": theta[..., i] ** 2 for i in range(NUM_PARAMS)}
    found |= {f"theta{i} y": theta[..., i] * y.mean(-1) for i in range(NUM_PARAMS)}
    found |= {f"slope{i}": theta[..., i] * theta[..., 4 + i] * y[..., -1] for i in range(2)}
    found["sizes"] = theta[..., 0] ** 2 * theta[..., 4] ** 2 * theta[..., 1] ** 2
    found["fit"] = (torch.sigmoid(logits(theta)) * y).sum(-1)
    return found


@pytest.mark.slow  # long chains
@pytest.mark.parametrize("engine", ["trace", "fused"])  # the plain form and the compiled one
def test_joint_distribution(engine):
    """Geweke's test of sweeps that walk and then rescale."""
    labels = torch.zeros(5, dtype=torch.float64)
    run = start(engine, NET, X, labels, rescale=True, proposal_scale=1.6)

    def sweep(theta, labels, number):
        put_labels(run, labels)
        chain = replace(run.chain, key=ChainKey(9, 0), position=theta, sweeps=number)
        with pyro.validation_enabled(False):
            return run_on(run, next_inputs(run.problem, [chain], 1)).positions[0, 0]

    def sample_prior(draws, rng):
        return torch.randn(draws, NUM_PARAMS, generator=rng, dtype=torch.float64)

    def simulate(theta, rng):
        return torch.bernoulli(torch.sigmoid(logits(theta)), generator=rng)

    assert_joint_distribution(sweep, sample_prior, simulate, statistics, 12_000, seed=8)
