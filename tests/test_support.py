"""Tests start alike; the statistical assertions pass what is right and fail what is wrong."""

import ast
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch
from hypothesis import settings

from support.limits import at_most, hearing_ctrl_c
from support.statistics import assert_expectation, assert_same_expectation, estimate


def ar1(correlation: float, num_chains: int, num_draws: int, seed: int) -> np.ndarray:
    """Draw stationary autoregressive chains of mean 0 and variance 1."""
    noise = np.random.default_rng(seed).normal(size=(num_chains, num_draws))
    draws = np.empty_like(noise)
    draws[:, 0] = noise[:, 0]
    for t in range(1, num_draws):
        draws[:, t] = correlation * draws[:, t - 1] + np.sqrt(1 - correlation**2) * noise[:, t]
    return draws


@pytest.mark.parametrize("repeat", [1, 2])
def test_every_test_starts_alike(repeat):
    drawn = [torch.rand(()).item(), np.random.rand(), random.random()]  # noqa: NPY002
    assert drawn == pytest.approx([0.4962566, 0.5488135, 0.8444219])  # seed 0
    assert not list(pyro.get_param_store())
    assert torch.get_default_dtype() is torch.float32
    assert torch.get_num_threads() == 1
    assert settings.default.derandomize
    assert settings.default.deadline is None
    pyro.param("left_behind", torch.zeros(1))
    torch.set_default_dtype(torch.float64)


@pytest.fixture
def normal_draws() -> torch.Tensor:
    return torch.randn(4, 1000, dtype=torch.float64)


@pytest.mark.parametrize("convert", [torch.Tensor.numpy, torch.Tensor.float, torch.Tensor.tolist])
def test_independent_normal_draws_pass(normal_draws, convert):
    assert_expectation(convert(normal_draws), 0.0)
    assert_expectation(convert(normal_draws**2), 1.0)


def test_one_chain_is_enough(normal_draws):
    assert_expectation(normal_draws[:1], 0.0)


def test_shifted_draws_fail_and_the_message_says_by_how_much(normal_draws):
    # The standard error is 1 / sqrt(4000) = 0.016, so the shift is more than 12 of them.
    with pytest.raises(AssertionError, match=r"mean 0\.\d+, expected 0: z = 1\d\.\d+ .* ess \d+"):
        assert_expectation(normal_draws + 0.2, 0.0)


def test_standard_error_of_correlated_draws():
    num_chains, num_draws, correlation = 4, 5000, 0.9
    draws = ar1(correlation, num_chains, num_draws, seed=1)
    exact = np.sqrt((1 + correlation) / (1 - correlation) / (num_chains * num_draws))
    assert estimate(draws).error == pytest.approx(exact, rel=0.25)
    assert_expectation(draws, 0.0)
    # As if draws were independent, the same error would be less than a quarter of this.
    assert estimate(draws).error > 4 * draws.std() / np.sqrt(draws.size) * 0.75


def test_z_values_have_variance_one():
    zs = []
    for seed in range(200):
        mean, error, _ = estimate(ar1(0.5, 2, 500, seed))
        zs.append(mean / error)
    # The mean of 200 squared normal values has standard deviation sqrt(2 / 200) = 0.1.
    assert np.mean(np.square(zs)) == pytest.approx(1.0, abs=0.45)


@pytest.mark.parametrize("check", [assert_expectation, assert_same_expectation])
def test_too_few_effective_draws_are_refused(check):
    draws = ar1(0.99, 2, 1000, seed=2)
    other = draws if check is assert_same_expectation else 0.0
    with pytest.raises(AssertionError, match=r"effective sample size \d+\.\d is below 100"):
        check(draws, other)
    check(draws, other, min_ess=1.0)


def test_chains_that_disagree_are_refused(normal_draws):
    offsets = torch.tensor([[-3.0], [-1.0], [1.0], [3.0]])
    with pytest.raises(AssertionError, match="effective sample size"):
        assert_expectation(normal_draws + offsets, 0.0)


def test_stuck_and_non_finite_draws_are_refused(normal_draws):
    with pytest.raises(AssertionError, match="all draws equal 2"):
        assert_expectation(torch.full((4, 1000), 2.0), 2.0)
    normal_draws[0, 0] = float("nan")
    with pytest.raises(AssertionError, match="1 draws are not finite"):
        assert_expectation(normal_draws, 0.0)


def test_draws_without_a_chain_dimension_are_an_error(normal_draws):
    with pytest.raises(ValueError, match=r"shape \(1000,\); expected \(chain, draw\)"):
        assert_expectation(normal_draws[0], 0.0)


def test_two_samplers_are_compared_with_both_errors(normal_draws):
    other = torch.randn(2, 500)
    assert_same_expectation(normal_draws, other)
    with pytest.raises(AssertionError, match="exceeds 4.5"):
        assert_same_expectation(normal_draws + 0.3, other)
    # Errors 1 / sqrt(4000) and 1 / sqrt(1000) add up to 0.035 in quadrature.
    shifted = normal_draws - normal_draws.mean() + other.mean() + 0.1
    with pytest.raises(AssertionError, match=r"z = [23]\.\d+ exceeds 1"):
        assert_same_expectation(shifted, other, z_max=1.0)


def test_a_test_that_waits_fails_at_its_limit_and_one_that_ends_is_left_alone():
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeoutError, match=r"still at it after 0\.05 seconds"), at_most(0.05):
        time.sleep(60)
    with at_most(0.05):
        pass
    time.sleep(0.1)
    assert signal.getsignal(signal.SIGALRM) is before


def test_ctrl_c_is_heard_where_sigint_was_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as under nohup
    try:
        with hearing_ctrl_c(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


# --- Nothing is drawn at import ------------------------------------------------------------------

TESTS = Path(__file__).parent
RANDOM = {
    "bernoulli", "bernoulli_", "choice", "default_rng", "Generator", "manual_seed", "multinomial",
    "noisy_xor", "normal", "normal_", "permutation", "poisson", "rand", "rand_like", "randint",
    "randn", "randn_like", "random", "random_", "RandomState", "randperm", "rsample", "sample",
    "set_rng_seed", "shuffle", "standard_normal", "uniform", "uniform_",
}  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def run_at_once(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs with the node itself: not what is inside functions that it defines."""
    yield node
    inside = ast.iter_child_nodes(node)
    if isinstance(node, (*FUNCTIONS, ast.Lambda)):
        defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        inside = iter([*getattr(node, "decorator_list", []), *defaults])
    for child in inside:
        yield from run_at_once(child)


def drawn_by(statements: list[ast.stmt], drawing: set[str]) -> list[int]:
    """Return the lines of the statements' calls of drawing functions."""
    calls = [
        node
        for statement in statements
        for node in run_at_once(statement)
        if isinstance(node, ast.Call)
    ]
    names = [getattr(call.func, "attr", getattr(call.func, "id", None)) for call in calls]
    return [call.lineno for call, name in zip(calls, names, strict=True) if name in drawing]


def with_own(module: ast.Module, drawing: set[str]) -> set[str]:
    """Add the functions of a module that draw when they are called."""
    functions = [node for node in module.body if isinstance(node, FUNCTIONS)]
    found = drawing | {node.name for node in functions if drawn_by(node.body, drawing)}
    return found if found == drawing else with_own(module, found)


def drawn_at_import(source: str, drawing: set[str]) -> list[int]:
    module = ast.parse(source)
    return drawn_by(module.body, with_own(module, drawing))


def test_no_test_module_draws_at_import():
    drawing = RANDOM
    for path in sorted((TESTS / "support").glob("*.py")):
        drawing = with_own(ast.parse(path.read_text(encoding="utf-8")), drawing)
    paths = [path for path in TESTS.rglob("*.py") if "benchmarks" not in path.parts]
    assert Path(__file__) in paths
    found = {
        f"{path.relative_to(TESTS)}:{line}"
        for path in paths
        for line in drawn_at_import(path.read_text(encoding="utf-8"), drawing)
    }
    assert not found, "make the data in a fixture or a function that the tests call"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("x = torch.randn(2)", [1]),
        ("rng = np.random.default_rng(0)", [1]),
        ("class A:\n    x = noisy_xor()", [2]),
        ("def f(x=torch.rand(2)): ...", [1]),
        ("@mark(randint(3))\ndef f(): ...", [1]),
        ("def f():\n    return g()\ndef g():\n    return randn(2)\nx = [f()]", [5]),
        ("def f():\n    return randn(2)", []),
        ("def f():\n    def g():\n        return randn(2)\n    return g\nx = f()", []),
        ("x = lambda: torch.randn(2)", []),
        ("x = torch.linspace(0, 1, 2)", []),
    ],
)
def test_draws_at_import_are_found_wherever_they_are(source, lines):
    assert drawn_at_import(source, RANDOM) == lines
