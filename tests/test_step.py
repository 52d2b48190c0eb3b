import math

import pytest
import torch

from pyro_fnbg.step import (
    TILE,
    ChainState,
    accept_prob,
    block_step,
    increments,
    log_accept_ratio,
    sweep,
)


def state(*terms, position=0.0):
    return ChainState(torch.tensor([position]), torch.tensor(terms, dtype=torch.float64))


def standard_normal(position):
    return ChainState(position, -0.5 * position.double().square())


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("candidate", "current", "expected"),
    [
        ((-1.0, -2.0), (-2.0, -3.0), 2.0),
        ((-2.0, -3.0), (-1.0, -2.0), -2.0),
        ((-INF, -1.0), (-1.0, -1.0), -INF),  # probability zero: an ordinary rejection
        ((-INF, -1.0), (-INF, -1.0), -INF),
        ((-1.0, -1.0), (-INF, -1.0), INF),  # away from an impossible position: always
        ((-1.0, -1.0), (NAN, -1.0), INF),
        ((NAN, -1.0), (-1.0, -1.0), NAN),
        ((NAN, -1.0), (-INF, -1.0), NAN),
        ((INF, -1.0), (-1.0, -1.0), NAN),
        ((INF, -INF), (-1.0, -1.0), NAN),
        ((-1e308, -0.0), (1e308, 0.0), -INF),  # both finite, their difference is not
        ((1e308, 0.0), (-1e308, -0.0), INF),
    ],
)
def test_log_accept_ratio(candidate, current, expected):
    ratio = log_accept_ratio(state(*candidate), state(*current)).item()
    assert ratio == expected or (math.isnan(expected) and math.isnan(ratio))


def test_ratios_are_sums_of_differences():
    # The sums lose the difference to rounding; the differences keep it
    large = 2.0**53
    current, candidate = state(large, large, 0.25), state(large, large, 0.75)
    assert candidate.log_density - current.log_density == 0.0
    assert log_accept_ratio(candidate, current).item() == 0.5


def test_sums_do_not_depend_on_the_number_of_threads():
    terms = torch.randn(3 * TILE + 17, dtype=torch.float64)
    threads, sums = torch.get_num_threads(), set()
    for number in (1, 2):
        torch.set_num_threads(number)
        sums.add(ChainState(torch.zeros(1), terms).log_density.item())
    torch.set_num_threads(threads)
    assert len(sums) == 1
    assert sums.pop() == pytest.approx(math.fsum(terms.tolist()), abs=1e-9)


def test_accept_prob():
    ratios = torch.tensor([-INF, math.log(0.25), 0.0, 3.0, INF, NAN])
    assert torch.allclose(accept_prob(ratios), torch.tensor([0.0, 0.25, 1.0, 1.0, 1.0, 0.0]))


@pytest.mark.parametrize("refused", [-INF, NAN, INF])
def test_candidates_without_a_finite_density_are_never_accepted(refused):
    def density(position):
        terms = torch.where(position.double() > 0.5, refused, 0.0)
        return ChainState(position, terms)

    start = density(torch.zeros(1))
    chosen, ratio, accepted = block_step(
        start, torch.tensor([0]), torch.ones(1), torch.tensor(-1e300), density
    )
    assert not accepted
    assert chosen is start
    assert not torch.isfinite(ratio)


def test_block_step_moves_its_block_alone_and_edits_nothing():
    position = torch.tensor([1.0, 2.0, 3.0])
    start = standard_normal(position)
    chosen, ratio, accepted = block_step(
        start, torch.tensor([2, 0]), torch.tensor([-1.0, -0.5]), torch.tensor(-0.1), standard_normal
    )
    assert accepted
    assert chosen.position.tolist() == [0.5, 2.0, 2.0]
    assert position.tolist() == [1.0, 2.0, 3.0]
    assert ratio.item() == pytest.approx(0.5 * (9 - 4 + 1 - 0.25))
    assert torch.equal(chosen.log_density, standard_normal(chosen.position).log_density)


def test_acceptance_is_strictly_below_the_ratio():
    start = standard_normal(torch.zeros(1))
    ratio = torch.tensor(-0.5, dtype=torch.float64)
    step = (start, torch.tensor([0]), torch.ones(1))
    assert not block_step(*step, ratio, standard_normal)[2]
    below = torch.nextafter(ratio, torch.tensor(-1.0, dtype=torch.float64))
    assert block_step(*step, below, standard_normal)[2]


def test_the_sweep_evaluates_the_current_position_first():
    evaluated = []

    def density(position):
        evaluated.append(position.tolist())
        return standard_normal(position)

    blocks = [torch.tensor([0]), torch.tensor([1])]
    never = torch.tensor([INF, INF])
    state, info = sweep(torch.tensor([1.0, 2.0]), blocks, torch.ones(2), never, density)
    assert evaluated == [[1.0, 2.0], [2.0, 2.0], [1.0, 3.0]]
    assert state.position.tolist() == [1.0, 2.0]
    assert info.accepted.tolist() == [False, False]


def test_increments_are_scaled_in_double_precision_then_cast():
    z = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    scales = torch.tensor([0.7, 1.3], dtype=torch.float64)
    moved = increments(z, scales, torch.tensor([0, 1, 0]), torch.float32)
    assert moved.dtype == torch.float32
    assert torch.equal(moved, torch.tensor([0.07, 0.26, 0.21], dtype=torch.float64).float())


def test_states_are_tuples_that_cannot_be_edited():
    with pytest.raises(AttributeError):
        ChainState(torch.zeros(1), torch.zeros(1)).position = torch.ones(1)
