"""Pieces of many chains end up as each chain's own draws, statistics and calls of the hook."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.chains.running import Piece, start_chains
from pyro_fnbg.chains.setup import after, next_sweeps
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.drivers.collect import Collector
from pyro_fnbg.drivers.draws import Draws

NET = BayesianMLP(
    [2, 3, 1], likelihood="normal", observation_scale=dist.HalfNormal(torch.tensor(1.0))
)
X = torch.randn(24, 2, generator=torch.Generator().manual_seed(1))
WARMUP, DRAWS, THIN = 4, 6, 2


@pytest.fixture(autouse=True)
def _as_under_mcmc():
    """Switch distributions' own checks off, as Pyro's MCMC does."""
    with pyro.validation_enabled(False):
        yield


def start():
    kernel = FNBG(NET, engine="fused", thin=THIN)
    keys = [ChainKey(17, chain) for chain in range(3)]
    return kernel, start_chains(kernel.config, WARMUP, (X, X[:, 0]), {}, [None] * 3, keys)


def collect(pieces_of_draws, hook=None):
    """Run three chains in pieces of so many draws, given chain by chain, and collect by turns."""
    kernel, runs = start()
    draws = Draws(runs[0].sites, None, 3, DRAWS)
    collector = Collector(kernel, runs, draws, hook, [" [0]", " [1]", " [2]"])
    turns = []
    for chain, run in enumerate(runs):
        for count in [WARMUP, *(THIN * n for n in pieces_of_draws[chain])]:
            (results,) = next_sweeps([run], count)
            turns.append((run.sweeps, chain, Piece(chain, run, results)))
            run = after(run, results)
    for _, _, piece in sorted(turns, key=lambda turn: turn[:2]):
        collector.take(piece)
    return collector


WHOLE, MIXED = [[DRAWS]] * 3, [[1, 2, 3], [6], [2, 1, 1, 2]]


def assert_alike(one, other):
    assert one.draws.counts == other.draws.counts
    for chain in range(3):
        mine, its = one.draws.of_chain(chain), other.draws.of_chain(chain)
        assert all(torch.equal(mine[name], its[name]) for name in its)
        np.testing.assert_equal(one.report(chain), other.report(chain))
        assert torch.equal(one.runs[chain].position, other.runs[chain].position)


def test_pieces_of_any_size_give_the_same_draws_and_reports():
    assert_alike(collect(MIXED), collect(WHOLE))


def test_a_hook_that_looks_on_changes_nothing():
    assert_alike(
        collect(MIXED, lambda kernel, params, stage, i: kernel.diagnostics()), collect(WHOLE)
    )


def test_draws_and_statistics_are_those_of_the_chain_with_the_last_sweep_of_each_draw():
    collector = collect(MIXED)
    _, runs = start()
    for chain, run in enumerate(runs):
        accepted, sweeps = torch.zeros(run.partition.num_blocks), []
        probs, log_densities = [], []
        for sweep in range(WARMUP + THIN * DRAWS):
            (results,) = next_sweeps([run], 1)
            run = after(run, results)
            if sweep >= WARMUP:
                accepted += results.accepted[0]
                sweeps.append(run.position)
                probs.append(results.log_ratios[0].clamp(max=0.0).exp().mean())
                log_densities.append(results.log_densities[0])
        values = run.sites.layout.unflatten(torch.stack(sweeps[THIN - 1 :: THIN]))
        found = collector.draws.of_chain(chain)
        for name, value in values.items():
            assert torch.equal(found[name], run.sites.constrain[name](value))
        report = collector.report(chain)
        assert report["chain"] == chain
        rates = torch.tensor(list(report["acceptance rate by block"].values()))
        torch.testing.assert_close(rates, accepted / (THIN * DRAWS))
        stats = report["sample_stats"]
        means = torch.stack(probs).view(DRAWS, THIN).mean(1)
        np.testing.assert_allclose(stats["acceptance_rate"], means.numpy(), rtol=1e-6)
        np.testing.assert_allclose(
            stats["batch_log_density"], torch.stack(log_densities[THIN - 1 :: THIN]), rtol=1e-6
        )
        scales = torch.tensor(list(report["proposal scale by block"].values()))
        torch.testing.assert_close(scales.double(), run.scales, rtol=1e-6, atol=0.0)


def test_the_hook_is_called_once_for_every_step_of_the_warmup_and_every_draw():
    calls = []

    def hook(kernel, params, stage, i):
        report = kernel.diagnostics()
        calls.append((stage, i, params, report, kernel._running().sweeps))

    collector = collect(MIXED, hook)
    for chain in range(3):
        mine = [call for call in calls if call[0].endswith(f"[{chain}]")]
        assert [call[:2] for call in mine] == [
            *((f"Warmup [{chain}]", i) for i in range(WARMUP)),
            *((f"Sample [{chain}]", i) for i in range(DRAWS)),
        ]
        sweeps = [*range(1, WARMUP + 1), *range(WARMUP + THIN, WARMUP + THIN * DRAWS + 1, THIN)]
        assert [call[4] for call in mine] == sweeps
        assert {call[3]["chain"] for call in mine} == {chain}
        found = collector.draws.of_chain(chain)
        constrain = collector.runs[0].sites.constrain
        for number, (_, _, params, report, _) in enumerate(mine[WARMUP:]):
            for name, value in params.items():
                assert torch.equal(constrain[name](value), found[name][number])
            so_far = collector.report(chain)["sample_stats"]["acceptance_rate"][: number + 1]
            assert np.array_equal(report["sample_stats"]["acceptance_rate"], so_far)
        last = collector.report(chain)["acceptance rate by block"]
        assert mine[-1][3]["acceptance rate by block"] == last
    assert len(calls) == 3 * (WARMUP + DRAWS)


def test_what_a_hook_writes_to_its_values_stays_there():
    def scribble(kernel, params, stage, i):
        for value in params.values():
            value.fill_(torch.nan)

    assert_alike(collect(MIXED, scribble), collect(WHOLE))


def test_a_hook_that_raises_has_seen_the_last_draw_that_is_kept():
    seen = []

    def fail(kernel, params, stage, i):
        seen.append((stage, i))
        if (stage, i) == ("Sample [1]", 3):
            raise OSError("disk full")

    kernel, runs = start()
    draws = Draws(runs[0].sites, None, 3, DRAWS)
    collector = Collector(kernel, runs, draws, fail, [" [0]", " [1]", " [2]"])
    run = runs[1]
    (warmup,) = next_sweeps([run], WARMUP)
    collector.take(Piece(1, run, warmup))
    run = after(run, warmup)
    (results,) = next_sweeps([run], THIN * DRAWS)
    with pytest.raises(OSError, match="disk full"):
        collector.take(Piece(1, run, results))
    assert seen[-1] == ("Sample [1]", 3)
    assert draws.counts == [0, 4, 0]
    assert collector.report(1)["sample_stats"]["acceptance_rate"].shape == (4,)
    assert collector.runs[1].draws.sweeps == THIN * 4
