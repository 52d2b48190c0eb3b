"""What is a response of independent rows, and when two of them are the same."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import BayesianMLP, Feedforward, log_likelihood, predict, sample_responses
from pyro_fnbg.prediction.predictive import marginal_predictive

ROWS = 4


def model_of(response):
    """Return a model of one weight whose response is a function of its logits of the rows."""

    def model(x, y=None):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(()), 1.0))
        pyro.sample("y", response(weight * x[:, 0]), obs=y)

    return model


@pytest.fixture
def given():
    generator = torch.Generator().manual_seed(0)
    return {"weight": torch.randn(30, generator=generator)}, torch.randn(
        ROWS, 1, generator=generator
    )


@pytest.mark.parametrize(
    ("response", "shape"),
    [
        (lambda z: dist.Normal(z, 1.0), ()),
        (lambda z: dist.Normal(z, 1.0).to_event(1), ()),
        (lambda z: dist.Normal(torch.stack([z, z, z], -1), 1.0).to_event(1), (3,)),
        (lambda z: dist.Normal(torch.stack([z, z, z], -1), 1.0).to_event(2), (3,)),
        (lambda z: dist.Normal(torch.stack([z, z, z], -1), 1.0), (3,)),
        (lambda z: dist.MultivariateNormal(torch.stack([z, z], -1), torch.eye(2)), (2,)),
        (lambda z: dist.Gamma(z.exp(), 1.0).to_event(1), ()),
        (lambda z: dist.NegativeBinomial(3.0, logits=z), ()),
        (lambda z: dist.Bernoulli(logits=z).to_event(1), (2,)),
        (lambda z: dist.OneHotCategorical(logits=torch.stack([z, -z, z], -1)), (3,)),
    ],
)
def test_rows_stand_first_whatever_is_an_event(response, shape, given):
    samples, x = given
    model = model_of(response)
    assert marginal_predictive(model, samples, x).shape == (ROWS, *shape)
    drawn = sample_responses(model, samples, x)
    is_class = shape and drawn.dim() == 2
    assert drawn.shape == (30, ROWS, *(() if is_class else shape))
    found = log_likelihood(model, samples, x, drawn[0])
    assert found.shape == (30, ROWS)


@pytest.mark.parametrize(
    "response",
    [
        lambda z: dist.MultivariateNormal(z, torch.eye(ROWS)),
        lambda z: dist.Normal(z.sum(), 1.0),
        lambda z: dist.Normal(z[:3], 1.0),
    ],
)
def test_rows_that_are_not_independent_are_refused(response, given):
    with pytest.raises(ValueError, match="one value for each of the 4 rows of x; site 'y' has sha"):
        predict(model_of(response), *given)


def test_rows_in_the_last_of_two_plates_are_refused_also_where_there_are_as_many(given):
    samples, x = given

    def model(x, y=None):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(()), 1.0))
        with pyro.plate("sensors", ROWS, dim=-2), pyro.plate("rows", len(x), dim=-1):
            pyro.sample("y", dist.Normal((weight * x[:, 0]).expand(ROWS, -1), 1.0), obs=y)

    with pytest.raises(ValueError, match="rows must come first; make an event of several numbers"):
        predict(model, samples, x)


@pytest.mark.parametrize(
    "response",
    [
        lambda z: dist.Cauchy(z, 1.0),
        lambda z: dist.StudentT(2.0, z),
        lambda z: dist.VonMises(z, 1.0),
        lambda z: dist.Poisson((z + 1e9).exp()),
        lambda z: dist.Categorical(logits=torch.stack([z, z], -1)).mask(False),
    ],
)
def test_a_response_without_finite_moments_is_refused(response, given):
    with pytest.raises(ValueError, match="whose mean and variance are known and finite; site 'y'"):
        predict(model_of(response), *given)


def test_numbers_outside_a_support_have_probability_zero(given):
    samples, x = given
    model = model_of(lambda z: dist.Uniform(z - 1.0, z + 1.0))
    y = torch.zeros(ROWS)
    inside = (samples["weight"][:, None] * x[:, 0]).abs() <= 1
    found = log_likelihood(model, samples, x, y)
    assert torch.equal(found.isfinite(), inside)
    assert torch.allclose(found[inside], torch.tensor(0.5).log())
    expected = inside.double().mean(0) * 0.5
    prediction = predict(model, samples, x, y)
    torch.testing.assert_close(prediction.log_density.exp().double(), expected)


@pytest.mark.parametrize("count", [0.5, -1.0])
def test_numbers_that_are_no_counts_are_refused(count, given):
    model = model_of(lambda z: dist.Poisson(z.exp()))
    with pytest.raises(ValueError, match="y must hold values of"):
        log_likelihood(model, *given, torch.tensor([0.0, 1.0, 2.0, count]))


class Stating:
    """A line whose statement may be about another model."""

    def __init__(self, response, likelihood, **stated):
        self.response, self.likelihood, self.stated = response, likelihood, stated

    def __call__(self, x, y=None):
        weight = pyro.sample("a.weight", dist.Normal(torch.zeros(1, 1), 1.0).to_event(2))
        bias = pyro.sample("a.bias", dist.Normal(torch.zeros(1), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", self.response((x @ weight.mT + bias.unsqueeze(-2)).squeeze(-1)), obs=y)

    def feedforward(self, x, y=None):
        return Feedforward(x, ["a"], [], self.likelihood, **self.stated)


@pytest.mark.parametrize("offset", [0.0, 3e5])
@pytest.mark.parametrize(
    ("response", "likelihood"),
    [
        (lambda z: dist.Normal(z + 50.0, 1.0), "normal"),
        (lambda z: dist.Normal(z, 2.0), "normal"),
        (lambda z: dist.Normal(z, 1.001), "normal"),
        (lambda z: dist.Normal(z, 2**0.5), "student"),
        (lambda z: dist.StudentT(6.0, z, (4 / 3) ** 0.5), "student"),
        (lambda z: dist.Bernoulli(logits=-z - 1.0), "bernoulli"),
        (lambda z: dist.Bernoulli(logits=1.01 * z + 0.1), "bernoulli"),
    ],
)
def test_a_wrong_statement_is_found_at_any_size_of_outputs(response, likelihood, offset, given):
    _, x = given
    generator = torch.Generator().manual_seed(1)
    samples = {
        "a.weight": torch.randn(30, 1, 1, generator=generator),
        "a.bias": offset + torch.randn(30, 1, generator=generator),
    }
    with pytest.raises(ValueError, match="does not state what the model computes"):
        predict(Stating(response, likelihood), samples, x)
    right = {
        "normal": lambda z: dist.Normal(z, 1.0),
        "student": lambda z: dist.StudentT(4.0, z, 1.0),
        "bernoulli": lambda z: dist.Bernoulli(logits=z),
    }
    predict(Stating(right[likelihood], likelihood), samples, x)


def test_a_model_that_draws_noise_is_refused(given):
    dropout = torch.nn.Dropout(0.5)

    def model(x, y=None):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(()), 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(dropout(weight * x[:, 0]), 1.0), obs=y)

    with pytest.raises(
        ValueError, match=r"draws random numbers of its own.*site 'y'.*call eval\(\)"
    ):
        predict(model, *given)
    dropout.eval()
    predict(model, *given)


def test_handlers_around_a_prediction_are_none_of_its_model(given):
    model = model_of(lambda z: dist.Normal(z, 1.0))
    expected = predict(model, *given)
    with pyro.condition(data={"weight": torch.tensor(99.0)}), pyro.poutine.trace():
        found = predict(model, *given)
    assert torch.equal(found.mean, expected.mean)


@pytest.mark.parametrize("draw", [1, 29])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("likelihood", ["normal", "categorical"])
def test_draws_that_are_no_numbers_are_named(likelihood, draw, value, given):
    model = BayesianMLP([1, 2], likelihood=likelihood)
    weights = torch.randn(30, 2, 1, generator=torch.Generator().manual_seed(1))
    weights[draw] = value
    samples = {"layer1.weight": weights, "layer1.bias": torch.zeros(30, 2)}
    for function in (predict, marginal_predictive):
        with pytest.raises(ValueError, match=r"the response of row 0 of x is not finite under one"):
            function(model, samples, given[1])
