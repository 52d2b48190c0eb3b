"""Same noise, same decisions: the engines agree draw by draw, whatever the network and blocks.

In double precision all take the same decisions over long runs. In single precision a decision
within rounding of its threshold may turn, and two chains part for good: so each block is judged
from the same state.
"""

from typing import NamedTuple

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import BayesianMLP, Block, Feedforward, Partition
from pyro_fnbg.networks.priors import ScalePrior
from pyro_fnbg.testing import assert_as_model, make_inputs, run_on, start
from pyro_fnbg.testing.judging import TOLERANCES
from support.engines import (
    FAST,
    assert_as_trace,
    assert_decides_both_ways,
    assert_identical,
    assert_same,
    go_on,
    part,
    past_the_check,
)
from support.slow import slowly

ROWS, SWEEPS = 30, 600
DTYPES = [torch.float64, torch.float32]


class Case(NamedTuple):
    """A network, without a sampled observation scale, the scale's prior, and the kernel's rest.

    Long runs are there to see whether rounding adds up, which does not depend on the priors.
    """

    widths: list[int]
    model: dict = {}
    kernel: dict = {}
    scale_prior: type | None = None
    scale: float = 0.4
    sweeps: int = SWEEPS


def backwards(layout):
    """Pairs of coordinates, last first: some in one node, some in two, some the scale as well."""
    last = layout.num_params - 1
    pairs = [tuple(range(max(k - 1, 0), k + 1)) for k in range(last, -1, -2)]
    return Partition(tuple(Block(f"b{k}", pair) for k, pair in enumerate(pairs)), last + 1)


def every_third(layout):
    """Three blocks, each from all layers and nodes."""
    blocks = (Block(f"b{k}", tuple(range(k, layout.num_params, 3))) for k in range(3))
    return Partition(tuple(blocks), layout.num_params)


def in_first_layer(layout):
    """Blocks inside nodes of the first layer, of several sizes and in no order; then the rest."""
    cuts = [(2, 0), (4, 1, 3), (6, 9), (8, 7, 5), (10, 14), (13, 11, 12), (15,), (16,), (17,)]
    cuts.append(tuple(range(18, layout.num_params)))
    blocks = tuple(Block(f"b{k}", cut) for k, cut in enumerate(cuts))
    return Partition(blocks, layout.num_params)


def scattered(layout):
    """Blocks inside one node, across nodes and across layers, in no order."""
    cuts = [(16, 18), (15, 13), (2, 0), (5, 7), (9, 1), (17, 4, 14), (10, 3), (6, 8, 11, 12, 19)]
    blocks = tuple(Block(f"b{k}", cut) for k, cut in enumerate(cuts))
    return Partition(blocks, layout.num_params)


# Outputs are a few units at most: where a scale is tiny, its rounding is not that of its term
SCALES = {"likelihood": "normal", "observation_scale": "network", "prior_scale": 0.5}
VARIANCE = ScalePrior(dist.InverseGamma(2.0, 1.0), of="variance")
VARIANCES = ScalePrior(dist.InverseGamma(1.5, 0.5), of="variance", per="input")

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
    "scales": Case(
        [2, 3, 2], SCALES, {"max_block_size": 2, "batch_size": 11, "likelihood_scale": 0.5}
    ),
    "several scales": Case(
        [2, 3, 4], SCALES | {"activation": "tanh"}, {"blocks": every_third}, scale=0.2
    ),
    "student": Case(
        [2, 3, 1],
        {"activation": "tanh", "likelihood": "student", "degrees_of_freedom": 2.5},
        {"blocks": "site", "batch_size": 11},
        scale_prior=dist.HalfNormal,
    ),
    "student, scales": Case(
        [3, 3, 2],
        SCALES | {"likelihood": "student"},
        {"blocks": "layer", "likelihood_scale": 0.5},
        scale=0.2,
    ),
    "counts": Case(
        [2, 3, 2], {"activation": "tanh", "likelihood": "poisson"}, {"batch_size": 12}, scale=0.2
    ),
    "scattered": Case([3, 3, 1, 2], {"activation": "tanh"}, {"blocks": scattered}),
    "in the first layer": Case([5, 3, 2], {}, {"blocks": in_first_layer, "batch_size": 7}),
    "scale in a block": Case(
        [2, 3, 2],
        {"activation": "relu", "likelihood": "normal"},
        {"blocks": backwards, "batch_size": 7, "likelihood_scale": "full"},
        scale_prior=dist.HalfNormal,
    ),
    "all layers in a block": Case(
        [2, 3, 1],
        {"likelihood": "normal"},
        {"blocks": every_third},
        scale_prior=dist.HalfNormal,
        scale=0.2,
    ),
    "laplace": Case(
        [3, 2, 2],
        {"prior": "laplace", "prior_scale": "fan_in", "prior_loc": 0.3},
        {"batch_size": 7},
        scale=0.8,
        sweeps=100,
    ),
    "student priors": Case(
        [2, 3, 1],
        {
            "prior": "student",
            "prior_degrees_of_freedom": 2.5,
            "prior_loc": -0.3,
            "likelihood": "bernoulli",
        },
        {"likelihood_scale": "full", "batch_size": 10},
        scale=0.8,
        sweeps=100,
    ),
    "variances": Case(
        [3, 2, 2],
        {"prior_scale": [VARIANCES, VARIANCE], "prior_loc": 0.3, "activation": "tanh"},
        {"batch_size": 7},
        sweeps=100,
    ),
    "scales of priors": Case(
        [2, 3, 1],
        {
            "prior_scale": [ScalePrior(dist.HalfCauchy(1.0), per="input"), 0.8],
            "bias_prior_scale": [VARIANCE, ScalePrior(dist.LogNormal(0.1, 0.5))],
            "prior": "laplace",
            "likelihood": "normal",
        },
        {"likelihood_scale": "full", "batch_size": 10},
        scale_prior=dist.HalfNormal,
        sweeps=100,
    ),
    "scales and all else in a block": Case(
        [2, 3, 1],
        {
            "prior_scale": [ScalePrior(dist.Gamma(2.0, 1.0), per="input"), VARIANCE],
            "prior": "student",
            "likelihood": "normal",
        },
        {"blocks": every_third},
        scale_prior=dist.HalfNormal,
        scale=0.15,
        sweeps=100,
    ),
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
# Of these, other tests of every run have the like
SELDOM = {"scale in a block", "in the first layer", "small blocks", "scattered", *SLOW}
NAMES = [slowly(name) if name in SELDOM else name for name in ALL]


def set_up(case, dtype, engine):
    """Run a case on random data; the engine has passed the check at set-up."""
    options = dict(case.model)
    if case.scale_prior is not None:
        options["observation_scale"] = case.scale_prior(torch.ones((), dtype=dtype))
    model = BayesianMLP(case.widths, **options)
    x = torch.randn(ROWS, case.widths[0], dtype=dtype)
    outputs = case.widths[-1] // (2 if model.observation_scale == "network" else 1)
    if model.likelihood in ("normal", "student"):
        y = torch.randn(ROWS, outputs, dtype=dtype)
    elif model.likelihood == "poisson":
        y = torch.randint(0, 6, (ROWS, outputs))
    else:
        y = torch.randint(0, max(case.widths[-1], 2), (ROWS,))
    return start(engine, model, x, y, **case.kernel)


@pytest.mark.parametrize("share", [0.25, slowly(1.0)])
@pytest.mark.parametrize("name", NAMES)
def test_double_precision_same_noise_same_decisions(name, share):
    """600 sweeps in one call, or a part, which differ by rounding alone: nothing adds up."""
    run = set_up(ALL[name], torch.float64, "trace")
    inputs = make_inputs(run, 1, int(share * ALL[name].sweeps), scale=ALL[name].scale)
    expected = run_on(run, inputs)
    for engine in FAST:
        found = run_on(past_the_check(run, engine), inputs)
        assert_same(found, expected, inputs.log_u, 1e-8)
    for move, accepted in zip(run.problem.moves.of_block, expected.accepted[0].mT, strict=True):
        if move.name == "conjugate":
            assert accepted.all()
        else:
            assert_decides_both_ways(accepted, most=0.97)


@pytest.mark.parametrize("engine", [slowly("feedforward"), "fused"])
@pytest.mark.parametrize("name", NAMES)
def test_single_precision_judges_each_block_alike_from_the_same_state(name, engine):
    run = set_up(ALL[name], torch.float32, engine)
    inputs = make_inputs(run, 2, 30, scale=ALL[name].scale, spread=0.3)
    record = run_on(run, inputs)
    assert record.positions.dtype == torch.float32
    assert_as_model(run, inputs, record)
    assert_decides_both_ways(record.accepted, 0.1, 0.97)


def test_single_precision_judges_the_blocks_of_an_image_net_alike():
    """Parts of the first layer as in the paper: many small blocks, mostly empty inputs."""
    x = torch.rand(300, 784) * (torch.rand(300, 784) < 0.2)
    y = torch.randint(0, 10, (300,))
    model = BayesianMLP([784, 10, 10, 10], prior_scale=10**0.5)
    run = start("fused", model, x, y, parts={1: 78}, batch_size=200)
    assert run.problem.partition.num_blocks == 800
    inputs = make_inputs(run, scale=0.3)
    record = run_on(run, inputs)
    assert_as_model(run, inputs, record)
    assert_decides_both_ways(record.accepted)


@pytest.fixture
def saturated():
    """Large weights: most changes of a unit's activation are lost in rounding further up."""
    case = Case([4, 6, 5, 3], {"prior_scale": [30.0, 30.0, 1.0]}, {"max_block_size": 3})
    return set_up(case, torch.float32, "fused")


def test_rows_that_do_not_move_are_judged_alike(saturated):
    """Large weights in single precision: the model itself sees no change there, either."""
    inputs = make_inputs(saturated, 1, 60, scale=3.0)
    record = run_on(saturated, inputs)
    moved = saturated.problem.engine.moved_rows
    in_layer_1 = torch.tensor([block.layer == 1 for block in saturated.problem.partition.blocks])
    assert (moved[..., in_layer_1] < ROWS / 2).double().mean() > 0.8
    assert_as_model(saturated, inputs, record)
    assert_decides_both_ways(record.accepted)


def test_skipping_rows_that_do_not_move_changes_nothing(saturated):
    """Against the same engine made to follow every row: far closer than single precision."""
    engine, inputs = saturated.problem.engine, make_inputs(saturated, 1, 3_000, scale=3.0)
    skipping, moved = run_on(saturated, inputs), engine.moved_rows
    # No change is smaller than a negative share
    engine._net = engine._net._replace(unnoticed=-engine._net.unnoticed)
    following = run_on(saturated, inputs)
    assert (engine.moved_rows == ROWS).double().mean() > 0.99
    assert moved.double().mean() < ROWS / 2
    assert torch.equal(skipping.positions, following.positions)
    torch.testing.assert_close(skipping.log_ratios, following.log_ratios, rtol=0.0, atol=1e-9)


class Unbiased:
    """Layers with and without biases: the names given, of the three."""

    def __init__(self, *biased):
        self.biased = biased

    def __call__(self, x, y):
        values = x
        for layer, fan_in, fan_out in (("a", 3, 4), ("b", 4, 5), ("c", 5, 2)):
            prior = dist.Normal(x.new_zeros(fan_out, fan_in), 1.5).to_event(2)
            values = values @ pyro.sample(f"{layer}.weight", prior).mT
            if layer in self.biased:
                prior = dist.Normal(x.new_ones(fan_out), 0.5).to_event(1)
                values = values + pyro.sample(f"{layer}.bias", prior)
            values = values if layer == "c" else values.tanh()
        with pyro.plate("data", len(x)):
            logits = pyro.subsample(values, event_dim=1)
            pyro.sample("y", dist.Categorical(logits=logits), obs=pyro.subsample(y, event_dim=0))

    def feedforward(self, x, y):
        return Feedforward(x, ["a", "b", "c"], ["tanh", "tanh"], "categorical")


@pytest.mark.parametrize("blocks", ["node", slowly("layer"), slowly("site")])
@pytest.mark.parametrize("biased", [(), ("a",), ("b",), ("c",), ("a", "c")])
def test_layers_without_biases(biased, blocks):
    x, y = torch.randn(20, 3, dtype=torch.float64), torch.randint(0, 2, (20,))
    run = start("trace", Unbiased(*biased), x, y, blocks=blocks, batch_size=9)
    for engine in FAST:
        fast = past_the_check(run, engine)
        record = assert_as_trace(fast, make_inputs(fast, 1, 20, scale=0.4))
        assert_decides_both_ways(record.accepted, 0.02)


# --- Chains and calls ----------------------------------------------------------------------------


@pytest.fixture(params=[1, 2])
def threads(request):
    """Let torch, whose number of threads the fused engine takes, use one thread or two."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def chains_of(name, dtype, engine, sweeps):
    """Set a case up, and draw noise for five chains."""
    run = set_up(CASES[name], dtype, engine)
    return run, make_inputs(run, 5, sweeps, scale=CASES[name].scale, spread=0.3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("name", ["deep", "widening", "sites", "scattered"])
def test_sweeps_of_one_call_are_those_of_many(name, engine, dtype, threads):
    """Bit for bit, for several chains: a sweep takes nothing from the one before but positions."""
    run, inputs = chains_of(name, dtype, engine, 12)
    together, here = run_on(run, inputs), inputs
    for first, end in ((0, 1), (1, 2), (2, 7), (7, 12)):
        now = slice(first, end)
        alone = run_on(run, part(here, sweeps=now))
        assert_identical(alone, part(together, sweeps=now))
        here = go_on(inputs, alone)
    assert_decides_both_ways(together.accepted, most=0.97)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["deep", "widening", "sites", "scattered"])
def test_fused_chain_of_many_is_the_chain_alone_bit_for_bit(name, dtype, threads):
    run, inputs = chains_of(name, dtype, "fused", 40)
    together, moved = run_on(run, inputs), run.problem.engine.moved_rows
    assert len({tuple(chain.flatten().tolist()) for chain in together.accepted}) == 5
    for chain in range(5):
        mine = slice(chain, chain + 1)
        assert_identical(run_on(run, part(inputs, mine)), part(together, mine))
        assert torch.equal(run.problem.engine.moved_rows, moved[mine])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_feedforward_chain_of_many_decides_as_the_chain_alone(name):
    """In double precision; batched products round otherwise than single ones."""
    run, inputs = chains_of(name, torch.float64, "feedforward", 40)
    together = run_on(run, inputs)
    for chain in range(5):
        mine = slice(chain, chain + 1)
        own = part(inputs, mine)
        assert_same(part(together, mine), run_on(run, own), own.log_u)


# --- Rounding does not add up ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ["fused", slowly("feedforward")])
def test_log_density_does_not_drift_on_a_fixed_batch(engine, dtype):
    """10,000 sweeps in one call: the reported log density is a fresh evaluation's all along."""
    run = set_up(Case([2, 2, 1], {"likelihood": "bernoulli"}), dtype, engine)
    record = run_on(run, make_inputs(run, 1, 10_000, scale=0.4)).of_chain(0)
    assert_decides_both_ways(record.accepted)
    for sweep in (0, 99, 2_499, 4_999, 9_998, 9_999):
        fresh = run.problem.density.on(None)(record.positions[sweep]).log_density
        gap = abs(float(record.log_densities[sweep] - fresh))
        assert gap < TOLERANCES[dtype], f"sweep {sweep}: {gap}"
