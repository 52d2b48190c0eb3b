"""From arguments and a model to a problem that all chains share, and to chains at their start."""

from dataclasses import replace

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide.initialization import init_to_sample, init_to_value

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from pyro_fnbg.chains.setup import NUM_PRIOR_DRAWS, start_chain, start_run
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.model.bound import BoundModel

NET = BayesianMLP([2, 2, 2], likelihood="categorical")
ROWS, WARMUP = 24, 6


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 2, generator=generator)
    return x, torch.randint(0, 2, (ROWS,), generator=generator)


def start(data, chain=0, seed=17, initial_params=None, warmup=WARMUP, model=NET, **options):
    config = FNBG(model, **options).config
    return start_run(config, warmup, BoundModel(model, data), initial_params, ChainKey(seed, chain))


def first_scales(run):
    (state,) = run.chain.adaptation
    return state.scales


def test_a_chain_begins_before_its_first_sweep_with_nothing_counted(data):
    problem, chain = start(data, chain=2)
    assert chain.key == ChainKey(17, 2)
    assert chain.sweeps == 0
    for tally in (chain.warmup_tally, chain.draw_tally):
        assert tally.sweeps == 0
        assert tally.accepted.tolist() == tally.non_finite.tolist() == [0] * 4
    assert chain.position.shape == (problem.partition.num_params,)
    assert problem.density.on(None)(chain.position).log_density.isfinite()


def test_the_problem_says_how_long_the_warmup_is_and_what_the_sweeps_see(data):
    problem, _ = start(data, thin=3, batch_size=7, batch_order="stratified", engine="trace")
    assert (problem.warmup_steps, problem.tuned_sweeps, problem.thin) == (WARMUP, WARMUP, 3)
    assert (problem.plan.batch_size, problem.plan.num_rows) == (7, ROWS)
    assert problem.plan.order == "stratified"
    assert problem.bound.args == data
    assert problem.engine.name == "trace"
    assert problem.engine_reason == "asked for by engine='trace'"
    untuned, _ = start(data, adapt=False)
    assert (untuned.warmup_steps, untuned.tuned_sweeps) == (WARMUP, 0)


def test_stratified_batches_have_the_classes_in_proportion(data):
    x, _ = data
    y = (torch.arange(ROWS) % 4 == 0).long()
    problem, chain = start((x, y), batch_size=8, batch_order="stratified")
    rows = problem.batches.rows_of_sweeps(chain.key, 0, 30)
    assert y[rows].sum(1).tolist() == [2] * 30


def test_the_same_key_starts_in_the_same_place_and_another_elsewhere(data):
    places = [
        start(data, chain, seed).chain.position
        for chain, seed in ((0, 17), (0, 17), (1, 17), (0, 3))
    ]
    assert torch.equal(places[0], places[1])
    for other in places[2:]:
        assert not torch.equal(places[0], other)


def test_the_random_state_outside_is_left_alone(data):
    before = torch.get_rng_state()
    start(data)
    assert torch.equal(before, torch.get_rng_state())


def test_scales_start_at_a_hundredth_of_the_priors_spread_where_they_are_tuned(data):
    """2.4 / sqrt(d) times the spread: here of standard normal priors, in blocks of three."""
    tuned, whole = start(data), start(data, adapt=False)
    expected = torch.full((4,), 2.4 / 3**0.5, dtype=torch.float64)
    # A standard deviation over 300 numbers is off by a few per cent
    torch.testing.assert_close(first_scales(whole), expected, rtol=0.2, atol=0.0)
    torch.testing.assert_close(first_scales(tuned), 0.01 * first_scales(whole))
    assert torch.equal(first_scales(start(data, warmup=0)), first_scales(whole))


def test_given_scales_and_targets_are_taken(data):
    run = start(data, proposal_scale=[0.1, 0.7], target_accept_prob=0.6)
    assert first_scales(run).tolist() == [0.1, 0.1, 0.7, 0.7]
    assert run.problem.moves.targets.tolist() == [0.6] * 4
    assert [move.name for move in run.problem.moves.of_block] == ["walk"] * 4


def test_a_chain_alone_has_the_first_scales_of_its_run(data):
    first, third = start(data), start(data, chain=2)
    assert torch.equal(first_scales(first), first_scales(third))
    assert not torch.equal(first.chain.position, third.chain.position)


@pytest.mark.parametrize("options", [{}, {"batch_size": 7, "batch_order": "stratified"}])
def test_another_chain_of_a_problem_starts_where_it_would_by_itself(data, options):
    problem, first = start(data, **options)
    for number in (1, 2):
        alone_problem, alone = start(data, chain=number, **options)
        chain = start_chain(problem, init_to_sample, None, ChainKey(17, number))
        assert (chain.key, chain.sweeps) == (alone.key, 0)
        assert torch.equal(chain.position, alone.position)
        assert not torch.equal(chain.position, first.position)
        assert torch.equal(chain.adaptation[0].scales, alone.adaptation[0].scales)
        for sweep in (0, 2, 3, 10) if options else ():
            rows = problem.batches.rows(chain.key, sweep)
            assert torch.equal(rows, alone_problem.batches.rows(chain.key, sweep))
            assert not torch.equal(rows, problem.batches.rows(first.key, sweep))


def test_initial_values_are_where_the_chain_starts_and_are_its_own(data):
    given = {
        name: torch.full(shape, 0.5, dtype=torch.float32)
        for name, shape in NET.parameter_shapes.items()
    }
    problem, chain = start(data, initial_params=given)
    assert set(chain.position.tolist()) == {0.5}
    for value in given.values():
        value.fill_(9.0)
    assert set(chain.position.tolist()) == {0.5}
    other = start_chain(problem, init_to_sample, None, ChainKey(17, 1))
    assert torch.equal(other.position, start(data, chain=1).chain.position)


def test_a_strategy_places_the_chain(data):
    values = {name: torch.full(shape, -0.25) for name, shape in NET.parameter_shapes.items()}
    _, chain = start(data, init_strategy=init_to_value(values=values))
    assert set(chain.position.tolist()) == {-0.25}


def counted(y):
    counted.runs += 1
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)) as rows:
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y[rows])


def test_another_chain_costs_a_few_runs_of_the_model_and_no_second_set_up():
    counted.runs = 0
    problem, _ = start((torch.ones(5),), model=counted)
    for_the_first, counted.runs = counted.runs, 0
    start_chain(problem, init_to_sample, None, ChainKey(17, 1))
    assert for_the_first > NUM_PRIOR_DRAWS
    assert 1 <= counted.runs <= 5


@pytest.mark.parametrize("warmup", [-1, 2.5, True, "ten"])
def test_a_warmup_of_no_number_is_refused(data, warmup):
    with pytest.raises(ValueError, match=f"warmup_steps must be a whole number.*got {warmup!r}"):
        start(data, warmup=warmup)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 25}, "batch_size must be 1..24"),
        ({"proposal_scale": [0.1]}, "one per layer"),
        ({"thin": 10**9}, "thin must be .* at most for 12 parameters"),
        ({"parts": {3: 2}}, "layers are 1..2"),
        ({"initial_params": {"w": torch.zeros(2)}}, r"initial_params.*unknown \['w'\]"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_that_do_not_fit_the_model_are_refused(data, options, words):
    with pytest.raises(ValueError, match=words):
        start(data, **options)


def test_chains_of_a_problem_differ_in_their_state_alone(data):
    """Whatever is given for one chain, the problem and the other chain stay as they were."""
    problem, chain = start(data)
    moved = replace(chain, position=chain.position + 1.0, sweeps=3)
    (after,), _ = problem.engine.sweeps(problem, [moved], 2)
    (expected,), _ = problem.engine.sweeps(problem, [chain], 2)
    again, fresh = start(data)
    (found,), _ = again.engine.sweeps(again, [fresh], 2)
    assert torch.equal(found.position, expected.position)
    assert not torch.equal(found.position, after.position)


# --- Moves that are picked -----------------------------------------------------------------------


def picked(data, activation="tanh", likelihood="normal", width=3, **options):
    """Return the moves of the blocks of a small network's last layer, and how many are rescaled."""
    x, y = data
    model = BayesianMLP([x.shape[1], width, 1], activation=activation, likelihood=likelihood)
    run = start((x, y), model=model, moves="auto", **options)
    moves = run.problem.moves
    for state, fresh in zip(run.chain.adaptation, moves.start(), strict=True):
        assert [len(values) for values in state] == [len(values) for values in fresh]
    blocks = run.problem.partition.blocks
    names = [
        move.name
        for move, block in zip(moves.of_block, blocks, strict=True)
        if run.problem.partition.layer_label(block) == "layer2"
    ]
    return *names, moves.num_rescaled


def test_moves_are_picked_by_network_data_and_engine(data):
    assert picked(data) == ("gibbs", 0)
    assert picked(data, width=128) == ("gibbs", 0)
    assert picked(data, width=129) == ("walk", 0)
    assert picked(data, likelihood="bernoulli") == ("walk", 0)
    assert picked(data, activation="relu") == ("gibbs", 3)
    assert picked(data, activation="relu", rescale=False) == ("gibbs", 0)
    # Exact draws are of the batch, rescalings of any
    assert picked(data, activation="relu", batch_size=5) == ("walk", 3)
    for engine in ("trace", "captured", "feedforward"):
        assert picked(data, activation="relu", engine=engine) == ("walk", 0)
        assert picked(data, activation="relu", engine=engine, rescale=True) == ("walk", 3)


def test_what_is_picked_makes_the_draws_of_the_same_moves_asked_for(data):
    model = BayesianMLP([data[0].shape[1], 3, 1], activation="relu", likelihood="normal")
    found = []
    for options in ({"moves": "auto"}, {"moves": "gibbs", "rescale": True}):
        pyro.set_rng_seed(3)
        mcmc = MultiChainMCMC(FNBG(model, **options), 6, 4, num_chains=2, disable_progbar=True)
        mcmc.run(*data)
        found.append(mcmc.get_samples())
        assert mcmc.reports[0]["relu nodes rescaled"] == 3
    for name, values in found[0].items():
        assert torch.equal(values, found[1][name])
