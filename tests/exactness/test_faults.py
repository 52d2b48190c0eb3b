"""Every seeded fault is noticed by the test named with it, and the harness can tell."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyro_fnbg.engines.fused import compiled
from support import faults
from support.engines import ENGINES
from support.faults import (
    COMPILED,
    FAULTS,
    MISTAKES,
    ROOT,
    Fault,
    assert_killed,
    assert_passes,
    run_fault,
)

# --- The package's faults ----------------------------------------------------------------------


@pytest.mark.slow  # each takes a process of its own
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_noticed(fault):
    assert_killed(fault, run_fault(fault, ROOT))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_old_text_occurs_once(fault):
    assert fault.apply(fault.source(ROOT)) != fault.source(ROOT)


def test_names_are_unique():
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_is_put_into_every_engine(mistake, engine):
    (fault,) = [fault for fault in FAULTS if fault.name == f"{mistake}-{engine}"]
    assert fault.engine == engine


def test_faults_in_compiled_code_are_known_to_be():
    modules = {f"pyro_fnbg.engines.fused.{Path(name).stem}" for name in compiled._SOURCES}
    assert modules == COMPILED


@pytest.mark.slow  # the same tests run in the ordinary suite; here, in a process of their own
@pytest.mark.parametrize("is_compiled", [False, True])
def test_without_a_fault_the_named_tests_pass(is_compiled):
    # Otherwise a test that fails for another reason in a process of its own would count as a kill.
    alike = [fault for fault in FAULTS if (fault.module in COMPILED) == is_compiled]
    named = sorted({fault.killed_by for fault in alike})
    assert_passes(alike[0], run_fault(alike[0].without_effect(), ROOT, tests=named))


# --- The harness, on a small package -----------------------------------------------------------

ARITHMETIC = '''"""A package to break."""


def double(x):
    return 2 * x  # twice
'''
CONFTEST = """
from support import faults

faults.install_requested()
pytest_exception_interact = faults.pytest_exception_interact
"""
TESTS = """
import pytest
import toy
from toy.arithmetic import double


@pytest.fixture
def prepared():
    assert double(1) == 2


@pytest.mark.parametrize("x", [0, 1, 2])
def test_double(x):
    assert double(x) == x + x


def test_double_refuses():
    with pytest.raises(TypeError):
        double(None)


def test_two_failures_in_a_group():
    group = []
    for x in (1, 2):
        try:
            assert double(x) == x + x
        except AssertionError as error:
            group.append(error)
    if group:
        raise ExceptionGroup("both", group)


def test_setup(prepared):
    pass


def test_nothing():
    assert toy
"""
KILLED = Fault(
    name="adds_one",
    module="toy.arithmetic",
    old="return 2 * x  # twice",
    new="return 2 * x + 1",
    killed_by="tests/test_toy.py::test_double",
)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "__init__.py").write_text('"""A toy."""\n')
    (tmp_path / "toy" / "arithmetic.py").write_text(ARITHMETIC)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    (tmp_path / "tests" / "test_toy.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


@pytest.mark.slow  # in a process of its own
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"new": "return x", "killed_by": "tests/test_toy.py::test_double[1]"},
        {"new": "return str(x)", "killed_by": "tests/test_toy.py::test_double_refuses"},
        {"killed_by": "tests/test_toy.py::test_two_failures_in_a_group"},
        {
            "module": "toy",
            "old": '"""A toy."""',
            "new": "import toy.arithmetic as a\na.double = lambda x: 1",
        },
    ],
    ids=["parametrised", "one case", "nothing raised", "group", "package"],
)
def test_kill_is_recognised(toy, change):
    fault = dataclasses.replace(KILLED, **change)
    assert_killed(fault, run_fault(fault, toy))


@pytest.mark.slow  # in a process of its own
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"new": "return 2 * x  # a comment"}, "passes all the same"),
        ({"killed_by": "tests/test_toy.py::test_nothing"}, "passes all the same"),
        ({"new": "return 2 *"}, "broke off with exit code|not one failure|an error"),
        ({"new": "return missing"}, "failed by NameError, not by an assertion"),
        ({"old": "absent"}, "broke off with exit code|not one failure|an error"),
        ({"killed_by": "tests/test_toy.py::test_gone"}, "broke off with exit code 4"),
        ({"killed_by": "tests/test_toy.py::test_setup"}, "not one failure"),
        ({"module": "toy.other"}, "passes all the same"),
    ],
    ids=[
        "harmless",
        "weak test",
        "syntax error",
        "crash",
        "absent text",
        "no such test",
        "set-up",
        "not loaded",
    ],
)
def test_anything_else_is_no_kill(toy, change, complaint):
    fault = dataclasses.replace(KILLED, **change)
    with pytest.raises(AssertionError, match=complaint):
        assert_killed(fault, run_fault(fault, toy))


@pytest.mark.slow  # in a process of its own
def test_failure_without_the_faulty_module_is_no_kill(toy):
    (toy / "toy" / "arithmetic.py").write_text(ARITHMETIC.replace("2 * x", "3 * x"))
    fault = dataclasses.replace(KILLED, module="toy.other")
    with pytest.raises(AssertionError, match="faulty module was not loaded"):
        assert_killed(fault, run_fault(fault, toy))


@pytest.mark.slow  # in a process of its own
def test_fault_that_hangs_is_no_kill(toy):
    fault = dataclasses.replace(KILLED, new="while True: pass")
    with pytest.raises(AssertionError, match="ran past 3 s"):
        assert_killed(fault, run_fault(fault, toy, timeout=3.0))


@pytest.mark.slow  # in a process of its own
def test_harmless_change_passes(toy):
    harmless = dataclasses.replace(KILLED, new=KILLED.old + "\n    # a comment")
    assert_passes(harmless, run_fault(harmless, toy))
    assert_passes(KILLED, run_fault(KILLED.without_effect(), toy, tests=["tests"]))


def test_nothing_is_written_to_the_package(toy):
    before = sorted(toy.rglob("*"))
    assert_killed(KILLED, run_fault(KILLED, toy))
    assert sorted(toy.rglob("*")) == before
    assert (toy / "toy" / "arithmetic.py").read_text() == ARITHMETIC


@pytest.mark.slow  # in a process of its own
def test_stale_bytecode_does_not_hide_a_fault(toy):
    subprocess.run([sys.executable, "-m", "compileall", "-q", "toy"], cwd=toy, check=True)
    assert_killed(KILLED, run_fault(KILLED, toy))


@pytest.mark.slow  # in a process of its own
def test_own_conftest_puts_faults_in_place(toy):
    shutil.copy(ROOT / "tests" / "conftest.py", toy / "tests" / "conftest.py")
    assert_killed(KILLED, run_fault(KILLED, toy))


@pytest.mark.slow  # imports the package in a process of its own
def test_faults_go_into_modules_of_others_by_the_public_name(toy):
    conftest = CONFTEST.replace("support", "pyro_fnbg.testing")
    (toy / "tests" / "conftest.py").write_text(conftest)
    assert_killed(KILLED, run_fault(KILLED, toy))


def test_unknown_name_is_refused(monkeypatch):
    monkeypatch.setenv(faults.harness.FAULT_VARIABLE, "no_such_fault")
    with pytest.raises(LookupError, match="'no_such_fault' is no fault; allowed:"):
        faults.install_requested()


def test_fault_in_an_imported_module_is_refused(monkeypatch):
    fault = dataclasses.replace(KILLED, module="support.faults")
    monkeypatch.setattr(faults, "FAULTS", [fault])
    monkeypatch.setenv(faults.harness.FAULT_VARIABLE, fault.name)
    path = list(sys.meta_path)
    with pytest.raises(RuntimeError, match=r"support\.faults is already imported"):
        faults.install_requested()
    assert sys.meta_path == path


def test_no_fault_is_in_place_now():
    wanted = os.environ.get(faults.harness.FAULT_VARIABLE)
    assert not wanted, f"this run has the fault {wanted}"
    assert not any(isinstance(finder, faults.harness._FaultyFinder) for finder in sys.meta_path)


@pytest.mark.parametrize("text", ["return 3", "x"])
def test_text_that_does_not_occur_once_is_refused(text):
    with pytest.raises(ValueError, match=r"'adds_one': its old text occurs \d+ times"):
        dataclasses.replace(KILLED, old=text).apply(ARITHMETIC)
