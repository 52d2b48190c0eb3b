"""Same noise, same decisions: the engines agree draw by draw, whatever the network and blocks.

``test_engines`` says what each engine must do; here they are set side by side. In double precision
all take the same decisions over long runs. In single precision a decision within rounding of its
threshold may turn, and two chains part for good: so each block is judged from the same state.
"""

from typing import NamedTuple

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import BayesianMLP, Block, Partition
from pyro_fnbg.core.noise import ChainKey, SweepNoise, sweep_noise
from pyro_fnbg.engines.base import SweepResults
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from support.engines import TOLERANCES, assert_follows, replay, start

ROWS, SWEEPS = 30, 1_000
DTYPES = [torch.float64, torch.float32]
FAST = ["feedforward", "fused"]


@pytest.fixture(autouse=True)
def _as_under_mcmc():
    """Switch distributions' own checks off, as Pyro's MCMC does."""
    with pyro.validation_enabled(False):
        yield


class Case(NamedTuple):
    """A network, without a sampled observation scale, the scale's prior, and the kernel's rest."""

    widths: list[int]
    model: dict = {}
    kernel: dict = {}
    scale_prior: type | None = None
    scale: float = 0.4


def scattered(layout):
    """Blocks inside one node, across nodes and across layers, in no order."""
    cuts = [(16, 18), (15, 13), (2, 0), (5, 7), (9, 1), (17, 4, 14), (10, 3), (6, 8, 11, 12, 19)]
    blocks = tuple(Block(f"b{k}", cut) for k, cut in enumerate(cuts))
    return Partition(blocks, layout.num_params)


CASES = {
    "deep": Case([2, 2, 1, 2, 1], {"likelihood": "bernoulli"}),
    "widening": Case(
        [2, 3, 4, 2],
        {"activation": "tanh"},
        {"batch_size": 7, "batch_order": "stratified"},
    ),
    "parts": Case(
        [5, 2, 3],
        {"activation": "step", "prior_scale": [1.0, 2.0]},
        {"parts": {1: 3, 2: 2}, "batch_size": 10, "likelihood_scale": "full"},
    ),
    "small blocks": Case(
        [3, 2, 2],
        {"activation": "relu", "likelihood": "normal", "observation_scale": 0.7},
        {"max_block_size": 2, "batch_size": 7, "likelihood_scale": 0.3},
    ),
    "layers": Case([3, 3, 3, 2], {"activation": ["sigmoid", "relu"]}, {"blocks": "layer"}),
    "sites": Case(
        [2, 3, 1],
        {"activation": "identity", "likelihood": "normal"},
        {"blocks": "site", "batch_size": 11},
        scale_prior=dist.HalfNormal,
        scale=0.2,
    ),
    "scattered": Case([3, 3, 1, 2], {"activation": "tanh"}, {"blocks": scattered}),
    "one layer": Case([3, 1], {"likelihood": "bernoulli"}, {"parts": 2, "batch_size": 29}),
}
SLOW = {
    "xor": Case([2] * 7 + [1], {"likelihood": "bernoulli"}, {"batch_size": 10}),
    "single coordinates": Case([4, 6, 5], {}, {"max_block_size": 1, "likelihood_scale": 0.5}),
    "wide": Case([20, 12, 9], {"activation": "relu"}, {"parts": {1: 3}}, scale=0.2),
    "exponential scale": Case(
        [2, 5, 3], {"activation": "tanh", "likelihood": "normal"}, {}, dist.Exponential, 0.2
    ),
}
ALL = CASES | SLOW
NAMES = [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


class Setup:
    """A case on random data, and the engines set up for it."""

    def __init__(self, case, dtype, engines):
        options = case.model
        if case.scale_prior is not None:
            options = options | {"observation_scale": case.scale_prior(torch.ones((), dtype=dtype))}
        self.model = BayesianMLP(case.widths, **options)
        x = torch.randn(ROWS, case.widths[0], dtype=dtype)
        if self.model.likelihood == "normal":
            y = torch.randn(ROWS, case.widths[-1], dtype=dtype)
        else:
            y = torch.randint(0, max(case.widths[-1], 2), (ROWS,))
        self.runs = {name: start(name, self.model, x, y, **case.kernel) for name in engines}
        self.run = next(iter(self.runs.values()))
        assert all(run.engine.name == name for name, run in self.runs.items())
        self.density = ModelDensity(BoundModel(self.model, (x, y)), self.run.sites, self.run.plan)
        self.position, self.scale = self.run.position, case.scale

    def noise(self, chains, sweeps):
        """Batches, noise and scales of several chains, in the order of ``Engine.sweeps``."""
        size = len(self.position), self.run.partition.num_blocks
        drawn = [
            [sweep_noise(ChainKey(3, chain), k, *size) for k in range(sweeps)]
            for chain in range(chains)
        ]
        rows = None
        if self.run.batches.rows(0) is not None:
            batches = [self.run.batches.rows(k) for k in range(chains * sweeps)]
            rows = torch.stack(batches).view(chains, sweeps, -1)
        z = torch.stack([torch.stack([noise.z for noise in chain]) for chain in drawn])
        log_u = torch.stack([torch.stack([noise.log_u for noise in chain]) for chain in drawn])
        scales = self.scale * torch.linspace(0.7, 1.5, chains * size[1], dtype=torch.float64)
        return rows, z, log_u, scales.view(chains, size[1])


def assert_equal(name, results, expected, log_u, tolerance=1e-8):
    """Assert the same run; a decision so close that rounding may turn it is named as such."""
    differ = (results.accepted != expected.accepted).nonzero()
    if len(differ):
        at = tuple(differ[0].tolist())
        margin = abs(float(log_u[at] - expected.log_ratios[at]))
        hint = ", below 1e-9: rounding may turn it, take another seed" if margin < 1e-9 else ""
        pytest.fail(
            f"{name}: decision {at} (chain, sweep, block) is another; the threshold's distance "
            f"from the log ratio is {margin:.3g}{hint}"
        )
    assert torch.equal(results.positions, expected.positions)
    for field in ("log_ratios", "log_densities"):
        torch.testing.assert_close(
            getattr(results, field), getattr(expected, field), rtol=tolerance, atol=tolerance
        )


def assert_judged_alike(setup, found, noise):
    """Assert that the model judges each block of one chain alike, from the same state."""
    rows, z, log_u, scales = noise
    position = setup.position
    for sweep in range(z.shape[1]):
        results = SweepResults(*(values[0, sweep] for values in found))
        batch = None if rows is None else rows[0, sweep]
        drawn = SweepNoise(z[0, sweep], log_u[0, sweep])
        expected = replay(
            setup.run, setup.density, position, batch, drawn, scales[0], results.accepted
        )
        assert_follows(results, expected, drawn.log_u, TOLERANCES[setup.position.dtype])
        position = results.positions


@pytest.mark.parametrize("name", NAMES)
def test_double_precision_same_noise_same_decisions(name):
    """1,000 sweeps in one call, which differ by rounding alone: nothing adds up."""
    setup = Setup(ALL[name], torch.float64, ["trace", *FAST])
    noise = setup.noise(1, SWEEPS)
    expected = setup.runs["trace"].engine.sweeps(setup.position[None], *noise)
    for engine in FAST:
        results = setup.runs[engine].engine.sweeps(setup.position[None], *noise)
        assert_equal(engine, results, expected, noise[2])
    rates = expected.accepted[0].double().mean(0)
    assert ((rates > 0.05) & (rates < 0.97)).all(), f"decisions of one kind only: {rates}"


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("name", NAMES)
def test_single_precision_judges_each_block_alike_from_the_same_state(name, engine):
    setup = Setup(ALL[name], torch.float32, [engine])
    noise = setup.noise(1, 60)
    found = setup.run.engine.sweeps(setup.position[None], *noise)
    assert found.positions.dtype == torch.float32
    assert_judged_alike(setup, found, noise)
    assert 0.1 < found.accepted.double().mean() < 0.97


def test_single_precision_judges_the_blocks_of_an_image_net_alike():
    """Parts of the first layer as in the paper: many small blocks, mostly empty inputs."""
    x = torch.rand(300, 784) * (torch.rand(300, 784) < 0.2)
    y = torch.randint(0, 10, (300,))
    model = BayesianMLP([784, 10, 10, 10], prior_scale=10**0.5)
    run = start("fused", model, x, y, parts={1: 78}, batch_size=200)
    assert run.partition.num_blocks == 800
    density = ModelDensity(BoundModel(model, (x, y)), run.sites, run.plan)
    noise, rows = sweep_noise(run.key, 0, len(run.position), 800), run.batches.rows(0)
    scales = torch.full((800,), 0.3, dtype=torch.float64)
    found = run.engine.sweeps(
        run.position[None], rows[None, None], noise.z[None, None], noise.log_u[None, None],
        scales[None],
    )  # fmt: skip
    results = SweepResults(*(values[0, 0] for values in found))
    expected = replay(run, density, run.position, rows, noise, scales, results.accepted)
    assert_follows(results, expected, noise.log_u, TOLERANCES[torch.float32])
    assert 0.05 < results.accepted.double().mean() < 0.95


@pytest.fixture
def saturated():
    """Large weights: most changes of a unit's activation are lost in rounding further up."""
    case = Case([4, 6, 5, 3], {"prior_scale": [30.0, 30.0, 1.0]}, {"max_block_size": 3}, scale=3.0)
    return Setup(case, torch.float32, ["fused"])


def test_rows_that_do_not_move_are_judged_alike(saturated):
    """Large weights in single precision: the model itself sees no change there, either."""
    setup, engine = saturated, saturated.run.engine
    noise = setup.noise(1, 60)
    found = engine.sweeps(setup.position[None], *noise)
    in_layer_1 = torch.tensor([block.layer == 1 for block in setup.run.partition.blocks])
    assert (engine.moved_rows[..., in_layer_1] < ROWS / 2).double().mean() > 0.8
    assert_judged_alike(setup, found, noise)
    assert 0.05 < found.accepted.double().mean() < 0.95


def test_skipping_rows_that_do_not_move_changes_nothing(saturated):
    """Against the same engine made to follow every row: far closer than single precision."""
    setup, engine = saturated, saturated.run.engine
    noise = setup.noise(1, 3_000)
    skipping, moved = engine.sweeps(setup.position[None], *noise), engine.moved_rows
    # No change is smaller than a negative share
    engine._plan = engine._plan._replace(unnoticed=-engine._plan.unnoticed)
    following = engine.sweeps(setup.position[None], *noise)
    assert (engine.moved_rows == ROWS).double().mean() > 0.99
    assert moved.double().mean() < ROWS / 2
    assert torch.equal(skipping.positions, following.positions)
    torch.testing.assert_close(skipping.log_ratios, following.log_ratios, rtol=0.0, atol=1e-9)


# --- Chains and calls ----------------------------------------------------------------------------


@pytest.fixture(params=[1, 2])
def threads(request):
    """Let torch, whose number of threads the fused engine takes, use one thread or two."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def chains_of(setup, chains):
    return setup.position + 0.3 * torch.randn(chains, len(setup.position)).to(setup.position)


def assert_identical(one, other):
    for field, expected in zip(one, other, strict=True):
        assert torch.equal(field, expected)


def part(noise, chains=slice(None), sweeps=slice(None)):
    """Take some chains and sweeps of batches, noise and scales."""
    rows, z, log_u, scales = noise
    rows = None if rows is None else rows[chains, sweeps]
    return rows, z[chains, sweeps], log_u[chains, sweeps], scales[chains]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("name", ["deep", "widening", "sites", "scattered"])
def test_sweeps_of_one_call_are_those_of_many(name, engine, dtype, threads):
    """Bit for bit, for several chains: a sweep takes nothing from the one before but positions."""
    setup = Setup(CASES[name], dtype, [engine])
    noise, positions = setup.noise(5, 12), chains_of(setup, 5)
    together = setup.run.engine.sweeps(positions, *noise)
    for first, end in ((0, 1), (1, 2), (2, 7), (7, 12)):
        now = slice(first, end)
        alone = setup.run.engine.sweeps(positions, *part(noise, sweeps=now))
        assert_identical(alone, SweepResults(*(values[:, now] for values in together)))
        positions = alone.positions[:, -1]
    assert 0.05 < together.accepted.double().mean() < 0.97


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["deep", "widening", "sites", "scattered"])
def test_fused_chain_of_many_is_the_chain_alone_bit_for_bit(name, dtype, threads):
    setup = Setup(CASES[name], dtype, ["fused"])
    noise, positions = setup.noise(5, 40), chains_of(setup, 5)
    engine = setup.run.engine
    together, moved = engine.sweeps(positions, *noise), engine.moved_rows
    assert len({tuple(chain.flatten().tolist()) for chain in together.accepted}) == 5
    for chain in range(5):
        mine = slice(chain, chain + 1)
        alone = engine.sweeps(positions[mine], *part(noise, chains=mine))
        assert_identical(alone, SweepResults(*(values[mine] for values in together)))
        assert torch.equal(engine.moved_rows, moved[mine])


@pytest.mark.parametrize("name", CASES)
def test_feedforward_chain_of_many_decides_as_the_chain_alone(name):
    """In double precision; batched products round otherwise than single ones."""
    setup = Setup(CASES[name], torch.float64, ["feedforward"])
    noise, positions = setup.noise(5, 40), chains_of(setup, 5)
    together = setup.run.engine.sweeps(positions, *noise)
    for chain in range(5):
        mine = slice(chain, chain + 1)
        alone = setup.run.engine.sweeps(positions[mine], *part(noise, chains=mine))
        together_mine = SweepResults(*(values[mine] for values in together))
        assert_equal("feedforward", together_mine, alone, noise[2][mine])


# --- Rounding does not add up ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", FAST)
def test_log_density_does_not_drift_on_a_fixed_batch(engine, dtype):
    """10,000 sweeps in one call: the reported log density is a fresh evaluation's all along."""
    setup = Setup(Case([2, 2, 1], {"likelihood": "bernoulli"}), dtype, [engine])
    noise = setup.noise(1, 10_000)
    results = setup.run.engine.sweeps(setup.position[None], *noise)
    assert 0.05 < results.accepted.double().mean() < 0.95
    for sweep in (0, 99, 2_499, 4_999, 9_998, 9_999):
        fresh = setup.density.on(None)(results.positions[0, sweep]).log_density
        gap = abs(float(results.log_densities[0, sweep] - fresh))
        assert gap < TOLERANCES[dtype], f"sweep {sweep}: {gap}"
