"""What an argument of the kernel or a driver is given by mistake is refused by one error."""

import numpy as np
import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import MCMC
from torch import Tensor

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from support.engines import ENGINES
from support.fuzzing import INFINITY, NAN, assert_refused

MODEL = BayesianMLP([2, 2, 2])
X = torch.linspace(-1.0, 1.0, 12).reshape(6, 2)
Y = torch.tensor([0, 1, 0, 1, 1, 0])
# What is given for a number of things, a switch or names by mistake
COUNTS, SWITCHES, NAMES = (0, -1, 2.0, "2", True, [2]), ("no", 1, None), ("site", {1: 2}, [1])
KERNEL = {
    "model": (None, "model", 3),
    "blocks": ("nodes", None, 2, ["node"]),
    "parts": (0, 1.5, "2", {"a": 1}, {1: 0}, [2]),
    "max_block_size": COUNTS,
    "batch_size": COUNTS,
    "batch_order": ("random", None, True),
    "batch_plate": (0, True, ["data"]),
    "likelihood_scale": ("half", 0, -1.0, NAN, INFINITY, True, [1.0]),
    "proposal_scale": (
        0,
        -1.0,
        NAN,
        "0.1",
        True,
        [],
        [1.0, None],
        [1.0, 0.0],
        [[1.0]],
        {"layer1": 0.0},
        {"layer1": None},
        {"layer1": True},
        {"layer1": [0.1]},
        {1: 0.1},
    ),
    "adapt": SWITCHES,
    "moves": (
        "Walk",
        None,
        1,
        ["walk"],
        {"layer1": "slice"},
        {"layer1": "auto"},
        {"layer1": None},
        {"layer1": 0.1},
    ),
    "rescale": tuple(value for value in SWITCHES if value is not None),
    "target_accept_prob": (0, 1, 30, NAN, "0.3", True),
    "engine": ("Fused", None, 1),
    "thin": COUNTS,
    "init_strategy": (None, "init_to_sample", torch.zeros(2)),
}
DRIVER = {
    "kernel": (MODEL, None, "FNBG"),
    "num_samples": COUNTS,
    "warmup_steps": (-1, 0.5, "10", True),
    "initial_params": (torch.zeros(2), [1.0], "zero"),
    "num_chains": (*COUNTS, 100_001),
    "hook_fn": ("print", 1),
    "mp_context": ("Fork", 1, True),
    "disable_progbar": SWITCHES,
    "save_params": NAMES,
    "chain_method": ("parallel", None, 2),
    "thin": COUNTS,
}


def each(mistakes):
    return [(argument, value) for argument, values in mistakes.items() for value in values]


@pytest.mark.parametrize(("argument", "value"), each(KERNEL))
def test_the_kernel_refuses_what_is_not_allowed(argument, value):
    assert_refused(argument, value, lambda: FNBG(**({"model": MODEL} | {argument: value})))


@pytest.mark.parametrize(("argument", "value"), each(DRIVER))
def test_the_driver_refuses_what_is_not_allowed(argument, value):
    options = {"kernel": FNBG(MODEL), "num_samples": 2} | {argument: value}
    assert_refused(argument, value, lambda: MultiChainMCMC(**options))


@pytest.fixture(scope="module")
def finished():
    pyro.set_rng_seed(0)
    mcmc = MultiChainMCMC(FNBG(MODEL, engine="trace"), 4, 1, num_chains=2, disable_progbar=True)
    mcmc.run(X, Y)
    return mcmc


def test_a_finished_run_refuses_what_is_not_allowed(finished):
    for value in COUNTS:
        assert_refused("num_samples", value, lambda: finished.get_samples(value))  # noqa: B023
    for value in SWITCHES:
        ask = {"group_by_chain": value}
        assert_refused("group_by_chain", value, lambda: finished.get_samples(**ask))  # noqa: B023
    for value in (0, 1, 90, NAN, "0.9", True):
        assert_refused("prob", value, lambda: finished.summary(value))  # noqa: B023


@pytest.mark.parametrize("value", [*NAMES, torch.zeros(2)])
def test_what_pyros_driver_passes_on_is_checked_too(value):
    kernel = FNBG(MODEL)
    assert_refused("save_params", value, lambda: setattr(kernel, "save_params", value))
    if not isinstance(value, dict):
        assert_refused("initial_params", value, lambda: setattr(kernel, "initial_params", value))


@pytest.mark.parametrize("value", [-1, 0.5, "10", None, True])
def test_steps_of_warmup_are_counted(value):
    assert_refused("warmup_steps", value, lambda: FNBG(MODEL).setup(value, X, Y))


def test_the_kernel_makes_draws_from_positions_alone():
    start = {name: torch.zeros(shape) for name, shape in MODEL.parameter_shapes.items()}
    kernel = FNBG(MODEL, engine="trace")
    with pyro.validation_enabled(False):
        kernel.setup(0, X, Y)
    for value in (None, torch.zeros(2), [1.0], {}):
        assert_refused("params", value, lambda: kernel.sample(value))  # noqa: B023
    for value in ([0.0, 0.0], torch.zeros(3), None):
        params = start | {"layer1.bias": value}
        assert_refused("params", "got", lambda: kernel.sample(params))  # noqa: B023


def test_more_draws_than_memory_holds_are_refused_by_name(finished):
    with pytest.raises(MemoryError, match="num_samples must be so small .* got 1000000000000000"):
        finished.get_samples(10**15)
    mcmc = MultiChainMCMC(FNBG(MODEL, engine="trace"), 10**15, 0, disable_progbar=True)
    with pytest.raises(MemoryError, match="num_samples must be so small .* got 1000000000000000"):
        mcmc.run(X, Y)


# --- What does not fit the model ----------------------------------------------------------------

UNFIT = {
    "batch_size": (7, 10**6),
    "batch_plate": ("rows", ""),
    "parts": (4, 10**6, {3: 1}, {1: 4}, {2: 9}),
    "thin": (2**27,),
    "proposal_scale": ([0.5], [0.1, 0.2, 0.3], {"layer3": 0.1}, {"layer1": 0.1, "node1": 1.0}),
}


@pytest.mark.parametrize(("argument", "value"), each(UNFIT))
def test_what_does_not_fit_the_model_is_refused_before_the_first_sweep(argument, value):
    kernel = FNBG(MODEL, **{argument: value})
    # A layer that there is not is shown without its number of parts
    shown = 3 if value == {3: 1} else value
    with pyro.validation_enabled(False):
        assert_refused(argument, shown, lambda: kernel.setup(2, X, Y))


# --- What is allowed ----------------------------------------------------------------------------

ALLOWED = st.fixed_dictionaries(
    {},
    optional={
        "split": st.sampled_from(
            [
                {"blocks": "site"}, {"blocks": "layer"}, {"parts": 3}, {"parts": {1: 2, 2: 3}},
                {"parts": {np.int64(2): np.int8(1)}}, {"max_block_size": 1},
                {"max_block_size": 2**62}, {"parts": {}},
            ]
        ),
        "batch": st.sampled_from(
            [
                {"batch_size": 1}, {"batch_size": 5, "batch_order": "stratified"},
                {"batch_size": 6}, {"batch_size": np.int64(2), "batch_plate": "data"},
                {"batch_size": 4, "likelihood_scale": "full"}, {"likelihood_scale": 1e3},
                {"likelihood_scale": 1e-3}, {"likelihood_scale": 1000, "batch_size": 3},
            ]
        ),
        "proposal_scale": st.sampled_from(
            [
                1e-6, 1e10, 1, [0.5, 2], (1, 2), np.array([0.1, 1e-3]), np.array(0.5), range(1, 3),
                torch.tensor([0.5, 1.5], dtype=torch.float16), torch.tensor([2, 1]),
                np.float32(0.1), {}, {"layer1": 0.5}, {"layer2": np.array(1)},
            ]
        ),
        "adapt": st.sampled_from([True, False, np.bool_(True)]),
        "target_accept_prob": st.floats(0, 1, exclude_min=True, exclude_max=True),
        "thin": st.sampled_from([1, 2, np.int8(3)]),
    },
)  # fmt: skip


def is_unchanged(before, after):
    if isinstance(before, Tensor):
        return torch.equal(before, after) and before.dtype == after.dtype
    return repr(before) == repr(after)


@pytest.mark.parametrize("engine", ENGINES)
@given(chosen=ALLOWED, dtype=st.sampled_from([torch.float32, torch.float64]), ours=st.booleans())
@settings(max_examples=6)
def test_what_is_allowed_runs_and_leaves_the_users_things_alone(engine, chosen, dtype, ours):
    options = chosen.pop("split", {}) | chosen.pop("batch", {}) | chosen
    x, y = X.to(dtype), Y.clone()
    held = {"x": x.clone(), "y": y.clone(), **{n: repr(v) for n, v in vars(MODEL).items()}}
    given_options = repr(options)
    kernel = FNBG(MODEL, engine=engine, **options)
    driver = MultiChainMCMC if ours else MCMC
    mcmc = driver(kernel, num_samples=2, warmup_steps=2, disable_progbar=True)
    mcmc.run(x, y)
    samples = mcmc.get_samples()
    assert {name: tuple(v.shape[1:]) for name, v in samples.items()} == MODEL.parameter_shapes
    for value in samples.values():
        assert (len(value), value.dtype) == (2, dtype)
        assert value.isfinite().all()
    stats = kernel.diagnostics()["sample_stats"]
    assert np.isfinite(stats["batch_log_density"]).all()
    assert is_unchanged(held.pop("x"), x)
    assert is_unchanged(held.pop("y"), y)
    assert held == {n: repr(v) for n, v in vars(MODEL).items()}
    assert repr(options) == given_options
    assert not dict(pyro.get_param_store().items())
