"""What is special about the fused engine: its own arithmetic, its tiles, its cache on disk."""

import ast
import hashlib
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pyro.distributions as dist
import pytest
import torch
from numba.core.caching import NullCache
from scipy import stats
from scipy.special import gammaln
from torch.nn.functional import binary_cross_entropy_with_logits

from pyro_fnbg import BayesianMLP
from pyro_fnbg.core.compiling import _warn_once
from pyro_fnbg.engines.fused import allocation, compiled, memory
from pyro_fnbg.engines.fused.elementwise import (
    LANES,
    activate,
    exp,
    expm1,
    log,
    log1p,
    sum_of_changes,
    total_of,
)
from pyro_fnbg.engines.fused.likelihoods import log_likelihood
from pyro_fnbg.engines.fused.memory import TILE
from pyro_fnbg.networks.counts import with_count_columns
from pyro_fnbg.networks.likelihoods import (
    FROM_NETWORK,
    LEAST_SCALE,
    Likelihood,
    scales_of,
)
from pyro_fnbg.networks.statement import ACTIVATIONS
from pyro_fnbg.testing import make_inputs, run_on, start
from support.engines import assert_as_trace, assert_decides_both_ways, assert_identical

ROOT = Path(__file__).resolve().parents[2]
KINDS = [np.float32, np.float64]


# --- Arithmetic ----------------------------------------------------------------------------------


@numba.njit
def exp_of(values, found):
    for i in range(len(values)):
        found[i] = exp(values[i])


@numba.njit
def expm1_of(values, found):
    for i in range(len(values)):
        found[i] = expm1(values[i])


@numba.njit
def log1p_of(values, found):
    for i in range(len(values)):
        found[i] = log1p(values[i])


@numba.njit
def log_of(values, found):
    for i in range(len(values)):
        found[i] = log(values[i])


@numba.njit
def activation_of(code, values, found):
    activate(code, values, found)


@numba.njit
def likelihood_of(head, outputs, labels, scale, factor, scratch, target):
    log_likelihood(head, outputs, labels, scale, factor, scratch, target)


@numba.njit
def sums_of(new, old, index):
    return sum_of_changes(new, old, index), total_of(new)


def compute(function, *args):
    """Call a function of a row and a result, the row last."""
    *before, values = args
    found = np.full_like(in_lanes(values), -77.0)
    function(*before, in_lanes(values), found)
    return found[: len(values)]


def in_lanes(values):
    """Lengthen rows by their last entry to what the compiled loops go over."""
    return np.take(values, np.arange(-(-values.shape[-1] // LANES) * LANES), -1, mode="clip")


def ulps(found, exact, kind):
    """Distance of numbers from extended precision, in units of the last place."""
    exact = np.asarray(exact, np.longdouble)
    return np.abs(found - exact) / np.spacing(np.abs(exact.astype(kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_exp_is_right_to_a_few_units_in_the_last_place(kind):
    top = 87.0 if kind is np.float32 else 700.0
    values = np.linspace(-top, top, 200_001).astype(kind)
    values = np.concatenate([values, np.linspace(-1, 1, 10_001).astype(kind)])
    assert ulps(compute(exp_of, values), np.exp(values.astype(np.longdouble)), kind).max() < 2
    assert compute(exp_of, np.zeros(1, kind))[0] == 1.0
    # beyond, clipped: neither infinity nor denormal numbers
    least, most, unknown = compute(exp_of, np.array([-np.inf, np.inf, np.nan], kind))
    assert 0 < least < 1e-37
    assert least >= np.finfo(kind).tiny
    assert 1e37 < most < np.inf
    assert np.isnan(unknown)


def sizes(kind, top):
    """Numbers of every size from the smallest normal one up to a top, and more of them near 1."""
    spread = np.exp(np.linspace(np.log(np.finfo(kind).tiny) + 1, np.log(top), 200_001))
    return np.concatenate([spread, np.linspace(0.01, min(top, 20.0), 200_001)]).astype(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_expm1_is_right_to_a_few_units_in_the_last_place(kind):
    values = sizes(kind, 87.0 if kind is np.float32 else 700.0)
    for signed in (values, -values):
        exact = np.expm1(signed.astype(np.longdouble))
        assert ulps(compute(expm1_of, signed), exact, kind).max() < 3
    least, zero, unknown = compute(expm1_of, np.array([-np.inf, 0.0, np.nan], kind))
    assert least == -1.0
    assert zero == 0.0
    assert np.isnan(unknown)


@pytest.mark.parametrize("kind", KINDS)
def test_log1p_is_right_to_a_few_units_in_the_last_place(kind):
    values = sizes(kind, np.finfo(kind).max / 2)
    exact = np.log1p(values.astype(np.longdouble))
    assert ulps(compute(log1p_of, values), exact, kind).max() < 3
    assert compute(log1p_of, np.zeros(1, kind))[0] == 0.0
    assert not np.isfinite(compute(log1p_of, np.array([np.inf], kind))[0])
    assert np.isnan(compute(log1p_of, np.array([np.nan], kind))[0])


@pytest.mark.parametrize("kind", KINDS)
def test_log_is_right_to_a_few_units_in_the_last_place(kind):
    """Near 1, where it is small, too."""
    values = np.concatenate([sizes(kind, np.finfo(kind).max / 2), np.linspace(0.99, 1.01, 10_001)])
    values = values.astype(kind)
    exact = np.log(values.astype(np.longdouble))
    assert ulps(compute(log_of, values), exact, kind).max() < 3
    one, infinite, unknown = compute(log_of, np.array([1.0, np.inf, np.nan], kind))
    assert one == 0.0
    assert infinite == np.inf
    assert np.isnan(unknown)


@pytest.mark.parametrize("kind", KINDS)
def test_tanh_is_right_to_a_few_units_in_the_last_place(kind):
    """As near zero as anywhere, where a difference of two numbers near 1 would have no digits."""
    values, code = sizes(kind, 87.0), list(ACTIVATIONS).index("tanh")
    found = compute(activation_of, code, values)
    assert ulps(found, np.tanh(values.astype(np.longdouble)), kind).max() < 4
    assert np.array_equal(compute(activation_of, code, -values), -found)
    extreme = np.array([np.inf, -np.inf, 0.0, np.nan], kind)
    np.testing.assert_array_equal(
        compute(activation_of, code, extreme), np.array([1.0, -1.0, 0.0, np.nan], kind)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_tanh_never_turns_back_near_saturation(kind):
    """Over neighbouring numbers, where it reaches 1 and a little before."""
    whole = np.int32 if kind is np.float32 else np.int64
    code = list(ACTIVATIONS).index("tanh")
    last = {np.float32: 9.02, np.float64: 19.07}[kind]
    for about in (4.0, 0.8 * last, 0.9 * last, 0.96 * last, last):
        bits = kind(about).view(whole) + np.arange(-100_000, 100_000, dtype=whole)
        found = compute(activation_of, code, bits.view(kind))
        assert (np.diff(found) >= 0).all()
        assert found[0] > 0.99
    assert found.max() == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_sigmoid_is_right_to_a_few_units_in_the_last_place(kind):
    """Of its tails, too, down to the smallest normal numbers, where they stay."""
    top, code = (87.0 if kind is np.float32 else 700.0), list(ACTIVATIONS).index("sigmoid")
    for values in (sizes(kind, top), -sizes(kind, top)):
        exact = 1 / (1 + np.exp(-values.astype(np.longdouble)))
        assert ulps(compute(activation_of, code, values), exact, kind).max() < 3
    beyond = compute(activation_of, code, np.array([-top - 1, -2 * top, -np.inf], kind))
    assert ((beyond > 0) & (beyond < 2 * math.exp(-top))).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, kind):
    """Against torch: exact where nothing is rounded, else within a few epsilon of the value."""
    top = 80.0 if kind is np.float32 else 600.0
    values = np.concatenate([np.linspace(-top, top, 10_001), np.linspace(-2, 2, 1_001), [0.0]])
    values = values.astype(kind)
    code = list(ACTIVATIONS).index(name)
    found = compute(activation_of, code, values)
    exact = ACTIVATIONS[name](torch.from_numpy(values).double()).numpy()
    allowed = {"sigmoid": 6, "tanh": 4}.get(name, 0) * np.abs(exact) * np.finfo(kind).eps
    assert (np.abs(found - exact) <= allowed).all()
    extreme = np.array([np.inf, -np.inf, np.nan], kind)
    found = compute(activation_of, code, extreme)
    exact = ACTIVATIONS[name](torch.from_numpy(extreme)).numpy()
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-37)


# By name: likelihoods of a few nodes
HEADS = {
    "bernoulli": Likelihood("bernoulli", 1),
    "categorical": Likelihood("categorical", 5),
    "normal": Likelihood("normal", 3, 0.7),
    "normal, scales": Likelihood("normal", 4, FROM_NETWORK),
    "student": Likelihood("student", 3, 0.7, 2.5),
    "student, scales": Likelihood("student", 4, FROM_NETWORK),
    "poisson": Likelihood("poisson", 3),
}


def exact_likelihood(head, outputs, labels):
    """Score rows in double precision or beyond; outputs (nodes, rows), labels (columns, rows)."""
    if head.is_of_classes:
        outputs, labels = torch.from_numpy(outputs).double(), torch.from_numpy(labels[0]).double()
        if head.name == "bernoulli":
            return -binary_cross_entropy_with_logits(outputs[0], labels, reduction="none").numpy()
        return torch.distributions.Categorical(logits=outputs.T).log_prob(labels).numpy()
    k, scales = len(labels), head.fixed_scale
    outputs, labels = outputs.astype(np.longdouble), labels.astype(np.longdouble)
    if head.name == "poisson":
        return (labels * outputs - np.exp(outputs) - gammaln(labels.astype(np.float64) + 1)).sum(0)
    if head.has_network_scale:
        others = outputs[k:]
        scales = 1e-6 + np.maximum(others, 0) + np.log1p(np.exp(-np.abs(others)))
    kind = stats.t(head.degrees_of_freedom) if head.name == "student" else stats.norm
    errors = (labels - outputs[:k]) / scales
    return (kind.logpdf(errors) - np.log(scales)).sum(0)


def compute_likelihood(head, outputs, labels, factor=1.0):
    """Score rows by the compiled code, in the type of the outputs."""
    n = outputs.shape[1]
    scale = 0.0 if head.has_network_scale else head.fixed_scale
    if head.name == "poisson":
        labels = with_count_columns(torch.from_numpy(labels.T)).T.contiguous().numpy()
    outputs, labels = in_lanes(outputs), in_lanes(labels)
    scratch, found = np.empty((2, outputs.shape[1]), outputs.dtype), np.empty_like(outputs[0])
    likelihood_of(memory.head_of(head), outputs, labels, scale, factor, scratch, found)
    return found[:n]


def draw_labels(head, rng, n):
    if head.is_of_classes:
        return rng.integers(0, max(head.num_outputs, 2), (1, n))
    if head.name == "poisson":
        return rng.poisson(rng.choice([0.1, 3.0, 400.0], (head.num_responses, n)))
    return rng.standard_normal((head.num_responses, n))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spread", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("name", HEADS)
def test_likelihoods(name, spread, kind):
    """Against torch or SciPy, times a factor."""
    head, rng, n = HEADS[name], np.random.default_rng(1), 300
    if name == "poisson":
        spread = min(spread, 20.0)  # rates are finite
    outputs = (spread * rng.standard_normal((head.num_outputs, n))).astype(kind)
    labels = draw_labels(head, rng, n).astype(kind)
    found = compute_likelihood(head, outputs, labels, 2.5)
    exact = exact_likelihood(head, outputs, labels)
    # Rounding of logits, not of their differences, is what a score can be off by; and a log rate's
    # is as many units of the rate
    largest = np.abs(outputs).max(0)
    size = np.abs(exact) * largest if name == "poisson" else np.maximum(largest, np.abs(exact))
    assert (np.abs(found - 2.5 * exact) <= 20 * np.finfo(kind).eps * (size + 1)).all()
    outputs[0, 0] = np.nan
    found = compute_likelihood(head, outputs, labels, 2.5)
    assert np.isnan(found[0])
    assert np.isfinite(found[1:]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_scales_from_the_network_have_all_digits_however_small_they_are(kind):
    """Far below the least scale, which is what is left there, and above it."""
    top = 80.0 if kind is np.float32 else 600.0
    others = np.concatenate([np.linspace(-top, top, 100_001), np.linspace(-16, 16, 100_001)])
    outputs = np.stack([np.zeros_like(others), others]).astype(kind)
    head = Likelihood("normal", 2, FROM_NETWORK)
    found = compute_likelihood(head, outputs, np.zeros((1, len(others)), kind))
    exact = outputs[1].astype(np.longdouble)
    exact = np.log(np.maximum(exact, 0) + np.log1p(np.exp(-np.abs(exact))) + 1e-6)
    constant = np.log(2 * np.pi) / 2
    # Of the logarithm, which a relative error of the scale adds to, and of the constant
    assert (np.abs(found + exact + constant) < 4 * np.finfo(kind).eps * (1 + np.abs(exact))).all()
    of_torch = scales_of(torch.from_numpy(outputs[1])).log().numpy()
    assert (np.abs(of_torch - exact) < 4 * np.finfo(kind).eps * (1 + np.abs(exact))).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("least", [0.0, 0.01])
def test_exponential_scales_from_the_network(least, kind):
    top = 80.0 if kind is np.float32 else 600.0
    outputs = np.stack([np.zeros(10_001), np.linspace(-top, top, 10_001)]).astype(kind)
    head = Likelihood("normal", 2, FROM_NETWORK, has_exponential_scale=True, least_scale=least)
    found = compute_likelihood(head, outputs, np.zeros((1, 10_001), kind))
    exact = np.log(np.exp(outputs[1].astype(np.longdouble)) + np.longdouble(kind(least)))
    constant = np.log(2 * np.pi) / 2
    # The exponential's relative error is as many units as its argument is large
    assert (
        np.abs(found + exact + constant) < 4 * np.finfo(kind).eps * (1 + np.abs(outputs[1]))
    ).all()
    of_torch = head.locations_and_scales(torch.from_numpy(outputs.T), -1)[1].log()[:, 0].numpy()
    np.testing.assert_allclose(
        -found - constant, of_torch, rtol=0, atol=100 * np.finfo(kind).eps * top
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["normal", "student"])
def test_a_scale_beyond_all_numbers_makes_a_row_impossible(name, kind):
    outputs = np.array([[0.0, 0.0], [np.inf, -np.inf]], kind)
    head = Likelihood(name, 2, FROM_NETWORK)
    found = compute_likelihood(head, outputs, np.zeros((1, 2), kind))
    assert found[0] == -np.inf
    assert found[1] == pytest.approx(-math.log(LEAST_SCALE) + head.log_normalizer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 5, 3_000, 1_000_000])
def test_counts_have_all_digits_where_a_rate_is_near_them(kind, count):
    """A sum of y log(rate), the rate and log(y!) would have none in single precision."""
    away = np.concatenate([np.linspace(-0.1, 0.1, 20_001), np.linspace(-9, 3, 20_001)])
    outputs = (math.log(max(count, 1)) + away).astype(kind)
    labels = np.full((1, len(outputs)), count, kind)
    found = compute_likelihood(Likelihood("poisson", 1), outputs[None], labels)
    rates = outputs.astype(np.longdouble)
    exact = count * rates - np.exp(rates) - gammaln(count + 1.0)
    # What rounding of the log rate makes of it, a few units of the result, and of its parts
    share = np.finfo(kind).eps * np.abs(count - np.exp(rates)) * (2 + np.abs(rates))
    units = 8 * np.finfo(kind).eps * (1 + np.abs(exact) + math.sqrt(count))
    double_rounding = 1e-15 * count * math.log(count + 2)
    assert (np.abs(found - exact) <= share + units + double_rounding).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rates_beyond_all_numbers_are_impossible_and_below_are_not(kind):
    outputs = np.array([[89.0 if kind is np.float32 else 710.0, 1e6, -1e6, -1e6]], kind)
    found = compute_likelihood(Likelihood("poisson", 1), outputs, np.array([[1, 0, 0, 2]], kind))
    assert found[:2].tolist() == [-np.inf, -np.inf]
    np.testing.assert_allclose(found[2:], [0.0, -2e6 - math.log(2)], rtol=1e-6)


def score(head, outputs, labels, kind):
    """Score rows in a type; outputs (nodes, rows), labels (rows,) or (columns, rows)."""
    head = Likelihood(head, len(outputs)) if isinstance(head, str) else head
    return compute_likelihood(head, outputs.astype(kind), np.atleast_2d(labels).astype(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("label", [0.0, 1.0, 0.3])
def test_bernoulli_scores_have_all_digits_however_small_they_are(kind, label):
    """A label that is no whole number is a weighted mean, as torch has it."""
    top = 85.0 if kind is np.float32 else 690.0
    logits = np.concatenate([np.linspace(-top, top, 100_000), np.linspace(-20, 20, 100_000)])
    logits = logits.astype(kind)[None]
    found = score("bernoulli", logits, np.full(logits.shape[1], label), kind)
    exact, share = logits[0].astype(np.longdouble), np.longdouble(kind(label))
    softplus = np.log1p(np.exp(-np.abs(exact)))
    exact = -(share * (np.maximum(-exact, 0) + softplus))
    exact = exact - (1 - share) * (np.maximum(logits[0], 0) + softplus)
    assert ulps(found, exact, kind).max() < 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_categorical_scores_have_all_digits_where_one_class_dominates(kind, classes):
    """Wherever it stands, and whether the label is that class or another; ties, too."""
    rng, n = np.random.default_rng(4), 60_000
    logits = rng.standard_normal((classes, n))
    labels, dominating = rng.integers(0, classes, (2, n))
    logits[dominating, np.arange(n)] += rng.uniform(0, 60, n)
    logits[:, ::7] = np.round(logits[:, ::7])
    logits[:, ::11] = logits[0, ::11]
    logits = logits.astype(kind)
    found, exact = score("categorical", logits, labels, kind), logits.astype(np.longdouble)
    order = np.argsort(exact, 0)
    largest = np.take_along_axis(exact, order[-1:], 0)
    others = np.exp(np.take_along_axis(exact, order[:-1], 0) - largest).sum(0)
    exact = exact[labels, np.arange(n)] - largest[0] - np.log1p(others)
    assert np.abs(exact).min() < 1e-15
    # Logits apart by d have exp(d) off by half a unit of d
    assert ulps(found, exact, kind).max() < 40


@pytest.mark.parametrize("name", HEADS)
def test_equal_rows_do_not_add_up_to_more_than_rounding_of_their_terms(name):
    """In single precision, for 200,000 rows and a label that is almost certain."""
    rows, epsilon = 200_000, float(np.finfo(np.float32).eps)
    index = np.arange(rows, dtype=np.uint32)
    for at in (-11.0, -5.0, 0.0, 3.0, 11.0, 15.0):
        outputs = {
            "bernoulli": [at],
            "categorical": [at, -1.5, 0.3],
            "normal": [at],
            "normal, scales": [0.3, at],
            "student": [at],
            "student, scales": [0.3, at],
            "poisson": [at],
        }
        old = np.array(outputs[name])[:, None]
        label = 1.0 if name == "bernoulli" and at > 0 else 0.0
        head = replace(HEADS[name], num_outputs=len(old))
        old, new = np.float32(old), np.float32(old + np.float32(0.05))
        new[1:] = old[1:]
        scores = [
            score(head, np.repeat(values, rows, 1), np.full(rows, label), np.float32)
            for values in (new, old)
        ]
        found, _ = sums_of(*scores, index)
        exact = [score(head, values, [label], np.float64)[0] for values in (new, old)]
        difference = rows * (exact[0] - exact[1])
        terms = rows * (abs(exact[0]) + abs(exact[1]))
        assert abs(found - difference) <= 4 * epsilon * terms
        if name == "bernoulli" and at == 11.0:
            assert abs(found - difference) < 1e-6


def test_sums_are_in_double_precision():
    """The terms' own type would lose what a block changes beside what the other rows hold."""
    rng, index = np.random.default_rng(3), np.array([2, 5, 6, 11, 40], np.uint32)
    old = rng.standard_normal(50).astype(np.float32)
    new = rng.standard_normal(5).astype(np.float32)
    new[0] = old[2] = 2.0**24
    changes, total = sums_of(new, old, index)
    exact = [float(a) - float(b) for a, b in zip(new, old[index], strict=True)]
    assert changes == pytest.approx(math.fsum(exact), abs=1e-12)
    assert total == pytest.approx(math.fsum(map(float, new)), abs=1e-8)
    assert np.float32(total) - np.float32(2.0**24) != total - 2.0**24


# --- Against the model ---------------------------------------------------------------------------


def compare(model, x, y, sweeps=20, scale=0.4, **options):
    """Set the engine up, run it in double precision beside the model, and return its run."""
    run = start("fused", model, x, y, **options)
    inputs = make_inputs(run, 1, sweeps, scale=scale, seed=5)
    record = assert_as_trace(run, inputs)
    assert 0 < record.accepted.sum() < record.accepted.numel()
    return run, inputs, record


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def number(value):
    return torch.tensor(value, dtype=torch.float64)


PRIORS = {
    "HalfNormal": lambda: dist.HalfNormal(number(0.8)),
    "HalfCauchy": lambda: dist.HalfCauchy(number(1.7)),
    "Exponential": lambda: dist.Exponential(number(2.3)),
    "Gamma": lambda: dist.Gamma(number(2.5), number(1.3)),
    "InverseGamma": lambda: dist.InverseGamma(number(3.0), number(2.0)),
    "LogNormal": lambda: dist.LogNormal(number(0.3), number(0.6)),
}
OTHER_PRIORS = {
    "Weibull": lambda: dist.Weibull(number(1.0), number(2.0)),
    "Uniform": lambda: dist.Uniform(number(0.1), number(3.0)),
    "Chi2": lambda: dist.Chi2(number(3.0)),
    "TransformedDistribution": lambda: dist.TransformedDistribution(
        dist.Normal(number(0.0), number(1.0)), [dist.transforms.ExpTransform()]
    ),
}


@pytest.mark.parametrize("prior", PRIORS)
def test_priors_of_the_observation_scale(prior):
    """Log densities, constants and Jacobian included, and ratios of the scale's block."""
    model = BayesianMLP([2, 1], likelihood="normal", observation_scale=PRIORS[prior]())
    run, _, record = compare(model, double(9, 2), double(9), likelihood_scale=0.3)
    assert run.problem.partition.blocks[-1].index == (3,)
    assert 0 < record.accepted[..., -1].sum() < 20


@pytest.mark.parametrize("prior", OTHER_PRIORS)
def test_other_priors_of_the_observation_scale_are_refused(prior):
    model = BayesianMLP([2, 1], likelihood="normal", observation_scale=OTHER_PRIORS[prior]())
    x, y = double(9, 2), double(9)
    named = f"the prior of its observation scale is {prior}"
    with pytest.raises(ValueError, match=f"engine='fused' cannot run this model: {named}"):
        start("fused", model, x, y)
    assert start("feedforward", model, x, y).problem.engine.name == "feedforward"


@pytest.mark.parametrize("rows", [1, 2, TILE - 1, TILE, TILE + 1, 2 * TILE + 77])
@pytest.mark.parametrize("blocks", ["node", "layer"])
def test_rows_beyond_a_tile(rows, blocks):
    """Fewer than a tile, whole tiles and what is left; widths around the groups of four."""
    x, y = double(rows, 5), torch.randint(0, 5, (rows,))
    model = BayesianMLP([5, 6, 9, 4, 5], activation=["tanh", "relu", "sigmoid"])
    compare(model, x, y, blocks=blocks, sweeps=4, scale=0.2, likelihood_scale=min(1.0, 40 / rows))


@pytest.mark.parametrize("batch_size", [1, TILE + 3])
def test_batches_beyond_a_tile(batch_size):
    x, y = double(2 * TILE, 3), double(2 * TILE, 2)
    model = BayesianMLP([3, 6, 2], activation="tanh", likelihood="normal")
    factor = min(1.0, 20 / batch_size)
    compare(model, x, y, batch_size=batch_size, likelihood_scale=factor, parts={1: 2})


def test_networks_wider_and_narrower_than_their_inputs():
    x, y = double(20, 1), torch.randint(0, 2, (20,))
    compare(BayesianMLP([1, 13, 1, 11, 2], activation="tanh"), x, y)
    x = double(20, 17)
    compare(BayesianMLP([17, 2, 2]), x, y, parts={1: 5})


def test_data_that_are_not_contiguous():
    """Transposed and strided views, and labels of another dtype."""
    x, y = double(3, 40).T[::2], torch.randint(0, 2, (40, 3), dtype=torch.int8)[::2, 1]
    assert not x.is_contiguous()
    assert not y.is_contiguous()
    compare(BayesianMLP([3, 4, 2]), x, y, batch_size=7)
    compare(BayesianMLP([3, 4, 1], likelihood="bernoulli"), x, y.bool())
    outputs = double(2, 20).T
    assert not outputs.is_contiguous()
    compare(BayesianMLP([3, 4, 2], likelihood="normal"), x, outputs)


@pytest.mark.parametrize("options", [{"parts": {1: 3}}, {"blocks": "layer"}, {"blocks": "site"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_first_layer_increments_in_pieces_are_the_same_bit_for_bit(options, dtype, monkeypatch):
    """Where they do not all fit in memory, they are computed when their blocks come up."""
    x, y = torch.randn(TILE + 30, 7, dtype=dtype), torch.randint(0, 3, (TILE + 30,))
    run = start("fused", BayesianMLP([7, 5, 3]), x, y, likelihood_scale=0.1, **options)
    engine, inputs = run.problem.engine, make_inputs(run, 1, 10, scale=0.1, seed=5)
    whole = run_on(run, inputs)
    pieces, held = len(engine._net.piece_nodes), len(engine._kept[0][0].deltas)
    assert held == pieces > 1
    assert_decides_both_ways(whole.accepted)
    at_least = int(np.diff(engine._net.piece_starts).max())
    size = engine._kept[0][0].deltas[0].nbytes
    for at_once in (1, 2, 4, pieces - 1):
        # Memory for so many on all rows, and for half a piece besides
        room = int((at_once + 0.5) * size)
        monkeypatch.setattr(allocation, "DELTA_BYTES", room)
        monkeypatch.setattr(allocation, "MOST_DELTA_BYTES", room)
        engine._kept.clear()
        assert_identical(run_on(run, inputs), whole)
        assert at_least <= len(engine._kept[0][0].deltas) <= max(at_once, at_least)
        if at_least == 1:  # else chunks end where blocks do
            assert len(engine._kept[0][0].deltas) == at_once


@pytest.mark.parametrize(("inputs", "rows", "held"), [(4, 100, 7), (8, 100, 8), (40, 1000, 3)])
def test_increments_fill_the_cache_or_are_as_many_as_inputs(inputs, rows, held, monkeypatch):
    """Rows are read anew for each part of them, which costs as much as increments of all inputs."""
    padded = -(-rows // LANES) * LANES
    monkeypatch.setattr(allocation, "DELTA_BYTES", 7 * 128 * 8)
    monkeypatch.setattr(allocation, "MOST_DELTA_BYTES", 3 * 1024 * 8)
    run = start("fused", BayesianMLP([inputs, 60, 2]), double(rows, inputs), torch.ones(rows))
    engine = run.problem.engine
    (work,) = allocation.make_works(engine._net, engine._data, rows)
    assert work.deltas.shape == (held, padded)
    assert np.diff(work.chunk_starts).max() == held


def memory_of(work):
    """All that a call may find full of anything."""
    said = {"num_rows", "chunk_starts", "segment_ends", *work._fields[1:4]}
    return [values for name, values in work._asdict().items() if name not in said]


def test_rows_begin_with_lines_of_the_cache_wherever_they_are_in_a_page():
    run = start("fused", BayesianMLP([3, 4, 2]), double(70, 3), torch.ones(70))
    engine = run.problem.engine
    (work,) = allocation.make_works(engine._net, engine._data, 70)
    arrays = memory_of(work)
    assert {values.ctypes.data % 64 for values in arrays} == {0}
    assert len({values.ctypes.data % 4096 for values in arrays}) > len(arrays) // 2


def test_memory_is_made_anew_for_batches_of_another_size():
    """And the results do not depend on what was in it."""
    x, y = double(40, 3), torch.randint(0, 2, (40,))
    run, inputs, record = compare(BayesianMLP([3, 4, 2]), x, y)
    works = run.problem.engine._kept
    run_on(run, inputs._replace(rows=torch.arange(9).expand(1, 20, 9)))
    assert works[0][0].num_rows == 9
    again = run_on(run, inputs)
    assert works[0][0].num_rows == 40
    for (memory_of_call,) in works:
        for values in memory_of(memory_of_call):
            values.fill(77)
    for other in (again, run_on(run, inputs)):
        assert_identical(other, record)


def test_arguments_are_left_as_they_are():
    """Those that the compiled code writes to, scales that it tunes among them, are its own."""
    x, y = double(12, 3), torch.randint(0, 2, (12,))
    run, inputs, _ = compare(BayesianMLP([3, 4, 2]), x, y, batch_size=5)
    inputs = inputs._replace(gains=torch.ones(20, dtype=torch.float64))
    *tensors, (state,), gains, _ = inputs
    tensors += [state.scales, gains]
    before = [tensor.clone() for tensor in tensors]
    learnt = run_on(run, inputs).adaptation[0].scales
    assert (learnt[:, -1] != state.scales).any()
    assert all(torch.equal(one, other) for one, other in zip(tensors, before, strict=True))


# --- Compilation and its cache -------------------------------------------------------------------


def test_compiled_code_that_cannot_be_kept_is_warned_of_before_the_first_sweep(monkeypatch):
    monkeypatch.setattr(compiled.run_sweeps, "_cache", NullCache())
    _warn_once.cache_clear()
    x, y = torch.randn(9, 2), torch.randint(0, 2, (9,))
    with pytest.warns(
        UserWarning, match="has to compile anew in every process, .* NUMBA_CACHE_DIR"
    ):
        start("fused", BayesianMLP([2, 2, 2]), x, y)
    start("fused", BayesianMLP([2, 2, 2]), x, y)  # said once: a second warning is an error here


def compiled_sources():
    """Names of the modules whose text decides what is compiled.

    Those that have compiled functions, and those whose names these functions use: their constants
    and tuples are compiled in.
    """
    folder, found = Path(compiled.__file__).parent, set()
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        used = {
            name.id
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef) and is_compiled(function)
            for name in ast.walk(function)
            if isinstance(name, ast.Name)
        }
        imported = {
            alias.asname or alias.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyro_fnbg")
            for alias in node.names
        }
        modules = {module for name, module in imported.items() if name in used}
        modules.discard("pyro_fnbg.core.compiling")  # where to keep it, not what it is
        found |= {path.name} if used else set()
        found |= {f"{module.removeprefix('pyro_fnbg.engines.fused.')}.py" for module in modules}
    return found


def is_compiled(function):
    calls = [call.func if isinstance(call, ast.Call) else call for call in function.decorator_list]
    names = {"compiled", "njit", "numba.njit", "overload", "intrinsic"}
    return any(ast.unparse(call) in names for call in calls)


def test_cache_on_disk_follows_every_source_of_the_compiled_code():
    """Numba itself looks at one file and at a function's closure: the others enter by that."""
    sources = compiled_sources()
    assert {"compiled.py", "elementwise.py", "memory.py", "moves.py"} <= sources
    assert set(compiled._SOURCES) == sources
    folder = Path(compiled.__file__).parent
    text = b"".join(folder.joinpath(name).read_bytes() for name in compiled._SOURCES)
    closure = [cell.cell_contents for cell in compiled.run_sweeps.py_func.__closure__]
    assert hashlib.sha256(text).hexdigest() in closure


IN_ANOTHER_PROCESS = """
import torch
from pyro_fnbg import BayesianMLP, FNBG
from pyro_fnbg.engines.fused.compiled import run_sweeps

kernel = FNBG(BayesianMLP([2, 2, 2]), engine="fused")
kernel.setup(0, torch.randn(9, 2), torch.randint(0, 2, (9,)))
stats = run_sweeps.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


@pytest.mark.slow  # compiles twice, from nothing
def test_later_processes_find_the_compiled_code_until_a_source_changes(tmp_path):
    shutil.copytree(ROOT / "pyro_fnbg", tmp_path / "pyro_fnbg")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    found = []
    for changed in ("", "", "elementwise.py", ""):
        if changed:
            path = tmp_path / "pyro_fnbg" / "engines" / "fused" / changed
            path.write_text(path.read_text(encoding="utf-8") + "\n# A change\n", encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip
        found.append((done.stdout.strip(), "compiling the fused engine" in done.stderr))
    compiles, reads = ("0 1", True), ("1 0", False)
    assert found == [compiles, reads, compiles, reads]


# --- Bounds --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_compiled_code_stays_within_its_arrays(tmp_path):
    """With every index checked, which is left out otherwise: networks and batches of all kinds."""
    tests = [
        "tests/test_seeded.py",
        "tests/engines/test_fused.py",
        "tests/engines/test_equality.py",
        "tests/exactness/test_gibbs_on_engines.py",
        "tests/exactness/test_pcn_on_engines.py",
        "tests/exactness/test_rescaling_on_engines.py",
        "tests/chains/test_setup.py",
    ]
    checked = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    # Apart from what would compile anew, or looks at what is kept on disk
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-k", "not disk and not cache", *tests]
    run = subprocess.run(command, cwd=ROOT, env=checked, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:]
