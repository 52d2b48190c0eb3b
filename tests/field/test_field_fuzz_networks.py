"""Whatever a network, its data or its start are given: they are taken, or refused by one error."""

from collections.abc import Mapping

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from support.engines import ENGINES
from support.fuzzing import (
    INFINITY,
    NAN,
    anything,
    assert_refused,
    is_real,
    is_whole,
    reals,
    tensors,
    with_found,
)

EXAMPLES = 8
ROWS = 6
X = torch.linspace(-1.0, 1.0, 2 * ROWS).reshape(ROWS, 2)
Y = torch.tensor([0, 1, 0, 1, 1, 0])
ONE_HOT = torch.nn.functional.one_hot(Y)
KINDS = {"categorical": 2, "bernoulli": 1, "normal": 1}


def is_between(lowest, highest):
    return lambda value: is_real(value) and lowest <= float(value) <= highest


is_scale, is_loc = is_between(1e-150, 1e150), is_between(-1e150, 1e150)


def one_or_two(allowed):
    """Whether something is allowed, or is two that are, for two layers."""

    def is_allowed(value):
        return allowed(value) or (
            isinstance(value, list | tuple | range) and len(value) == 2 and all(map(allowed, value))
        )

    return is_allowed


def is_activation(value):
    words = ("sigmoid", "tanh", "relu", "step", "identity")
    is_one = isinstance(value, list | tuple) and len(value) == 1
    one = value[0] if is_one else value
    return callable(one) or (isinstance(one, str) and one in words)


ARGUMENTS = {
    "widths": lambda value: (
        isinstance(value, list | tuple | range) and len(value) >= 2 and all(map(is_whole, value))
    ),
    "prior_scale": one_or_two(is_scale),
    "prior_loc": one_or_two(is_loc),
    "bias_prior_scale": lambda value: value is None or one_or_two(is_scale)(value),
    "bias_prior_loc": lambda value: value is None or one_or_two(is_loc)(value),
    "activation": is_activation,
    "likelihood": lambda value: isinstance(value, str) and value in ("categorical", "normal"),
    "observation_scale": is_scale,
}


@pytest.mark.parametrize("argument", ARGUMENTS)
@with_found
@given(value=anything)
@example(value=1e-320)
@example(value=1e-50)
@example(value=1e39)
@settings(max_examples=EXAMPLES)
def test_a_network_refuses_what_is_not_allowed(argument, value):
    assume(not ARGUMENTS[argument](value))
    options = {"widths": [2, 2, 2]} | {argument: value}
    options |= {"likelihood": "normal"} if argument == "observation_scale" else {}
    assert_refused(argument, value, lambda: BayesianMLP(**options))


@given(
    likelihood=st.sampled_from(["bernoulli", "categorical"]),
    scale=reals.filter(lambda value: value != 1),
)
@settings(max_examples=EXAMPLES)
def test_only_regression_has_an_observation_scale(likelihood, scale):
    def build():
        BayesianMLP([2, KINDS[likelihood]], likelihood=likelihood, observation_scale=scale)

    assert_refused("observation_scale", scale, build)


@pytest.mark.parametrize(
    ("activation", "got"),
    [
        (len, "got 6"),
        (lambda values: None, "got None"),
        (lambda values: values.sum(0), r"\(6, 2\), torch.float32; got \(2,\), torch.float32"),
        (lambda values: values.double(), "got .*float64"),
        (lambda values: values > 0, "got .*bool"),
        (lambda values: values.numpy(), "got array"),
    ],
)
def test_an_activation_that_returns_something_else_is_refused(activation, got):
    with pytest.raises(TypeError, match=f"(?s)activation .* layer 1 must return .*{got}"):
        BayesianMLP([2, 2, 2], activation=activation)(X, Y)


# --- Data ----------------------------------------------------------------------------------------


def run(engine, model, x, y, **options):
    """Make two sweeps of warmup and two draws; return the draws and their log densities."""
    mcmc = MultiChainMCMC(FNBG(model, engine=engine, **options), 2, 2, disable_progbar=True)
    mcmc.run(x, y)
    stats = mcmc.diagnostics()["sample_stats"]["chain 0"]
    return mcmc.get_samples(), stats["batch_log_density"]


def are_inputs(value):
    if not isinstance(value, Tensor) or value.is_meta or value.is_sparse:
        return False
    fits = value.is_floating_point() and value.shape == (ROWS, 2)
    return fits and bool(value.isfinite().all())


def with_entry(values, entry):
    return torch.where(torch.arange(values.numel()).reshape(values.shape) == 3, entry, values)


shapes = st.sampled_from([(0, 2), (ROWS, 1), (ROWS, 3), (ROWS,), (2, ROWS), (ROWS, 2, 1), (1, 0)])
bad_inputs = st.one_of(
    shapes.map(torch.zeros),
    st.sampled_from([NAN, INFINITY, -INFINITY]).map(lambda entry: with_entry(X, entry)),
    st.sampled_from([torch.int64, torch.bool, torch.complex64]).map(X.to),
    st.sampled_from([X.to("meta"), X.to_sparse(), X.numpy(), X.tolist()]),
    anything.filter(lambda value: not are_inputs(value)),
)


@pytest.mark.parametrize("engine", ENGINES)
@given(x=bad_inputs, batch=st.sampled_from([None, 1, 5]), kind=st.sampled_from([*KINDS]))
@example(x=with_entry(X, INFINITY), batch=3, kind="bernoulli")
@example(x=torch.full((ROWS, 2), INFINITY), batch=None, kind="categorical")
@settings(max_examples=EXAMPLES)
def test_inputs_that_do_not_fit_are_refused(engine, x, batch, kind):
    model = BayesianMLP([2, 2, KINDS[kind]], likelihood=kind)
    entry = (
        x.reshape(-1)[3].item()
        if isinstance(x, Tensor) and x.shape == X.shape and not (x.is_meta or x.is_sparse)
        else None
    )
    shown = f"{entry}" if isinstance(entry, float) and not np.isfinite(entry) else x
    if isinstance(x, Tensor) and not x.is_floating_point() or isinstance(entry, complex):
        shown = str(x.dtype)
    if isinstance(x, Tensor) and (x.is_meta or x.is_sparse):
        shown = "tensor"
    assert_refused("x", shown, lambda: run(engine, model, x, Y, batch_size=batch))


BAD_LABELS = {
    "categorical": [
        with_entry(Y, 2), with_entry(Y, -1), with_entry(Y.float(), 0.5), with_entry(Y, 2**62),
        1 - ONE_HOT + ONE_HOT, 0 * ONE_HOT, 2 * ONE_HOT, with_entry(ONE_HOT.double(), NAN),
    ],
    "bernoulli": [with_entry(Y, 2), with_entry(Y.float(), -1.0), with_entry(Y, -(2**63))],
    "normal": [],
}  # fmt: skip
FLOATS = [with_entry(Y.float(), entry) for entry in (NAN, INFINITY, -INFINITY)]
WRONG = [
    Y[:5], Y[None], Y[:, None, None], ONE_HOT.T, torch.zeros(0), torch.zeros(ROWS, 0), Y * 1j,
    Y.to("meta"), Y.to_sparse(), Y.numpy(), Y.tolist(), "labels", 0, {"y": Y}, object(),
]  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@given(data=st.data(), batch=st.sampled_from([None, 2, ROWS]), kind=st.sampled_from([*KINDS]))
@settings(max_examples=EXAMPLES)
def test_labels_that_do_not_fit_are_refused(engine, data, batch, kind):
    model = BayesianMLP([2, 2, KINDS[kind]], likelihood=kind)
    y = data.draw(st.sampled_from([*BAD_LABELS[kind], *FLOATS, *WRONG]) | tensors())
    is_wrong_shape = not isinstance(y, Tensor) or y.shape not in ((ROWS,), (ROWS, 1), (ROWS, 2))
    assume(is_wrong_shape or any(y is bad for bad in [*BAD_LABELS[kind], *FLOATS, *WRONG]))
    shown = "got" if isinstance(y, Tensor) else y
    assert_refused("y must", shown, lambda: run(engine, model, X, y, batch_size=batch))


DTYPES = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int64", "bool")
good_labels = {
    "categorical": st.sampled_from([Y, Y[:, None], ONE_HOT]),
    "bernoulli": st.sampled_from([Y, Y[:, None]]),
    "normal": st.sampled_from([Y, Y[:, None], 100 * Y]),
}


@pytest.mark.parametrize("engine", ENGINES)
@given(
    data=st.data(),
    kind=st.sampled_from([*KINDS]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    batch=st.sampled_from([{}, {"batch_size": 1}, {"batch_size": ROWS - 1}, {"batch_size": ROWS}]),
    size=st.sampled_from([0.0, 1e-30, 1.0, 1e3]),
)
@settings(max_examples=6)
def test_data_near_the_edge_run_and_stay_as_they_are(engine, data, kind, dtype, batch, size):
    y = data.draw(good_labels[kind])
    of_labels = [torch.uint8 if kind == "normal" else torch.bool] + [
        getattr(torch, name) for name in DTYPES[:7]
    ]
    y = y.to(data.draw(st.sampled_from(of_labels)))
    x = (size * X).to(dtype)
    before = x.clone(), y.clone()
    model = BayesianMLP([2, 3, KINDS[kind]], likelihood=kind, activation="tanh")
    # Inputs of nothing but zeros leave no weight of the first layer that a fast engine can be
    # compared at: it says so, and "auto" runs the model itself
    asked = "auto" if size < 1 else engine
    samples, log_density = run(asked, model, x, y, **batch)
    for name, shape in model.parameter_shapes.items():
        assert (samples[name].shape, samples[name].dtype) == ((2, *shape), dtype)
        assert samples[name].isfinite().all()
    assert np.isfinite(log_density).all()
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    assert not dict(pyro.get_param_store().items())


@pytest.mark.parametrize("engine", ["feedforward", "fused"])
@pytest.mark.parametrize("factor", [1e5, 8e6])
def test_a_large_factor_on_the_likelihood_is_no_disagreement(engine, factor):
    # In single precision the rounding of each row's log likelihood is multiplied, too, and is
    # more than the small steps change
    model = BayesianMLP([2, 3, 1], likelihood="normal")
    y = 10 * torch.randn(200)
    x = torch.randn(200, 2)
    run(engine, model, x, y, likelihood_scale=factor, proposal_scale=1e-5)


# --- Where chains start --------------------------------------------------------------------------

MODEL = BayesianMLP([2, 2, 2])
START = {name: torch.zeros(shape) for name, shape in MODEL.parameter_shapes.items()}


def is_start(value):
    fits = isinstance(value, Tensor) and value.shape == (2,) and not value.is_meta
    fits = fits and not value.is_sparse and not value.is_complex()
    return fits and bool(value.isfinite().all())


bad_starts = st.one_of(
    anything,
    st.sampled_from([NAN, INFINITY]).map(lambda entry: torch.tensor([0.0, entry])),
    st.just(torch.tensor([1e300, 0.0], dtype=torch.float64)),
)


@pytest.mark.parametrize("through", ["driver", "kernel"])
@given(value=bad_starts)
@example(value=torch.zeros(2, device="meta"))
@example(value=torch.zeros(2).to_sparse())
@example(value=torch.zeros(2, dtype=torch.complex64))
@settings(max_examples=8)
def test_starts_that_do_not_fit_are_refused(through, value):
    assume(not is_start(value) or value.abs().max() > 1e38)
    params = START | {"layer1.bias": value}

    def start():
        kernel = FNBG(MODEL, engine="trace")
        if through == "kernel":
            kernel.initial_params = params
            kernel.setup(1, X, Y)
        else:
            MultiChainMCMC(kernel, 1, 1, params, disable_progbar=True).run(X, Y)

    is_tensor = isinstance(value, Tensor)
    shown = "got" if is_tensor and not value.is_meta and value.numel() else value
    shown = "must be finite as" if is_tensor and is_start(value) else shown
    with pyro.validation_enabled(False):
        assert_refused("initial_params", shown, start)


@given(value=anything)
@settings(max_examples=10)
def test_starts_that_lack_or_add_a_site_are_refused(value):
    for params in ({"layer1.bias": START["layer1.bias"]}, START | {"other": value}):
        kernel = FNBG(MODEL, engine="trace")
        kernel.initial_params = params
        with (
            pyro.validation_enabled(False),
            pytest.raises(ValueError, match=r"initial_params must name the latent sites .*missing"),
        ):
            kernel.setup(1, X, Y)


@pytest.fixture(scope="module")
def kernel():
    kernel = FNBG(MODEL, engine="trace")
    with pyro.validation_enabled(False):
        kernel.setup(0, X, Y)
    return kernel


@with_found
@given(value=anything)
@settings(max_examples=EXAMPLES)
def test_the_kernel_makes_draws_from_positions_alone(kernel, value):
    assume(not isinstance(value, Mapping))
    assert_refused("params", value, lambda: kernel.sample(value))
    assume(not isinstance(value, Tensor) or value.shape != (2,) or value.is_complex())
    params = START | {"layer1.bias": value}
    assert_refused("params", "got", lambda: kernel.sample(params))


@with_found
@given(value=anything)
@settings(max_examples=EXAMPLES)
def test_steps_of_warmup_are_counted(value):
    assume(not is_whole(value, 0))
    assert_refused("warmup_steps", value, lambda: FNBG(MODEL).setup(value, X, Y))


@pytest.mark.parametrize("returned", [len({}), "zero", [0.0], torch.zeros(2, dtype=torch.long)])
def test_a_strategy_that_returns_no_numbers_is_refused(returned):
    kernel = FNBG(MODEL, engine="trace", init_strategy=lambda site: returned)
    words = "init_strategy must return a floating-point tensor for latent site 'layer1.weight', got"
    with pyro.validation_enabled(False), pytest.raises(TypeError, match=words):
        kernel.setup(1, X, Y)


def test_a_scale_distribution_over_other_numbers_is_refused():
    for scale in (dist.Normal(0.0, 1.0), dist.Poisson(1.0), dist.HalfNormal(torch.ones(2))):
        with pytest.raises(ValueError, match=r"observation_scale must be .*got .*\("):
            BayesianMLP([2, 1], likelihood="normal", observation_scale=scale)
