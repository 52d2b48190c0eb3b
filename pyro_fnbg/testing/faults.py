"""Seeded faults: small mistakes put into a package, each with a test that must then fail.

A ``Fault`` replaces one piece of a module's source. ``run_fault`` runs the named test in a process
of its own, where ``install_requested``, called by ``conftest.py``, compiles the changed source in
place of the file; nothing is written to the package. ``assert_killed`` then accepts only a test
that ran with the fault loaded and failed by an assertion: a crash, a timeout or a broken run is no
proof of power.

Only Python's own library is imported here, so that the file can be loaded by its path before a
package into which a fault goes, this one included.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

__all__ = [
    "Fault",
    "FaultRun",
    "assert_killed",
    "assert_passes",
    "install_requested",
    "pytest_exception_interact",
    "run_fault",
]

FAULT_VARIABLE = "PYRO_FNBG_FAULT"  # the name of a fault, or a whole fault as JSON
REPORT_VARIABLE = "PYRO_FNBG_FAULT_REPORT"  # the file that takes one JSON record per event


@dataclasses.dataclass(frozen=True)
class Fault:
    """State a mistake in a package and the test that must notice it.

    Attributes:
        name: A short name, used as the test id.
        module: The module to change, such as ``"my_package.kernel"``.
        old: Text that occurs exactly once in the module's source; it may span lines.
        new: What stands there instead.
        killed_by: The pytest node id of the test that must fail, relative to the repository.
        engine: The engine whose sweeps it makes wrong; "" where the mistake is outside of them.

    Example:
        >>> fault = Fault(
        ...     name="sign",
        ...     module="my_package.kernel",
        ...     old="log_u < log_ratio",
        ...     new="log_u > log_ratio",
        ...     killed_by="tests/test_kernel.py::test_joint_distribution",
        ... )
        >>> fault.apply("accepted = log_u < log_ratio")
        'accepted = log_u > log_ratio'
    """

    name: str
    module: str
    old: str
    new: str
    killed_by: str
    engine: str = ""

    def apply(self, source: str) -> str:
        """Return the faulty source.

        Raises:
            ValueError: If the old text does not stand there exactly once.
        """
        count = source.count(self.old)
        if count != 1:
            raise ValueError(
                f"fault {self.name!r}: its old text occurs {count} times in {self.module}, "
                f"must be exactly once: {self.old!r}"
            )
        return source.replace(self.old, self.new)

    def source(self, root: Path) -> str:
        """Read the module's source as it stands in the repository."""
        path = root.joinpath(*self.module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return file.read_text(encoding="utf-8")

    def without_effect(self) -> Fault:
        """Return the same fault with nothing changed, to tell a kill from a broken run."""
        return dataclasses.replace(self, name=f"{self.name}-without-effect", new=self.old)


@dataclasses.dataclass(frozen=True)
class FaultRun:
    """Tell what a test run with a fault did.

    Attributes:
        timeout: The time limit in seconds.
        returncode: Pytest's exit code, or None when it ran past the time limit.
        output: Its standard output and standard error.
        loaded: The modules that were loaded with the fault.
        failures: For each exception, the phase ("setup", "call", ...) and the names of its type
            and that type's bases; a group counts as each exception in it.

    Example:
        >>> done = FaultRun(120.0, 1, "1 failed in 0.2s", ("my_package.kernel",), ())
        >>> done.returncode
        1
    """

    timeout: float
    returncode: int | None
    output: str
    loaded: tuple[str, ...]
    failures: tuple[tuple[str, tuple[str, ...]], ...]


# --- In the process under test -----------------------------------------------------------------


class _FaultyLoader(importlib.machinery.SourceFileLoader):
    """Compiles the faulty source, and neither reads nor writes bytecode files."""

    def __init__(self, fault: Fault, path: str) -> None:
        super().__init__(fault.module, path)
        self.fault = fault

    def get_code(self, fullname: str) -> CodeType:
        source = importlib.util.decode_source(self.get_data(self.path))
        return compile(self.fault.apply(source), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _record(event="loaded", module=module.__name__)


class _FaultyFinder(importlib.abc.MetaPathFinder):
    """Finds the one module that has a fault, and leaves all others to the usual finders."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.fault.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        return importlib.util.spec_from_file_location(
            fullname,
            spec.origin,
            loader=_FaultyLoader(self.fault, spec.origin),
            submodule_search_locations=spec.submodule_search_locations,
        )


def install_requested(faults: Sequence[Fault] = (), compiled: Collection[str] = ()) -> None:
    """Put the fault in place that the environment asks for, if any.

    To be called in ``conftest.py`` before anything imports the package into which faults go.

    Args:
        faults: Those that can be asked for by name, as in ``PYRO_FNBG_FAULT=sign pytest``.
        compiled: Modules whose functions Numba compiles and keeps on disk by their sources. With a
            fault in one of them nothing is compiled: the functions do the same, and have the fault.

    Raises:
        LookupError: If no fault has the name.
        RuntimeError: If the faulty module is imported already.

    Example:
        >>> install_requested()  # at the top of conftest.py; without a request, it does nothing
    """
    request = os.environ.get(FAULT_VARIABLE)
    if not request:
        return
    if request.startswith("{"):
        fault = Fault(**json.loads(request))
    else:
        by_name = {fault.name: fault for fault in faults}
        if request not in by_name:
            raise LookupError(
                f"{FAULT_VARIABLE}={request!r} is no fault; allowed: {sorted(by_name)}"
            )
        fault = by_name[request]
    if fault.module in sys.modules:
        raise RuntimeError(f"{fault.module} is already imported; install faults before it")
    if fault.module in compiled:
        os.environ["NUMBA_DISABLE_JIT"] = "1"
    sys.meta_path.insert(0, _FaultyFinder(fault))
    print(f"fault {fault.name!r} is in {fault.module}", file=sys.stderr)


def pytest_exception_interact(call: Any, report: Any) -> None:
    """Record what a test failed by; a hook that `conftest.py` hands on to pytest.

    Args:
        call: Pytest's, with the exception.
        report: Pytest's, with the phase.

    Example:
        >>> from pyro_fnbg.testing import pytest_exception_interact  # in conftest.py, and no more
    """
    for error in _leaves(call.excinfo.value):
        names = [kind.__name__ for kind in type(error).__mro__]
        _record(event="failed", when=getattr(report, "when", "collect"), types=names)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group, or the one exception."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _record(**record: Any) -> None:
    """Append a record to the report, if one is asked for."""
    path = os.environ.get(REPORT_VARIABLE)
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


# --- In the process that judges ----------------------------------------------------------------


def run_fault(
    fault: Fault, root: Path, tests: Sequence[str] = (), timeout: float = 120.0
) -> FaultRun:
    r"""Run the fault's test, or `tests`, in a process that has the fault.

    The process finds modules in `root`, and where this one does.

    Args:
        fault: The mistake.
        root: The folder in which pytest is started.
        tests: Node ids to run instead of the fault's own test.
        timeout: Seconds after which the process is ended; a hang is no kill.

    Returns:
        What pytest said, the modules that had the fault, and what tests failed by.

    Example:
        >>> fault = Fault("double", "halves", old="x / 2", new="x * 2", killed_by="test_halves.py")
        >>> conftest = Path(__file__).read_text("utf-8") + "\ninstall_requested()\n"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "conftest.py").write_text(conftest)
        ...     _ = Path(folder, "halves.py").write_text("def half(x):\n    return x / 2\n")
        ...     test = "from halves import half\n\ndef test_half():\n    assert half(4) == 2\n"
        ...     _ = Path(folder, "test_halves.py").write_text(test)
        ...     done = run_fault(fault, Path(folder))
        >>> done.loaded, done.returncode
        (('halves',), 1)
        >>> assert_killed(fault, done)
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "COV_CORE_", "COVERAGE_"))
    }
    search = [str(root), *sys.path]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.jsonl")
        report.touch()
        environment |= {
            FAULT_VARIABLE: json.dumps(dataclasses.asdict(fault)),
            REPORT_VARIABLE: str(report),
            "PYTHONPATH": os.pathsep.join(filter(None, search)),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        options = ["-p", "no:xdist", "-p", "no:cacheprovider", "-q", "-m", ""]
        options += [] if tests else ["-x"]
        command = [sys.executable, "-m", "pytest", *(tests or [fault.killed_by]), *options]
        try:
            done = subprocess.run(
                command,
                cwd=root,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                timeout=timeout,
            )
            returncode, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as expired:
            returncode, output = None, (expired.stdout or b"").decode(errors="replace")
        records = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    return FaultRun(
        timeout=timeout,
        returncode=returncode,
        output=output,
        loaded=tuple(r["module"] for r in records if r["event"] == "loaded"),
        failures=tuple((r["when"], tuple(r["types"])) for r in records if r["event"] == "failed"),
    )


def assert_killed(fault: Fault, run: FaultRun) -> None:
    """Assert that the test noticed the fault: it ran with it and failed by an assertion.

    Args:
        fault: The mistake.
        run: What ``run_fault`` returned.

    Raises:
        AssertionError: If not; says why, with the run's output.

    Example:
        >>> fault = Fault("sign", "my_package.kernel", "<", ">", "tests/test_kernel.py::test_joint")
        >>> failed = (("call", ("AssertionError", "Exception")),)
        >>> run = FaultRun(120.0, 1, "1 failed in 0.2s", ("my_package.kernel",), failed)
        >>> assert_killed(fault, run)
        >>> assert_killed(fault, dataclasses.replace(run, returncode=0))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        AssertionError: the test passes all the same: fault 'sign' in my_package.kernel, ...
    """
    context = f"fault {fault.name!r} in {fault.module}, {fault.killed_by}\n{run.output}"
    _require(run.returncode is not None, f"ran past {run.timeout:g} s: {context}")
    _require(run.returncode != 0, f"the test passes all the same: {context}")
    _require(run.returncode == 1, f"pytest broke off with exit code {run.returncode}: {context}")
    _require(fault.module in run.loaded, f"the faulty module was not loaded: {context}")
    summary = run.output.strip().splitlines()[-1]
    _require(re.search(r"\b1 failed\b", summary), f"not one failure: {context}")
    _require(not re.search(r"\berrors?\b", summary), f"an error, not a failure: {context}")
    _require(run.failures, f"no failure was recorded: {context}")
    for when, types in run.failures:
        # "Failed" is what pytest.raises and pytest.fail raise.
        _require(when == "call", f"failed in {when}, outside the test: {context}")
        _require(
            {"AssertionError", "Failed"} & set(types),
            f"failed by {types[0]}, not by an assertion: {context}",
        )


def assert_passes(fault: Fault, run: FaultRun) -> None:
    """Assert that tests passed with the module loaded through the harness.

    Args:
        fault: A change that alters nothing, such as ``fault.without_effect()``.
        run: What ``run_fault`` returned.

    Raises:
        AssertionError: If not; says why, with the run's output.

    Example:
        >>> fault = Fault("sign", "my_package.kernel", "<", ">", "tests/test_kernel.py::test_joint")
        >>> run = FaultRun(120.0, 0, "1 passed in 0.2s", ("my_package.kernel",), ())
        >>> assert_passes(fault.without_effect(), run)
    """
    context = f"{fault.name!r} in {fault.module}\n{run.output}"
    _require(run.returncode == 0, f"exit code {run.returncode}: {context}")
    _require(
        fault.module in run.loaded, f"the module was not loaded through the harness: {context}"
    )
    _require(not run.failures, f"{run.failures}: {context}")


def _require(condition: object, complaint: str) -> None:
    if not condition:
        raise AssertionError(complaint)
