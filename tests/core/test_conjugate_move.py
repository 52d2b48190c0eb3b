"""Exact draws of variances: quantiles of a gamma distribution, conditionals, and a step."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from pyro_fnbg.core.blocks import Block, Partition
from pyro_fnbg.core.moves.choice import make_moves
from pyro_fnbg.core.moves.conjugate import Conjugate
from pyro_fnbg.core.moves.draws import NoState
from pyro_fnbg.core.moves.joint import JointMoves, at, copied, stacked
from pyro_fnbg.core.moves.walk import Walk
from pyro_fnbg.core.priors import Variances
from pyro_fnbg.core.step import BatchState, proposals, sweep

META = torch.device("meta")


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


# Three log variances, at 1, 4 and 6; the first scales two parameters, the last three, one none
VARIANCES = Variances(
    coordinates=torch.tensor([1, 4, 6]),
    shapes=double(2.0 + 1.0, 0.5, 1.5 + 1.5),
    rates=double(1.0, 0.7, 0.3),
    members=torch.tensor([0, 2, 3, 5, 7]),
    owners=torch.tensor([0, 2, 2, 0, 2]),
    locs=double(0.5, 0.0, -1.0, 0.0, 2.0),
)
SUMS = {1: (0, 5), 4: (), 6: (2, 3, 7)}
LOCS = {0: 0.5, 2: 0.0, 3: -1.0, 5: 0.0, 7: 2.0}
# Not in the order of the coordinates, and apart from each other
CUTS = ((0, 2), (6, 1), (3, 5, 7), (4,))
PARTITION = Partition(tuple(Block(f"b{number}", cut) for number, cut in enumerate(CUTS)), 8)


def conjugate():
    return Conjugate(PARTITION, torch.tensor([1, 3]), VARIANCES)


def rate(position, coordinate):
    prior = dict(zip([1, 4, 6], VARIANCES.rates.tolist(), strict=True))[coordinate]
    return prior + sum((position[m] - LOCS[m]) ** 2 for m in SUMS[coordinate]) / 2


# --- The noise -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [0.5, 1.0, 7.3, 4000.5])
def test_noise_is_the_quantile_of_a_gamma_distribution_in_both_tails(shape):
    """By SciPy's distribution functions, of the nearer tail: no digits are lost at 8 deviations."""
    move = Conjugate(
        Partition((Block("w", (0,)), Block("v", (1,))), 2),
        torch.tensor([1]),
        VARIANCES._replace(coordinates=torch.tensor([1]), shapes=double(shape)),
    )
    z = torch.linspace(-8, 8, 33, dtype=torch.float64)
    gammas = (-move.minus_log_gammas(z.unsqueeze(-1)).squeeze(-1)).exp().numpy()
    gamma, normal = scipy.stats.gamma(shape), scipy.stats.norm
    below, above = z.numpy() < 0, z.numpy() >= 0
    np.testing.assert_allclose(gamma.cdf(gammas[below]), normal.cdf(z[below]), rtol=1e-9)
    np.testing.assert_allclose(gamma.sf(gammas[above]), normal.sf(z[above]), rtol=1e-9)
    assert (np.diff(gammas) > 0).all()


@pytest.mark.parametrize("chains", [(), (3,), (2, 5)])
def test_displacement_is_noise_alone(chains):
    """Neither a state nor a position plays a part; each coordinate has its own shape."""
    move, z = conjugate(), torch.randn(*chains, 3, dtype=torch.float64)
    assert move.coordinates.tolist() == [1, 4, 6]
    known = move.displace(move.start(), torch.randn(*chains, 3), z)
    assert known.log_corrections is None
    assert known.increment.dtype == torch.float32
    for place, shape in enumerate(VARIANCES.shapes.tolist()):
        gammas = scipy.stats.gamma(shape).ppf(scipy.stats.norm.cdf(z[..., place]))
        np.testing.assert_allclose(known.increment[..., place], -np.log(gammas), rtol=1e-5)


# --- The draw ------------------------------------------------------------------------------------


def test_draw_is_of_the_conditional_by_hand():
    position, noise = torch.randn(8, dtype=torch.float64), double(0.3, -0.2)
    found = conjugate().draw(position, 1, noise)
    expected = [math.log(rate(position, 6)) + 0.3, math.log(rate(position, 1)) - 0.2]
    assert found.tolist() == pytest.approx(expected, rel=1e-14)
    # Of several chains at once
    chains = torch.randn(3, 5, 8, dtype=torch.float64)
    together = conjugate().draw(chains, 1, noise.expand(3, 5, 2))
    torch.testing.assert_close(together[1, 2], conjugate().draw(chains[1, 2], 1, noise))
    # Nothing to sum over leaves the prior
    assert conjugate().draw(position, 3, double(0.0)).item() == pytest.approx(math.log(0.7))


def test_log_density_is_that_of_an_inverse_gamma_with_the_jacobian():
    move, position = conjugate(), torch.randn(8, dtype=torch.float64)
    moved = position.clone()
    moved[[1, 6]] += double(0.7, -0.4)

    def by_hand(where):
        total = 0.0
        for coordinate, shape in ((1, 3.0), (6, 3.0)):
            prior = scipy.stats.invgamma(shape, scale=float(rate(position, coordinate)))
            total += prior.logpdf(math.exp(where[coordinate])) + float(where[coordinate])
        return total

    change = move.log_density(moved, 1) - move.log_density(position, 1)
    assert float(change) == pytest.approx(by_hand(moved) - by_hand(position), rel=1e-10)


def test_draws_follow_the_conditional():
    """The probability integral transform of 4,000 draws is uniform."""
    move, position = conjugate(), torch.randn(8, dtype=torch.float64)
    z = torch.randn(4_000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    noise = move.minus_log_gammas(z)[:, [2, 0]]
    found = move.draw(position.expand(4_000, 8), 1, noise).exp()
    for place, (coordinate, shape) in enumerate(((6, 3.0), (1, 3.0))):
        prior = scipy.stats.invgamma(shape, scale=float(rate(position, coordinate)))
        assert scipy.stats.kstest(prior.cdf(found[:, place]), "uniform").pvalue > 1e-4


# --- The step ------------------------------------------------------------------------------------


def normal(position):
    return BatchState(position, -0.5 * position.double().square())


@pytest.mark.parametrize("log_u", [-30.0, -1e-3, math.inf])
def test_step_takes_the_draw_whatever_the_density(log_u):
    """Its ratio is 1; only what forbids every candidate forbids it."""
    move = conjugate()
    joint = JointMoves(
        PARTITION, [Walk(PARTITION, torch.tensor([0, 2]), double(0.1, 0.1), double(0, 0)), move]
    )
    position, z = torch.randn(2, 8, dtype=torch.float64), torch.randn(2, 8, dtype=torch.float64)
    states = stacked([joint.start()] * 2)
    known = joint.displace(states, position, z)
    seen = []

    def density(where):
        seen.append(where)
        return BatchState(where, torch.full((2, 1), -math.inf if len(seen) > 1 else 0.0))

    thresholds = torch.full((2, 4), log_u, dtype=torch.float64)
    steps = joint.steps(proposals(density, PARTITION.indices, known.increment), known, thresholds)
    after, info = sweep(position, density, steps, 4)
    assert torch.equal(info.log_ratios[:, [1, 3]], torch.zeros(2, 2, dtype=torch.float64))
    is_taken = log_u < 0
    assert info.accepted.tolist() == [[False, is_taken, False, is_taken]] * 2
    expected = position.clone()
    if is_taken:
        expected[:, [6, 1]] = move.draw(position, 1, known.increment[:, [6, 1]])
        expected[:, [4]] = move.draw(position, 3, known.increment[:, [4]])
    assert torch.equal(after.position, expected)


def test_draw_sees_where_earlier_blocks_of_the_sweep_led():
    joint = JointMoves(
        PARTITION,
        [Walk(PARTITION, torch.tensor([0, 2]), double(0.5, 0.5), double(0, 0)), conjugate()],
    )
    position, z = torch.zeros(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    known = joint.displace(joint.start(), position, z)
    steps = joint.steps(
        proposals(normal, PARTITION.indices, known.increment),
        known,
        double(-math.inf, -1.0, -math.inf, -1.0),
    )
    after, _ = sweep(position, normal, steps, 4)
    at_draw = position.clone()
    at_draw[[0, 2]] += known.increment[[0, 2]]
    assert torch.equal(
        after.position[[6, 1]], conjugate().draw(at_draw, 1, known.increment[[6, 1]])
    )


def test_nothing_is_learnt():
    move = conjugate()
    state = move.start()
    assert state == NoState()
    assert move.adapt(state, double(0, 0, 0), double(1, 1), torch.tensor(1.0)) == state
    assert move.report(state) == {}
    assert move.targets.isnan().all()
    assert at(stacked([(state,)] * 3), 1) == copied((state,)) == (state,)
    assert isinstance(stacked([(state,)] * 3)[0], NoState)


def test_it_goes_to_a_device_with_all_its_tensors():
    moved = conjugate().to(META)
    tensors = [*moved.conditionals[1], *moved.conditionals[3], moved.shapes, moved.coordinates]
    assert all(values.device == META for values in tensors)
    assert all(values.device.type == "cpu" for values in conjugate().conditionals[1])
    assert moved.draw(torch.empty(8, device=META), 1, torch.empty(2, device=META)).device == META


# --- Which blocks are drawn ----------------------------------------------------------------------


def moves_of(*names, default="walk"):
    blocks = tuple(
        Block(f"b{number}", cut, move=name)
        for number, (cut, name) in enumerate(zip(CUTS, names, strict=True))
    )
    scales = torch.ones(4, dtype=torch.float64)
    joint = make_moves(Partition(blocks, 8), default, scales, scales, no_priors, VARIANCES)
    return [move.name for move in joint.of_block]


def no_priors():
    raise AssertionError("no move asks for them")


def test_blocks_of_variances_are_drawn_unless_they_name_their_move():
    assert moves_of(None, None, None, None) == ["walk", "conjugate", "walk", "conjugate"]
    assert moves_of(None, "walk", None, "conjugate") == ["walk", "walk", "walk", "conjugate"]


def test_blocks_that_cannot_be_drawn_are_refused_by_name():
    with pytest.raises(ValueError, match=r"'conjugate' needs blocks of variances .* for \['b0'\]"):
        moves_of("conjugate", None, None, None)
    blocks = (Block("a", (0,), move="conjugate"), Block("b", (1,)))
    one = torch.ones(2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"got others for \['a'\]: use 'walk' there"):
        make_moves(Partition(blocks, 2), "walk", one, one, no_priors)
