import math
import time
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from numba import njit

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.engines import compiled, elementwise, fused, memory
from pyro_fnbg.engines.elementwise import activate
from pyro_fnbg.engines.fused import FusedEngine
from pyro_fnbg.engines.network import NotFeedforward, read_network
from pyro_fnbg.noise import sweep_noise
from pyro_fnbg.structure import ACTIVATIONS

DTYPES = [np.float32, np.float64]


@njit
def exps(values, out):
    for i in range(len(values)):
        out[i] = elementwise._exp(values[i])


@njit
def logs(values, out):
    for i in range(len(values)):
        out[i] = elementwise._log(values[i])


@njit
def activated(code, values, out):
    activate(code, values, out)


@pytest.mark.parametrize("dtype", DTYPES)
def test_exponential_and_logarithm_are_right_to_a_few_units_in_the_last_place(dtype):
    rng = np.random.default_rng(0)
    x = rng.uniform(-80, 80, 20_000).astype(dtype)
    out = np.empty_like(x)
    exps(x, out)
    exact = np.exp(x.astype(np.longdouble))
    assert np.max(np.abs(out - exact) / exact) < 2 * np.finfo(dtype).eps
    y = rng.uniform(1, 1000, 20_000).astype(dtype)
    logs(y, out)
    exact = np.log(y.astype(np.longdouble))
    # Near 1 the logarithm is small: there the error is one of the sum 1 + e that it is taken of
    assert np.max(np.abs(out - exact) / np.maximum(exact, 0.05)) < 4 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_exponential_and_logarithm_carry_nan_and_end_in_normal_numbers(dtype):
    x = np.array([np.nan, np.inf, -np.inf, 0.0, 1e30, -1e30], dtype)
    out = np.empty_like(x)
    exps(x, out)
    assert np.isnan(out[0])
    assert out[3] == 1
    assert (out[[1, 4]] > 1e37).all()
    assert (np.finfo(dtype).tiny < out[[2, 5]]).all()
    assert (out[[2, 5]] < 1e-37).all()
    logs(np.array([np.nan, np.inf, 1.0, 2.0, 4.0, 0.5], dtype), out)
    assert np.isnan(out[:2]).all()
    assert out[2] == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_torch(name, dtype):
    x = np.concatenate([np.linspace(-100, 100, 2001), [np.inf, -np.inf, np.nan, 0.0]]).astype(dtype)
    out = np.empty_like(x)
    activated(list(ACTIVATIONS).index(name), x, out)
    expected = ACTIVATIONS[name](torch.from_numpy(x)).numpy()
    # An activation enters sums of size one: its absolute error counts
    eps = np.finfo(dtype).eps
    assert np.allclose(out, expected, rtol=4 * eps, atol=2 * eps, equal_nan=True)


def engines(model, x, y, **options):
    """The trace engine's run, and the fused engine on the same network and blocks."""
    pyro.set_rng_seed(1)
    kernel = FNBG(model, engine="trace", **options)
    kernel.setup(0, x, y)
    run = kernel._run
    return run, FusedEngine(read_network(model, (x, y), {}, run.sites, run.plan), run.partition)


def drawn(run, num_sweeps):
    noise = [
        sweep_noise(run.key, s, len(run.position), run.partition.num_blocks)
        for s in range(num_sweeps)
    ]
    rows = None
    if not run.plan.is_full:
        rows = torch.stack([run.batches.rows(s) for s in range(num_sweeps)])[None]
    z, log_u = torch.stack([n.z for n in noise])[None], torch.stack([n.log_u for n in noise])[None]
    return rows, z, log_u


def assert_same(run, engine, num_sweeps=10):
    args = drawn(run, num_sweeps)
    scales = 0.4 * run.scales[None]
    with pyro.validation_enabled(False):
        expected = run.engine.sweeps(run.position[None], *args, scales)
        found = engine.sweeps(run.position[None], *args, scales)
    assert torch.equal(found.accepted, expected.accepted)
    assert torch.equal(found.positions, expected.positions)
    assert torch.allclose(found.log_densities, expected.log_densities, rtol=1e-9, atol=1e-9)
    return found


def real(value):
    return torch.tensor(value, dtype=torch.float64)


PRIORS = {
    "half normal": dist.HalfNormal(real(0.7)),
    "half Cauchy": dist.HalfCauchy(real(0.7)),
    "exponential": dist.Exponential(real(1.3)),
    "gamma": dist.Gamma(real(2.0), real(1.5)),
    "inverse gamma": dist.InverseGamma(real(3.0), real(1.5)),
    "log normal": dist.LogNormal(real(-0.5), real(0.8)),
}


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
def test_every_known_prior_of_the_scale_is_scored_as_pyro_does(prior):
    x = torch.randn(20, 2, dtype=torch.float64)
    model = BayesianMLP([2, 2, 1], likelihood="normal", observation_scale=prior)
    found = assert_same(*engines(model, x, x[:, 0]), num_sweeps=30)
    assert len(found.positions[0, :, -1].unique()) > 1


def test_other_priors_of_the_scale_are_refused_by_name():
    x = torch.randn(20, 2, dtype=torch.float64)
    prior = dist.Weibull(real(1.0), real(2.0))
    model = BayesianMLP([2, 2, 1], likelihood="normal", observation_scale=prior)
    with pytest.raises(NotFeedforward, match="the prior of its observation scale is Weibull"):
        engines(model, x, x[:, 0])


SHAPES = {
    "rows beyond a tile": ([3, 5, 2], 777, None, {}),
    "rows beyond a tile, batches": ([3, 5, 2], 1200, 301, {"parts": 2}),
    "wider than a stride of weights": ([19, 11, 3], 40, None, {"max_block_size": 7}),
    "one row": ([2, 3, 2], 5, 1, {}),
    "no hidden layer": ([4, 3], 30, 8, {"parts": 2}),
    "one node a layer": ([2, 1, 1, 2], 30, None, {}),
}


@pytest.mark.parametrize(("widths", "rows", "batch", "options"), SHAPES.values(), ids=SHAPES)
def test_shapes_of_all_kinds_are_those_of_the_model(widths, rows, batch, options):
    x = torch.randn(rows, widths[0], dtype=torch.float64)
    y = torch.randint(0, widths[-1], (rows,))
    assert_same(*engines(BayesianMLP(widths), x, y, batch_size=batch, **options))


def test_inputs_need_not_be_contiguous():
    x = torch.randn(6, 50, dtype=torch.float64).T[::2, :3]
    y = torch.randint(0, 2, (25,))
    assert_same(*engines(BayesianMLP([3, 3, 2]), x, y))


def test_first_layer_in_many_stretches_is_the_first_layer_at_once(monkeypatch):
    """With room for one block's increments at a time, results are the same bit for bit."""
    x = torch.randn(60, 6)
    y = torch.randint(0, 2, (60,))
    run, engine = engines(BayesianMLP([6, 4, 2]), x, y, parts={1: 3}, batch_size=20)
    args = run.position[None], *drawn(run, 5), 0.3 * run.scales[None]
    at_once = engine.sweeps(*args)
    monkeypatch.setattr(memory, "DELTA_BYTES", 1)
    engine._works.clear()
    assert all(torch.equal(a, b) for a, b in zip(at_once, engine.sweeps(*args), strict=True))
    assert len(engine._works[0].deltas) == 1


def test_an_impossible_batch_is_judged_by_the_rules():
    """Overflow: from -inf any finite candidate is taken, and a NaN one never."""
    x = torch.full((3, 1), 1e30)
    model = BayesianMLP([1, 1], likelihood="normal")
    run, engine = engines(model, x / 1e30, torch.zeros(3))
    _, z, log_u = drawn(run, 1)
    huge = torch.tensor([[1e30, 0.0]])
    scales = torch.ones(1, 1, dtype=torch.float64)
    back = torch.tensor([[[-1e30, 0.0]]], dtype=torch.float64)
    never_by_chance = torch.full_like(log_u, 1e6)
    home = engine.sweeps(huge, None, back, never_by_chance, scales)
    assert home.log_ratios.item() == math.inf
    assert home.accepted.item()
    away = engine.sweeps(torch.zeros(1, 2), None, -back, torch.full_like(log_u, -1e300), scales)
    assert away.log_ratios.item() == -math.inf
    assert not away.accepted.item()


def test_compiling_is_announced_when_it_takes_long(monkeypatch, capsys):
    monkeypatch.setattr(fused, "PATIENCE", 0.0)
    with fused._message_while_compiling("torch.float32"):
        time.sleep(0.3)
    assert "compiling the fused engine for torch.float32" in capsys.readouterr().err
    monkeypatch.setattr(fused, "PATIENCE", 60.0)
    with fused._message_while_compiling("torch.float32"):
        pass
    assert capsys.readouterr().err == ""


def test_cache_follows_every_module_that_is_compiled():
    """The digest that the cache is keyed by covers each module whose functions are compiled."""
    folder = Path(compiled.__file__).parent
    compile_something = {
        path.name
        for path in folder.glob("*.py")
        if "@compiled(" in path.read_text() or "njit(" in path.read_text()
    }
    assert compile_something <= set(compiled._SOURCES)
    assert "memory.py" in compiled._SOURCES  # the order of the fields is compiled in
