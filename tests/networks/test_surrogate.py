import pytest
import torch

from pyro_fnbg.networks.statement import ACTIVATIONS
from pyro_fnbg.networks.surrogate import straight_through


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_of_a_step_are_the_same_with_a_gradient_and_without(dtype):
    values = torch.tensor(
        [-torch.inf, -3e38, -1.0, -1e-40, 0.0, 1e-40, 2.0, torch.inf], dtype=dtype
    )
    plain = ACTIVATIONS["step"](values)
    with straight_through():
        replaced = ACTIVATIONS["step"](values)
    assert plain.tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert torch.equal(plain, replaced)
    assert plain.dtype == replaced.dtype == dtype


def test_gradient_is_that_of_a_sigmoid_where_it_is_asked_for_and_none_elsewhere():
    values = torch.tensor([-1.0, 0.5], requires_grad=True)
    with straight_through() as names:
        assert names == set()
        (gradient,) = torch.autograd.grad(ACTIVATIONS["step"](values).sum(), values)
    assert names == {"step"}
    sigmoid = torch.sigmoid(2 * values)
    assert torch.allclose(gradient, 2 * sigmoid * (1 - sigmoid))
    assert not ACTIVATIONS["step"](values).requires_grad


def test_outer_block_hears_of_what_is_replaced_in_an_inner_one():
    with straight_through() as outer:
        with straight_through() as inner:
            ACTIVATIONS["step"](torch.zeros(1))
        assert inner == outer == {"step"}
    with straight_through() as later:
        pass
    assert later == set()
