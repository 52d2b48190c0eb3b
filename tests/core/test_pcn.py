"""The pCN move by itself: prior and proposal are in detailed balance, at every length of step."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import Normal

from pyro_fnbg import FNBG, BayesianMLP, Block, Partition
from pyro_fnbg.core.moves.pcn import PCN
from pyro_fnbg.core.moves.walk import ScaleState
from pyro_fnbg.core.priors import NormalPriors

PARTITION = Partition((Block("a", (0, 2)), Block("other", (1,)), Block("b", (5, 3, 4))), 6)
PRIORS = NormalPriors(
    torch.tensor([0.0, 9.0, -2.0, 0.5, 1.0, 3.0], dtype=torch.float64),
    torch.tensor([1.0, torch.inf, 0.3, 2.0, 2.0, 10.0], dtype=torch.float64),
)
OWN = [0, 2, 3, 4, 5]  # coordinates of blocks a and b, ascending


def make(scales=(0.7, 3.0)):
    blocks = torch.tensor([0, 2])
    scales = torch.tensor(scales, dtype=torch.float64)
    return PCN(PARTITION, blocks, scales, torch.full((2,), 0.3, dtype=torch.float64), PRIORS)


def noise(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def of_coordinates(values):
    """Spread a number of each of the two blocks over their coordinates."""
    return values[..., torch.tensor([0, 0, 1, 1, 1])]


@pytest.mark.parametrize("scales", [(0.7, 3.0), (1e-3, 50.0), (20.0, 1e-2)])
def test_the_correction_is_that_of_a_proposal_reversible_under_the_prior(scales):
    """By the transition densities of the definition, w' = m + rho (w - m) + sqrt(1 - rho^2) s z."""
    move, rng = make(scales), torch.Generator().manual_seed(1)
    loc, scale = PRIORS.locs[OWN], PRIORS.scales[OWN]
    position, z = loc + scale * noise(rng, 40, 5), noise(rng, 40, 5)
    state = ScaleState(move.start().scales.expand(40, 2))
    rho = of_coordinates(move.report(state)["rho"])
    found = move.displace(state, position, z)
    moved = position + found.increment
    spread = (1 - rho.square()).sqrt() * scale
    torch.testing.assert_close(moved, loc + rho * (position - loc) + spread * z)
    forth = Normal(loc + rho * (position - loc), spread).log_prob(moved)
    back = Normal(loc + rho * (moved - loc), spread).log_prob(position)
    prior = Normal(loc, scale)
    for block, own in ((0, [0, 1]), (1, [2, 3, 4])):
        # The smaller the steps, the larger the densities whose difference is taken
        tolerance = 1e-14 * float((forth.abs() + forth.exp()).max())
        ratio = (back - forth)[:, own].sum(1)
        balance = (prior.log_prob(position) - prior.log_prob(moved))[:, own].sum(1)
        corrections = found.log_corrections[:, block]
        torch.testing.assert_close(corrections, balance, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(corrections, ratio, rtol=1e-6, atol=max(1e-9, tolerance))


def test_small_steps_are_pulled_to_the_mean_without_cancellation():
    move = make((1e-9, 2e-9))
    position = PRIORS.locs[OWN] + 1.0
    found = move.displace(move.start(), position.float(), torch.zeros(5, dtype=torch.float64))
    assert found.increment.dtype == torch.float32
    odds = of_coordinates(move.start().scales / move.block_spreads)
    away = position.float().double() - PRIORS.locs[OWN]
    torch.testing.assert_close(
        found.increment.double(), -odds.square() / 2 * away, rtol=1e-6, atol=0
    )
    assert (found.increment != 0).all()


def test_small_steps_are_those_of_a_walk_and_large_ones_draws_from_the_prior():
    rng = torch.Generator().manual_seed(2)
    position, z = PRIORS.locs[OWN] + noise(rng, 5), noise(rng, 5)
    move = make((1e-6, 1e-6))
    # In a block of unequal priors, each coordinate's step is its share of the root mean square
    share = PRIORS.scales[OWN] / of_coordinates(move.block_spreads)
    small = move.displace(move.start(), position, z).increment
    torch.testing.assert_close(small, 1e-6 * share * z, rtol=1e-4, atol=0)
    for scale in (1e12, 1e300):  # the last overflows if it is squared
        large = make((scale, scale))
        drawn = position + large.displace(large.start(), position, z).increment
        torch.testing.assert_close(drawn, PRIORS.locs[OWN] + PRIORS.scales[OWN] * z)
    assert float(move.report(move.start())["rho"].min()) > 1 - 1e-9


# --- Which blocks get it -------------------------------------------------------------------------


def moves_of(model, *args, **options):
    kernel = FNBG(model, **options)
    kernel.setup(0, *args)
    return dict(zip((b.name for b in kernel.partition.blocks), kernel.problem.moves.of_block,
                    strict=True))  # fmt: skip


def test_blocks_without_a_normal_prior_of_their_own_keep_the_walk():
    def model(y):
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        mean = pyro.sample("mean", dist.Normal(1.0, 2.0))
        pyro.sample("effects", dist.Normal(mean, scale).expand([3]).to_event(1))
        with pyro.poutine.scale(scale=2.0):
            pyro.sample("scaled", dist.Normal(0.0, 1.0))
        pyro.sample("heavy", dist.StudentT(3.0, 0.0, 1.0))
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    found = moves_of(model, torch.tensor(0.3), moves="pcn")
    assert {name: move.name for name, move in found.items()} == {
        "scale": "walk", "mean": "pcn", "effects": "walk", "scaled": "walk", "heavy": "walk",
    }  # fmt: skip
    assert (found["mean"].locs, found["mean"].spreads) == (1.0, 2.0)


def test_a_block_that_asks_for_it_must_have_a_normal_prior():
    def partition(layout):
        blocks = (Block("w", (0, 1, 2), move="walk"), Block("s", (3,), move="pcn"))
        return Partition(blocks, layout.num_params)

    model = BayesianMLP([2, 1], likelihood="normal", observation_scale=dist.HalfNormal(1.0))
    x, y = torch.zeros(4, 2), torch.zeros(4)
    with pytest.raises(ValueError, match=r"'pcn' needs blocks whose priors.*\['s'\].*'walk'"):
        moves_of(model, x, y, blocks=partition)


def test_a_model_without_any_normal_prior_is_refused():
    def model(y):
        rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
        pyro.sample("y", dist.Poisson(rate), obs=y)

    with pytest.raises(ValueError, match=r"'pcn' needs blocks.*\['rate'\]"):
        moves_of(model, torch.tensor(3.0), moves="pcn")


def test_unknown_moves_are_refused_by_name():
    with pytest.raises(
        ValueError, match=r"must be one of \('walk', 'pcn', 'gibbs', 'auto'\), got 'hmc'"
    ):
        FNBG(BayesianMLP([2, 1], likelihood="bernoulli"), moves="hmc")
    for move in ("nuts", ""):
        with pytest.raises(ValueError, match=rf"must be one of .*, got \['{move} of w'\]"):
            moves_of(
                BayesianMLP([2, 1], likelihood="bernoulli"), torch.zeros(3, 2), torch.zeros(3),
                blocks=lambda layout, move=move: Partition((Block("w", (0, 1, 2), move=move),), 3),
            )  # fmt: skip
