"""What is special about the feedforward engine: chains together, and what it keeps in its state."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from pyro_fnbg import FNBG, BayesianMLP, Block, Partition
from pyro_fnbg.core.noise import ChainKey, sweep_noise
from pyro_fnbg.engines.base import SweepResults
from pyro_fnbg.engines.feedforward import FeedforwardEngine
from pyro_fnbg.engines.network import read_network
from pyro_fnbg.engines.places import first_layer_groups, group_products, locate
from pyro_fnbg.engines.trace import TraceEngine
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.networks.statement import Feedforward

ROWS = 30


class NoBias:
    """Two layers of nodes without biases."""

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


def regression(widths, **options):
    scale = dist.HalfNormal(torch.tensor(1.0, dtype=torch.float64))
    return BayesianMLP(widths, likelihood="normal", observation_scale=scale, **options)


def every_third(layout):
    """Three blocks, each from all layers and nodes."""
    blocks = (Block(f"b{k}", tuple(range(k, layout.num_params, 3))) for k in range(3))
    return Partition(tuple(blocks), layout.num_params)


def backwards(layout):
    """Pairs of coordinates, last first: some in one node, some in two, some the scale as well."""
    last = layout.num_params - 1
    pairs = [tuple(range(max(k - 1, 0), k + 1)) for k in range(last, -1, -2)]
    return Partition(tuple(Block(f"b{k}", pair) for k, pair in enumerate(pairs)), last + 1)


def scattered(layout):
    """Blocks inside nodes of the first layer, of several sizes and in no order; then the rest."""
    cuts = [(2, 0), (4, 1, 3), (6, 9), (8, 7, 5), (10, 14), (13, 11, 12), (15,), (16,), (17,)]
    cuts.append(tuple(range(18, layout.num_params)))
    blocks = tuple(Block(f"b{k}", cut) for k, cut in enumerate(cuts))
    return Partition(blocks, layout.num_params)


# Name: model, number of inputs, number of labels or outputs, options of the kernel
CASES = {
    "xor": (BayesianMLP([2] * 7 + [1], likelihood="bernoulli"), 2, 2, {}),
    "widening": (BayesianMLP([2, 3, 8, 2], activation="tanh"), 2, 2, {"blocks": "node"}),
    "parts": (BayesianMLP([5, 3, 3], activation="step"), 5, 3, {"parts": {1: 4, 2: 2}}),
    "single": (BayesianMLP([4, 3]), 4, 3, {"max_block_size": 1}),
    "layers": (BayesianMLP([3, 1, 4, 2]), 3, 2, {"blocks": "layer"}),
    "sites": (BayesianMLP([3, 2, 2], activation="relu"), 3, 2, {"blocks": "site"}),
    "depth 1": (BayesianMLP([3, 1], likelihood="bernoulli"), 3, 2, {"parts": 2}),
    "no bias": (NoBias(), 3, 2, {"parts": {1: 2}}),
    "outputs": (
        BayesianMLP([2, 3, 2], activation="identity", likelihood="normal", observation_scale=0.5),
        2,
        2.0,
        {},
    ),
    "scale": (regression([2, 4, 1]), 2, 1.0, {}),
    "scale in a block": (regression([2, 3, 2], activation="relu"), 2, 2.0, {"blocks": backwards}),
    "all layers": (regression([2, 3, 1]), 2, 1.0, {"blocks": every_third}),
    "scattered": (BayesianMLP([5, 3, 2]), 5, 2, {"blocks": scattered}),
}


class Setup:
    """A model set up on random data, and both engines for it."""

    def __init__(self, model, inputs, labels, options, dtype=torch.float64):
        x = torch.randn(ROWS, inputs, dtype=dtype)
        if isinstance(labels, float):
            y = torch.randn(ROWS, int(labels), dtype=dtype)
        else:
            y = torch.randint(0, labels, (ROWS,))
        kernel = FNBG(model, **options)
        kernel.setup(0, x, y)
        self.run = kernel._running()
        self.partition, self.position = self.run.partition, self.run.position
        self.network = read_network(BoundModel(model, (x, y)), self.run.sites, self.run.plan)
        density = ModelDensity(BoundModel(model, (x, y)), self.run.sites, self.run.plan)
        self.trace = TraceEngine(density, self.partition)
        self.engine = FeedforwardEngine(self.network, self.partition)

    def noise(self, chains, sweeps, scale=0.4):
        """Positions, batches, noise and scales of several chains, in the order of ``sweeps``."""
        params, blocks = len(self.position), self.partition.num_blocks
        drawn = [
            [sweep_noise(ChainKey(3, chain), k, params, blocks) for k in range(sweeps)]
            for chain in range(chains)
        ]
        positions = self.position + 0.3 * torch.randn(chains, params, dtype=self.position.dtype)
        size = self.run.plan.batch_size
        rows = None
        if size < ROWS:
            rows = torch.stack([torch.randperm(ROWS)[:size] for _ in range(chains * sweeps)]).view(
                chains, sweeps, size
            )
        z = torch.stack([torch.stack([noise.z for noise in chain]) for chain in drawn])
        log_u = torch.stack([torch.stack([noise.log_u for noise in chain]) for chain in drawn])
        scales = scale * (1 + torch.rand(chains, blocks, dtype=torch.float64))
        return positions, rows, z, log_u, scales


def assert_same(results, expected, tolerance=1e-9):
    assert torch.equal(results.accepted, expected.accepted)
    assert torch.equal(results.positions, expected.positions)
    for name in ("log_ratios", "log_densities"):
        one, other = getattr(results, name), getattr(expected, name)
        assert one.dtype == torch.float64
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def _as_under_mcmc():
    """Switch distributions' own checks off, as Pyro's MCMC does."""
    with pyro.validation_enabled(False):
        yield


@pytest.mark.parametrize("case", CASES)
def test_same_decisions_as_the_trace_engine(case):
    model, inputs, labels, options = CASES[case]
    options = {"likelihood_scale": "full"} | options
    for batch_size in (None, 7):
        setup = Setup(model, inputs, labels, options | {"batch_size": batch_size})
        noise = setup.noise(chains=2, sweeps=25)
        results = setup.engine.sweeps(*noise)
        assert_same(results, setup.trace.sweeps(*noise))
        assert 0.05 < results.accepted.double().mean() < 0.95


def test_single_precision_decides_as_the_trace_engine_but_for_rounding():
    """One sweep from each of many positions, up to the first decision that rounding may turn."""
    setup = Setup(*CASES["parts"], dtype=torch.float32)
    noise = setup.noise(chains=40, sweeps=1)
    results, expected = setup.engine.sweeps(*noise), setup.trace.sweeps(*noise)
    assert results.positions.dtype == torch.float32
    same = (results.accepted == expected.accepted).long().cumprod(-1).bool()
    before = torch.cat([torch.ones_like(same[..., :1]), same[..., :-1]], -1)
    margin = (noise[3] - expected.log_ratios).abs()
    assert (margin[before & ~same] < 1e-3).all()
    assert same.double().mean() > 0.9
    torch.testing.assert_close(
        results.log_ratios[same], expected.log_ratios[same], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.parametrize("case", ["xor", "parts", "layers", "scale in a block", "scattered"])
def test_chains_together_decide_like_each_alone(case, batch_size):
    model, inputs, labels, options = CASES[case]
    setup = Setup(model, inputs, labels, options | {"batch_size": batch_size})
    noise = setup.noise(chains=5, sweeps=20)
    together = setup.engine.sweeps(*noise)
    for chain in range(5):
        mine = slice(chain, chain + 1)
        alone = setup.engine.sweeps(*(None if part is None else part[mine] for part in noise))
        assert_same(SweepResults(*(part[mine] for part in together)), alone)


@pytest.mark.parametrize("own_inputs", [True, False])
@pytest.mark.parametrize("case", ["xor", "parts", "single", "depth 1", "no bias", "scattered"])
def test_first_layer_products_are_the_dense_one(case, own_inputs):
    """Every block inside a node of the first layer is in one group, with its own weights alone."""
    setup = Setup(*CASES[case])
    network, places = setup.network, setup.network.places
    inputs = torch.randn(
        3 if own_inputs else 1, network.architecture.widths[0], ROWS, dtype=torch.float64
    )
    increment = torch.randn(3, len(setup.position), dtype=torch.float64)
    expected = {}
    for block, index in enumerate(setup.partition.indices):
        layers, nodes, fed = places[index].unbind(-1)
        if (layers == 1).all() and len(set(nodes.tolist())) == 1:
            dense = torch.zeros(3, 1, network.architecture.widths[0], dtype=torch.float64)
            dense[:, 0, fed[fed >= 0]] = increment[:, index[fed >= 0]]
            expected[block] = (dense @ inputs).squeeze(1)
    found = {}
    for group in first_layer_groups(network, [locate(network, i) for i in setup.partition.indices]):
        found |= zip(group.blocks, group_products(group, inputs, increment), strict=True)
    assert found.keys() == expected.keys()
    assert found
    for block, product in expected.items():
        torch.testing.assert_close(found[block], product, rtol=1e-12, atol=1e-12)


def test_nodes_cut_alike_share_few_products_without_padding():
    setup = Setup(BayesianMLP([784, 10, 10]), 784, 10, {"parts": {1: 78}})
    groups = first_layer_groups(
        setup.network, [locate(setup.network, index) for index in setup.partition.indices]
    )
    shapes = sorted(tuple(group.weights.shape) for group in groups)
    assert shapes == [(1, 10, 9), (5, 10, 11), (72, 10, 10)]
    assert all(isinstance(group.inputs, slice) for group in groups)


def test_nothing_is_carried_from_one_sweep_to_the_next():
    """Single precision would show it: a sweep starts from the position alone, bit by bit."""
    setup = Setup(*CASES["xor"], dtype=torch.float32)
    positions, _, z, log_u, scales = setup.noise(chains=3, sweeps=30)
    together = setup.engine.sweeps(positions, None, z, log_u, scales)
    for sweep in range(30):
        now = slice(sweep, sweep + 1)
        alone = setup.engine.sweeps(positions, None, z[:, now], log_u[:, now], scales)
        for one, many in zip(alone, together, strict=True):
            assert torch.equal(one, many[:, now])
        positions = alone.positions[:, 0]


def test_rejected_blocks_leave_no_trace():
    """Ratios of later blocks are those of a sweep without the rejected ones, bit by bit."""
    setup = Setup(*CASES["parts"])
    positions, _, z, log_u, scales = setup.noise(chains=4, sweeps=1)
    results = setup.engine.sweeps(positions, None, z, log_u, scales)
    still = z * results.accepted[..., setup.partition.block_of_coordinate]
    again = setup.engine.sweeps(positions, None, still, log_u, scales)
    assert not results.accepted.all()
    assert torch.equal(results.positions, again.positions)
    assert torch.equal(results.log_densities, again.log_densities)
    assert torch.equal(results.log_ratios[results.accepted], again.log_ratios[results.accepted])


@pytest.mark.parametrize("case", CASES)
def test_no_step_looks_at_a_value(case):
    """Tensors without values raise where the host would have to wait for the device."""
    model, inputs, labels, options = CASES[case]
    setup = Setup(model, inputs, labels, options | {"batch_size": 7})
    noise = setup.noise(chains=3, sweeps=2)
    with pyro.validation_enabled(True), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(part) for part in noise]
        with pytest.raises(DataDependentOutputException):
            bool(fakes[0].sum() > 0)
        results = setup.engine.sweeps(*fakes)
    assert results.accepted.shape == (3, 2, setup.partition.num_blocks)
