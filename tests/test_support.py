"""Tests start alike, end in time, and draw nothing when they are imported."""

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
