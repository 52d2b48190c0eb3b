import math

import pytest
import torch

from pyro_fnbg.core.step import (
    TILE,
    BatchState,
    Proposal,
    accept_prob,
    block_step,
    log_accept_ratio,
    proposals,
    sweep,
    tiled_sum,
)


def terms(*values):
    return torch.tensor(values, dtype=torch.float64)


def step(start, index, increment, log_u, density):
    """Propose to displace one block and decide."""
    propose = proposals(density, [torch.tensor(index)], torch.tensor(increment))
    return block_step(start, propose(start, 0), torch.as_tensor(log_u))


def standard_normal(position):
    return BatchState(position, -0.5 * position.double().square())


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
    ratio = log_accept_ratio(terms(*candidate), terms(*current)).item()
    assert ratio == expected or (math.isnan(expected) and math.isnan(ratio))


def test_ratios_are_sums_of_differences():
    # The sums lose the difference to rounding; the differences keep it
    large = 2.0**53
    current, candidate = terms(large, large, 0.25), terms(large, large, 0.75)
    assert tiled_sum(candidate) - tiled_sum(current) == 0.0
    assert log_accept_ratio(candidate, current).item() == 0.5


def test_sums_do_not_depend_on_the_number_of_threads():
    many = torch.randn(3 * TILE + 17, dtype=torch.float64)
    threads, sums = torch.get_num_threads(), set()
    for number in (1, 2):
        torch.set_num_threads(number)
        sums.add(tiled_sum(many).item())
    torch.set_num_threads(threads)
    assert len(sums) == 1
    assert sums.pop() == pytest.approx(math.fsum(many.tolist()), abs=1e-9)


def test_accept_prob():
    ratios = torch.tensor([-INF, math.log(0.25), 0.0, 3.0, INF, NAN])
    assert torch.allclose(accept_prob(ratios), torch.tensor([0.0, 0.25, 1.0, 1.0, 1.0, 0.0]))


@pytest.mark.parametrize("refused", [-INF, NAN, INF])
def test_candidates_without_a_finite_density_are_never_accepted(refused):
    def density(position):
        return BatchState(position, torch.where(position.double() > 0.5, refused, 0.0))

    start = density(torch.zeros(1))
    chosen, ratio, accepted = step(start, [0], [1.0], -1e300, density)
    assert not accepted
    assert torch.equal(chosen.position, start.position)
    assert torch.equal(chosen.log_terms, start.log_terms)
    assert not torch.isfinite(ratio)


def test_block_step_moves_its_block_alone_and_edits_nothing():
    position = torch.tensor([1.0, 2.0, 3.0])
    start = standard_normal(position)
    chosen, ratio, accepted = step(start, [2, 0], [-0.5, 9.0, -1.0], -0.1, standard_normal)
    assert accepted
    assert chosen.position.tolist() == [0.5, 2.0, 2.0]
    assert position.tolist() == [1.0, 2.0, 3.0]
    assert ratio.item() == pytest.approx(0.5 * (9 - 4 + 1 - 0.25))
    assert torch.equal(chosen.log_density, standard_normal(chosen.position).log_density)


def test_acceptance_is_strictly_below_the_ratio():
    start = standard_normal(torch.zeros(1))
    ratio = torch.tensor(-0.5, dtype=torch.float64)
    assert not step(start, [0], [1.0], ratio, standard_normal)[2]
    below = torch.nextafter(ratio, torch.tensor(-1.0, dtype=torch.float64))
    assert step(start, [0], [1.0], below, standard_normal)[2]


@pytest.mark.parametrize(("correction", "is_accepted"), [(0.4, False), (0.6, True)])
def test_a_proposal_that_is_not_symmetric_is_corrected(correction, is_accepted):
    """The ratio, and not the threshold, takes the correction."""
    start = standard_normal(torch.zeros(1))
    candidate = standard_normal(torch.ones(1))
    proposal = Proposal(candidate, candidate.log_terms, start.log_terms)
    log_u = torch.tensor(0.0, dtype=torch.float64)
    chosen, ratio, accepted = block_step(start, proposal, log_u, torch.tensor(correction))
    assert ratio.item() == pytest.approx(correction - 0.5)
    assert bool(accepted) is is_accepted
    assert chosen.position.item() == float(is_accepted)


@pytest.mark.parametrize("refused", [-INF, NAN])
def test_no_correction_makes_a_candidate_without_a_finite_density_acceptable(refused):
    start = standard_normal(torch.zeros(1))
    proposal = Proposal(start, torch.full((1,), refused), start.log_terms)
    log_u, correction = terms(-1e300, 1e300)
    _, ratio, accepted = block_step(start, proposal, log_u, correction)
    assert not accepted
    assert ratio.item() == pytest.approx(refused, nan_ok=True)


def test_the_sweep_evaluates_the_current_position_first():
    evaluated = []

    def density(position):
        evaluated.append(position.tolist())
        return standard_normal(position)

    blocks = [torch.tensor([0]), torch.tensor([1])]
    propose = proposals(density, blocks, torch.ones(2))

    def never(state, block):
        return block_step(state, propose(state, block), torch.tensor(INF))

    state, info = sweep(torch.tensor([1.0, 2.0]), density, never, 2)
    assert evaluated == [[1.0, 2.0], [2.0, 2.0], [1.0, 3.0]]
    assert state.position.tolist() == [1.0, 2.0]
    assert info.accepted.tolist() == [False, False]


def test_states_are_tuples_that_cannot_be_edited():
    with pytest.raises(AttributeError):
        BatchState(torch.zeros(1), torch.zeros(1)).position = torch.ones(1)


def test_chains_decide_for_themselves():
    """Leading dimensions are chains: each equals the chain alone, nested tensors included."""
    positions = torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]])
    moves = torch.tensor([[1.0, -1.0], [-2.0, 0.5], [3.0, 0.1]])
    log_u = torch.tensor([[-1.0, -0.1], [-0.1, -0.3], [-0.1, -0.2]], dtype=torch.float64)
    blocks = [torch.tensor([0]), torch.tensor([1])]

    def run(position, move, log_u):
        propose = proposals(standard_normal, blocks, move)

        def decide(state, block):
            return block_step(state, propose(state, block), log_u[..., block])

        return sweep(position, standard_normal, decide, 2)

    together, info = run(positions, moves, log_u)
    assert 0 < int(info.accepted.sum()) < 6
    for chain in range(3):
        alone, decisions = run(positions[chain], moves[chain], log_u[chain])
        assert torch.equal(together.position[chain], alone.position)
        assert torch.equal(together.log_density[chain], alone.log_density)
        assert torch.equal(info.log_ratios[chain], decisions.log_ratios)
        assert torch.equal(info.accepted[chain], decisions.accepted)
