"""Draws made ahead: no caller can tell them from draws made when they are asked for."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.engines.fused.engine import FusedEngine
from pyro_fnbg.stock import ahead
from support.drivers import by_chain, drive, same, stock
from support.engines import ENGINES

on_every_engine = pytest.mark.parametrize("engine", ENGINES)

NET = BayesianMLP([2, 3, 3], likelihood="categorical")
SCALED = BayesianMLP(
    [2, 3, 1], likelihood="normal", observation_scale=dist.HalfNormal(torch.tensor(1.0))
)
X = torch.randn(40, 2, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(2))

pytestmark = pytest.mark.filterwarnings("ignore:num_chains=:UserWarning")


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Look ahead as far as is allowed, whatever the time that it takes."""
    monkeypatch.setattr(ahead, "ENOUGH_SECONDS", float("inf"))


def one_at_a_time(patch):
    patch.setattr(ahead, "MAX_DRAWS", 1)


@pytest.fixture
def asked(monkeypatch):
    """Numbers of sweeps that the fused engine was asked for, call by call."""
    counts, sweeps = [], FusedEngine.sweeps

    def counting(self, positions, rows, z, *args):
        counts.append(z.shape[1])
        return sweeps(self, positions, rows, z, *args)

    monkeypatch.setattr(FusedEngine, "sweeps", counting)
    return counts


def set_up(warmup=5, **options):
    pyro.set_rng_seed(1)
    kernel = FNBG(NET, **options)
    kernel.setup(warmup, X, Y)
    return kernel


def test_a_compiled_engine_is_asked_for_more_and_more_draws_at_once(asked):
    kernel = set_up(warmup=9)
    asked.clear()
    params = kernel.initial_params
    for _ in range(9 + 20):
        params = kernel.sample(params)
    # Never across the border of warmup and draws
    assert asked == [1, 2, 4, 2, 4, 8, 16]


def test_other_engines_are_asked_for_one_draw_at_a_time():
    for engine in ("trace", "feedforward"):
        kernel = set_up(engine=engine)
        params = kernel.initial_params
        for _ in range(6):
            params = kernel.sample(params)
            assert len(kernel._ahead) == 1


def test_draws_are_doubled_within_their_bounds_and_halved_where_they_take_long(asked, monkeypatch):
    monkeypatch.setattr(ahead, "MAX_DRAWS", 4)
    kernel = set_up(warmup=0)
    asked.clear()
    params = kernel.initial_params
    for _ in range(15):
        params = kernel.sample(params)
    assert asked == [1, 2, 4, 4, 4]
    monkeypatch.setattr(ahead, "ENOUGH_SECONDS", 0.0)
    for _ in range(3):
        params = kernel.sample(params)
    assert asked[5:] == [2, 1]
    monkeypatch.setattr(ahead, "ENOUGH_SECONDS", float("inf"))
    monkeypatch.setattr(ahead, "MAX_NUMBERS", 2 * 3 * 21)  # of 21 parameters
    kernel = set_up(warmup=0, thin=3)
    asked.clear()
    params = kernel.initial_params
    for _ in range(5):
        params = kernel.sample(params)
    assert asked == [3, 6, 6]


@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 7}, {"thin": 3, "batch_size": 7}, {"adapt": False}], ids=str
)
def test_the_same_draws_and_reports_as_one_sweep_a_call(options, monkeypatch):
    many = stock(FNBG(NET, engine="fused", **options), X, Y, draws=40, num_chains=2)
    one_at_a_time(monkeypatch)
    one = stock(FNBG(NET, engine="fused", **options), X, Y, draws=40, num_chains=2)
    assert same(by_chain(many), by_chain(one))
    np.testing.assert_equal(many._diagnostics, one._diagnostics)


def trajectory(change, steps=14):
    """Draw by hand, with something done to the values before every call."""
    kernel = set_up(warmup=3)
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


def in_place_without_a_trace(step, params):
    if step in (6, 9):
        params["layer1.bias"].numpy()[:] += 0.25
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


@pytest.mark.parametrize(
    "change",
    [
        lambda: in_place,
        lambda: in_place_in_part,
        lambda: in_place_without_a_trace,
        lambda: other_tensors,
        lambda: one_tensor_swapped,
        back_to_an_earlier_draw,
        an_earlier_draw_written_to,
        lambda: equal_copies,
    ],
    ids=[
        "in place",
        "in place in part",
        "in place by NumPy",
        "other tensors",
        "one swapped",
        "back",
        "earlier written to",
        "copies",
    ],
)
def test_values_that_were_changed_between_calls_are_where_the_chain_goes_on(change, monkeypatch):
    many, report = trajectory(change())
    unchanged, _ = trajectory(lambda step, params: params)
    one_at_a_time(monkeypatch)
    one, known = trajectory(change())
    assert all(same(a, b) for a, b in zip(many, one, strict=True))
    np.testing.assert_equal(report, known)
    name = getattr(change(), "__name__", "")
    is_harmless = name == "equal_copies" or change is an_earlier_draw_written_to
    assert same(many[-1], unchanged[-1]) == is_harmless


def test_draws_made_for_nothing_are_few_where_values_change_every_time(asked):
    kernel = set_up(warmup=0)
    params = kernel.initial_params
    for _ in range(8):
        params = kernel.sample(params)
    asked.clear()
    for _ in range(6):
        params = kernel.sample({name: value + 0.01 for name, value in params.items()})
    assert sum(asked) == 6


def test_tensors_once_handed_out_never_change():
    kept = []

    def hook(kernel, params, stage, i):
        kept.append((params, {name: value.clone() for name, value in params.items()}))

    kernel = FNBG(SCALED, engine="fused")
    mcmc = stock(kernel, X, X[:, 0], draws=40, warmup=20, hook_fn=hook)
    stock(kernel, X, X[:, 1], draws=40)
    assert all(same(held, copy) for held, copy in kept)
    moved = [not same(a, b) for (a, _), (b, _) in zip(kept, kept[1:], strict=False)]
    assert sum(moved) > 40
    for name, values in mcmc.get_samples().items():
        stored = torch.stack([params[name] for params, _ in kept[20:]])
        assert torch.equal(stored.exp() if "scale" in name else stored, values)


@on_every_engine
@pytest.mark.parametrize("thin", [1, 3])
def test_reports_in_the_middle_of_a_chunk_count_the_draws_handed_out(engine, thin):
    """Asked at every draw, and asked at the end alone: the same, and those of the driver's hook."""
    asked, silent = [], []

    def ask(kernel, params, stage, i):
        asked.append((kernel.logging(), kernel.diagnostics()))

    def count(kernel, params, stage, i):
        silent.append(kernel.logging())

    options = {"engine": engine, "thin": thin}
    with_questions = stock(FNBG(NET, **options), X, Y, draws=12, warmup=6, hook_fn=ask)
    without = stock(FNBG(NET, **options), X, Y, draws=12, warmup=6, hook_fn=count)
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
def test_a_thinned_chain_is_every_kth_sweep_with_statistics_over_all(engine, driver):
    thinned = driver(FNBG(NET, engine=engine, thin=3), X, Y, draws=9, warmup=8)
    full = driver(FNBG(NET, engine=engine), X, Y, draws=27, warmup=8)
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


def test_a_kernel_in_the_middle_of_a_chunk_starts_its_next_run_afresh():
    kernel = set_up(warmup=0)
    params = kernel.initial_params
    for _ in range(9):
        params = kernel.sample(params)
    assert kernel._ahead.used < len(kernel._ahead)
    assert same(by_chain(stock(kernel, X, Y)), by_chain(stock(FNBG(NET), X, Y)))


def test_values_under_inference_mode_are_read_every_time():
    """Tensors made there count no versions, so whether they were written to cannot be told."""

    def changed():
        with torch.inference_mode():
            return trajectory(in_place)[0]

    many = changed()
    with pytest.MonkeyPatch.context() as patch:
        one_at_a_time(patch)
        one = changed()
    assert all(same(a, b) for a, b in zip(many, one, strict=True))
