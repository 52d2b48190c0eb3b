"""Whatever an argument of the kernel or a driver is given: it is taken, or refused by one error."""

from collections.abc import Mapping

import numpy as np
import pyro
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyro.infer import MCMC
from torch import Tensor

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from support.engines import ENGINES
from support.fuzzing import (
    anything,
    assert_refused,
    entries_of,
    is_positive,
    is_real,
    is_whole,
    with_found,
)

MODEL = BayesianMLP([2, 2, 2])
X = torch.linspace(-1.0, 1.0, 12).reshape(6, 2)
Y = torch.tensor([0, 1, 0, 1, 1, 0])
# Values of a wrong kind for each argument are tried so often; more were tried when this was written
EXAMPLES = 8


def is_one_of(*words):
    return lambda value: isinstance(value, str) and value in words


def is_flag(value):
    return isinstance(value, bool | np.bool_)


def may_be_none(allowed):
    return lambda value: value is None or allowed(value)


def is_scale(value):
    if isinstance(value, Tensor | np.ndarray) and value.ndim == 0:
        fits = (
            entries_of(value.reshape(1))
            if isinstance(value, np.ndarray) or not value.is_meta
            else None
        )
        return fits is not None and all(map(is_positive, fits))
    entries = entries_of(value)
    return is_positive(value) or (bool(entries) and all(map(is_positive, entries)))


def is_split(value):
    if isinstance(value, Mapping):
        return all(is_whole(layer, 0) and is_whole(number) for layer, number in value.items())
    return is_whole(value)


def are_names(value):
    return isinstance(value, list | tuple | range) and all(isinstance(name, str) for name in value)


KERNEL = {
    "model": callable,
    "blocks": lambda value: callable(value) or is_one_of("site", "layer", "node")(value),
    "parts": may_be_none(is_split),
    "max_block_size": may_be_none(is_whole),
    "batch_size": may_be_none(is_whole),
    "batch_order": is_one_of("shuffled", "stratified", "full"),
    "batch_plate": may_be_none(lambda value: isinstance(value, str)),
    "likelihood_scale": lambda value: (
        value is None or is_positive(value) or is_one_of("batch", "full")(value)
    ),
    "proposal_scale": may_be_none(is_scale),
    "adapt": is_flag,
    "target_accept_prob": may_be_none(lambda value: is_real(value) and 0 < float(value) < 1),
    "engine": is_one_of("auto", "trace", "feedforward", "fused"),
    "thin": is_whole,
    "init_strategy": callable,
}
DRIVER = {
    "kernel": lambda value: False,
    "num_samples": is_whole,
    "warmup_steps": may_be_none(lambda value: is_whole(value, 0)),
    "initial_params": may_be_none(lambda value: isinstance(value, Mapping)),
    "num_chains": lambda value: is_whole(value, 1, 100_000),
    "hook_fn": may_be_none(callable),
    "mp_context": may_be_none(is_one_of("fork", "spawn", "forkserver")),
    "disable_progbar": is_flag,
    "save_params": may_be_none(are_names),
    "chain_method": is_one_of("vectorized", "sequential", "processes"),
    "thin": may_be_none(is_whole),
}


@pytest.mark.parametrize("argument", KERNEL)
@with_found
@given(value=anything)
@settings(max_examples=EXAMPLES)
def test_the_kernel_refuses_what_is_not_allowed(argument, value):
    assume(not KERNEL[argument](value))
    assert_refused(argument, value, lambda: FNBG(**({"model": MODEL} | {argument: value})))


@pytest.mark.parametrize("argument", DRIVER)
@with_found
@given(value=anything)
@settings(max_examples=EXAMPLES)
def test_the_driver_refuses_what_is_not_allowed(argument, value):
    assume(not DRIVER[argument](value))
    options = {"kernel": FNBG(MODEL), "num_samples": 2} | {argument: value}
    assert_refused(argument, value, lambda: MultiChainMCMC(**options))


@pytest.fixture(scope="module")
def finished():
    pyro.set_rng_seed(0)
    mcmc = MultiChainMCMC(FNBG(MODEL, engine="trace"), 4, 1, num_chains=2, disable_progbar=True)
    mcmc.run(X, Y)
    return mcmc


AFTERWARDS = {
    "num_samples": (lambda mcmc, value: mcmc.get_samples(value), may_be_none(is_whole)),
    "group_by_chain": (lambda mcmc, value: mcmc.get_samples(group_by_chain=value), is_flag),
    "prob": (
        lambda mcmc, value: mcmc.summary(value),
        lambda value: is_real(value) and 0 < float(value) < 1,
    ),
}


@pytest.mark.parametrize("argument", AFTERWARDS)
@with_found
@given(value=anything)
@settings(max_examples=EXAMPLES)
def test_a_finished_run_refuses_what_is_not_allowed(finished, argument, value):
    call, allowed = AFTERWARDS[argument]
    assume(not allowed(value))
    assert_refused(argument, value, lambda: call(finished, value))


@with_found
@given(value=anything)
@settings(max_examples=EXAMPLES)
def test_what_pyros_driver_passes_on_is_checked_too(value):
    assume(not are_names(value))
    kernel = FNBG(MODEL)
    assert_refused("save_params", value, lambda: setattr(kernel, "save_params", value))
    assume(not isinstance(value, Mapping))
    assert_refused("initial_params", value, lambda: setattr(kernel, "initial_params", value))


def test_more_draws_than_memory_holds_are_refused_by_name(finished):
    with pytest.raises(MemoryError, match="num_samples must be so small .* got 1000000000000000"):
        finished.get_samples(10**15)
    mcmc = MultiChainMCMC(FNBG(MODEL, engine="trace"), 10**15, 0, disable_progbar=True)
    with pytest.raises(MemoryError, match="num_samples must be so small .* got 1000000000000000"):
        mcmc.run(X, Y)


# --- What does not fit the model ----------------------------------------------------------------

scales_in_single = st.one_of(
    st.floats(1e-300, 1e-12), st.floats(1e20, 1e300), st.sampled_from([1e-320, 1e-50, 1e39, 1e300])
)
UNFIT = {
    "batch_size": st.integers(7, 2**62),
    "batch_plate": st.text(max_size=4).filter(lambda name: name != "data"),
    "max_block_size": st.nothing(),
    "parts": st.one_of(
        st.integers(4, 2**62),
        st.dictionaries(st.integers(3, 2**62), st.integers(1, 3), min_size=1, max_size=2),
        st.dictionaries(st.sampled_from([1, 2]), st.integers(4, 9), min_size=1),
    ),
    "thin": st.integers(2**27, 2**62),
    "proposal_scale": st.one_of(
        scales_in_single,
        st.lists(st.floats(0.1, 1.0), min_size=3, max_size=5),
        st.lists(scales_in_single, min_size=2, max_size=2),
        st.just([0.5]),
    ),
    "likelihood_scale": st.one_of(st.floats(1e7, 1e308), st.floats(5e-324, 1e-39)),
}
UNFIT.pop("max_block_size")


@pytest.mark.parametrize("argument", UNFIT)
@given(data=st.data())
@settings(max_examples=6)
def test_what_does_not_fit_the_model_is_refused_before_the_first_sweep(argument, data):
    value = data.draw(UNFIT[argument])
    kernel = FNBG(MODEL, **{argument: value})
    name = "parts" if argument == "parts" else argument
    shown = value
    if argument == "proposal_scale" and isinstance(value, float | list):
        scales = value if isinstance(value, list) else [value]
        shown = f"({scales[0]:.4g})" if len(scales) in (1, 2) and scales != [0.5] else value
    if argument == "parts" and isinstance(value, dict):
        shown = {key: entry if key in (1, 2) else key for key, entry in value.items()}
    with pyro.validation_enabled(False):
        assert_refused(name, shown, lambda: kernel.setup(2, X, Y))


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
                {"batch_size": 4, "likelihood_scale": "full"}, {"likelihood_scale": 8e6},
                {"likelihood_scale": 1.2e-38}, {"likelihood_scale": 1000, "batch_size": 3},
            ]
        ),
        "proposal_scale": st.sampled_from(
            [
                1e-6, 1e10, 1, [0.5, 2], (1, 2), np.array([0.1, 1e-3]), np.array(0.5), range(1, 3),
                torch.tensor([0.5, 1.5], dtype=torch.float16), torch.tensor([2, 1]),
                np.float32(0.1),
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
    # Where no candidate changes the likelihood a fast engine says so, and "auto" takes the model
    asked = "auto" if options.get("likelihood_scale") == 1.2e-38 else engine
    x, y = X.to(dtype), Y.clone()
    held = {"x": x.clone(), "y": y.clone(), **{n: repr(v) for n, v in vars(MODEL).items()}}
    given_options = repr(options)
    kernel = FNBG(MODEL, engine=asked, **options)
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
