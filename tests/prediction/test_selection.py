import numpy as np
import pytest
import torch

from pyro_fnbg.prediction.selection import risk_coverage


def test_risk_by_hand():
    uncertainty, errors = torch.rand(50), torch.rand(50) < 0.3
    found = risk_coverage(uncertainty, errors)
    rows = sorted(zip(uncertainty.tolist(), errors.tolist(), strict=True))
    risk = [sum(wrong for _, wrong in rows[:count]) / count for count in range(1, 51)]
    np.testing.assert_allclose(found.coverage, [count / 50 for count in range(1, 51)])
    np.testing.assert_allclose(found.risk, risk)
    assert found.area == pytest.approx(sum(risk) / 50)
    assert found.risk[-1] == pytest.approx(errors.double().mean().item())


def test_ties_count_with_their_mean_whatever_the_order():
    uncertainty, errors = torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([3.0, 1.0, 0.0, 0.0])
    found = risk_coverage(uncertainty, errors)
    np.testing.assert_allclose(found.risk, [1.0, 1.0, 1.0, 1.0])
    for order in ([1, 0, 2, 3], [3, 2, 1, 0]):
        other = risk_coverage(uncertainty[order], errors[order])
        np.testing.assert_array_equal(other.risk, found.risk)
        assert other.area == found.area


def test_a_better_order_has_a_smaller_area():
    errors = torch.arange(10) >= 7
    areas = [
        risk_coverage(uncertainty, errors).area
        for uncertainty in (torch.arange(10), torch.zeros(10), -torch.arange(10))
    ]
    assert areas == sorted(areas)
    assert areas[1] == pytest.approx(0.3)


@pytest.mark.parametrize("wrong", [[], [[0.1]], [np.nan], "a", None])
def test_what_is_no_number_a_row_is_refused(wrong):
    with pytest.raises(ValueError, match="uncertainty must be finite numbers, one a row"):
        risk_coverage(wrong, [1.0])
    with pytest.raises(ValueError, match="errors must be finite numbers, one a row"):
        risk_coverage([1.0], wrong)


def test_as_many_errors_as_uncertainties():
    with pytest.raises(ValueError, match="errors must be as many as uncertainty, 2; got 3"):
        risk_coverage([0.1, 0.2], [1, 0, 1])
