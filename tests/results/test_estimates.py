"""ArviZ's estimators, a few parameters at a time: its own numbers, in bounded memory."""

import math
import subprocess
import sys
import textwrap
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_fnbg.results import estimates
from pyro_fnbg.results.estimates import import_arviz, site_estimates, summary_table

az = import_arviz()
IS_ARVIZ_1 = int(az.__version__.partition(".")[0]) >= 1


def chains(*shape):
    """Draws with some autocorrelation, and chains that differ a little."""
    noise = torch.randn(*shape)
    return noise + 0.7 * noise.roll(1, dims=1) + 0.2 * torch.randn(shape[0], 1, *shape[2:])


@pytest.fixture(params=[1, 7 * 120, 10**9], ids=["one by one", "some", "all"])
def at_a_time(request, monkeypatch):
    """Estimate one parameter, some or all at a time."""
    monkeypatch.setattr(estimates, "MAX_NUMBERS", request.param)


@pytest.mark.usefixtures("at_a_time")
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (4, 1, 3), (0, 3)])
def test_estimates_are_those_of_arviz_whatever_the_number_at_a_time(shape):
    draws = chains(3, 40, *shape)
    found = site_estimates(draws)
    assert set(found) == {"n_eff", "r_hat"}
    for name, function in (("n_eff", az.ess), ("r_hat", az.rhat)):
        assert found[name].shape == shape
        expected = np.array(
            [function(column.numpy()) for column in draws.reshape(3, 40, -1).unbind(-1)]
        )
        np.testing.assert_array_equal(found[name].numpy().ravel(), expected.ravel())


def test_chains_that_disagree_are_told_from_chains_that_agree():
    draws = torch.randn(4, 200, 2)
    draws[0, :, 1] += 3.0
    found = site_estimates(draws)
    assert found["r_hat"][0] < 1.05
    assert found["r_hat"][1] > 1.3
    assert found["n_eff"][1] < 50 < found["n_eff"][0]


@pytest.mark.parametrize("value", [0.0, 1e6, torch.nan, torch.inf])
def test_draws_that_never_move_or_are_no_numbers_are_no_error(value):
    draws = chains(2, 30, 3)
    draws[..., 1] = value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = site_estimates(draws)
        summary_table({"w": draws}, 0.9)
    known = site_estimates(draws[..., [0, 2]])
    for name, values in found.items():
        assert torch.equal(values[[0, 2]], known[name])
    if math.isnan(value):
        assert found["n_eff"][1].isnan()
        assert found["r_hat"][1].isnan()


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 3), (5, 4), (1, 50)])
def test_few_draws_and_single_chains_are_no_error(shape):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = site_estimates(torch.randn(*shape, 2))
        table = summary_table({"w": torch.randn(*shape, 2)}, 0.9)
    assert found["n_eff"].shape == found["r_hat"].shape == (2,)
    assert found["n_eff"].isnan().all() == (shape[1] < 4)
    assert len(table) == 2


@pytest.mark.usefixtures("at_a_time")
def test_the_summary_is_that_of_arviz_under_the_sites_names():
    samples = {"layer1.weight": chains(3, 40, 2, 3), "scale": chains(3, 40), "b": chains(3, 40, 2)}
    table = summary_table(samples, 0.8)
    expected_names = [
        *(f"layer1.weight[{i}, {j}]" for i in range(2) for j in range(3)),
        *("scale", "b[0]", "b[1]"),
    ]
    assert list(table.index) == expected_names
    option = {"ci_prob" if IS_ARVIZ_1 else "hdi_prob": 0.8}
    values = {name: value.numpy() for name, value in samples.items()}
    expected = az.summary(values, **option).loc[expected_names]
    pd.testing.assert_frame_equal(table, expected, check_names=False)


@pytest.mark.usefixtures("at_a_time")
@pytest.mark.parametrize("num_ends", [0, 1, 3, 5, 100])
def test_the_ends_of_a_summary_are_those_of_the_whole(num_ends):
    samples = {"weight": chains(3, 40, 2, 3), "scale": chains(3, 40), "none": chains(3, 40, 0)}
    whole = summary_table(samples, 0.9)
    ends = summary_table(samples, 0.9, num_ends=num_ends)
    kept = list(range(7)) if num_ends > 3 else [*range(num_ends), *range(7 - num_ends, 7)]
    assert list(ends.index) == list(whole.index[kept])
    if kept:
        pd.testing.assert_frame_equal(ends, whole.iloc[kept])


def test_the_interval_has_the_probability_that_was_asked_for():
    draws = {"x": torch.randn(4, 2500)}
    widths = []
    for prob in (0.5, 0.95):
        table = summary_table(draws, prob)
        low, high = (column for column in table if column.startswith(("hdi", "eti")))
        widths.append(float(table[high].iloc[0]) - float(table[low].iloc[0]))
    # of a standard normal; a quantile of 10,000 draws is off by 0.02 or so, and rounded by 0.01
    assert widths == pytest.approx([2 * 0.674, 2 * 1.96], abs=0.15)


def test_nothing_kept_gives_an_empty_summary():
    assert summary_table({}, 0.9).empty


def test_arviz_is_never_given_more_numbers_than_are_allowed(monkeypatch):
    """But one parameter at least; so what it needs does not grow with their number."""
    given = []

    def recording(function):
        def call(data, **options):
            given.append(data["x"].shape)
            return function(data, **options)

        return call

    names = ("ess", "rhat", "summary")
    fake = SimpleNamespace(**{name: recording(getattr(az, name)) for name in names})
    monkeypatch.setattr(estimates, "import_arviz", lambda: fake)
    for allowed, expected in ((250, [2, 2, 1]), (300, [3, 2]), (99, [1] * 5), (500, [5])):
        monkeypatch.setattr(estimates, "MAX_NUMBERS", allowed)
        given.clear()
        site_estimates(torch.randn(2, 50, 5))
        assert given == [(2, 50, count) for count in expected for _ in range(2)]
        given.clear()
        summary_table({"w": torch.randn(2, 50, 5), "s": torch.randn(2, 50)}, 0.9)
        assert given == [(2, 50, count) for count in [*expected, 1]]


@pytest.mark.slow
def test_a_large_posterior_stays_within_a_gigabyte():
    script = """
        import resource, torch
        from pyro_fnbg.results.estimates import MAX_NUMBERS, site_estimates
        torch.set_num_threads(1)
        site_estimates(torch.randn(2, 100, 3))
        draws = torch.randn(2, 2000, 4000)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = site_estimates(draws)
        growth = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        assert found["n_eff"].isfinite().all()
        print(growth, growth < 10 * 8 * MAX_NUMBERS + draws.nbytes)
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "True", done.stdout
