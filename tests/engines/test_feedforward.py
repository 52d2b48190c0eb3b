"""What is special about the feedforward engine: what it keeps, and that it never waits.

``test_equality`` sets it beside the model, chains together and alone.
"""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from pyro_fnbg import BayesianMLP, Block, Partition
from pyro_fnbg.core.moves.walk import ScaleState
from pyro_fnbg.engines.base import SweepInputs
from pyro_fnbg.engines.network import read_network
from pyro_fnbg.engines.places import first_layer_groups, group_products, locate
from pyro_fnbg.networks.statement import Feedforward
from pyro_fnbg.testing import make_inputs, run_on, start
from support.engines import assert_decides_both_ways, past_the_check

ROWS = 30


class NoBias:
    """Two layers of nodes without biases."""

    likelihood = "categorical"

    def __call__(self, x, y):
        values = x
        for name, shape in (("hidden", (4, 3)), ("out", (2, 4))):
            prior = dist.Normal(torch.zeros(shape, dtype=x.dtype), 2.0).to_event(2)
            values = values.relu() if name == "out" else values
            values = values @ pyro.sample(f"{name}.weight", prior).mT
        with pyro.plate("data", len(x)):
            logits = pyro.subsample(values, event_dim=1)
            pyro.sample("y", dist.Categorical(logits=logits), obs=pyro.subsample(y, event_dim=0))

    def feedforward(self, x, y):
        return Feedforward(x, ["hidden", "out"], ["relu"], "categorical")


def regression(widths):
    scale = dist.HalfNormal(torch.tensor(1.0, dtype=torch.float64))
    return BayesianMLP(widths, likelihood="normal", observation_scale=scale)


def scattered(layout):
    """Blocks inside nodes of the first layer, of several sizes and in no order; then the rest."""
    cuts = [(2, 0), (4, 1, 3), (6, 9), (8, 7, 5), (10, 14), (13, 11, 12), (15,), (16,), (17,)]
    cuts.append(tuple(range(18, layout.num_params)))
    blocks = tuple(Block(f"b{k}", cut) for k, cut in enumerate(cuts))
    return Partition(blocks, layout.num_params)


# Name: model, number of inputs, number of classes or outputs, options of the kernel
CASES = {
    "xor": (BayesianMLP([2] * 7 + [1], likelihood="bernoulli"), 2, 2, {}),
    "parts": (BayesianMLP([5, 3, 3], activation="step"), 5, 3, {"parts": {1: 4, 2: 2}}),
    "single": (BayesianMLP([4, 3]), 4, 3, {"max_block_size": 1}),
    "layers": (BayesianMLP([3, 1, 4, 2]), 3, 2, {"blocks": "layer"}),
    "depth 1": (BayesianMLP([3, 1], likelihood="bernoulli"), 3, 2, {"parts": 2}),
    "no bias": (NoBias(), 3, 2, {"parts": {1: 2}}),
    "scale": (regression([2, 4, 1]), 2, 1, {}),
    "scattered": (BayesianMLP([5, 3, 2]), 5, 2, {"blocks": scattered}),
}
on_every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def set_up(model, num_inputs, outputs, options, batch_size=None):
    """Run a model on random data by this engine."""
    x = torch.randn(ROWS, num_inputs, dtype=torch.float64)
    is_regression = model.likelihood == "normal"
    y = torch.randn(ROWS, outputs).double() if is_regression else torch.randint(0, outputs, (ROWS,))
    run = start("trace", model, x, y, batch_size=batch_size, **options)
    return past_the_check(run, "feedforward")


def network_of(run):
    """Read a run's network, and where its blocks are."""
    problem = run.problem
    network = read_network(problem.bound, problem.sites, problem.plan)
    return network, [locate(network, index) for index in problem.partition.indices]


@pytest.mark.parametrize("own_inputs", [True, False])
@pytest.mark.parametrize("name", ["xor", "parts", "single", "depth 1", "no bias", "scattered"])
def test_first_layer_products_are_the_dense_one(name, own_inputs):
    """Every block inside a node of the first layer is in one group, with its own weights alone."""
    run = set_up(*CASES[name])
    (network, places), partition = network_of(run), run.problem.partition
    num_inputs = network.architecture.widths[0]
    inputs = torch.randn(3 if own_inputs else 1, num_inputs, ROWS, dtype=torch.float64)
    increment = torch.randn(3, partition.num_params, dtype=torch.float64)
    expected = {}
    for block, index in enumerate(partition.indices):
        layers, nodes, fed = network.places[index].unbind(-1)
        if (layers == 1).all() and len(set(nodes.tolist())) == 1:
            dense = torch.zeros(3, 1, num_inputs, dtype=torch.float64)
            dense[:, 0, fed[fed >= 0]] = increment[:, index[fed >= 0]]
            expected[block] = (dense @ inputs).squeeze(1)
    found = {}
    for group in first_layer_groups(network, places):
        found |= zip(group.blocks, group_products(group, inputs, increment), strict=True)
    assert found.keys() == expected.keys()
    assert found
    for block, product in expected.items():
        torch.testing.assert_close(found[block], product, rtol=1e-12, atol=1e-12)


def test_nodes_cut_alike_share_few_products_without_padding():
    groups = first_layer_groups(
        *network_of(set_up(BayesianMLP([784, 10, 10]), 784, 10, {"parts": {1: 78}}))
    )
    shapes = sorted(tuple(group.weights.shape) for group in groups)
    assert shapes == [(1, 10, 9), (5, 10, 11), (72, 10, 10)]
    assert all(isinstance(group.inputs, slice) for group in groups)


def test_rejected_blocks_leave_no_trace():
    """Ratios of later blocks are those of a sweep without the rejected ones, bit by bit."""
    run = set_up(*CASES["parts"])
    inputs = make_inputs(run, 4, scale=0.5, spread=0.3)
    record = run_on(run, inputs)
    is_accepted = record.accepted[..., run.problem.partition.block_of_coordinate]
    again = run_on(run, inputs._replace(z=inputs.z * is_accepted))
    assert_decides_both_ways(record.accepted)
    assert torch.equal(record.positions, again.positions)
    assert torch.equal(record.log_densities, again.log_densities)
    assert torch.equal(record.log_ratios[record.accepted], again.log_ratios[record.accepted])


@pytest.mark.parametrize("has_gains", [False, True])
@on_every_case
def test_no_step_looks_at_a_value(case, has_gains):
    """Tensors without values raise where the host would have to wait for the device."""
    run = set_up(*case, batch_size=7)
    inputs = make_inputs(run, 3, 2, scale=0.5)
    if has_gains:
        inputs = inputs._replace(gains=torch.ones(2, dtype=torch.float64))
    with pyro.validation_enabled(True), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        *tensors, (state,), gains, _ = inputs
        fakes = [mode.from_tensor(tensor) for tensor in tensors]
        with pytest.raises(DataDependentOutputException):
            bool(fakes[0].sum() > 0)
        learnt = (ScaleState(mode.from_tensor(state.scales)),)
        record = run.problem.engine.run(SweepInputs(*fakes, learnt, gains))
    assert record.accepted.shape == (3, 2, run.problem.partition.num_blocks)
    assert record.adaptation[0].scales.shape[:2] == (3, 2 if has_gains else 1)
