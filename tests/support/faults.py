"""Seeded faults: small mistakes put into the package, each with a test that must then fail.

A `Fault` replaces one piece of a module's source. `run_fault` runs the named test in a process of
its own, where `install_requested`, called by `conftest.py`, compiles the changed source in place
of the file; nothing is written to the package. `assert_killed` then accepts only a test that ran
with the fault loaded and failed by an assertion: a crash, a timeout or a broken run is no proof of
power.

To add a fault, append to `FAULTS` at the end of this file. To look at one by hand:
``PYRO_FNBG_FAULT=<name> python -m pytest <test>``.
"""

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FAULT_VARIABLE = "PYRO_FNBG_FAULT"  # a name in FAULTS, or a whole fault as JSON
REPORT_VARIABLE = "PYRO_FNBG_FAULT_REPORT"  # the file that takes one JSON record per event
# Modules whose functions the fused engine compiles
COMPILED = {
    f"pyro_fnbg.engines.{name}"
    for name in ("compiled", "elementwise", "layers", "memory", "proposals")
}
TIMEOUT = 120.0  # seconds; a fault that makes the test hang is not killed by an assertion


@dataclasses.dataclass(frozen=True)
class Fault:
    """A mistake in the package and the test that must notice it.

    Attributes:
        name: A short name, used as the test id.
        module: The module to change, such as ``"pyro_fnbg.step"``.
        old: Text that occurs exactly once in the module's source; it may span lines.
        new: What stands there instead.
        killed_by: The pytest node id of the test that must fail, relative to the repository.
        is_slow: Whether it is left to the slow tests, since it compiles the fused engine anew.
    """

    name: str
    module: str
    old: str
    new: str
    killed_by: str
    is_slow: bool = False

    def apply(self, source: str) -> str:
        """Return the faulty source."""
        count = source.count(self.old)
        if count != 1:
            raise ValueError(
                f"fault {self.name!r}: its old text occurs {count} times in {self.module}, "
                f"must be exactly once: {self.old!r}"
            )
        return source.replace(self.old, self.new)

    def source(self, root: Path = ROOT) -> str:
        """Read the module's source as it stands in the repository."""
        path = root.joinpath(*self.module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return file.read_text(encoding="utf-8")

    def without_effect(self) -> "Fault":
        """Return the same fault with nothing changed, to tell a kill from a broken run."""
        return dataclasses.replace(self, name=f"{self.name}-without-effect", new=self.old)


@dataclasses.dataclass(frozen=True)
class FaultRun:
    """What a test run with a fault did.

    Attributes:
        returncode: Pytest's exit code, or None when it ran past the time limit.
        output: Its standard output and standard error.
        loaded: The modules that were loaded with the fault.
        failures: For each exception, the phase ("setup", "call", ...) and the names of its type
            and that type's bases; a group counts as each exception in it.
    """

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


def install_requested() -> None:
    """Put the fault in place that the environment asks for, if any."""
    request = os.environ.get(FAULT_VARIABLE)
    if not request:
        return
    if request.startswith("{"):
        fault = Fault(**json.loads(request))
    else:
        by_name = {fault.name: fault for fault in FAULTS}
        if request not in by_name:
            raise LookupError(
                f"{FAULT_VARIABLE}={request!r} is no fault; allowed: {sorted(by_name)}"
            )
        fault = by_name[request]
    if fault.module in sys.modules:
        raise RuntimeError(f"{fault.module} is already imported; install faults before it")
    sys.meta_path.insert(0, _FaultyFinder(fault))
    print(f"fault {fault.name!r} is in {fault.module}", file=sys.stderr)


def pytest_exception_interact(call: Any, report: Any) -> None:
    """Record what a test failed by; a hook that `conftest.py` hands on to pytest."""
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


def run_fault(fault: Fault, root: Path = ROOT, tests: Sequence[str] = ()) -> FaultRun:
    """Run the fault's test, or `tests`, in a process that has the fault."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "COV_CORE_", "COVERAGE_"))
    }
    search = [str(ROOT / "tests"), str(root), environment.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.jsonl")
        report.touch()
        environment |= {
            FAULT_VARIABLE: json.dumps(dataclasses.asdict(fault)),
            REPORT_VARIABLE: str(report),
            "PYTHONPATH": os.pathsep.join(filter(None, search)),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if fault.module in COMPILED:
            # Compiled code is cached by its sources on disk, so a fault in it must neither meet nor
            # leave any; and it need not run fast
            environment |= {"NUMBA_CACHE_DIR": folder, "NUMBA_OPT": "1"}
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
                timeout=TIMEOUT,
            )
            returncode, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as expired:
            returncode, output = None, (expired.stdout or b"").decode(errors="replace")
        records = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    return FaultRun(
        returncode=returncode,
        output=output,
        loaded=tuple(r["module"] for r in records if r["event"] == "loaded"),
        failures=tuple((r["when"], tuple(r["types"])) for r in records if r["event"] == "failed"),
    )


def assert_killed(fault: Fault, run: FaultRun) -> None:
    """Assert that the test noticed the fault: it ran with it and failed by an assertion."""
    context = f"fault {fault.name!r} in {fault.module}, {fault.killed_by}\n{run.output}"
    assert run.returncode is not None, f"ran past {TIMEOUT:g} s: {context}"
    assert run.returncode != 0, f"the test passes all the same: {context}"
    assert run.returncode == 1, f"pytest broke off with exit code {run.returncode}: {context}"
    assert fault.module in run.loaded, f"the faulty module was not loaded: {context}"
    summary = run.output.strip().splitlines()[-1]
    assert re.search(r"\b1 failed\b", summary), f"not one failure: {context}"
    assert not re.search(r"\berrors?\b", summary), f"an error, not a failure: {context}"
    assert run.failures, f"no failure was recorded: {context}"
    for when, types in run.failures:
        # "Failed" is what pytest.raises and pytest.fail raise.
        assert when == "call", f"failed in {when}, outside the test: {context}"
        assert {"AssertionError", "Failed"} & set(types), (
            f"failed by {types[0]}, not by an assertion: {context}"
        )


def assert_passes(fault: Fault, run: FaultRun) -> None:
    """Assert that tests passed with the module loaded through the harness."""
    context = f"{fault.name!r} in {fault.module}\n{run.output}"
    assert run.returncode == 0, f"exit code {run.returncode}: {context}"
    assert fault.module in run.loaded, f"the module was not loaded through the harness: {context}"
    assert not run.failures, f"{run.failures}: {context}"


_PROPOSE = """    def propose(state: ChainState, block: int) -> Proposal[ChainState]:
        index = blocks[block]
        candidate = density(state.position.index_add(-1, index, increment[..., index]))
"""
_PROPOSE_STALE = """    stale: list[Tensor] = []

    def propose(state: ChainState, block: int) -> Proposal[ChainState]:
        index = blocks[block]
        if block == 0:
            stale[:] = [state.position]
        stale.append(stale[-1].index_add(-1, index, increment[..., index]))
        candidate = ChainState(
            state.position.index_add(-1, index, increment[..., index]),
            density(stale[-1]).log_terms,
        )
"""

FAULTS: list[Fault] = [
    Fault(
        name="ratio-sign",
        module="pyro_fnbg.step",
        old="tiled_sum(log_terms - current_log_terms)",
        new="tiled_sum(current_log_terms - log_terms)",
        killed_by="tests/test_enumeration.py::"
        "test_each_block_is_reversible_and_the_sweep_leaves_the_posterior_invariant",
    ),
    Fault(
        name="no-revert",
        module="pyro_fnbg.step",
        old="_select(accepted, proposal.candidate, state)",
        new="proposal.candidate",
        killed_by="tests/test_engines.py::test_rejected_blocks_leave_no_trace",
    ),
    Fault(
        name="stale-proposal",
        module="pyro_fnbg.step",
        old=_PROPOSE,
        new=_PROPOSE_STALE,
        killed_by="tests/test_enumeration.py::"
        "test_each_block_is_reversible_and_the_sweep_leaves_the_posterior_invariant",
    ),
    Fault(
        name="always-accept",
        module="pyro_fnbg.step",
        old="accepted = log_u < log_ratio",
        new="accepted = log_ratio > -math.inf",
        killed_by="tests/test_enumeration.py::"
        "test_each_block_is_reversible_and_the_sweep_leaves_the_posterior_invariant",
    ),
    Fault(
        name="current-state-not-re-evaluated",
        module="pyro_fnbg.engines.trace",
        old="sweep(position, density, propose, log_u_sweep.to(device))",
        new="sweep(position, (lambda p: states[-1]) if states else density, propose, "
        "log_u_sweep.to(device))",
        killed_by="tests/test_engines.py::test_the_current_position_is_judged_on_the_new_batch",
    ),
    Fault(
        name="new-batch-for-each-block",
        module="pyro_fnbg.density",
        old="self.site_terms(position, rows).values()",
        new="self.site_terms(position, rows if rows is None else torch.randperm("
        "self._plan.num_rows)[: len(rows)]).values()",
        killed_by="tests/test_engines.py::test_one_batch_serves_all_blocks_of_a_sweep",
    ),
    Fault(
        name="first-batch-for-ever",
        module="pyro_fnbg.run",
        old="rows = run.batches.rows(run.sweeps)",
        new="rows = run.batches.rows(0)",
        killed_by="tests/test_kernel.py::test_every_sweep_has_the_next_batch",
    ),
    Fault(
        name="likelihood-scale-dropped",
        module="pyro_fnbg.density",
        old="plan.factor * plan.batch_size / plan.num_rows",
        new="plan.batch_size / plan.num_rows",
        killed_by="tests/test_enumeration.py::"
        "test_each_batch_leaves_prior_times_its_likelihood_invariant",
    ),
    Fault(
        name="prior-scaled-with-the-likelihood",
        module="pyro_fnbg.density",
        old='if message["is_observed"] and any(',
        new='if message["name"] or any(',
        killed_by="tests/test_enumeration.py::"
        "test_each_batch_leaves_prior_times_its_likelihood_invariant",
    ),
    Fault(
        name="jacobian-dropped",
        module="pyro_fnbg.density",
        old="return scorer.log_probs | jacobians",
        new="return scorer.log_probs",
        killed_by="tests/test_density.py::test_a_change_of_variables_integrates_to_one",
    ),
    Fault(
        name="noise-shared-between-chains",
        module="pyro_fnbg.seeds",
        old="key = ChainKey(mark.key.seed, mark.key.chain + 1)",
        new="key = mark.key",
        killed_by="tests/test_kernel.py::test_sequential_chains_differ_and_repeat",
    ),
    Fault(
        name="adaptation-after-warmup",
        module="pyro_fnbg.run",
        old="if adapting and in_warmup:",
        new="if adapting:",
        killed_by="tests/test_kernel.py::test_scales_are_constant_after_warmup_and_move_during_it",
    ),
    Fault(
        name="warmup-counted-as-draws",
        module="pyro_fnbg.run",
        old="warmup=tally if in_warmup else run.warmup,\n"
        "        draws=run.draws if in_warmup else tally,",
        new="warmup=tally,\n        draws=tally,",
        killed_by="tests/test_kernel.py::test_sequential_chains_leave_nothing_to_the_next",
    ),
    Fault(
        name="impossible-candidate-feeds-nan-to-the-tuner",
        module="pyro_fnbg.step",
        old=".exp().nan_to_num(nan=0.0)",
        new=".exp()",
        killed_by="tests/test_step.py::test_accept_prob",
    ),
    Fault(
        name="lp-from-batches",
        module="pyro_fnbg.interop",
        old="if not _is_minibatch(reports[0]) and math.isclose",
        new="if math.isclose",
        killed_by="tests/test_interop.py::test_only_chains_for_the_models_posterior_have_lp",
    ),
    Fault(
        name="rows-of-the-last-chunk-twice",
        module="pyro_fnbg.rows",
        old="value.narrow(axis, known, plate.num_rows - known)",
        new="value",
        killed_by="tests/test_interop.py::test_models_that_subsample_themselves_give_all_rows",
    ),
    Fault(
        name="ratio-sign-feedforward",
        module="pyro_fnbg.step",
        old="tiled_sum(log_terms - current_log_terms)",
        new="tiled_sum(current_log_terms - log_terms)",
        killed_by="tests/test_enumeration.py::"
        "test_each_block_is_reversible_and_the_sweep_leaves_the_posterior_invariant[feedforward]",
    ),
    Fault(
        name="always-accept-feedforward",
        module="pyro_fnbg.step",
        old="accepted = log_u < log_ratio",
        new="accepted = log_ratio > -math.inf",
        killed_by="tests/test_feedforward.py::test_rejected_blocks_leave_no_trace",
    ),
    Fault(
        name="no-revert-feedforward",
        module="pyro_fnbg.step",
        old="_select(accepted, proposal.candidate, state)",
        new="proposal.candidate",
        killed_by="tests/test_feedforward.py::test_rejected_blocks_leave_no_trace",
    ),
    Fault(
        name="feedforward-wrong-column",
        module="pyro_fnbg.engines.feedforward",
        old="layer + 1)[..., node : node + 1]",
        new="layer + 1)[..., :1]",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[feedforward-classes]",
        is_slow=False,
    ),
    Fault(
        name="feedforward-labels-of-another-batch",
        module="pyro_fnbg.engines.feedforward",
        old="inputs[rows], labels[rows]",
        new="inputs[rows], labels[rows - rows.min()]",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[feedforward-classes]",
        is_slow=False,
    ),
    Fault(
        name="feedforward-factor-dropped",
        module="pyro_fnbg.engines.feedforward",
        old="(terms * net.factor)",
        new="terms",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[feedforward-scale]",
        is_slow=False,
    ),
    Fault(
        name="feedforward-jacobian-dropped",
        module="pyro_fnbg.engines.feedforward",
        old=" + jacobian.double()",
        new="",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[feedforward-scale]",
        is_slow=False,
    ),
    Fault(
        name="feedforward-prior-dropped",
        module="pyro_fnbg.engines.feedforward",
        old="torch.cat([log_prior, candidate.log_lik], -1)",
        new="torch.cat([current_log_prior, candidate.log_lik], -1)",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[feedforward-deep]",
        is_slow=False,
    ),
    Fault(
        name="fused-ratio-sign",
        module="pyro_fnbg.engines.elementwise",
        old="np.float64(new[r]) - np.float64(old[index[r]])",
        new="np.float64(old[index[r]]) - np.float64(new[r])",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[fused-deep]",
        is_slow=False,
    ),
    Fault(
        name="fused-always-accept",
        module="pyro_fnbg.engines.compiled",
        old="accepted = log_u < log_ratio",
        new="accepted = log_ratio > -math.inf",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[fused-deep]",
        is_slow=True,
    ),
    Fault(
        name="fused-stale-proposal",
        module="pyro_fnbg.engines.compiled",
        old="    if accepted:\n"
        "        for c in coordinates:\n"
        "            position[plan.coordinates[c]] = work.candidate[c]\n",
        new="    for c in coordinates:\n"
        "        position[plan.coordinates[c]] = work.candidate[c]\n"
        "    if accepted:\n",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[fused-classes]",
        is_slow=True,
    ),
    Fault(
        name="fused-no-revert",
        module="pyro_fnbg.engines.proposals",
        old="position[plan.coordinates[c]] = work.kept[c]",
        new="position[plan.coordinates[c]] = work.candidate[c]",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[fused-layers]",
        is_slow=True,
    ),
    Fault(
        name="fused-labels-of-another-batch",
        module="pyro_fnbg.engines.compiled",
        old="data.labels[rows[r], k]",
        new="data.labels[r, k]",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[fused-classes]",
        is_slow=True,
    ),
    Fault(
        name="fused-factor-dropped",
        module="pyro_fnbg.engines.layers",
        old="observation_scale(plan, position), plan.factor,",
        new="observation_scale(plan, position), 1.0,",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[fused-scale]",
        is_slow=True,
    ),
    Fault(
        name="fused-jacobian-dropped",
        module="pyro_fnbg.engines.memory",
        old="c[0] = 1.0  # the Jacobian",
        new="c[0] = 0.0",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[fused-scale]",
        is_slow=True,
    ),
    Fault(
        name="fused-prior-dropped",
        module="pyro_fnbg.engines.compiled",
        old="-float(plan.half_precisions[at]) * error * error",
        new="0.0 * error",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[fused-deep]",
        is_slow=True,
    ),
    Fault(
        name="fused-own-node-kept-on-moved-rows-alone",
        module="pyro_fnbg.engines.proposals",
        old="    for r in range(work.pre.shape[1]):\n        work.pre[unit, r] = work.new_pre[r]\n",
        new="    for r in range(count):\n"
        "        work.pre[unit, work.moved[r]] = work.new_pre[work.moved[r]]\n",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[fused-saturated]",
        is_slow=False,
    ),
    Fault(
        name="fused-stale-activations",
        module="pyro_fnbg.engines.proposals",
        old="    work.state[1] = min(work.state[1], layer)\n",
        new="",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[fused-deep]",
        is_slow=True,
    ),
    Fault(
        name="fused-rows-that-moved-left-out",
        module="pyro_fnbg.engines.proposals",
        old="<= work.least[r] else 1",
        new="<= 1e-3 else 1",
        killed_by="tests/test_seeded.py::test_sweeps_are_those_of_the_model[fused-classes]",
        is_slow=True,
    ),
]
