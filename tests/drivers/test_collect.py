"""Pieces of many chains end up as each chain's own draws, statistics and calls of the hook."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.chains.report import Diagnostics
from pyro_fnbg.chains.running import Piece, start_chains
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.core.tasks import on_threads
from pyro_fnbg.drivers import cluster
from pyro_fnbg.drivers.collect import Collector
from pyro_fnbg.drivers.draws import Draws
from pyro_fnbg.model.bound import BoundModel

NET = BayesianMLP(
    [2, 3, 1], likelihood="normal", observation_scale=dist.HalfNormal(torch.tensor(1.0))
)
WARMUP, DRAWS, THIN = 4, 6, 2
NUMBERS = (0, 1, 2)


@pytest.fixture(autouse=True)
def _as_under_mcmc():
    """Switch distributions' own checks off, as Pyro's MCMC does."""
    with pyro.validation_enabled(False):
        yield


def start():
    x = torch.randn(24, 2, generator=torch.Generator().manual_seed(1))
    kernel = FNBG(NET, engine="fused", thin=THIN)
    keys = [ChainKey(17, number) for number in NUMBERS]
    bound = BoundModel(NET, (x, x[:, 0]))
    return kernel, *start_chains(kernel.config, WARMUP, bound, [None] * 3, keys)


def new_collector(hook=None):
    kernel, problem, chains = start()
    draws = Draws(problem.sites, None, 3, DRAWS)
    return Collector(kernel, problem, chains, draws, hook, [" [0]", " [1]", " [2]"])


def next_piece(problem, number, chain, count):
    (after,), records = problem.engine.sweeps(problem, [chain], count)
    return Piece(number, chain, after, records.of_chain(0))


def collect(pieces_of_draws, hook=None):
    """Run three chains in pieces of so many draws, given chain by chain, and collect by turns."""
    collector = new_collector(hook)
    turns = []
    for number, chain in enumerate(collector.chains):
        for count in [WARMUP, *(THIN * n for n in pieces_of_draws[number])]:
            turns.append(next_piece(collector.problem, number, chain, count))
            chain = turns[-1].after
    for piece in sorted(turns, key=lambda piece: (piece.before.sweeps, piece.number)):
        collector.take(piece)
    return collector


WHOLE, MIXED = [[DRAWS]] * 3, [[1, 2, 3], [6], [2, 1, 1, 2]]


def assert_alike(one, other):
    assert one.draws.counts == other.draws.counts == [DRAWS] * 3
    for number in NUMBERS:
        mine, its = one.draws.of_chain(number), other.draws.of_chain(number)
        assert all(torch.equal(mine[name], its[name]) for name in its)
        np.testing.assert_equal(vars(one.report(number)), vars(other.report(number)))
        assert torch.equal(one.chains[number].position, other.chains[number].position)


def test_pieces_of_any_size_give_the_same_draws_and_reports():
    assert_alike(collect(MIXED), collect(WHOLE))


@pytest.mark.parametrize("numbers", [1, 9 * 5, 10**6])
@pytest.mark.parametrize("has_hook", [False, True])
def test_stretches_made_elsewhere_give_the_same_draws_and_reports(numbers, has_hook, monkeypatch):
    monkeypatch.setattr(cluster, "ENOUGH_SECONDS", 100.0)
    monkeypatch.setattr(cluster, "MAX_NUMBERS", numbers)
    collector = new_collector((lambda *_: None) if has_hook else None)
    problem, num_sweeps = collector.problem, WARMUP + THIN * DRAWS
    run = cluster.SharedRun(
        config=FNBG(NET, engine="fused", thin=THIN).config,
        warmup_steps=WARMUP,
        num_sweeps=num_sweeps,
        bound=problem.bound,
        initial_params=None,
        key=collector.chains[0].key,
        has_hook=has_hook,
        dtype=torch.float32,
        device=torch.device("cpu"),
        params={"params": {}, "constraints": {}},
    )
    count = 0
    with on_threads(1, run) as workers:
        for stretch in cluster.run_stretches(workers, num_sweeps, collector.chains):
            collector.take(stretch)
            count += 1
    assert count == 3 if numbers == 10**6 else count > 3
    assert_alike(collector, collect(WHOLE))


def test_a_hook_that_looks_on_changes_nothing():
    seen = []

    def hook(kernel, params, stage, i):
        seen.append(kernel.diagnostics()["chain"])

    assert_alike(collect(MIXED, hook), collect(WHOLE))
    assert [seen.count(number) for number in NUMBERS] == [WARMUP + DRAWS] * 3


def test_draws_and_statistics_are_those_of_the_chain_with_the_last_sweep_of_each_draw():
    collector = collect(MIXED)
    _, problem, chains = start()
    for number, chain in enumerate(chains):
        accepted, positions = torch.zeros(problem.partition.num_blocks), []
        probs, log_densities = [], []
        for sweep in range(WARMUP + THIN * DRAWS):
            piece = next_piece(problem, number, chain, 1)
            chain, record = piece.after, piece.record
            if sweep >= WARMUP:
                accepted += record.accepted[0]
                positions.append(chain.position)
                probs.append(record.log_ratios[0].clamp(max=0.0).exp().mean())
                log_densities.append(record.log_densities[0])
        values = problem.sites.layout.unflatten(torch.stack(positions[THIN - 1 :: THIN]))
        found = collector.draws.of_chain(number)
        for name, value in values.items():
            assert torch.equal(found[name], problem.sites.constrain[name](value))
        report = collector.report(number)
        assert report.key == ChainKey(17, number)
        np.testing.assert_allclose(report.acceptance_rates, accepted.numpy() / (THIN * DRAWS))
        means = torch.stack(probs).view(DRAWS, THIN).mean(1)
        np.testing.assert_allclose(report.statistics["acceptance_rate"], means, rtol=1e-6)
        np.testing.assert_array_equal(
            report.statistics["batch_log_density"], torch.stack(log_densities[THIN - 1 :: THIN])
        )
        np.testing.assert_array_equal(report.learnt["proposal scale"], chain.adaptation[0].scales)


def test_the_hook_is_called_once_for_every_step_of_the_warmup_and_every_draw():
    calls = []

    def hook(kernel, params, stage, i):
        calls.append((stage, i, params, kernel.diagnostics(), kernel.state, kernel.initial_params))

    collector = collect(MIXED, hook)
    constrain = collector.problem.sites.constrain
    for number in NUMBERS:
        mine = [call for call in calls if call[0].endswith(f"[{number}]")]
        assert [call[:2] for call in mine] == [
            *((f"Warmup [{number}]", i) for i in range(WARMUP)),
            *((f"Sample [{number}]", i) for i in range(DRAWS)),
        ]
        states = [call[4] for call in mine]
        sweeps = [*range(1, WARMUP + 1), *range(WARMUP + THIN, WARMUP + THIN * DRAWS + 1, THIN)]
        assert [state.sweeps for state in states] == sweeps
        assert {state.key for state in states} == {ChainKey(17, number)}
        assert {call[3]["chain"] for call in mine} == {number}
        found, last = collector.draws.of_chain(number), Diagnostics(collector.report(number))
        for place, (_, _, params, report, _, shown) in enumerate(mine[WARMUP:], start=1):
            for name, value in params.items():
                assert torch.equal(constrain[name](value), found[name][place - 1])
                assert torch.equal(value, shown[name])
            so_far = last["sample_stats"]["acceptance_rate"][:place]
            assert np.array_equal(report["sample_stats"]["acceptance_rate"], so_far)
        assert mine[-1][3]["acceptance rate by block"] == last["acceptance rate by block"]
    assert len(calls) == 3 * (WARMUP + DRAWS)


def test_what_a_hook_writes_to_its_values_stays_there():
    calls = []

    def scribble(kernel, params, stage, i):
        calls.append(stage)
        for value in params.values():
            value.fill_(torch.nan)

    assert_alike(collect(MIXED, scribble), collect(WHOLE))
    assert len(calls) == 3 * (WARMUP + DRAWS)


def test_a_hook_that_raises_has_seen_the_last_draw_that_is_kept():
    seen = []

    def fail(kernel, params, stage, i):
        seen.append((stage, i))
        if (stage, i) == ("Sample [1]", 3):
            raise OSError("disk full")

    collector = new_collector(fail)
    warmup = next_piece(collector.problem, 1, collector.chains[1], WARMUP)
    collector.take(warmup)
    with pytest.raises(OSError, match="disk full"):
        collector.take(next_piece(collector.problem, 1, warmup.after, THIN * DRAWS))
    assert seen[-1] == ("Sample [1]", 3)
    assert collector.draws.counts == [0, 4, 0]
    assert collector.report(1).num_draws == 4
    assert collector.chains[1].draw_tally.sweeps == THIN * 4
