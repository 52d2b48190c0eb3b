"""Matrices of a right sweep pass; every kind of wrong one is found."""

import pytest
import torch

from pyro_fnbg import Block, Partition
from pyro_fnbg.testing import (
    Lattice,
    Outcome,
    assert_invariant,
    assert_reversible,
    block_matrix,
    sweep_matrix,
)

LATTICE = Lattice([[-1.0, 0.5], [-0.5, 0.0, 1.5], [0.0, 1.0]])
PARTITION = Partition((Block("pair", (0, 2)), Block("one", (1,))), 3)


def log_density(points):
    return -0.5 * (points**2).sum(-1) - 0.8 * points[..., 0] * points[..., 1] + points[..., 2]


def make_sweep(mistake=""):
    """A sweep in a few lines, which can be wrong in one way."""

    def sweep(position, increments, log_u):
        first, ratios, accepted = position, [], []
        for block, index in enumerate(PARTITION.indices):
            candidate = position.index_add(0, index, increments[index])
            current = first if mistake == "stale" else position
            ratio = log_density(candidate) - log_density(current)
            ratio = ratio - 0.1 * increments[index].sum() if mistake == "ratio" else ratio
            accept = bool(log_u[block] < ratio)
            accept = not accept if mistake == "decision" and block else accept
            position = candidate if accept or mistake == "trace" else position
            ratios.append(ratio)
            accepted.append(accept)
        return Outcome(position, torch.stack(ratios), torch.tensor(accepted))

    return sweep


def test_a_right_sweep_passes():
    density = log_density(LATTICE.points)
    matrices = [block_matrix(make_sweep(), LATTICE, PARTITION, block) for block in (0, 1)]
    for matrix in matrices:
        assert_invariant(matrix, density)
        assert_reversible(matrix, density)
    whole = sweep_matrix(make_sweep(), LATTICE, PARTITION)
    assert_invariant(whole, density)
    torch.testing.assert_close(whole, matrices[0] @ matrices[1], rtol=0, atol=1e-14)
    # One block after the other is not the same as back
    with pytest.raises(AssertionError, match="not reversible: two flows differ by 0"):
        assert_reversible(whole, density)


@pytest.mark.parametrize(
    ("mistake", "complaint"),
    [
        ("decision", "block 1 .* is decided against the log ratio"),
        ("trace", r"a sweep from .* led to .*, not to \["),
    ],
)
def test_a_wrong_decision_is_found_in_a_block(mistake, complaint):
    with pytest.raises(AssertionError, match=complaint):
        block_matrix(make_sweep(mistake), LATTICE, PARTITION, 1)


@pytest.mark.parametrize("mistake", ["stale", "ratio"])
def test_a_wrong_ratio_is_found_in_the_sweep(mistake):
    with pytest.raises(AssertionError, match="not invariant: a share changes by 0"):
        assert_invariant(
            sweep_matrix(make_sweep(mistake), LATTICE, PARTITION), log_density(LATTICE.points)
        )


def test_what_is_no_transition_matrix_is_refused():
    with pytest.raises(AssertionError, match=r"row do not sum to 1; off by 0\.5"):
        assert_invariant(torch.full((2, 2), 0.25), torch.zeros(2))
    with pytest.raises(AssertionError, match="a probability is -1"):
        assert_invariant(torch.tensor([[2.0, -1.0], [0.0, 1.0]]), torch.zeros(2))


def test_moves_of_a_block_go_to_all_points_that_differ_in_it_alone():
    moves = LATTICE.moves(LATTICE.find(torch.tensor([-1.0, 1.5, 1.0])), [0, 2])
    assert moves.tolist() == [[0.0, 0.0, -1.0], [1.5, 0.0, -1.0], [1.5, 0.0, 0.0]]
    with pytest.raises(AssertionError, match=r"\[9.0, 0.0, 0.0\] is no point"):
        LATTICE.find(torch.tensor([9.0, 0.0, 0.0]))
