import re

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fnbg.results.predictive
from pyro_fnbg.networks.mlp import BayesianMLP
from pyro_fnbg.results.predictive import marginal_predictive, predictive_probabilities

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
def test_result_does_not_depend_on_the_chunks(limit, monkeypatch):
    samples = samples_of(CLASSES)
    expected = probabilities_by_hand(CLASSES, samples, INPUTS)
    monkeypatch.setattr(pyro_fnbg.results.predictive, "_MAX_CHUNK_ELEMENTS", limit)
    torch.testing.assert_close(predictive_probabilities(CLASSES, samples, INPUTS), expected)
    torch.testing.assert_close(marginal_predictive(CLASSES, samples, INPUTS), expected.mean(0))


def test_draws_are_evaluated_in_chunks_of_bounded_size(monkeypatch):
    sizes = []
    forward = BayesianMLP.forward

    def counted(self, parameters, x):
        outputs = forward(self, parameters, x)
        sizes.append(outputs.numel())
        return outputs

    monkeypatch.setattr(pyro_fnbg.results.predictive, "_MAX_CHUNK_ELEMENTS", 40)
    monkeypatch.setattr(BayesianMLP, "forward", counted)
    marginal_predictive(CLASSES, samples_of(CLASSES), INPUTS)
    assert max(sizes) == 36  # three draws of three rows and four classes
    assert sum(sizes) == 12 + 7 * 12  # one row set more: the trace that checks the samples


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


def without(*names):
    return {name: value for name, value in samples_of(CLASSES).items() if name not in names}


@pytest.mark.parametrize("function", [marginal_predictive, predictive_probabilities])
@pytest.mark.parametrize("disguise", [lambda model: model, wrapped])
@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (without("layer2.bias"), "left open are ['layer2.bias', 'obs']"),
        (without() | {"obs": torch.zeros(7, 3)}, "and not its response"),
        (without() | {"layer9.bias": torch.zeros(7, 3)}, "samples holds ['layer9.bias'], which"),
        (without() | {"layer2.bias": torch.zeros(6, 4)}, "the same number of draws, one or more"),
        (samples_of(CLASSES, 0), "'layer1.weight': 0"),
        ({}, "the same number of draws, one or more, of each site; got {}"),
        (without() | {"layer2.bias": torch.tensor(1.0)}, "'layer2.bias': 0"),
        (
            {name: value[None] for name, value in samples_of(CLASSES).items()},
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
    regression = BayesianMLP([2, 1], likelihood="normal")
    with pytest.raises(ValueError, match="Bernoulli or Categorical; site 'obs' is Normal"):
        marginal_predictive(regression, samples_of(regression), INPUTS)

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
