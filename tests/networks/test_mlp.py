import math
import pickle
import re

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer import Predictive
from pyro.poutine.messenger import Messenger

from pyro_fnbg import FNBG
from pyro_fnbg.core.checks import are_checks_done, checks_done
from pyro_fnbg.networks.likelihoods import Likelihood
from pyro_fnbg.networks.mlp import BayesianMLP
from pyro_fnbg.networks.statement import ACTIVATIONS

INPUTS = torch.tensor([[0.3, -1.2], [2.0, 0.1], [-0.7, 0.9], [1.1, 1.3], [0.0, -0.4]])


class GiveRows(Messenger):
    """Set the index of the plate "data", as a kernel with minibatches does."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def _pyro_sample(self, message):
        if message["name"] == "data":
            message["value"] = self.rows


def parameters_of(model, *draws, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(*draws, *shape, generator=generator, dtype=dtype)
        for name, shape in model.parameter_shapes.items()
    }


def trace_of(model, parameters, *arguments):
    return poutine.trace(poutine.condition(model, parameters)).get_trace(*arguments)


def sampled_sites(trace):
    return [name for name in trace.stochastic_nodes if name != "data"]


def outputs_by_hand(model, parameters, x, activate):
    """Compute one row and one node at a time, in Python floats."""
    rows = []
    for row in x.tolist():
        values = row
        for layer in range(1, len(model.widths)):
            weight = parameters[f"layer{layer}.weight"].tolist()
            bias = parameters[f"layer{layer}.bias"].tolist()
            values = [
                sum(w * v for w, v in zip(node, values, strict=True)) + b
                for node, b in zip(weight, bias, strict=True)
            ]
            if layer < len(model.widths) - 1:
                values = [activate(value) for value in values]
        rows.append(values)
    return rows


def normal_log_density(value, loc, scale):
    return -0.5 * ((value - loc) / scale) ** 2 - math.log(scale) - 0.5 * math.log(2 * math.pi)


def student_log_density(value, loc, scale, degrees):
    constant = math.gamma((degrees + 1) / 2) / math.gamma(degrees / 2)
    constant /= math.sqrt(math.pi * degrees) * scale
    power = -(degrees + 1) / 2
    return math.log(constant * (1 + ((value - loc) / scale) ** 2 / degrees) ** power)


def poisson_log_probability(count, log_rate):
    return count * log_rate - math.exp(log_rate) - math.log(math.factorial(int(count)))


# Sites


@pytest.mark.parametrize("widths", [[3, 1], [3, 2, 2, 2], [2, 3, 8, 2], [2, 2, 5], [1] * 12])
def test_sites_come_layer_by_layer_weight_before_bias(widths):
    model = BayesianMLP(widths, likelihood="normal")
    trace = poutine.trace(model).get_trace(torch.zeros(4, widths[0]))
    expected = {}
    for layer in range(1, len(widths)):
        expected[f"layer{layer}.weight"] = (widths[layer], widths[layer - 1])
        expected[f"layer{layer}.bias"] = (widths[layer],)
    assert sampled_sites(trace) == [*expected, "obs"]
    for name, shape in expected.items():
        assert trace.nodes[name]["value"].shape == shape
        assert trace.nodes[name]["fn"].event_shape == shape
        assert model.parameter_shapes[name] == shape


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    rows=st.integers(1, 4),
    num_draws=st.integers(1, 3),
)
def test_forward_of_several_draws_is_forward_of_each(widths, rows, num_draws):
    model = BayesianMLP(widths, likelihood="normal", activation="tanh")
    parameters = parameters_of(model, 2, num_draws, dtype=torch.float64)
    x = torch.linspace(-1, 1, rows * widths[0], dtype=torch.float64).reshape(rows, widths[0])
    together = model.forward(parameters, x)
    assert together.shape == (2, num_draws, rows, widths[-1])
    for chain in range(2):
        for draw in range(num_draws):
            alone = model.forward({k: v[chain, draw] for k, v in parameters.items()}, x)
            torch.testing.assert_close(together[chain, draw], alone)


def test_structure_is_readable():
    model = BayesianMLP(
        (2, 4, 3, 2),
        prior_scale=[1, 2, 3],
        prior_loc=0.5,
        bias_prior_scale=0.1,
        activation=["relu", torch.sin],
    )
    assert model.widths == (2, 4, 3, 2)
    assert model.prior_scales == (1.0, 2.0, 3.0)
    assert model.prior_locs == model.bias_prior_locs == (0.5, 0.5, 0.5)
    assert model.bias_prior_scales == (0.1, 0.1, 0.1)
    assert model.activations == ("relu", torch.sin)
    assert model.likelihood == "categorical"
    assert (model.observation_scale, model.degrees_of_freedom) == (1.0, 4.0)
    assert BayesianMLP([2, 2], prior_scale=[3.0]).bias_prior_scales == (3.0,)
    model = BayesianMLP([4, 9, 9, 1], prior_scale=["fan_in", 2.0, "fan_in"], likelihood="normal")
    assert model.prior_scales == (1 / 2, 2.0, 1 / 3)
    assert model.bias_prior_scales == (1.0, 2.0, 1.0)
    model = BayesianMLP([4, 9, 2], prior_scale=0.1, bias_prior_scale="fan_in")
    assert model.prior_scales == (0.1, 0.1)
    assert model.bias_prior_scales == (1 / 2, 1 / 3)


# Density


def test_prior_log_density_by_hand():
    model = BayesianMLP(
        [2, 3, 2],
        prior_scale=[0.5, 2.0],
        prior_loc=[0.1, -0.2],
        bias_prior_scale=[3.0, 4.0],
        bias_prior_loc=[1.0, -1.0],
    )
    parameters = parameters_of(model)
    trace = trace_of(model, parameters, INPUTS)
    trace.compute_log_prob()
    priors = [(0.1, 0.5), (1.0, 3.0), (-0.2, 2.0), (-1.0, 4.0)]
    for (name, value), (loc, scale) in zip(parameters.items(), priors, strict=True):
        expected = sum(normal_log_density(v, loc, scale) for v in value.flatten().tolist())
        assert trace.nodes[name]["log_prob_sum"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("prior", ["laplace", "student"])
def test_log_density_of_other_priors_by_hand(prior):
    """Of weights and biases alike; each is normalised."""
    model = BayesianMLP(
        [2, 3, 2],
        prior_scale=["fan_in", 2.0],
        prior_loc=[0.1, -0.2],
        prior=prior,
        prior_degrees_of_freedom=3,
    )
    assert (model.prior, model.prior_degrees_of_freedom) == (prior, 3.0)

    def log_density(value, loc, scale):
        error = (value - loc) / scale
        if prior == "laplace":
            return -abs(error) - math.log(2 * scale)
        # With three degrees of freedom
        return math.log(2 / (math.pi * math.sqrt(3) * scale)) - 2 * math.log(1 + error**2 / 3)

    parameters = parameters_of(model)
    trace = trace_of(model, parameters, INPUTS)
    trace.compute_log_prob()
    priors = [(0.1, 0.5**0.5), (0.1, 1.0), (-0.2, 2.0), (-0.2, 2.0)]
    for (name, value), (loc, scale) in zip(parameters.items(), priors, strict=True):
        expected = sum(log_density(v, loc, scale) for v in value.flatten().tolist())
        assert trace.nodes[name]["log_prob_sum"].item() == pytest.approx(expected, rel=1e-5)


HAND_ACTIVATIONS = {
    "sigmoid": lambda v: 1 / (1 + math.exp(-v)),
    "tanh": math.tanh,
    "relu": lambda v: max(v, 0.0),
    "step": lambda v: 1.0 if v > 0 else 0.0,
    "identity": lambda v: v,
}


def test_every_activation_is_checked_by_hand():
    assert HAND_ACTIVATIONS.keys() == ACTIVATIONS.keys()


@pytest.mark.parametrize("activation", HAND_ACTIVATIONS)
@pytest.mark.parametrize(
    "likelihood",
    ["bernoulli", "categorical", "normal", "normal x 3", "student", "student x 3", "poisson x 3"],
)
def test_likelihood_by_hand(likelihood, activation):
    outputs = 1 if likelihood in ("bernoulli", "normal", "student") else 3
    kind = likelihood.split()[0]
    scale = 0.7 if kind in ("normal", "student") else 1.0
    model = BayesianMLP(
        [2, 4, 3, outputs],
        activation=activation,
        likelihood=kind,
        observation_scale=scale,
        degrees_of_freedom=2.5 if kind == "student" else 4.0,
    )
    parameters = parameters_of(model)
    hand = outputs_by_hand(model, parameters, INPUTS, HAND_ACTIVATIONS[activation])
    if likelihood == "bernoulli":
        y = torch.tensor([0, 1, 1, 0, 1])
        expected = [-math.log1p(math.exp(-z if k else z)) for (z,), k in zip(hand, y, strict=True)]
    elif likelihood == "categorical":
        y = torch.tensor([2, 0, 1, 1, 2])
        expected = [
            z[k] - math.log(sum(math.exp(v) for v in z))
            for z, k in zip(hand, y.tolist(), strict=True)
        ]
    else:
        y = torch.arange(5.0 * outputs).reshape(5, outputs).squeeze(-1)
        log_density = {
            "normal": lambda t, m: normal_log_density(t, m, scale),
            "student": lambda t, m: student_log_density(t, m, scale, 2.5),
            "poisson": poisson_log_probability,
        }[kind]
        expected = [
            sum(log_density(t, m) for t, m in zip(row, means, strict=True))
            for row, means in zip(y.reshape(5, outputs).tolist(), hand, strict=True)
        ]
    trace = trace_of(model, parameters, INPUTS, y)
    trace.compute_log_prob()
    torch.testing.assert_close(
        trace.nodes["obs"]["log_prob"], torch.tensor(expected), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("responses", [1, 3])
@pytest.mark.parametrize("kind", ["normal", "student"])
def test_scales_from_the_network_by_hand(kind, responses):
    """The first half of the outputs are locations, the second what scales follow from."""
    model = BayesianMLP([2, 4, 2 * responses], likelihood=kind, observation_scale="network")
    parameters = parameters_of(model)
    hand = outputs_by_hand(model, parameters, INPUTS, HAND_ACTIVATIONS["sigmoid"])
    y = torch.arange(5.0 * responses).reshape(5, responses)
    expected = []
    for row, outputs in zip(y.tolist(), hand, strict=True):
        locations, others = outputs[:responses], outputs[responses:]
        scales = [math.log(1 + math.exp(other)) + 1e-6 for other in others]
        if kind == "normal":
            terms = map(normal_log_density, row, locations, scales)
        else:
            terms = map(student_log_density, row, locations, scales, [4.0] * responses)
        expected.append(sum(terms))
    trace = trace_of(model, parameters, INPUTS, y.squeeze(-1))
    trace.compute_log_prob()
    torch.testing.assert_close(
        trace.nodes["obs"]["log_prob"], torch.tensor(expected), rtol=1e-4, atol=1e-5
    )
    assert trace.nodes["obs"]["fn"].event_shape == ((3,) if responses == 3 else ())


def test_linear_model():
    model = BayesianMLP([2, 1], likelihood="normal")
    parameters = {
        "layer1.weight": torch.tensor([[2.0, -1.0]]),
        "layer1.bias": torch.tensor([0.5]),
    }
    torch.testing.assert_close(
        model.forward(parameters, INPUTS).squeeze(-1), 2 * INPUTS[:, 0] - INPUTS[:, 1] + 0.5
    )


def test_one_activation_for_each_hidden_layer():
    model = BayesianMLP([2, 2, 2, 2], activation=["identity", torch.square])
    eye = {f"layer{j}.weight": torch.eye(2) for j in (1, 2, 3)}
    zero = {f"layer{j}.bias": torch.zeros(2) for j in (1, 2, 3)}
    torch.testing.assert_close(model.forward(eye | zero, INPUTS), INPUTS**2)


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_follow_the_dtype_of_x(default, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        trace = poutine.trace(BayesianMLP([2, 3, 1], likelihood="bernoulli")).get_trace(
            INPUTS.to(dtype), torch.tensor([0, 1, 1, 0, 1])
        )
        trace.compute_log_prob()
        for name in [*trace.stochastic_nodes, "obs"]:
            if name != "data":
                assert trace.nodes[name]["value"].dtype == dtype
                assert trace.nodes[name]["log_prob"].dtype == dtype
    finally:
        torch.set_default_dtype(before)


def test_overflow_is_a_nan_density():
    model = BayesianMLP([2, 2, 2], activation="identity")
    parameters = parameters_of(model)
    parameters["layer1.weight"] = torch.full((2, 2), 3e38)
    parameters["layer2.weight"] = torch.tensor([[1.0, -1.0], [1.0, -1.0]])
    trace = trace_of(model, parameters, 10 * torch.ones(3, 2), torch.tensor([0, 1, 0]))
    with pytest.warns(UserWarning, match="NaN: log_prob_sum at site 'obs'"):
        assert trace.log_prob_sum().isnan()


def test_sampled_observation_scale_comes_after_the_layers():
    model = BayesianMLP([2, 1], likelihood="normal", observation_scale=dist.HalfNormal(2.0))
    y = torch.arange(5.0)
    parameters = parameters_of(model) | {"obs_scale": torch.tensor(0.3)}
    names = sampled_sites(poutine.trace(model).get_trace(INPUTS))
    assert names == ["layer1.weight", "layer1.bias", "obs_scale", "obs"]
    trace = trace_of(model, parameters, INPUTS, y)
    trace.compute_log_prob()
    means = model.forward(parameters, INPUTS).squeeze(-1)
    torch.testing.assert_close(
        trace.nodes["obs"]["log_prob"], torch.distributions.Normal(means, 0.3).log_prob(y)
    )
    expected = normal_log_density(0.3, 0, 2) + math.log(2)
    assert trace.nodes["obs_scale"]["log_prob"].item() == pytest.approx(expected, rel=1e-5)


# Plates and draws


@pytest.mark.parametrize("columns", [(), (1,)])
def test_given_rows_are_the_rows_seen_and_scaled(columns):
    model = BayesianMLP([2, 3, 3])
    parameters = parameters_of(model)
    y = torch.tensor([2, 0, 1, 1, 2])
    rows = torch.tensor([3, 0])
    with GiveRows(rows):
        trace = trace_of(model, parameters, INPUTS, y.reshape(5, *columns))
    alone = trace_of(model, parameters, INPUTS[rows], y[rows])
    assert trace.nodes["obs"]["value"].tolist() == [1, 2]
    assert trace.nodes["obs"]["scale"] == 5 / 2
    torch.testing.assert_close(trace.nodes["obs"]["fn"].logits, alone.nodes["obs"]["fn"].logits)


def test_given_rows_of_several_outputs_and_one_hot_labels():
    rows = torch.tensor([4, 1, 2])
    regression = BayesianMLP([2, 3], likelihood="normal")
    y = torch.arange(15.0).reshape(5, 3)
    with GiveRows(rows):
        trace = trace_of(regression, parameters_of(regression), INPUTS, y)
        one_hot = torch.nn.functional.one_hot(torch.tensor([2, 0, 1, 1, 2]))
        labels = BayesianMLP([2, 3])(INPUTS, one_hot)
    assert torch.equal(trace.nodes["obs"]["value"], y[rows])
    assert trace.nodes["obs"]["fn"].event_shape == (3,)
    assert labels.tolist() == [2, 0, 1]


def test_one_given_row():
    with GiveRows(torch.tensor([1])):
        assert BayesianMLP([2, 3])(INPUTS, torch.tensor([2, 0, 1, 1, 2])).tolist() == [0]


MODELS = {
    "bernoulli": BayesianMLP([2, 3, 1], likelihood="bernoulli"),
    "categorical": BayesianMLP([2, 3, 4]),
    "normal": BayesianMLP([2, 3, 1], likelihood="normal"),
    "normal x 2": BayesianMLP([2, 3, 2], likelihood="normal"),
    "scale": BayesianMLP([2, 1], likelihood="normal", observation_scale=dist.LogNormal(0.0, 1.0)),
    "scale x 2": BayesianMLP(
        [2, 2], likelihood="normal", observation_scale=dist.LogNormal(0.0, 1.0)
    ),
    "network": BayesianMLP([2, 3, 2], likelihood="normal", observation_scale="network"),
    "network x 2": BayesianMLP([2, 3, 4], likelihood="student", observation_scale="network"),
    "student": BayesianMLP([2, 3, 1], likelihood="student"),
    "poisson": BayesianMLP([2, 3, 1], likelihood="poisson"),
    "poisson x 2": BayesianMLP([2, 3, 2], likelihood="poisson"),
}


def posterior_of(name, num_draws):
    samples = parameters_of(MODELS[name], num_draws)
    if name.startswith("scale"):
        samples["obs_scale"] = torch.linspace(0.1, 2.0, num_draws)
    return samples


@pytest.mark.parametrize("rows", [1, 3, 5])
@pytest.mark.parametrize("name", MODELS)
def test_predictive_in_parallel_agrees_with_sequential(name, rows):
    # Five draws, so that a dimension of draws could be taken for one of rows.
    model, samples, x = MODELS[name], posterior_of(name, 5), INPUTS[:rows]
    together = Predictive(model, samples, parallel=True)
    fn = together.get_vectorized_trace(x).nodes["obs"]["fn"]
    for draw in range(5):
        alone = trace_of(model, {k: v[draw] for k, v in samples.items()}, x).nodes["obs"]["fn"]
        shown = vars(getattr(fn, "base_dist", fn))
        for field in shown.keys() & {"loc", "scale", "logits", "log_rate", "rate"}:
            base, base_alone = getattr(fn, "base_dist", fn), getattr(alone, "base_dist", alone)
            torch.testing.assert_close(
                getattr(base, field)[draw], getattr(base_alone, field), atol=1e-5, rtol=0
            )
    assert together(x)["obs"].shape == Predictive(model, samples)(x)["obs"].shape


def test_predictive_values_in_parallel_and_sequential():
    model = BayesianMLP([2, 3, 1], likelihood="normal", observation_scale=1e-7)
    samples = parameters_of(model, 6)
    together = Predictive(model, samples, parallel=True)(INPUTS)["obs"]
    torch.testing.assert_close(together, Predictive(model, samples)(INPUTS)["obs"])
    assert together.shape == (6, 5)


@pytest.mark.parametrize("name", MODELS)
def test_prior_predictive_in_parallel_keeps_draws_and_rows_apart(name):
    model = MODELS[name]
    prior = Predictive(model, num_samples=5, parallel=True).get_vectorized_trace(INPUTS)
    fn = prior.nodes["obs"]["fn"]
    assert fn.batch_shape == (5, 5)
    draw = {
        site: prior.nodes[site]["value"][2, 0]
        for site in sampled_sites(prior)
        if site not in ("obs", "_num_predictive_samples")
    }
    alone = trace_of(model, draw, INPUTS).nodes["obs"]["fn"]
    torch.testing.assert_close(fn.mean[2], alone.mean, equal_nan=True)


def test_scale_of_each_draw_without_a_place_for_rows():
    model = MODELS["scale"]
    samples = posterior_of("scale", 5)
    fn = trace_of(model, samples, INPUTS).nodes["obs"]["fn"]
    assert torch.equal(fn.scale, samples["obs_scale"].unsqueeze(-1).expand(5, 5))


# Labels


INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.uint16, torch.uint64, *FLOATS])
@pytest.mark.parametrize("form", ["flat", "column", "one-hot"])
def test_categorical_labels(dtype, form):
    y = torch.tensor([2, 0, 1, 3, 2])
    given = {"flat": y, "column": y.unsqueeze(-1), "one-hot": torch.nn.functional.one_hot(y)}[form]
    value = BayesianMLP([2, 4])(INPUTS, given.to(dtype))
    assert value.dtype == torch.int64
    assert torch.equal(value, y)


def test_bool_labels():
    y = torch.tensor([True, False, True, True, False])
    assert BayesianMLP([2, 2])(INPUTS, y).tolist() == [1, 0, 1, 1, 0]
    assert BayesianMLP([2, 2])(INPUTS, torch.stack([~y, y], -1)).tolist() == [1, 0, 1, 1, 0]


@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS, *FLOATS])
@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_bernoulli_labels(dtype, shape):
    y = torch.tensor([1, 0, 1, 1, 0])
    value = BayesianMLP([2, 1], likelihood="bernoulli")(INPUTS, y.reshape(shape).to(dtype))
    assert value.dtype == torch.float32
    assert torch.equal(value, y.float())


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.float64])
@pytest.mark.parametrize(("outputs", "shape"), [(1, (5,)), (1, (5, 1)), (2, (5, 2))])
def test_normal_responses(dtype, outputs, shape):
    y = torch.arange(math.prod(shape)).reshape(shape)
    value = BayesianMLP([2, outputs], likelihood="normal")(INPUTS, y.to(dtype))
    assert value.dtype == torch.float32
    assert torch.equal(value, y.float() if outputs == 2 else torch.arange(5.0))


NAN, INFINITY = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "y", "message"),
    [
        ("categorical", [0, 1, 2, 3, 4], "y must hold whole numbers from 0 to 3, got 4"),
        ("categorical", [0, -1, 2, 3, 0], "from 0 to 3, got -1"),
        ("categorical", [0.0, 1.0, 0.5, 3.0, 0.0], "from 0 to 3, got 0.5"),
        ("categorical", [0.0, NAN, 2.0, 3.0, 0.0], "from 0 to 3, got nan"),
        ("categorical", [0.0, INFINITY, 2.0, 3.0, 0.0], "from 0 to 3, got inf"),
        ("categorical", [0, 1, 2], "y must have shape (5,) or (5, 1) or (5, 4), got (3,)"),
        ("categorical", [[0, 1, 2]] * 5, "got (5, 3)"),
        ("categorical", 1, "got ()"),
        ("categorical", [[1, 0, 0, 0]] * 4 + [[1, 0, 0, 1]], "one-hot rows, got [1, 0, 0, 1]"),
        ("categorical", [[1, 0, 0, 0]] * 4 + [[0, 0, 0, 0]], "one-hot rows, got [0, 0, 0, 0]"),
        ("categorical", [[1, 0, 0, 0]] * 4 + [[2, -1, 0, 0]], "one-hot rows, got [2, -1, 0, 0]"),
        ("categorical", [[0.9, 0.1, 1.0, 0.0]] * 5, "one-hot rows"),
        ("categorical", [[NAN, 1.0, 0.0, 0.0]] * 5, "one-hot rows"),
        ("bernoulli", [0, 1, 2, 1, 0], "whole numbers from 0 to 1, got 2"),
        ("bernoulli", [0, 1, -1, 1, 0], "whole numbers from 0 to 1, got -1"),
        ("bernoulli", [0.0, 0.5, 1.0, 1.0, 0.0], "whole numbers from 0 to 1, got 0.5"),
        ("bernoulli", [0, 1, 1, 0], "y must have shape (5,) or (5, 1), got (4,)"),
        ("bernoulli", [[0, 1]] * 5, "got (5, 2)"),
        ("normal", [0.0, NAN, 1.0, 1.0, 0.0], "finite numbers, got nan"),
        ("normal", [0.0, INFINITY, 1.0, 1.0, 0.0], "finite numbers, got inf"),
        ("normal", [[0.0] * 5] * 5, "y must have shape (5,) or (5, 1), got (5, 5)"),
        ("normal x 2", [0.0] * 5, "y must have shape (5, 2), got (5,)"),
        ("normal x 2", [[0.0]] * 5, "y must have shape (5, 2), got (5, 1)"),
        ("normal x 2", [[0.0, NAN]] * 5, "finite numbers, got nan"),
        ("network", [0.0, NAN, 1.0, 1.0, 0.0], "finite numbers, got nan"),
        ("network", [[0.0, 1.0]] * 5, "y must have shape (5,) or (5, 1), got (5, 2)"),
        ("network x 2", [[0.0] * 4] * 5, "y must have shape (5, 2), got (5, 4)"),
        ("student", [0.0, INFINITY, 1.0, 1.0, 0.0], "finite numbers, got inf"),
        ("poisson", [0, 1, -1, 1, 0], "y must hold counts, whole numbers from 0 on, got -1"),
        ("poisson", [0.0, 1.5, 1.0, 1.0, 0.0], "counts, whole numbers from 0 on, got 1.5"),
        ("poisson", [0.0, NAN, 1.0, 1.0, 0.0], "from 0 on, got nan"),
        ("poisson", [0.0, INFINITY, 1.0, 1.0, 0.0], "from 0 on, got inf"),
        ("poisson", [[0, 1]] * 5, "y must have shape (5,) or (5, 1), got (5, 2)"),
        ("poisson x 2", [0] * 5, "y must have shape (5, 2), got (5,)"),
    ],
)
def test_refused_labels(name, y, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        MODELS[name](INPUTS, torch.tensor(y))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1, 0, 1, 0], "y must be a torch tensor of real or bool dtype, got list"),
        (torch.zeros(5, dtype=torch.complex64), "got Tensor, dtype torch.complex64"),
    ],
)
def test_labels_of_a_wrong_type(y, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        MODELS["categorical"](INPUTS, y)


# Checks come once


BAD_ROWS = {
    "x": (
        torch.where(torch.arange(5) == 4, NAN, INPUTS.T).T,
        torch.zeros(5),
        r"x must hold finite numbers, got nan in row 4 \(from 0\), column 0",
    ),
    "label": (INPUTS, torch.tensor([0, 1, 2, 3, 4]), "from 0 to 3, got 4"),
    "one-hot": (INPUTS, torch.eye(5)[:, :4], "y must hold one-hot rows"),
}


@pytest.mark.parametrize(("x", "y", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_set_up_checks_every_row(x, y, message):
    with pytest.raises(ValueError, match=message):
        FNBG(BayesianMLP([2, 4]), batch_size=1, engine="trace").setup(0, x, y)


@pytest.mark.parametrize("name", MODELS)
def test_a_sweep_checks_nothing(name, monkeypatch):
    model, checks = MODELS[name], []
    for owner, check in (
        (BayesianMLP, "_check_inputs"), (BayesianMLP, "_check_parameters"),
        (Likelihood, "check_label_shape"), (Likelihood, "check_labels"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, check, lambda *given, check=check: checks.append(check))
    y = torch.zeros(5, 2) if name.endswith("x 2") else torch.zeros(5)
    kernel = FNBG(model, engine="trace", batch_size=2)
    kernel.setup(0, INPUTS, y)
    assert len(set(checks)) == 4
    checks.clear()
    kernel.sample(kernel.initial_params)
    assert checks == []
    model(INPUTS, y)
    assert len(set(checks)) == 4


@pytest.mark.parametrize(
    ("name", "y"),
    [
        ("categorical", torch.tensor([[2], [0], [1], [3], [2]]).double()),
        ("categorical", torch.nn.functional.one_hot(torch.tensor([2, 0, 1, 3, 2]))),
        ("bernoulli", torch.tensor([True, False, True, True, False])),
        ("normal", torch.arange(5).unsqueeze(-1)),
        ("normal x 2", torch.arange(10).reshape(5, 2)),
        ("poisson", torch.arange(5).to(torch.uint8).unsqueeze(-1)),
        ("network x 2", torch.arange(10).reshape(5, 2)),
    ],
)
def test_labels_are_converted_without_checks_as_with_them(name, y):
    expected = MODELS[name](INPUTS, y)
    with checks_done():
        found = MODELS[name](INPUTS, y)
    assert torch.equal(found, expected)
    assert found.dtype == expected.dtype


def test_checks_come_back():
    with pytest.raises(ZeroDivisionError), checks_done():
        _ = 1 / 0
    assert not are_checks_done()


# Inputs and parameters


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (INPUTS.numpy(), TypeError, "got ndarray: make one of all rows"),
        (INPUTS.long(), TypeError, "got torch.int64: convert and standardise it"),
        (INPUTS.to(torch.uint8), TypeError, "got torch.uint8: convert and standardise it"),
        (INPUTS[:, 0], ValueError, "shape (rows, 2), with at least one row; got (5,)"),
        (INPUTS.T, ValueError, "got (2, 5)"),
        (INPUTS[:0], ValueError, "got (0, 2)"),
        (INPUTS[None], ValueError, "got (1, 5, 2)"),
    ],
)
def test_refused_inputs(x, error, message):
    model = MODELS["categorical"]
    with pytest.raises(error, match=re.escape(message)):
        model(x)
    with pytest.raises(error, match=r"^x must be a floating-point torch tensor"):
        model.forward(parameters_of(model), x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer2.bias": torch.zeros(1)}, "parameters['layer2.bias'] must have last dimensions"),
        ({"layer1.weight": torch.zeros(2, 3)}, "(3, 2) and the dtype of x"),
        ({"layer1.bias": torch.zeros(3, dtype=torch.float64)}, "got (3,) and torch.float64"),
        ({"layer1.bias": None}, "parameters must hold 'layer1.bias'"),
    ],
)
def test_refused_parameters(change, message):
    model = MODELS["categorical"]
    parameters = {k: v for k, v in (parameters_of(model) | change).items() if v is not None}
    with pytest.raises(ValueError, match=re.escape(message)):
        model.forward(parameters, INPUTS)


# Constructor


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"widths": [2]}, "widths must be two or more positive integers, got [2]"),
        ({"widths": [2, 0, 2]}, "widths must be"),
        ({"widths": [2, 2.0]}, "widths must be"),
        ({"widths": [2, True]}, "widths must be"),
        ({"widths": 3}, "widths must be two or more positive integers, got 3"),
        ({"prior_scale": 0.0}, "prior_scale must be a positive finite number"),
        (
            {"prior_scale": [1.0]},
            "prior_scale must be a positive finite number, 'fan_in' or a ScalePrior, or 2, one",
        ),
        ({"prior_scale": [1.0, -1.0]}, "got [1.0, -1.0]"),
        ({"prior_scale": NAN}, "got nan"),
        ({"prior_scale": INFINITY}, "got inf"),
        ({"prior_scale": True}, "got True"),
        ({"prior_scale": "1"}, "got '1'"),
        ({"bias_prior_scale": ["fan_in", "fan_out"]}, "got ['fan_in', 'fan_out']"),
        (
            {"prior": "cauchy"},
            "prior must be one of ('normal', 'laplace', 'student'), got 'cauchy'",
        ),
        ({"prior_degrees_of_freedom": 0}, "prior_degrees_of_freedom must be a positive finite"),
        ({"prior_scale": torch.ones(2)}, "prior_scale must be"),
        ({"prior_loc": NAN}, "prior_loc must be a finite number, or 2, one per layer; got nan"),
        ({"prior_loc": [0.0] * 3}, "prior_loc must be"),
        ({"bias_prior_scale": -1}, "bias_prior_scale must be a positive finite number"),
        ({"bias_prior_loc": "0"}, "bias_prior_loc must be a finite number"),
        ({"activation": "softmax"}, "activation must be a callable or one of sigmoid, tanh, relu"),
        ({"activation": ["relu", "relu"]}, "a sequence of 1, one per hidden layer"),
        ({"activation": None}, "activation must be"),
        ({"activation": [[]]}, "activation must be"),
        ({"likelihood": "gamma"}, "one of ('categorical', 'normal', 'student', 'poisson') where"),
        ({"likelihood": "bernoulli"}, "where widths[-1] is 2; got 'bernoulli'"),
        ({"widths": [2, 3, 1]}, "where widths[-1] is 1; got 'categorical'"),
        ({"observation_scale": 0.5}, "1.0 unless likelihood is 'normal' or 'student'; got 0.5"),
        ({"observation_scale": dist.HalfNormal(1.0)}, "and 1.0 unless likelihood is 'normal'"),
        ({"likelihood": "poisson", "observation_scale": 2.0}, "and 1.0 unless likelihood is"),
        (
            {"observation_scale": "network"},
            "observation_scale may be 'network' where likelihood is 'normal' or 'student' and "
            "widths[-1] even, a node for each location and one for each scale; got 'categorical' "
            "and 2",
        ),
        (
            {"widths": [2, 3], "likelihood": "normal", "observation_scale": "network"},
            "for each scale; got 'normal' and 3",
        ),
        ({"degrees_of_freedom": 3}, "and 4.0 unless likelihood is 'student'; got 3"),
        *(
            (
                {"likelihood": "student", "degrees_of_freedom": degrees},
                "degrees_of_freedom must be a positive finite number, and",
            )
            for degrees in (0.0, -1.0, NAN, INFINITY, None, "4", torch.tensor(4.0))
        ),
    ],
)
def test_refused_arguments(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        BayesianMLP(**({"widths": [2, 3, 2]} | arguments))


@pytest.mark.parametrize(
    "scale",
    [
        0.0,
        -1.0,
        NAN,
        INFINITY,
        True,
        "1",
        torch.tensor(1.0),
        dist.Normal(0.0, 1.0),
        dist.Uniform(-1.0, 1.0),
        dist.Poisson(2.0),
        dist.HalfNormal(torch.ones(2)),
        torch.distributions.HalfNormal(1.0),
    ],
)
def test_refused_observation_scales(scale):
    with pytest.raises(
        ValueError, match="observation_scale must be a positive finite number, a scalar"
    ):
        BayesianMLP([2, 1], likelihood="normal", observation_scale=scale)


@pytest.mark.parametrize(
    "scale",
    [dist.HalfCauchy(1.0), dist.Gamma(2.0, 2.0), dist.Uniform(0.1, 2.0), dist.InverseGamma(2.0, 1)],
)
def test_accepted_observation_scales(scale):
    model = BayesianMLP([2, 1], likelihood="normal", observation_scale=scale)
    assert model.observation_scale is scale
    assert model(INPUTS).shape == (5,)


def test_pickled_model_is_the_same_model():
    model = BayesianMLP([2, 3, 2, 1], 2.0, activation=["step", torch.sin], likelihood="bernoulli")
    copy = pickle.loads(pickle.dumps(model))
    parameters = parameters_of(model)
    assert vars(copy) == vars(model)
    assert torch.equal(copy.forward(parameters, INPUTS), model.forward(parameters, INPUTS))


def test_random_state_is_left_alone():
    before = pyro.util.get_rng_state()
    model = BayesianMLP([2, 3, 2])
    parameters = parameters_of(model)
    model.forward(parameters, INPUTS)
    trace_of(model, parameters, INPUTS, torch.tensor([0, 1, 1, 0, 1]))
    after = pyro.util.get_rng_state()
    assert torch.equal(before["torch"], after["torch"])
    assert before["random"] == after["random"]
    assert all(map(_equal, before["numpy"], after["numpy"]))


def _equal(first, second):
    return (first == second) is True or bool((first == second).all())


def test_gradients_reach_every_parameter():
    model = BayesianMLP([2, 3, 2], activation="tanh")
    parameters = {k: v.requires_grad_() for k, v in parameters_of(model).items()}
    trace_of(model, parameters, INPUTS, torch.tensor([0, 1, 1, 0, 1])).log_prob_sum().backward()
    assert all(value.grad.abs().sum() > 0 for value in parameters.values())


@pytest.mark.parametrize(
    "text",
    [
        "BayesianMLP([2, 3])",
        "BayesianMLP([2, 3, 1], prior_scale=2.0, likelihood='bernoulli')",
        "BayesianMLP([2, 3, 4], prior_scale='fan_in', bias_prior_scale=0.5, activation='relu')",
        "BayesianMLP([2, 2], prior_scale=[0.5], likelihood='normal', observation_scale='network')",
        "BayesianMLP([2, 1], likelihood='student', degrees_of_freedom=3.0, prior='laplace')",
    ],
)
def test_a_network_shows_the_call_that_makes_it(text):
    assert repr(eval(text)) == text


def test_a_subclass_shows_its_own_name():
    class Own(BayesianMLP):
        def __init__(self):
            super().__init__([2, 1], likelihood="bernoulli")

    assert repr(Own()) == "Own([2, 1], likelihood='bernoulli')"
