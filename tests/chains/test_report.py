"""What is told of a chain's draws, and of blocks that hardly moved or that nothing bounds."""

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from pyro_fnbg import BayesianMLP
from pyro_fnbg.chains.batch_noise import measure_batch_noise
from pyro_fnbg.chains.report import ChainReport, Diagnostics, report, warn_of_blocks
from pyro_fnbg.chains.statistics import DrawStatistics
from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.testing import start

NET = BayesianMLP([2, 2, 2], likelihood="categorical")
ROWS, WARMUP, DRAWS, THIN = 24, 5, 6, 2


@pytest.fixture(params=[None, 7], ids=["full", "batches"])
def run(request):
    """A problem and a chain after its draws, with their statistics."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 2, generator=generator)
    y = torch.randint(0, 2, (ROWS,), generator=generator)
    options = {"batch_size": request.param, "thin": THIN, "warmup_steps": WARMUP}
    problem, chain = start("fused", NET, x, y, **options)
    statistics = DrawStatistics(problem.partition)
    (chain,), _ = problem.engine.sweeps(problem, [chain], WARMUP)
    (chain,), records = problem.engine.sweeps(problem, [chain], THIN * DRAWS)
    statistics.add(records.of_chain(0), THIN)
    return problem, chain, statistics


def test_a_report_has_the_fields_of_problem_and_chain(run):
    problem, chain, statistics = run
    found = report(problem, chain, statistics)
    assert (found.key, found.plan) == (chain.key, problem.plan)
    assert (found.engine, found.engine_reason) == ("fused", problem.engine_reason)
    assert (found.warmup_steps, found.tuned_sweeps, found.thin) == (WARMUP, WARMUP, THIN)
    assert (found.num_draws, found.num_sweeps) == (DRAWS, THIN * DRAWS)
    names = [f"layer{layer}.node{node}" for layer in (1, 2) for node in (1, 2)]
    assert found.blocks == found.nodes == names
    assert found.layers == ["layer1", "layer1", "layer2", "layer2"]
    assert found.layer_names == ["layer1", "layer2"]
    assert found.moves == ["walk"] * 4
    np.testing.assert_array_equal(
        found.acceptance_rates, chain.draw_tally.accepted.numpy() / (THIN * DRAWS)
    )
    np.testing.assert_array_equal(found.target_rates, problem.moves.targets.numpy())
    assert list(found.learnt) == ["proposal scale"]
    np.testing.assert_array_equal(found.learnt["proposal scale"], chain.adaptation[0].scales)
    np.testing.assert_array_equal(found.non_finite, [0] * 4)
    np.testing.assert_equal(found.statistics, statistics.arrays(DRAWS))


def test_the_noise_of_batches_is_reported_where_there_are_batches(run):
    problem, chain, statistics = run
    found = report(problem, chain, statistics)
    if problem.plan.is_full:
        assert found.log_ratio_sd is found.reversed_share is None
        assert found.batch_noise == {}
        return
    noise = measure_batch_noise(problem, chain)
    np.testing.assert_array_equal(found.log_ratio_sd, noise.log_ratio_sd)
    np.testing.assert_array_equal(found.reversed_share, noise.reversed_share)
    shown = Diagnostics(found)["share of decisions that another batch would reverse"]
    shares = noise.reversed_share
    assert shown == pytest.approx(
        {
            "all": float(shares.mean()),
            "layer1": float(shares[:2].mean()),
            "layer2": float(shares[2:].mean()),
        }
    )


def test_draws_that_the_chain_has_not_made_yet_are_left_out(run):
    """Statistics may be ahead of the chain, as where draws are made before they are asked for."""
    problem, chain, statistics = run
    expected = report(problem, chain, statistics)
    (_,), records = problem.engine.sweeps(problem, [chain], 2 * THIN)
    statistics.add(records.of_chain(0), THIN)
    assert len(statistics) == DRAWS + 2
    found = report(problem, chain, statistics)
    np.testing.assert_equal(found.statistics, expected.statistics)
    np.testing.assert_equal(Diagnostics(found), Diagnostics(expected))


def test_the_first_draws_of_a_report_are_those_of_its_statistics_alone(run):
    found = report(*run)
    cut = found.first_draws(4)
    assert (cut.num_draws, found.num_draws) == (4, DRAWS)
    for name, values in found.statistics.items():
        np.testing.assert_array_equal(cut.statistics[name], values[:4])
    np.testing.assert_array_equal(cut.acceptance_rates, found.acceptance_rates)


def test_diagnostics_are_the_report_in_words(run):
    found = report(*run)
    shown = Diagnostics(found)
    assert shown.report is found
    assert shown["divergences"] == []
    rates = dict(zip(found.blocks, found.acceptance_rates.tolist(), strict=True))
    assert shown["acceptance rate by block"] == shown["acceptance rate by node"] == rates
    assert shown["acceptance rate"] == pytest.approx(np.mean(found.acceptance_rates))
    by_layer = {f"layer{i + 1}": np.mean(found.acceptance_rates[2 * i : 2 * i + 2]) for i in (0, 1)}
    assert shown["acceptance rate by layer"] == pytest.approx(by_layer)
    scales = dict(zip(found.blocks, found.learnt["proposal scale"].tolist(), strict=True))
    assert shown["proposal scale by block"] == scales
    assert shown["non-finite candidates"] == {}
    plan = found.plan
    expected = {
        "batch size": plan.batch_size,
        "number of rows": ROWS,
        "likelihood factor": 1.0,
        "target": plan.target,
        "nominal likelihood temperature": plan.temperature,
        "thin": THIN,
        "engine": "fused",
        "reason for the engine": found.engine_reason,
        "seed": found.key.seed,
        "chain": found.key.chain,
        "layers": ["layer1", "layer2"],
        "move by block": dict.fromkeys(found.blocks, "walk"),
    }
    assert {name: shown[name] for name in expected} == expected
    np.testing.assert_equal(shown["sample_stats"], dict(found.statistics))


def test_a_report_that_was_pickled_is_the_same(run):
    shown = Diagnostics(report(*run))
    again = pickle.loads(pickle.dumps(shown))
    assert type(again) is Diagnostics
    np.testing.assert_equal(again, shown)
    np.testing.assert_equal(vars(again.report), vars(shown.report))


# --- Warnings ------------------------------------------------------------------------------------


def told(
    rates, sweeps=200, chain=0, thin=1, non_finite=(0, 0, 0), tuned_sweeps=0, learnt=(1, 1, 1)
):
    """A report of three blocks."""
    return ChainReport(
        key=ChainKey(3, chain),
        plan=BatchPlan("data", 10, 10, "full", 1.0),
        plates={},
        engine="trace",
        engine_reason="",
        warmup_steps=tuned_sweeps,
        tuned_sweeps=tuned_sweeps,
        thin=thin,
        blocks=["a", "b", "c"],
        nodes=["a", "b", "c"],
        layers=["one", "one", "two"],
        moves=["walk"] * 3,
        num_rescaled=0,
        acceptance_rates=np.array(rates, dtype=float),
        target_rates=np.full(3, 0.44),
        learnt={"proposal scale": np.array(learnt, dtype=float)},
        non_finite=np.array(non_finite),
        log_ratio_sd=None,
        reversed_share=None,
        num_draws=sweeps // thin,
        statistics={"batch_log_density": np.zeros(sweeps // thin)},
    )


def warned(*reports):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_blocks(reports)
    return [str(warning.message) for warning in caught]


def test_what_is_not_known_of_a_block_is_left_out_and_counts_of_none():
    shown = Diagnostics(told([0.5] * 3, learnt=(0.1, np.nan, 0.3), non_finite=(0, 4, 0)))
    assert shown["proposal scale by block"] == {"a": 0.1, "c": 0.3}
    assert shown["non-finite candidates"] == {"b": 4}


@pytest.mark.parametrize(
    ("accepted", "sweeps", "warns"),
    [(0, 100, True), (0, 99, False), (1, 101, True), (1, 100, False)],
)
@pytest.mark.parametrize("thin", [1, 10])
def test_a_stuck_block_is_warned_of(accepted, sweeps, warns, thin):
    if thin == 10:  # rates are over all sweeps
        sweeps = sweeps // 10 * 10
        warns = sweeps >= 100 and accepted / sweeps < 0.01
    one = told([0.5, accepted / sweeps, 0.5], sweeps, thin=thin)
    assert one.is_stuck.tolist() == [False, warns, False]
    texts = warned(one)
    assert len(texts) == warns
    if warns:
        assert f"1 of 3 blocks hardly moved in {sweeps} sweeps" in texts[0]
        assert f"acceptance rate of b ({accepted / sweeps:.2%}): use more" in texts[0]
        assert "warmup_steps, in which FNBG tunes with adapt=True, its default, or an" in texts[0]


def test_a_run_is_warned_of_once_with_the_chains():
    chains = [told([0.5, 0.0, 0.5]), told([0.5, 0.5, 0.5], chain=1), told([0, 0, 1], chain=2)]
    (text,) = warned(*chains)
    assert "2 of 3 blocks hardly moved in 200 sweeps" in text
    assert "a (0.00% in chain 2), b (0.00% in chain 0), b (0.00% in chain 2): use" in text


def test_only_the_first_are_named():
    chains = [told([0.0, 0.0, 0.5], chain=chain) for chain in range(4)]
    (text,) = warned(*chains)
    assert "b (0.00% in chain 0) and 3 more: use more warmup_steps" in text


def test_candidates_that_are_not_finite_are_the_reason():
    (text,) = warned(told([0.5, 0.0, 0.5], non_finite=(3, 190, 0)))
    assert "linear-algebra error there (190 of b), so look at the model and its data" in text
    assert "NaN" not in warned(told([0.5, 0.0, 0.5], non_finite=(3, 0, 0)))[0]


@pytest.mark.parametrize(
    ("rate", "tuned_sweeps", "sweeps", "warns"),
    [(1.0, 200, 100, True), (0.99, 200, 100, False), (1.0, 199, 100, False), (1.0, 200, 99, False)],
)
def test_a_block_that_accepts_all_after_tuning_is_warned_of(rate, tuned_sweeps, sweeps, warns):
    chains = [
        told([0.5, own, 0.5], sweeps, chain=chain, tuned_sweeps=tuned_sweeps)
        for chain, own in enumerate((0.5, rate))
    ]
    texts = warned(*chains)
    assert len(texts) == warns
    if warns:
        assert "1 of 3 blocks accepted every candidate in 100 sweeps" in texts[0]
        assert "['b'] among them" in texts[0]


@pytest.mark.parametrize(
    ("rates", "is_off"),
    [
        ([0.221, 0.44, 0.719], []),
        ([0.219, 0.44, 0.719], ["a"]),
        ([0.221, 0.44, 0.721], ["c"]),
        ([0.44, 0.721, 0.1], ["b", "c"]),
    ],
)
def test_rates_half_way_from_the_aim_to_nothing_or_all_are_off_it(rates, is_off):
    one = told(rates, 5000, tuned_sweeps=50)
    assert [name for name, off in zip("abc", one.is_off_its_aim, strict=True) if off] == is_off
    texts = warned(one)
    assert len(texts) == bool(is_off)
    for text in texts:
        assert (
            f"{len(is_off)} of 3 blocks accepted far from what tuning aimed at, over 5000" in text
        )
        assert "tuned in 50 sweeps, do not fit where the chain went afterwards" in text


@pytest.mark.parametrize(("sweeps", "tuned_sweeps"), [(4999, 50), (5000, 0)])
def test_short_runs_and_scales_that_were_given_are_not_held_against_an_aim(sweeps, tuned_sweeps):
    assert not warned(told([0.1, 0.9, 0.1], sweeps, tuned_sweeps=tuned_sweeps))


def test_a_block_without_an_aim_is_not_off_it():
    one = told([0.1, 0.9, 0.95], 5000, tuned_sweeps=50)
    none = replace(one, target_rates=np.full(3, np.nan))
    assert not none.is_off_its_aim.any()
    # A move that leaves the prior as it is may accept much, where the data say little of a block
    other = replace(one, moves=["walk", "walk", "pcn"])
    assert other.is_off_its_aim.tolist() == [True, True, False]


@pytest.mark.parametrize(("num_off", "warns"), [(3, False), (4, True)])
def test_a_run_is_warned_of_where_more_than_one_in_ten_of_its_blocks_are_off(num_off, warns):
    """Three of thirty may be, and the worst are named, with their chains."""
    chains = [
        told([0.2 - 0.01 * chain if chain < num_off else 0.4, 0.4, 0.4], 5000, chain, 10)
        if chain != 1
        else told([0.4, 0.8, 0.4], 5000, chain, 10)
        for chain in range(10)
    ]
    for number, one in enumerate(chains):
        chains[number] = replace(one, tuned_sweeps=300)
    texts = warned(*chains)
    assert len(texts) == warns
    if warns:
        assert texts[0].startswith("4 of 30 blocks of 10 chains accepted far from")
        assert "a (17.0% for 44% in chain 3), a (18.0% for 44% in chain 2), a (20.0%" in texts[0]
        assert "b (80.0% for 44% in chain 1); their scales, tuned in 300" in texts[0]


def test_blocks_that_hardly_moved_or_accepted_all_are_warned_of_as_such_alone():
    texts = warned(told([0.001, 0.44, 1.0], 5000, tuned_sweeps=300))
    assert ["hardly moved" in text for text in texts] == [True, False]
    assert "accepted every candidate" in texts[1]
