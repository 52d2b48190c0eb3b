"""The pCN move on every engine: the likelihood alone decides, and the posterior is the same."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP, Block, MultiChainMCMC, Partition
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.testing import (
    assert_as_model,
    assert_expectation,
    make_inputs,
    run_chain,
    run_on,
    start,
)
from support.engines import ENGINES_OF_LONG_CHAINS, WITH_COMPILED, assert_as_trace, past_the_check
from support.slow import first_quickly, slowly

on_every_engine = pytest.mark.parametrize("engine", WITH_COMPILED)


def mixed(layout):
    """A net's nodes by either move, the scale by the walk."""
    cuts = {
        "b0": ((0, 1, 4), "pcn"),
        "b1": ((2, 3), "walk"),
        "b2": ((5,), "pcn"),
        "b3": ((6, 8), None),
        "b4": ((7,), "walk"),
        "b5": ((9,), None),
    }
    blocks = [Block(name, index, move=move) for name, (index, move) in cuts.items()]
    return Partition(tuple(blocks), layout.num_params)


def scaled(dtype):
    """A net of ten parameters, the last of them its observation scale."""
    return BayesianMLP(
        [2, 2, 1], [0.8, 1.5], [0.3, -0.4], activation="tanh", likelihood="normal",
        observation_scale=dist.HalfNormal(torch.ones((), dtype=dtype)),
    )  # fmt: skip


CASES = {
    "classes": (lambda dtype: BayesianMLP([3, 4, 3], 1.3, 0.5), {"batch_size": 9}),
    "parts": (lambda dtype: BayesianMLP([3, 2, 3], [0.5, 2.0], activation="relu"), {"parts": 2}),
    "layers, full scale": (
        lambda dtype: BayesianMLP([3, 2, 3], activation="tanh"),
        {"blocks": "layer", "batch_size": 9, "likelihood_scale": "full"},
    ),
    "scale": (scaled, {"batch_size": 9}),
    "mixed": (scaled, {"blocks": mixed}),
}


def set_up(engine, case, dtype=torch.float64, warmup_steps=0):
    build, options = CASES[case]
    model = build(dtype)
    x = torch.randn(30, model.widths[0], dtype=dtype)
    y = x.sum(1) if model.likelihood == "normal" else torch.randint(0, 3, (30,))
    run = start("trace", model, x, y, warmup_steps=warmup_steps, moves="pcn", **options)
    assert "pcn" in {move.name for move in run.problem.moves.moves}
    return past_the_check(run, engine)


@pytest.mark.parametrize("engine", ["feedforward", "fused"])
@pytest.mark.parametrize("case", first_quickly(CASES))
def test_fast_engines_take_the_decisions_of_the_trace_engine(engine, case):
    run = set_up(engine, case)
    record = assert_as_trace(run, make_inputs(run, chains=2, sweeps=25, scale=0.6))
    assert 0.1 < float(record.accepted.double().mean()) < 0.95


@pytest.mark.parametrize("engine", ["feedforward", "fused"])
def test_fast_engines_learn_as_the_trace_engine_does(engine):
    run = set_up(engine, "mixed", warmup_steps=40)
    assert_as_trace(run, make_inputs(run, sweeps=40))


@on_every_engine
@pytest.mark.parametrize("dtype", [slowly(torch.float32), torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_every_block_is_judged_as_by_the_model(engine, dtype, case):
    run = set_up(engine, case, dtype)
    inputs = make_inputs(run, sweeps=6, scale=0.6)
    assert_as_model(run, inputs, run_on(run, inputs))


@on_every_engine
def test_the_likelihood_alone_decides(engine):
    """From the terms of the model's observed site, at each block's candidate."""
    run = set_up(engine, "layers, full scale")
    problem = run.problem
    inputs = make_inputs(run, scale=0.8)
    never = inputs._replace(log_u=torch.full_like(inputs.log_u, torch.inf))
    found = run_on(run, never).log_ratios[0, 0]
    position, rows = inputs.positions[0], inputs.rows[0, 0]
    (state,) = inputs.adaptation
    increment = problem.moves.displace([type(state)(state.scales[0])], position, inputs.z[0, 0])[0]

    def log_likelihood(at):
        (name,) = problem.sites.observed
        return problem.density.site_terms(at, rows)[name].sum()

    for block, index in enumerate(problem.partition.indices):
        moved = position.index_add(0, index, increment[index])
        expected = log_likelihood(moved) - log_likelihood(position)
        assert abs(float(expected)) > 0.1
        torch.testing.assert_close(found[block], expected, rtol=1e-9, atol=1e-9)


def test_without_data_every_candidate_is_accepted_and_the_prior_stays():
    def model():
        pyro.sample("w", dist.Normal(torch.tensor([1.0, -2.0]).double(), 0.5).to_event(1))

    pyro.set_rng_seed(5)
    kernel = FNBG(model, moves="pcn", proposal_scale=1.0)
    mcmc = MultiChainMCMC(kernel, 1500, 0, num_chains=2, disable_progbar=True)
    with pytest.warns(UserWarning, match="samples the prior"):
        mcmc.run()
    draws = mcmc.get_samples(group_by_chain=True)["w"]
    assert [one.report.acceptance_rates.tolist() for one in mcmc._diagnostics] == [[1.0]] * 2
    for place, mean in enumerate((1.0, -2.0)):
        assert_expectation(draws[..., place], mean)
        assert_expectation((draws[..., place] - mean).square(), 0.25)


@pytest.mark.parametrize("engine", ENGINES_OF_LONG_CHAINS)
@pytest.mark.parametrize("scale", [0.3, 2.0], ids=["small steps", "nearly prior draws"])
def test_the_posterior_of_a_linear_regression(engine, scale):
    """Means, variances and cross products in closed form; the prior's mean is not 0."""
    rng = torch.Generator().manual_seed(4)
    x = torch.randn(10, 1, generator=rng, dtype=torch.float64)
    y = 0.8 * x[:, 0] - 0.2
    model = BayesianMLP([1, 1], 0.7, 0.5, likelihood="normal", observation_scale=0.8)
    run = start(engine, model, x, y, moves="pcn")
    design = torch.cat([x, torch.ones_like(x)], 1)
    precision = torch.eye(2).double() / 0.7**2 + design.T @ design / 0.8**2
    covariance = precision.inverse()
    mean = covariance @ (torch.full((2,), 0.5 / 0.7**2).double() + design.T @ y / 0.8**2)
    scales = torch.tensor([scale], dtype=torch.float64)
    draws = torch.stack(
        [run_chain(run, mean, scales, 2500, ChainKey(17, chain)) for chain in range(4)]
    )
    centred = draws - mean
    for i in range(2):
        assert_expectation(draws[..., i], mean[i])
        for j in range(i + 1):
            assert_expectation(centred[..., i] * centred[..., j], covariance[i, j])


@on_every_engine
def test_what_it_learnt_is_told(engine):
    model = scaled(torch.float32)
    x = torch.randn(30, 2)
    mcmc = MultiChainMCMC(FNBG(model, engine=engine, moves="pcn"), 20, 60, disable_progbar=True)
    mcmc.run(x, x.sum(1))
    told = mcmc._diagnostics[0]
    blocks = list(told["proposal scale by block"])
    assert list(told["rho by block"]) == blocks[:-1]  # the scale's block walks
    assert mcmc._diagnostics[0].report.moves == ["pcn"] * 3 + ["walk"]
    state = mcmc.kernel.state
    assert all(0 < rho < 1 for rho in told["rho by block"].values())
    learnt = [state.adaptation[0].scales.tolist(), state.adaptation[1].scales.tolist()]
    assert list(told["proposal scale by block"].values()) == [*learnt[0], *learnt[1]]
