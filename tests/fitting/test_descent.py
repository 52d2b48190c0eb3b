"""The descent finds modes that are known, keeps the best place, and comes back from nowhere."""

import math

import pytest
import torch

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.fitting.descent import descend
from pyro_fnbg.fitting.splits import Rows

CENTRE = torch.tensor([1.0, -2.0, 0.5])
ALL = torch.ones(3, dtype=torch.bool)


def rows_of(num_rows=1, held_out=()):
    plan = BatchPlan("data", num_rows, num_rows, "full", 1.0)
    return Rows(plan, lambda step: None, held_out)


def bowl(positions, rows):
    """Normal with different widths, whose mode is the centre."""
    return -(((positions - CENTRE) * torch.tensor([1.0, 10.0, 0.3])) ** 2).sum(-1)


def run(density, starts, held_out=None, is_fitted=ALL, steps=500, rate=0.1, rows=None):
    rows = rows or rows_of(held_out=(torch.arange(1),) if held_out else ())
    return descend(density, held_out, rows, starts, is_fitted, steps, rate, lambda count: None)


def test_mode_is_found_from_every_start():
    starts = torch.tensor([[0.0, 0.0, 0.0], [3.0, 1.0, -1.0]])
    found = run(bowl, starts)
    assert torch.allclose(found.positions, CENTRE.expand(2, -1), atol=0.02)
    assert found.num_setbacks.tolist() == [0, 0]
    assert found.course.training[:, -1].max() < found.course.training[:, 1].min()


def test_coordinates_that_are_not_fitted_stay():
    start = torch.tensor([[0.0, 0.7, 0.0]])
    found = run(bowl, start, is_fitted=torch.tensor([True, False, True]))
    assert float(found.positions[0, 1]) == pytest.approx(0.7)
    assert float(found.positions[0, 0]) == pytest.approx(1.0, abs=0.02)


def test_best_place_is_that_of_the_held_out_loss():
    """The held-out rows want another place, which the fit passes by on its way."""

    def held_out(positions, rows):
        return -((positions[:, 0] - 0.5) ** 2)

    found = run(bowl, torch.zeros(1, 3), held_out)
    losses = found.course.held_out[0]
    assert 0 < int(found.best_steps) < 500
    assert float(losses.min()) == pytest.approx((float(found.positions[0, 0]) - 0.5) ** 2, abs=1e-6)
    assert float(found.positions[0, 0]) == pytest.approx(0.5, abs=0.1)


def test_chain_that_leaves_the_possible_comes_back_and_goes_on():
    """Beyond 0.9 there is no density, and the mode is at 1."""

    def density(positions, rows):
        return bowl(positions, rows).masked_fill(positions[:, 0] > 0.9, torch.nan)

    starts = torch.tensor([[0.0, 0.0, 0.0], [-5.0, 0.0, 0.0]])
    found = run(density, starts)
    assert torch.isfinite(density(found.positions, None)).all()
    assert (found.positions[:, 0] > 0.7).all()
    assert (found.num_setbacks > 0).all()


def test_chain_whose_gradient_is_lost_stays_at_its_start_and_others_do_not():
    class Lost(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * torch.tensor([1.0, math.inf])

    starts = torch.zeros(2, 3)
    found = run(lambda p, rows: Lost.apply(bowl(p, rows)), starts)
    assert torch.allclose(found.positions[0], CENTRE, atol=0.02)
    assert torch.equal(found.positions[1], starts[1])
    assert int(found.num_setbacks[1]) == 500


def test_place_after_a_step_into_the_impossible_is_not_kept():
    """Every step lowers the loss, and the last one leads out of the support."""

    def density(positions, rows):
        return positions[:, 0].masked_fill(positions[:, 0] > 0.0, -torch.inf)

    found = run(density, torch.tensor([[-0.01, 0.0, 0.0]]), steps=3, rate=10.0)
    assert torch.isfinite(density(found.positions, None)).all()


def test_learning_rate_rises_and_falls_to_nothing():
    places = []

    def slope(positions, rows):
        places.append(positions.detach().clone())
        return positions.sum(-1)

    run(slope, torch.zeros(1, 3), steps=100, rate=0.1)
    # AdamW moves by the learning rate where the gradient is always the same
    moves = torch.stack(places)[:, 0, 0].unique().diff()
    assert float(moves.max()) == pytest.approx(0.1, rel=0.05)
    assert float(moves[0]) < 0.02
    assert float(moves[-1]) < 0.001


def test_every_step_is_told():
    told = []
    descend(bowl, None, rows_of(), torch.zeros(2, 3), ALL, 7, 0.1, told.append)
    assert told == [2] * 7
