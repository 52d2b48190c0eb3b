"""Priors of coordinates: which change together, and which variances have a known conditional."""

import math

import torch

from pyro_fnbg.core.priors import Family, ParameterPriors

# Two log variances, the log of a scale; parameters of all three, and one of a fixed scale
HOLDERS = [-1, 0, 0, -1, 3, -1, 5, -1]
INVERSE_GAMMA = [-2.0, 0.0, 0.0, 0.0, -0.5, 0.0, 0.0, 0.1]
HALF_NORMAL = [1.0, 0.0, 0.0, -0.5, 0.0, 0.0, 0.0, -0.2]


def priors(families=None, powers=None, forms=None):
    positive, normal = Family.POSITIVE, Family.NORMAL
    found = families or [positive, normal, normal, positive, normal, positive, normal, normal]
    return ParameterPriors(
        families=torch.tensor(found),
        locs=torch.arange(8.0).double(),
        scales=torch.tensor([math.inf, 1, 1, math.inf, 1, math.inf, 1, 2]).double(),
        degrees_of_freedom=torch.ones(8).double(),
        scale_coordinates=torch.tensor(HOLDERS),
        scale_powers=torch.tensor(powers or [0, 0.5, 0.5, 0, 0.5, 0, 1, 0]).double(),
        positives=torch.tensor([0, 3, 5]),
        forms=torch.tensor(forms or [INVERSE_GAMMA, INVERSE_GAMMA, INVERSE_GAMMA]).double(),
    )


def test_variances_of_normal_priors_are_drawn():
    found = priors().variances
    assert found.coordinates.tolist() == [0, 3]
    assert found.shapes.tolist() == [2 + 2 / 2, 2 + 1 / 2]
    assert found.rates.tolist() == [0.5, 0.5]
    assert found.members.tolist() == [1, 2, 4]
    assert found.owners.tolist() == [0, 0, 1]
    assert found.locs.tolist() == [1, 2, 4]


def test_no_other_scales_are_drawn():
    """Not of another prior, nor with one; nor where one of several parameters does not fit."""
    only_first = [INVERSE_GAMMA, HALF_NORMAL, INVERSE_GAMMA]
    assert priors(forms=only_first).variances.coordinates.tolist() == [0]
    families = priors().families.tolist()
    families[2] = Family.LAPLACE
    assert priors(families).variances.coordinates.tolist() == [3]
    powers = priors().scale_powers.tolist()
    powers[1] = 1.0
    assert priors(powers=powers).variances.coordinates.tolist() == [3]
    gamma = [1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert not len(priors(forms=[gamma, gamma, gamma]).variances.coordinates)


def test_priors_change_with_the_scales_and_the_parameters_of_a_block():
    def terms(*coordinates):
        found = priors().terms_of(torch.tensor(coordinates))
        return None if found is None else found.tolist()

    assert terms(0) == [0, 1, 2]
    assert terms(2) == [2]
    assert terms(5, 7) == [5, 6, 7]
    assert terms(7) is None


def test_normal_priors_are_those_of_a_fixed_scale():
    assert priors().normal.scales.tolist() == [math.inf] * 7 + [2.0]


def test_normalizers_have_what_does_not_move():
    found = priors(forms=[INVERSE_GAMMA, HALF_NORMAL, INVERSE_GAMMA]).log_normalizers.tolist()
    of_normal = -0.5 * math.log(2 * math.pi)
    expected = [0.1, of_normal, of_normal, -0.2, of_normal, 0.1, of_normal]
    assert torch.allclose(torch.tensor(found), torch.tensor([*expected, of_normal - math.log(2.0)]))
