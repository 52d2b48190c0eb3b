"""Nested R-hat: ArviZ 1's, and the same where ArviZ has none."""

import math
import statistics
import warnings

import numpy as np
import pytest
from scipy.stats import norm

from pyro_fnbg.results import nested
from pyro_fnbg.results.estimates import has_arviz_1, import_arviz
from pyro_fnbg.results.nested import check_superchains, nested_r_hat, own_nested_r_hat


@pytest.fixture
def draws():
    """Six chains, of which the last two are somewhere else in the second of three columns."""
    found = np.random.default_rng(0).normal(size=(6, 11, 3))
    found[4:, :, 1] += 2.0
    found[:, :, 2] = found[:, :, 2].round(1)  # with ties
    return found


IDS = [0, 0, 1, 1, 2, 2]


def by_hand(column, ids):
    halves = [
        (number, half)
        for number, chain in zip(ids, column.tolist(), strict=True)
        for half in (chain[:5], chain[-5:])
    ]
    middle = statistics.median(value for _, half in halves for value in half)
    ratios = []
    for change in (lambda value: value, lambda value: abs(value - middle)):
        values = [change(value) for _, half in halves for value in half]
        scores = {
            value: norm.ppf(
                (sum(v < value for v in values) + (values.count(value) + 1) / 2 - 0.375)
                / (len(values) + 0.25)
            )
            for value in values
        }
        within, means = [], []
        for number in sorted(set(ids)):
            chains = [
                [scores[change(v)] for v in half] for other, half in halves if other == number
            ]
            of_chains = [statistics.fmean(chain) for chain in chains]
            inside = statistics.fmean(statistics.variance(chain) for chain in chains)
            within.append(inside + statistics.variance(of_chains))
            means.append(statistics.fmean(of_chains))
        ratios.append(math.sqrt(1 + statistics.variance(means) / statistics.fmean(within)))
    return max(ratios)


def test_by_hand(draws):
    expected = [by_hand(draws[:, :, place], IDS) for place in range(3)]
    np.testing.assert_allclose(own_nested_r_hat(draws, IDS), expected, rtol=1e-10)
    np.testing.assert_allclose(nested_r_hat({"x": draws}, IDS)["x"], expected, rtol=1e-10)
    assert expected[1] > 1.3 > expected[0]


@pytest.mark.skipif(not has_arviz_1(), reason="ArviZ 0.23 has no nested R-hat")
@pytest.mark.parametrize("ids", [IDS, [3, 1, 2, 2, 3, 1], [5, 5, 5, 0, 0, 0], [0, 1, 2, 3, 4, 5]])
def test_it_is_that_of_arviz_1(draws, ids):
    numbers = np.unique(ids, return_inverse=True)[1]  # ArviZ wants every number up to the largest
    expected = import_arviz().rhat_nested({"x": draws}, superchain_ids=numbers)["x"].values
    np.testing.assert_allclose(own_nested_r_hat(draws, ids), expected, rtol=1e-10)
    np.testing.assert_allclose(nested_r_hat({"x": draws}, ids)["x"], expected, rtol=1e-10)


def test_it_depends_on_who_is_grouped_with_whom(draws):
    chains = draws[:, :, [1]]
    apart, mixed = own_nested_r_hat(chains, IDS), own_nested_r_hat(chains, [0, 1, 0, 1, 0, 1])
    assert apart > 1.3
    assert mixed < apart
    order = [5, 0, 3, 1, 4, 2]
    again = own_nested_r_hat(chains[order], [IDS[chain] for chain in order])
    np.testing.assert_allclose(again, apart, rtol=1e-12)


@pytest.mark.parametrize("is_arviz_1", [False, has_arviz_1()])
def test_too_few_draws_and_no_numbers(draws, is_arviz_1, monkeypatch):
    monkeypatch.setattr(nested, "has_arviz_1", lambda: is_arviz_1)
    draws[2, 3, 0] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(nested_r_hat({"x": draws[:, :3]}, IDS)["x"]).all()
        found = nested_r_hat({"x": draws}, IDS)["x"]
    assert np.isnan(found).tolist() == [True, False, False]


@pytest.mark.parametrize(
    "wrong", [[0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, -1], [0.5, 0.5, 1, 1], "0011", None]
)
def test_superchains_that_are_none(wrong):
    with pytest.raises(ValueError, match="superchain_ids must give each of the 4 chains"):
        check_superchains(wrong, 4)


def test_superchains_may_have_any_numbers():
    check_superchains([7, 0, 0, 7], 4)
    check_superchains([0, 1], 2)
