"""Annealing ends like a draw where that can be known, and never leaves what is possible."""

import math

import pytest
import torch

from pyro_fnbg.fitting.annealing import anneal

SCALES = torch.linspace(0.5, 2.0, 20)


def gaussian(positions):
    return -0.5 * (positions / SCALES).square().sum(-1)


def annealed(density, starts, num_steps, is_moved=None, seed=0, advance=lambda count: None):
    moved = torch.ones(starts.shape[1], dtype=torch.bool) if is_moved is None else is_moved
    generator = torch.Generator().manual_seed(seed)
    return anneal(density, starts, moved, num_steps, generator, advance)


@pytest.mark.slow
def test_chains_end_spread_as_the_density_says():
    chains = 300
    found = annealed(gaussian, torch.zeros(chains, 20), 4_000)
    squares = (found.positions / SCALES).square()
    # A mean of independent squares of standard normals; the steps' own error adds to its spread
    standard_error = math.sqrt(2 / squares.numel())
    assert abs(float(squares.mean()) - 1) < 4.5 * standard_error
    by_coordinate = squares.mean(0)
    assert ((by_coordinate - 1).abs() < 4.5 * math.sqrt(2 / chains)).all(), by_coordinate


def test_course_holds_the_log_densities_from_start_to_end():
    counted = []
    starts = torch.full((3, 20), 0.1)
    found = annealed(gaussian, starts, 250, advance=counted.append)
    assert counted == [3] * 250
    assert found.steps[[0, -1]].tolist() == [0, 250]
    assert found.log_densities.shape == (3, len(found.steps))
    for place, positions in ((0, starts), (-1, found.positions)):
        expected = gaussian(positions).double()
        torch.testing.assert_close(found.log_densities[:, place], expected, rtol=1e-5, atol=1e-5)


def test_coordinates_that_do_not_move_stay_as_they_are():
    starts = torch.full((2, 20), 0.3)
    is_moved = torch.arange(20) % 3 > 0
    found = annealed(gaussian, starts, 100, is_moved)
    is_same = found.positions == starts
    assert torch.equal(is_same.all(0), ~is_moved)
    assert torch.equal(is_same.any(0), ~is_moved)


@pytest.mark.parametrize("beyond", [math.nan, math.inf, -math.inf])
def test_no_chain_ends_where_the_density_is_not_finite(beyond):
    def boxed(positions):
        return gaussian(positions).masked_fill((positions.abs() > 0.6).any(-1), beyond)

    found = annealed(boxed, torch.zeros(20, 20), 500)
    assert torch.isfinite(boxed(found.positions)).all()
    assert (found.positions != 0).all()


def test_a_single_coordinate():
    found = annealed(lambda positions: -0.5 * positions.square().sum(-1), torch.ones(5, 1), 50)
    assert torch.isfinite(found.positions).all()


def test_seed_decides():
    one, same, other = (
        annealed(gaussian, torch.zeros(2, 20), 30, seed=seed).positions for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_positions_keep_their_type(dtype):
    found = annealed(
        lambda positions: -positions.square().sum(-1), torch.zeros(2, 3, dtype=dtype), 5
    )
    assert found.positions.dtype == dtype


def test_no_chain_falls_where_numbers_have_no_smaller_steps():
    """Off a cliff that is finite: from below, no step of single precision leads back."""

    def cliff(positions):
        beyond = torch.relu(positions.abs().amax(-1) - 0.5)
        return gaussian(positions) - 1e12 * beyond.square()

    found = annealed(cliff, torch.zeros(20, 20), 500)
    assert (found.log_densities > -1e4).all()


@pytest.mark.slow
def test_a_chain_that_has_melted_is_put_back_before_it_cools_and_at_the_end():
    """From a hollow that holds a cold chain, on a plain that no gradient leads back from."""

    def hollow(positions):
        distance = positions.square().sum(-1).sqrt()
        return -30.0 * torch.sigmoid(2.0 * (distance - 4.0)) - 0.5 * (distance / 20).square()

    starts, num_steps = torch.full((40, 20), 0.05), 2_000
    found = annealed(hollow, starts, num_steps)
    lowest = hollow(starts).double() - 20  # a nat a coordinate below the start
    hot = found.log_densities[:, found.steps < 0.7 * num_steps]
    assert (hot.amin(1) < lowest).all()
    assert (found.log_densities[:, -1] >= lowest).all()
