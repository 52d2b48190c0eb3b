"""What a network, its data or its start are given by mistake is refused by one error."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from support.engines import ENGINES
from support.fuzzing import INFINITY, NAN, assert_refused

ROWS = 6
X = torch.linspace(-1.0, 1.0, 2 * ROWS).reshape(ROWS, 2)
Y = torch.tensor([0, 1, 0, 1, 1, 0])
ONE_HOT = torch.nn.functional.one_hot(Y)
KINDS = {"categorical": 2, "bernoulli": 1, "normal": 1, "student": 1, "poisson": 1}
SCALES = (0, -1.0, NAN, INFINITY, "1", True, None, [1.0], [1.0, 0.0], [1.0, 2.0, 3.0])
ARGUMENTS = {
    "widths": (3, [2], [2, 0], [2, 2.5], [2, -1, 2], "2, 2", None),
    "prior_scale": SCALES,
    "prior_loc": (NAN, INFINITY, "0", None, [0.0], [0.0] * 3),
    "bias_prior_scale": tuple(scale for scale in SCALES if scale is not None),
    "bias_prior_loc": (NAN, INFINITY, "0", [0.0], [0.0] * 3),
    "activation": ("softmax", "Tanh", None, [], ["tanh", "relu"], 1),
    "likelihood": ("bernoulli", "gaussian", None, 2),
    "observation_scale": (*SCALES[:8], torch.distributions.HalfNormal(1.0), "Network"),
    "degrees_of_freedom": SCALES[:8],
}


@pytest.mark.parametrize(
    ("argument", "value"), [(name, value) for name in ARGUMENTS for value in ARGUMENTS[name]]
)
def test_a_network_refuses_what_is_not_allowed(argument, value):
    options = {"widths": [2, 2, 2]} | {argument: value}
    kind = {"observation_scale": "normal", "degrees_of_freedom": "student"}.get(argument)
    options |= {"likelihood": kind} if kind else {}
    assert_refused(argument, value, lambda: BayesianMLP(**options))


@pytest.mark.parametrize("likelihood", ["bernoulli", "categorical", "poisson"])
def test_only_regression_has_an_observation_scale(likelihood):
    def build():
        BayesianMLP([2, KINDS[likelihood]], likelihood=likelihood, observation_scale=0.5)

    assert_refused("observation_scale", 0.5, build)


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


def with_entry(values, entry):
    return torch.where(torch.arange(values.numel()).reshape(values.shape) == 3, entry, values)


BAD_INPUTS = {
    "no rows": (X[:0], "(0, 2)"),
    "a column": (X[:, :1], "(6, 1)"),
    "images": (torch.zeros(ROWS, 2, 1), "(6, 2, 1)"),
    "one dimension": (X[:, 0], "(6,)"),
    "columns first": (X.T, "(2, 6)"),
    "a missing value": (with_entry(X, NAN), "nan"),
    "an overflow": (with_entry(X, INFINITY), "inf"),
    "all overflow": (torch.full((ROWS, 2), -INFINITY), "-inf"),
    "bytes": (X.to(torch.uint8), "torch.uint8"),
    "an array": (X.numpy(), "ndarray"),
    "a list": (X.tolist(), "list"),
    "nothing": (None, "NoneType"),
    "the loader": (torch.utils.data.DataLoader(X), "DataLoader"),
}


@pytest.mark.parametrize("batch", [None, 1, 5])
@pytest.mark.parametrize(("x", "found"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_inputs_that_do_not_fit_are_refused(x, found, batch):
    with pytest.raises((TypeError, ValueError), match=r"^x must .* got ") as caught:
        run("auto", BayesianMLP([2, 2, 2]), x, Y, batch_size=batch)
    assert found in str(caught.value)


BAD_LABELS = {
    "categorical": [
        with_entry(Y, 2), with_entry(Y, -1), with_entry(Y.float(), 0.5),
        1 - ONE_HOT + ONE_HOT, 0 * ONE_HOT, 2 * ONE_HOT, with_entry(ONE_HOT.double(), NAN),
    ],
    "bernoulli": [with_entry(Y, 2), with_entry(Y.float(), -1.0), ONE_HOT],
    "normal": [ONE_HOT],
    "student": [ONE_HOT],
    "poisson": [with_entry(Y, -1), with_entry(Y.float(), 0.5), ONE_HOT],
}  # fmt: skip
FLOATS = [with_entry(Y.float(), entry) for entry in (NAN, INFINITY, -INFINITY)]
WRONG = [
    Y[:5], Y[None], Y[:, None, None], ONE_HOT.T, torch.zeros(0), Y.numpy(), Y.tolist(), "labels",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_do_not_fit_are_refused(kind):
    model = BayesianMLP([2, 2, KINDS[kind]], likelihood=kind)
    for y in (*BAD_LABELS[kind], *FLOATS, *WRONG):
        with pytest.raises((TypeError, ValueError), match=r"^y must .* got "):
            run("auto", model, X, y, batch_size=2)


DTYPES = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int64", "bool")
good_labels = {
    "categorical": st.sampled_from([Y, Y[:, None], ONE_HOT]),
    "bernoulli": st.sampled_from([Y, Y[:, None]]),
    "normal": (numbers := st.sampled_from([Y, Y[:, None], 100 * Y])),
    "student": numbers,
    "poisson": numbers,
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
    is_of_classes = kind in ("categorical", "bernoulli")
    of_labels = [torch.bool if is_of_classes else torch.uint8] + [
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


BAD_STARTS = {
    "a list": ([0.0, 0.0], "list"),
    "a number": (0.0, "float"),
    "another shape": (torch.zeros(3), "(3,)"),
    "a dimension more": (torch.zeros(1, 2), "(1, 2)"),
    "a missing value": (torch.tensor([0.0, NAN]), "nan"),
    "an overflow": (torch.tensor([INFINITY, 0.0]), "inf"),
    "too large": (torch.tensor([1e300, 0.0], dtype=torch.float64), "must be finite as"),
}


@pytest.mark.parametrize("through", ["driver", "kernel"])
@pytest.mark.parametrize(("value", "found"), BAD_STARTS.values(), ids=BAD_STARTS)
def test_starts_that_do_not_fit_are_refused(through, value, found):
    params = START | {"layer1.bias": value}

    def start():
        kernel = FNBG(MODEL, engine="trace")
        if through == "kernel":
            kernel.initial_params = params
            kernel.setup(1, X, Y)
        else:
            MultiChainMCMC(kernel, 1, 1, params, disable_progbar=True).run(X, Y)

    with pytest.raises((TypeError, ValueError), match="initial_params.*must .*got") as caught:
        start()
    assert found in str(caught.value)


@pytest.mark.parametrize(
    "params", [{"layer1.bias": START["layer1.bias"]}, START | {"other": torch.zeros(2)}]
)
def test_starts_that_lack_or_add_a_site_are_refused(params):
    kernel = FNBG(MODEL, engine="trace")
    kernel.initial_params = params
    with pytest.raises(ValueError, match=r"initial_params must name the latent sites .*missing"):
        kernel.setup(1, X, Y)


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
