"""The exactness suite, as functions to run on a kernel or an engine of one's own.

Nothing here needs pytest, and ``import pyro_fnbg`` does not load it. A check that fails raises an
``AssertionError`` whose words say what differs and by how much.
"""

from pyro_fnbg.testing.calibration import Calibration, assert_calibrated, kernel_posterior
from pyro_fnbg.testing.expectations import (
    Estimate,
    assert_expectation,
    assert_same_expectation,
    estimate,
)
from pyro_fnbg.testing.faults import (
    Fault,
    FaultRun,
    assert_killed,
    assert_passes,
    install_requested,
    pytest_exception_interact,
    run_fault,
)
from pyro_fnbg.testing.joint import JointDraws, assert_joint_distribution, kernel_transition
from pyro_fnbg.testing.judging import Replay, assert_as_model, assert_follows, replay
from pyro_fnbg.testing.lattice import (
    Lattice,
    Outcome,
    Sweep,
    assert_invariant,
    assert_reversible,
    block_matrix,
    sweep_matrix,
)
from pyro_fnbg.testing.sweeps import (
    make_inputs,
    one_sweep,
    run_chain,
    run_on,
    run_sweeps,
    start,
    sweep_of,
    with_engine,
    with_scales,
)

__all__ = [
    "Calibration",
    "Estimate",
    "Fault",
    "FaultRun",
    "JointDraws",
    "Lattice",
    "Outcome",
    "Replay",
    "Sweep",
    "assert_as_model",
    "assert_calibrated",
    "assert_expectation",
    "assert_follows",
    "assert_invariant",
    "assert_joint_distribution",
    "assert_killed",
    "assert_passes",
    "assert_reversible",
    "assert_same_expectation",
    "block_matrix",
    "estimate",
    "install_requested",
    "kernel_posterior",
    "kernel_transition",
    "make_inputs",
    "one_sweep",
    "pytest_exception_interact",
    "replay",
    "run_chain",
    "run_fault",
    "run_on",
    "run_sweeps",
    "start",
    "sweep_of",
    "sweep_matrix",
    "with_engine",
    "with_scales",
]
