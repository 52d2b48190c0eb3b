"""Draws made ahead: no caller can tell them from draws made when they are asked for."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.engines.base import Engine
from pyro_fnbg.stock import ahead
from support.drivers import by_chain, drive, same, stock
from support.engines import ENGINES

on_every_engine = pytest.mark.parametrize("engine", ENGINES)

NET = BayesianMLP([2, 3, 3], likelihood="categorical")
SCALED = BayesianMLP(
    [2, 3, 1], likelihood="normal", observation_scale=dist.HalfNormal(torch.tensor(1.0))
)
pytestmark = pytest.mark.filterwarnings("ignore:num_chains=:UserWarning")


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Look ahead as far as is allowed, whatever the time that it takes."""
    monkeypatch.setattr(ahead, "ENOUGH_SECONDS", float("inf"))


def one_at_a_time(patch):
    patch.setattr(ahead, "MAX_DRAWS", 1)


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(40, 2, generator=generator), torch.arange(40) % 3


@pytest.fixture
def asked(monkeypatch):
    """Numbers of sweeps that engines were asked for, call by call."""
    counts, sweeps = [], Engine.sweeps

    def counting(self, problem, chains, count):
        counts.append(count)
        return sweeps(self, problem, chains, count)

    monkeypatch.setattr(Engine, "sweeps", counting)
    return counts


def set_up(data, warmup=5, **options):
    pyro.set_rng_seed(1)
    kernel = FNBG(NET, **options)
    kernel.setup(warmup, *data)
    return kernel


def go_on(kernel, count, params=None):
    """Draw so many times, each time from what was returned last."""
    params = kernel.initial_params if params is None else params
    for _ in range(count):
        params = kernel.sample(params)
    return params


def assert_same_state(one, other):
    assert (one.key, one.sweeps) == (other.key, other.sweeps)
    assert torch.equal(one.position, other.position)
    assert torch.equal(one.adaptation[0].scales, other.adaptation[0].scales)
    for mine, its in ((one.warmup_tally, other.warmup_tally), (one.draw_tally, other.draw_tally)):
        assert torch.equal(mine.accepted, its.accepted)
        assert torch.equal(mine.non_finite, its.non_finite)
        assert mine.sweeps == its.sweeps


def test_a_compiled_engine_is_asked_for_more_and_more_draws_at_once(data, asked):
    go_on(set_up(data, warmup=9), 9 + 20)
    # Never across the border of warmup and draws
    assert asked == [1, 2, 4, 2, 16, 32]


@pytest.mark.parametrize("engine", ["trace", "feedforward"])
def test_other_engines_are_asked_for_one_draw_at_a_time(data, asked, engine):
    go_on(set_up(data, warmup=2, engine=engine, thin=3), 6)
    assert asked == [1, 1, 3, 3, 3, 3]


def test_draws_are_doubled_within_their_bounds_and_halved_where_they_take_long(
    data, asked, monkeypatch
):
    monkeypatch.setattr(ahead, "MAX_DRAWS", 4)
    go_on(set_up(data, warmup=0), 15)
    assert asked == [1, 2, 4, 4, 4]
    monkeypatch.setattr(ahead, "MAX_DRAWS", 256)
    monkeypatch.setattr(ahead, "MAX_NUMBERS", 2 * 3 * 21)  # of 21 parameters
    asked.clear()
    go_on(set_up(data, warmup=0, thin=3), 5)
    assert asked == [3, 6, 6]
    monkeypatch.setattr(ahead, "ENOUGH_SECONDS", 0.0)
    asked.clear()
    go_on(set_up(data, warmup=0), 3)
    assert asked == [1, 1, 1]


@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 7}, {"thin": 3, "batch_size": 7}, {"adapt": False}], ids=str
)
def test_the_same_draws_and_reports_as_one_sweep_a_call(data, options, asked, monkeypatch):
    many = stock(FNBG(NET, engine="fused", **options), *data, draws=40, num_chains=2)
    assert max(asked) >= 16
    one_at_a_time(monkeypatch)
    asked.clear()
    one = stock(FNBG(NET, engine="fused", **options), *data, draws=40, num_chains=2)
    assert max(asked) == options.get("thin", 1)
    assert same(by_chain(many), by_chain(one))
    np.testing.assert_equal(many._diagnostics, one._diagnostics)


@pytest.mark.parametrize("thin", [1, 3])
@pytest.mark.parametrize("options", [{}, {"batch_size": 7}, {"adapt": False}], ids=str)
def test_the_kernel_shows_the_state_after_the_draws_that_were_handed_out(
    data, thin, options, asked, monkeypatch
):
    """In the middle of the draws that were made, in warmup and after it."""
    options = {"engine": "fused", "thin": thin} | options
    many = set_up(data, **options)
    with monkeypatch.context() as patch:
        one_at_a_time(patch)
        one = set_up(data, **options)
        expected, params = [one.state], one.initial_params
        for _ in range(5 + 12):
            params = one.sample(params)
            expected.append(one.state)
    asked.clear()
    params = many.initial_params
    for step, state in enumerate(expected):
        assert_same_state(many.state, state)
        assert state.sweeps == min(step, 5) + thin * max(0, step - 5)
        layout = many.problem.sites.layout
        assert torch.equal(layout.flatten(params), state.position)
        assert same(many.initial_params, params)
        params = many.sample(params)
    assert max(asked) > thin  # it was ahead indeed


def test_statistics_of_draws_that_were_not_handed_out_are_never_reported(data, asked):
    """Neither while they may still be, nor after the chain went on from somewhere else."""
    kernel = set_up(data, warmup=0, engine="fused", batch_size=7)
    handed_out, params = 0, kernel.initial_params
    for count in (5, 4, 9):
        params = go_on(kernel, count, params)
        handed_out += count
        assert sum(asked) > handed_out
        report = kernel.diagnostics()
        assert {len(values) for values in report["sample_stats"].values()} == {handed_out}
        rates = report["acceptance rate by block"].values()
        assert all((rate * handed_out) == pytest.approx(round(rate * handed_out)) for rate in rates)
        before = report["sample_stats"]
        # From here on the draws that were made are of another chain
        params = {name: 0.5 * value for name, value in params.items()}
        asked[:] = [handed_out]
    kernel.sample(params)
    after = kernel.diagnostics()["sample_stats"]
    for name, values in after.items():
        assert len(values) == handed_out + 1
        np.testing.assert_array_equal(values[:-1], before[name])


def trajectory(data, change, steps=14):
    """Draw by hand, with something done to the values before every call."""
    kernel = set_up(data, warmup=3)
    params, found = kernel.initial_params, []
    for step in range(steps):
        params = kernel.sample(change(step, params))
        found.append({name: value.clone() for name, value in params.items()})
    return found, kernel.diagnostics()


def in_place(step, params):
    if step in (6, 9):
        params["layer1.bias"].add_(0.25)
    return params


def in_place_in_part(step, params):
    if step == 8:
        params["layer2.weight"][1, 2] = 0.5
    return params


def other_tensors(step, params):
    if step in (6, 9):
        return {name: 0.5 * value for name, value in params.items()}
    return params


def equal_copies(step, params):
    return {name: value.clone() for name, value in reversed(params.items())}


def one_tensor_swapped(step, params):
    return params | {"layer2.bias": torch.zeros(3)} if step == 7 else params


def back_to_an_earlier_draw():
    kept = {}

    def change(step, params):
        kept[step] = params
        return kept[4] if step == 8 else params

    return change


def an_earlier_draw_written_to():
    kept = {}

    def change(step, params):
        kept[step] = params
        if step == 8:
            kept[6]["layer1.weight"].zero_()
        return params

    return change


CHANGES = {
    "in place": lambda: in_place,
    "in place in part": lambda: in_place_in_part,
    "other tensors": lambda: other_tensors,
    "one swapped": lambda: one_tensor_swapped,
    "back": back_to_an_earlier_draw,
    "earlier written to": an_earlier_draw_written_to,
    "copies": lambda: equal_copies,
}
HARMLESS = ("earlier written to", "copies")


@pytest.mark.parametrize("name", CHANGES)
def test_values_that_were_changed_between_calls_are_where_the_chain_goes_on(
    data, name, asked, monkeypatch
):
    many, report = trajectory(data, CHANGES[name]())
    assert max(asked) > 1 or name == "copies"
    unchanged, _ = trajectory(data, lambda step, params: params)
    one_at_a_time(monkeypatch)
    one, known = trajectory(data, CHANGES[name]())
    assert all(same(a, b) for a, b in zip(many, one, strict=True))
    np.testing.assert_equal(report, known)
    assert same(many[-1], unchanged[-1]) == (name in HARMLESS)


def test_draws_made_for_nothing_are_few_where_values_change_every_time(data, asked):
    kernel = set_up(data, warmup=0)
    params = go_on(kernel, 8)
    asked.clear()
    for _ in range(6):
        params = kernel.sample({name: value + 0.01 for name, value in params.items()})
    assert sum(asked) == 6


def test_tensors_once_handed_out_never_change(data, asked):
    x, _ = data
    kept = []

    def hook(kernel, params, stage, i):
        kept.append((params, {name: value.clone() for name, value in params.items()}))

    kernel = FNBG(SCALED, engine="fused")
    mcmc = stock(kernel, x, x[:, 0], draws=40, warmup=20, hook_fn=hook)
    stock(kernel, x, x[:, 1], draws=40)
    assert max(asked) > 1
    assert len(kept) == 60
    assert all(same(held, copy) for held, copy in kept)
    moved = [not same(a, b) for (a, _), (b, _) in zip(kept, kept[1:], strict=False)]
    assert sum(moved) > 40
    for name, values in mcmc.get_samples().items():
        stored = torch.stack([params[name] for params, _ in kept[20:]])
        assert torch.equal(stored.exp() if "scale" in name else stored, values)


@on_every_engine
@pytest.mark.parametrize("thin", [1, 3])
def test_reports_in_the_middle_of_a_chunk_count_the_draws_handed_out(data, engine, thin):
    """Asked at every draw, and asked at the end alone: the same, and those of the driver's hook."""
    asked, silent = [], []

    def ask(kernel, params, stage, i):
        asked.append((kernel.logging(), kernel.diagnostics()))

    def count(kernel, params, stage, i):
        silent.append(kernel.logging())

    options = {"engine": engine, "thin": thin}
    with_questions = stock(FNBG(NET, **options), *data, draws=12, warmup=6, hook_fn=ask)
    without = stock(FNBG(NET, **options), *data, draws=12, warmup=6, hook_fn=count)
    assert same(by_chain(with_questions), by_chain(without))
    np.testing.assert_equal(with_questions._diagnostics, without._diagnostics)
    assert [shown for shown, _ in asked] == silent
    final = with_questions._diagnostics[0]["sample_stats"]["acceptance_rate"]
    for step, (_, report) in enumerate(asked):
        found = report["sample_stats"]["acceptance_rate"]
        np.testing.assert_array_equal(found, final[: max(0, step - 5)])
    # An accepted share k / n after n sweeps of the phase, in a layer of three blocks
    for step, shown in enumerate(silent):
        sweeps = step + 1 if step < 6 else (step - 5) * thin
        possible = {f"{100 * k / (3 * sweeps):.0f}" for k in range(3 * sweeps + 1)}
        rates = shown["acc. rate by layer (%)"].split()
        assert len(rates) == 2
        assert set(rates) <= possible
    assert all(
        np.isnan(rate)
        for _, report in asked[:6]
        for rate in report["acceptance rate by block"].values()
    )
    last = asked[-1][1]["acceptance rate by block"]
    assert last == with_questions._diagnostics[0]["acceptance rate by block"]


@on_every_engine
@pytest.mark.parametrize("driver", [stock, drive])
def test_a_thinned_chain_is_every_kth_sweep_with_statistics_over_all(data, engine, driver):
    thinned = driver(FNBG(NET, engine=engine, thin=3), *data, draws=9, warmup=8)
    full = driver(FNBG(NET, engine=engine), *data, draws=27, warmup=8)
    expected = {name: value[:, 2::3] for name, value in by_chain(full).items()}
    assert same(by_chain(thinned), expected)
    (report,), (known,) = thinned._diagnostics, full._diagnostics
    for name in ("acceptance rate by block", "acceptance rate", "proposal scale by block"):
        assert report[name] == known[name]
    assert (report["thin"], known["thin"]) == (3, 1)
    stats, all_stats = report["sample_stats"], known["sample_stats"]
    assert np.array_equal(stats["batch_log_density"], all_stats["batch_log_density"][2::3])
    for name in ("acceptance_rate", "layer_acceptance_rate"):
        means = all_stats[name].reshape(9, 3, *all_stats[name].shape[1:]).mean(1)
        np.testing.assert_allclose(stats[name], means, rtol=1e-6)


def test_a_kernel_in_the_middle_of_a_chunk_starts_its_next_run_afresh(data, asked):
    kernel = set_up(data, warmup=0)
    go_on(kernel, 9)
    assert sum(asked) > 9
    assert same(by_chain(stock(kernel, *data)), by_chain(stock(FNBG(NET), *data)))


def test_a_small_site_does_not_keep_the_large_ones_alive(data):
    """However many draws were made at once: at most those that are handed out together."""
    x, _ = data
    wide = BayesianMLP([2, 500, 1], likelihood="normal", observation_scale=1.0)
    pyro.set_rng_seed(1)
    kernel = FNBG(wide, engine="fused", blocks="layer")
    kernel.setup(0, x, x[:, 0])
    params = go_on(kernel, 3)
    held = params["layer2.bias"].untyped_storage().nbytes()
    assert held <= ahead.MAX_DRAWS * params["layer2.bias"].nbytes
    assert held < params["layer1.weight"].nbytes


@pytest.mark.parametrize("change", [in_place, in_place_in_part, other_tensors])
def test_values_under_inference_mode_are_told_apart_as_well(data, change, asked):
    with torch.inference_mode():
        many, report = trajectory(data, change)
    assert max(asked) > 1
    expected, known = trajectory(data, change)
    assert all(same(a, b) for a, b in zip(many, expected, strict=True))
    np.testing.assert_equal(report, known)
