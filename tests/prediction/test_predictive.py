import re

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample

from pyro_fnbg import Feedforward
from pyro_fnbg.networks.mlp import BayesianMLP
from pyro_fnbg.prediction import sources
from pyro_fnbg.prediction.predictive import marginal_predictive, predictive_probabilities

INPUTS = torch.tensor([[0.3, -1.2], [2.0, 0.1], [-0.7, 0.9]])
BINARY = BayesianMLP([2, 3, 1], likelihood="bernoulli")
CLASSES = BayesianMLP([2, 3, 4], activation="tanh")


def samples_of(model, num_draws=7):
    generator = torch.Generator().manual_seed(0)
    return {
        name: 2 * torch.randn(num_draws, *shape, generator=generator)
        for name, shape in model.parameter_shapes.items()
    }


def probabilities_by_hand(model, samples, x):
    draws = []
    for draw in range(len(samples["layer1.bias"])):
        outputs = model.forward({name: value[draw] for name, value in samples.items()}, x)
        if model.likelihood == "bernoulli":
            outputs = torch.cat([torch.zeros_like(outputs), outputs], -1)
        draws.append(outputs.exp() / outputs.exp().sum(-1, keepdim=True))
    return torch.stack(draws)


def wrapped(model):
    """Hide the structure, so that draws go through the trace one by one."""
    return lambda x, y=None: model(x, y)


@pytest.mark.parametrize("disguise", [lambda model: model, wrapped])
@pytest.mark.parametrize("model", [BINARY, CLASSES])
def test_probabilities_by_hand(model, disguise):
    samples = samples_of(model)
    expected = probabilities_by_hand(model, samples, INPUTS)
    each = predictive_probabilities(disguise(model), samples, INPUTS)
    mean = marginal_predictive(disguise(model), samples, INPUTS)
    torch.testing.assert_close(each, expected)
    torch.testing.assert_close(mean, expected.mean(0))
    assert mean.dtype == torch.float32


@pytest.mark.parametrize("limit", [1, 24, 25, 10**6])
@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_result_does_not_depend_on_the_chunks(rows, limit, monkeypatch):
    samples = samples_of(CLASSES)
    expected = probabilities_by_hand(CLASSES, samples, INPUTS)
    monkeypatch.setattr(sources, "MAX_NUMBERS", limit)
    monkeypatch.setattr(sources, "MAX_ROWS", rows)
    torch.testing.assert_close(predictive_probabilities(CLASSES, samples, INPUTS), expected)
    torch.testing.assert_close(marginal_predictive(CLASSES, samples, INPUTS), expected.mean(0))


def test_draws_and_rows_are_evaluated_in_chunks_of_bounded_size(monkeypatch):
    sizes = []
    outputs = sources._outputs

    def counted(net, parameters, x):
        found = outputs(net, parameters, x)
        sizes.append(found.numel())
        return found

    monkeypatch.setattr(sources, "MAX_NUMBERS", 80)
    monkeypatch.setattr(sources, "MAX_ROWS", 2)
    monkeypatch.setattr(sources, "_outputs", counted)
    marginal_predictive(CLASSES, samples_of(CLASSES), INPUTS)
    assert sizes[0] == 12  # the statement is compared with the model: one draw, all rows
    # Five draws of two rows and four outputs, which are held twice; then the third row
    assert sizes[1:] == [40, 16, 20, 8]


def test_saturated_probabilities_keep_their_small_side():
    model = BayesianMLP([2, 1], likelihood="bernoulli")
    samples = {"layer1.weight": torch.zeros(2, 1, 2), "layer1.bias": torch.full((2, 1), 40.0)}
    assert marginal_predictive(model, samples, INPUTS)[0, 0].item() == pytest.approx(
        4.248354e-18, rel=1e-5
    )


def test_float64_stays_float64():
    samples = {name: value.double() for name, value in samples_of(CLASSES).items()}
    assert marginal_predictive(CLASSES, samples, INPUTS.double()).dtype == torch.float64


def test_random_state_and_gradients_are_left_alone():
    samples = {name: value.requires_grad_() for name, value in samples_of(CLASSES).items()}
    for model in (CLASSES, wrapped(CLASSES)):
        before = torch.get_rng_state()
        result = marginal_predictive(model, samples, INPUTS)
        predictive_probabilities(model, samples, INPUTS)
        assert torch.equal(before, torch.get_rng_state())
        assert not result.requires_grad
        assert torch.is_grad_enabled()


# Models that state their network


@pytest.fixture
def unrecognised(monkeypatch):
    """Have models that state no network run themselves."""
    monkeypatch.setattr(sources, "recognised", lambda *_: None)


class Net(PyroModule):
    """A network of torch's own layers, which counts its runs; attributes change its statement."""

    activation = staticmethod(torch.tanh)
    stated = "tanh"

    def __init__(self, classes=1, **changes):
        super().__init__()
        self.classes, self.runs, self.changes = classes, 0, changes
        self.hidden = PyroModule[torch.nn.Linear](2, 3)
        self.out = PyroModule[torch.nn.Linear](3, classes, bias=False)
        for layer in (self.hidden, self.out):
            for name, value in list(layer.named_parameters()):
                prior = dist.Normal(torch.zeros_like(value), 1.0).to_event(value.dim())
                setattr(layer, name, PyroSample(prior))

    def forward(self, x, y=None):
        self.runs += 1
        outputs = self.out(self.activation(self.hidden((x - 0.5).to(self.dtype))))
        with pyro.plate("data", len(x)):
            if self.classes > 1:
                return pyro.sample("y", dist.Categorical(logits=outputs), obs=y)
            return pyro.sample("y", dist.Bernoulli(logits=outputs.squeeze(-1)), obs=y)

    dtype = torch.float32

    def feedforward(self, x, y=None):
        likelihood = "bernoulli" if self.classes == 1 else "categorical"
        stated = Feedforward(x - 0.5, ["hidden", "out"], [self.stated], likelihood)
        return stated._replace(**{key: change(x) for key, change in self.changes.items()})


def net_samples(net, num_draws=50):
    generator = torch.Generator().manual_seed(2)
    shapes = {"hidden.weight": (3, 2), "hidden.bias": (3,), "out.weight": (net.classes, 3)}
    return {
        name: 2 * torch.randn(num_draws, *shape, generator=generator)
        for name, shape in shapes.items()
    }


def gelu(values):
    return torch.nn.functional.gelu(values)


@pytest.mark.usefixtures("unrecognised")
@pytest.mark.parametrize("function", [marginal_predictive, predictive_probabilities])
@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize(("activation", "stated"), [(torch.tanh, "tanh"), (gelu, gelu)])
def test_a_network_that_states_itself_is_not_run_draw_by_draw(
    activation, stated, classes, function
):
    net = Net(classes)
    net.activation, net.stated = activation, stated
    samples = net_samples(net)
    expected = function(wrapped(net), samples, INPUTS)
    assert net.runs == 52  # each draw, and two looks at the response before
    net.runs = 0
    torch.testing.assert_close(function(net, samples, INPUTS), expected)
    assert net.runs == 11  # of 50 draws, to compare, one of them twice


@pytest.mark.usefixtures("unrecognised")
@pytest.mark.parametrize(
    "state",
    [
        lambda x, y: None,  # does not take x alone
        lambda x, y=None: Net().feedforward(x[: len(y)]),  # needs the labels of a run
        lambda x: Net().feedforward(x)._replace(activations=["softsign"]),  # unknown
        lambda x: x,  # a module of that name, say
    ],
)
def test_where_a_statement_cannot_be_used_the_model_is_run(state):
    net = Net()
    samples = net_samples(net)
    expected = marginal_predictive(wrapped(net), samples, INPUTS)
    net.runs, net.feedforward = 0, state
    assert torch.equal(marginal_predictive(net, samples, INPUTS), expected)
    assert net.runs == 52


@pytest.mark.usefixtures("unrecognised")
def test_where_layers_have_dtypes_of_their_own_the_model_is_run():
    net = Net()
    net.out.forward = lambda hidden: hidden @ net.out.weight.to(hidden.dtype).mT
    samples = net_samples(net)
    expected = marginal_predictive(net, samples, INPUTS)
    net.out.weight = PyroSample(dist.Normal(torch.zeros(1, 3).double(), 1.0).to_event(2))
    samples["out.weight"] = samples["out.weight"].double()
    net.runs = 0
    torch.testing.assert_close(marginal_predictive(net, samples, INPUTS), expected)
    assert net.runs == 52


@pytest.mark.parametrize("function", [marginal_predictive, predictive_probabilities])
@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": lambda x: x},
        {"inputs": lambda x: x[:2] - 0.5},
        {"activations": lambda x: ["relu"]},
        {"activations": lambda x: [torch.atan]},
        {"likelihood": lambda x: "categorical"},
        {"likelihood": lambda x: "normal"},
    ],
)
def test_a_statement_that_is_not_what_the_model_computes(function, changes):
    net = Net(**changes)
    message = r"feedforward\(\) does not state what the model computes: .* of the 3 rows of x"
    with pytest.raises(ValueError, match=message):
        function(net, net_samples(net), INPUTS)


def cancelling(dtype):
    """Sums of large terms that cancel but for a ten-thousandth."""
    samples = samples_of(BayesianMLP([200, 5, 3]), 7)
    samples["layer1.weight"] *= 200.0
    samples["layer1.weight"][..., 100:] = -samples["layer1.weight"][..., :100]
    x = torch.randn(300, 100, generator=torch.Generator().manual_seed(1))
    x = torch.cat([x, x + 1e-4 * x.flip(0)], -1)
    return {name: values.to(dtype) for name, values in samples.items()}, x.to(dtype)


class Damped(BayesianMLP):
    """State another network than is computed."""

    def forward(self, params, x):
        return 0.999 * super().forward(params, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_that_layers_magnify_is_no_other_network(dtype):
    samples, x = cancelling(dtype)
    found = predictive_probabilities(BayesianMLP([200, 5, 3]), samples, x)
    assert found.isfinite().all()
    with pytest.raises(ValueError, match="does not state what the model computes"):
        predictive_probabilities(Damped([200, 5, 3]), samples, x)


def test_a_model_of_one_precision_is_compared_in_that():
    """What it cannot be asked in double precision does not excuse it."""
    samples, x = cancelling(torch.float32)

    class Single(BayesianMLP):
        def __call__(self, x, y=None):
            assert x.dtype == torch.float32
            return super().__call__(x, y)

    with pytest.raises(ValueError, match="does not state what the model computes"):
        predictive_probabilities(Single([200, 5, 3]), samples, x)


def test_one_row_is_enough_to_find_a_wrong_statement():
    net = Net()
    samples = net_samples(net, 2)
    sums = torch.nn.functional.linear(
        INPUTS - 0.5, *[samples[f"hidden.{kind}"][0] for kind in ("weight", "bias")]
    )
    limit = sums.max()
    net.activation = lambda values: torch.where(values < limit, values.tanh(), 0.0)
    with pytest.raises(
        ValueError, match=rf"in 1 of the 3 rows .* in row {int(sums.argmax()) // 3}"
    ):
        marginal_predictive(net, samples, INPUTS)


def test_a_draw_whose_outputs_are_large_does_not_hide_a_wrong_statement():
    """Its probabilities are 0 or 1 whatever the model does to the outputs."""
    net = Net()
    samples = net_samples(net)
    samples["out.weight"][0] *= 1e4
    net.activation = lambda values: 0.5 * values.tanh()
    with pytest.raises(ValueError, match="does not state what the model computes"):
        marginal_predictive(net, samples, INPUTS[:1])


def test_a_statement_that_contradicts_the_sites():
    net = Net(layers=lambda x: ["hidden", "last"])
    with pytest.raises(ValueError, match="names layer 'last', so there must be a site"):
        marginal_predictive(net, net_samples(net), INPUTS)
    net = Net(inputs=lambda x: x.double())
    with pytest.raises(ValueError, match="inputs of the parameters' dtype and device"):
        marginal_predictive(net, net_samples(net), INPUTS)


class Stepping(Net):
    """A network of units that step, one of which rounding moves in the first draws and rows."""

    stated = "step"

    def __init__(self, wrong_draws, wrong_rows):
        super().__init__()
        # The first draw is run twice
        self.wrong_runs, self.wrong_rows = wrong_draws + 1, wrong_rows

    def activation(self, values):
        units = values > 0
        if self.runs <= self.wrong_runs:
            units[: self.wrong_rows, 0] ^= True
        return units.to(values.dtype)


@pytest.mark.parametrize(
    ("rows", "wrong_draws", "wrong_rows"), [(3, 1, 1), (99, 1, 99), (1000, 2, 10)]
)
def test_a_unit_that_steps_within_rounding_is_no_mistake(rows, wrong_draws, wrong_rows):
    net, x = Stepping(wrong_draws, wrong_rows), torch.randn(rows, 2)
    samples = net_samples(net)
    found = marginal_predictive(net, samples, x)
    assert net.runs <= 11
    torch.testing.assert_close(found, marginal_predictive(wrapped(net), samples, x))


@pytest.mark.parametrize(("rows", "wrong_rows"), [(1, 1), (3, 1), (1000, 11)])
def test_units_that_step_elsewhere_are_a_mistake(rows, wrong_rows):
    net = Stepping(2, wrong_rows)
    with pytest.raises(ValueError, match=f"in {wrong_rows} of the {rows} rows of x differ"):
        marginal_predictive(net, net_samples(net), torch.randn(rows, 2))
    assert net.runs == 11


def test_rounding_of_large_outputs_is_no_mistake():
    net = Net(3)
    samples = {name: 30 * value for name, value in net_samples(net, 200).items()}
    expected = marginal_predictive(wrapped(net), samples, INPUTS)
    torch.testing.assert_close(marginal_predictive(net, samples, INPUTS), expected)


def logistic(x, y=None):
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    pyro.deterministic("double", 2 * slope)
    with pyro.plate("rows", len(x)):
        pyro.sample("label", dist.Bernoulli(probs=torch.sigmoid(slope * x)), obs=y)


def test_a_model_of_the_users_own():
    x, slope = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 3.0])
    positive = torch.sigmoid(slope[:, None] * x)
    each = predictive_probabilities(logistic, {"slope": slope}, x)
    torch.testing.assert_close(each, torch.stack([1 - positive, positive], -1))
    torch.testing.assert_close(marginal_predictive(logistic, {"slope": slope}, x), each.mean(0))


def test_a_response_declared_to_be_an_event():
    def model(x):
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        pyro.sample("label", dist.Bernoulli(logits=slope * x).to_event(1))

    x = torch.tensor([0.5, -1.0, 2.0])
    result = marginal_predictive(model, {"slope": torch.ones(1)}, x)
    torch.testing.assert_close(result[:, 1], torch.sigmoid(x))


ZEROS = {name: torch.zeros(7, *shape) for name, shape in CLASSES.parameter_shapes.items()}


def without(*names):
    return {name: value for name, value in ZEROS.items() if name not in names}


@pytest.mark.parametrize("function", [marginal_predictive, predictive_probabilities])
@pytest.mark.parametrize("disguise", [lambda model: model, wrapped])
@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (without("layer2.bias"), "left open are ['layer2.bias', 'obs']"),
        (without() | {"obs": torch.zeros(7, 3)}, "and not its response"),
        (without() | {"layer9.bias": torch.zeros(7, 3)}, "samples holds ['layer9.bias'], which"),
        (without() | {"layer2.bias": torch.zeros(6, 4)}, "the same number of draws, one or more"),
        ({name: value[:0] for name, value in ZEROS.items()}, "'layer1.weight': 0"),
        ({}, "the same number of draws, one or more, of each site; got {}"),
        (without() | {"layer2.bias": torch.tensor(1.0)}, "'layer2.bias': 0"),
        (
            {name: value[None] for name, value in ZEROS.items()},
            "with (3, 2) after the draws; got (1, 7, 3, 2)",
        ),
    ],
)
def test_refused_samples(function, disguise, samples, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        function(disguise(CLASSES), samples, INPUTS)


@pytest.mark.parametrize(
    ("samples", "x", "message"),
    [
        ([torch.zeros(2)], INPUTS, "samples must map site names to tensors, got list"),
        ({"slope": [1.0]}, INPUTS, "samples['slope'] must be a torch tensor, got list"),
        ({"slope": torch.ones(2)}, [1.0], "x must be a torch tensor, rows first; got list"),
    ],
)
def test_refused_types(samples, x, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        marginal_predictive(logistic, samples, x)


@pytest.mark.parametrize("x", [torch.tensor(1.0), torch.zeros(0, 2)])
def test_refused_numbers_of_rows(x):
    with pytest.raises(ValueError, match="x must have one or more rows, got shape"):
        marginal_predictive(logistic, {"slope": torch.ones(2)}, x)


def test_refused_responses():
    def without_moments(x):
        pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("angle", dist.ProjectedNormal(torch.ones(2)))

    with pytest.raises(ValueError, match="known and finite; site 'angle' is Projected"):
        marginal_predictive(without_moments, {"slope": torch.ones(2)}, INPUTS)

    def several_labels(x):
        pyro.sample("slope", dist.Normal(0.0, 1.0))
        pyro.sample("label", dist.Bernoulli(0.5).expand([len(x), 2]).to_event(2))

    with pytest.raises(ValueError, match=re.escape("3 rows of x; site 'label' has shape (3, 2)")):
        marginal_predictive(several_labels, {"slope": torch.ones(2)}, INPUTS)

    def subsampled(x):
        pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x), subsample_size=2):
            pyro.sample("label", dist.Bernoulli(0.5))

    with pytest.raises(ValueError, match=re.escape("3 rows of x; site 'label' has shape (2,)")):
        marginal_predictive(subsampled, {"slope": torch.ones(2)}, INPUTS)
