"""Troubles with predictions: labels left in, samples of another model, memory, shapes."""

import io

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, Predictive
from pyro.nn import PyroModule, PyroSample
from torch import nn

from pyro_fnbg import (
    FNBG,
    BayesianMLP,
    marginal_predictive,
    predictive_probabilities,
)
from pyro_fnbg.networks.architecture import Architecture
from support.drivers import DRIVERS, WAYS

N = 16
X = torch.linspace(-2.0, 2.0, 2 * N).reshape(N, 2)
NEW = torch.tensor([[2.0, 2.0], [-2.0, -2.0], [0.0, 0.0]])
RESPONSES = {
    "bernoulli": (X.sum(1) > 0).long(),
    "categorical": (X.sum(1) + 2).clamp(0, 2).long(),
    "normal": X.sum(1),
}


def network(likelihood, hidden=2):
    return BayesianMLP([2, hidden, 3 if likelihood == "categorical" else 1], likelihood=likelihood)


def run(driver, kernel, *args, draws=20, warmup=10, **options):
    pyro.set_rng_seed(2)
    mcmc = driver(kernel, draws, warmup, disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc


def drawn(likelihood="categorical", driver=MCMC, engine="auto", draws=20):
    kernel = FNBG(network(likelihood), engine=engine)
    return run(driver, kernel, X, RESPONSES[likelihood], draws=draws).get_samples()


# What is predicted: new rows, not the labels of the training rows


@WAYS
@pytest.mark.parametrize("likelihood", RESPONSES)
def test_new_rows_are_predicted_and_not_the_labels_again(driver, engine, likelihood):
    samples = drawn(likelihood, driver, engine)
    responses = Predictive(network(likelihood), samples)(NEW)["obs"]
    together = Predictive(network(likelihood), samples, parallel=True)(NEW)["obs"]
    assert responses.shape == together.shape == (20, 3)
    assert len(responses.unique(dim=0)) > 1


@DRIVERS
def test_labels_by_keyword_are_not_kept_for_the_prediction(driver):
    def model(x, y=None):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(x @ weight, 1e-3), obs=y)

    mcmc = driver(FNBG(model), num_samples=20, warmup_steps=10, disable_progbar=True)
    mcmc.run(X, y=X @ torch.tensor([1.0, -2.0]))
    draws = mcmc.get_samples()["weight"]
    predicted = Predictive(model, {"weight": draws})(NEW)["y"]
    # The noise of 3 x 20 predictions of standard deviation 0.001 stays within 6 of these
    torch.testing.assert_close(predicted, draws @ NEW.mT, atol=6e-3, rtol=0.0)


@pytest.mark.parametrize("likelihood", ["bernoulli", "categorical"])
def test_the_three_ways_to_predict_agree(likelihood):
    samples = drawn(likelihood, draws=400)
    each = predictive_probabilities(network(likelihood), samples, NEW)
    torch.testing.assert_close(
        marginal_predictive(network(likelihood), samples, NEW), each.mean(0), atol=1e-6, rtol=1e-5
    )
    classes = torch.arange(each.shape[-1])
    for parallel in (False, True):
        votes = Predictive(network(likelihood), samples, parallel=parallel)(NEW)["obs"]
        share = (votes.unsqueeze(-1) == classes).double().mean(0)
        error = (each * (1 - each)).double().mean(0).div(len(each)).sqrt()
        assert ((share - each.mean(0)).abs() <= 4.5 * error).all()


# Samples that do not fit


@pytest.mark.parametrize("predict", [marginal_predictive, predictive_probabilities])
@pytest.mark.parametrize(
    ("other", "words"),
    [
        (BayesianMLP([2, 4, 3]), r"samples\['layer1.*'\] must have shape .*got \(20, 2"),
        (BayesianMLP([2, 2, 2, 3]), r"samples\['layer2.*'\] must have shape .*got \(20, 3"),
        (BayesianMLP([2, 3]), r"samples holds \['layer2.bias', 'layer2.weight'\], which the model"),
        (BayesianMLP([2, 2, 3, 3]), r"left open are \['layer3.weight', 'layer3.bias', 'obs'\]"),
    ],
    ids=["wider", "deeper", "flat", "one layer more"],
)
def test_samples_of_another_network_are_refused_by_site(predict, other, words):
    with pytest.raises(ValueError, match=words):
        predict(other, drawn(), NEW)


@DRIVERS
def test_draws_grouped_by_chain_are_refused_with_the_way_out(driver):
    mcmc = run(driver, FNBG(network("categorical")), X, RESPONSES["categorical"], num_chains=2)
    grouped = mcmc.get_samples(group_by_chain=True)
    with pytest.raises(ValueError, match=r"got \(2, 20, .*\): put the draws of all chains in"):
        marginal_predictive(network("categorical"), grouped, NEW)
    joined = {name: value.flatten(0, 1) for name, value in grouped.items()}
    assert torch.equal(
        marginal_predictive(network("categorical"), joined, NEW),
        marginal_predictive(network("categorical"), mcmc.get_samples(), NEW),
    )


def test_a_single_position_in_place_of_draws_is_refused():
    one = {name: value[0] for name, value in drawn().items()}
    with pytest.raises(ValueError, match="same number of draws, one or more, of each site"):
        marginal_predictive(network("categorical"), one, NEW)


@DRIVERS
def test_samples_without_a_layer_that_was_not_saved_are_refused(driver):
    kernel = FNBG(network("categorical"))
    mcmc = run(driver, kernel, X, RESPONSES["categorical"], save_params=["layer1.weight"])
    with pytest.raises(ValueError, match=r"left open are \['layer1.bias', 'layer2.weight'"):
        marginal_predictive(network("categorical"), mcmc.get_samples(), NEW)


def test_a_model_of_the_users_own_whose_samples_do_not_fit_is_told_by_site():
    def model(x, y=None):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=x @ weight.mT), obs=y)

    with pytest.raises(ValueError, match=r"samples\['weight'\] .*\(3, 2\).*got \(5, 3, 4\)"):
        marginal_predictive(model, {"weight": torch.zeros(5, 3, 4)}, NEW)


@pytest.mark.parametrize("x", [NEW[:, :1], NEW[0], NEW.double(), NEW.numpy(), NEW[:0]])
def test_inputs_that_do_not_fit_are_refused(x):
    with pytest.raises(
        (ValueError, TypeError), match="x must be|x must have|as the model's own on this x"
    ):
        marginal_predictive(network("categorical"), drawn(), x)


def test_a_column_of_outputs_is_refused_with_its_shape():
    def model(x, y=None):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(1, 2), 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ weight.mT), obs=y)

    with pytest.raises(ValueError, match=r"one value for each of the 3 rows.*'y' has shape \(3, 3"):
        marginal_predictive(model, {"weight": torch.zeros(5, 1, 2)}, NEW)


# Saved, loaded and large


class Net(PyroModule):
    """A network of modules with random weights."""

    def __init__(self):
        super().__init__()
        self.layer = PyroModule[nn.Linear](2, 3)
        for name, value in list(self.layer.named_parameters()):
            prior = dist.Normal(torch.zeros_like(value), 1.0).to_event(value.dim())
            setattr(self.layer, name, PyroSample(prior))

    def forward(self, x, y=None):
        logits = self.layer(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)
        return logits


@DRIVERS
@pytest.mark.parametrize("build", [Net, lambda: network("categorical")], ids=["modules", "own"])
def test_samples_from_a_file_predict_the_same_with_the_model_built_anew(driver, build):
    samples = run(driver, FNBG(build()), X, RESPONSES["categorical"]).get_samples()
    file = io.BytesIO()
    torch.save(samples, file)
    loaded = torch.load(io.BytesIO(file.getvalue()))
    before, after = (
        marginal_predictive(build(), samples, NEW),
        marginal_predictive(build(), loaded, NEW),
    )
    assert torch.equal(before, after)
    prior = {name: torch.randn_like(value) for name, value in samples.items()}
    assert not torch.allclose(before, marginal_predictive(build(), prior, NEW))


def test_what_a_prediction_holds_at_a_time_does_not_grow_with_the_draws(monkeypatch):
    forward, sizes, largest = Architecture.forward, [], []

    def watched(self, parameters, x):
        outputs = forward(self, parameters, x)
        sizes.append(outputs.numel())
        return outputs

    monkeypatch.setattr(Architecture, "forward", watched)
    model, rows = network("categorical", hidden=20), torch.randn(2_000, 2)
    for draws in (50, 500):
        shapes = model.parameter_shapes.items()
        samples = {name: torch.randn(draws, *shape) for name, shape in shapes}
        sizes.clear()
        assert marginal_predictive(model, samples, rows).shape == (2_000, 3)
        largest.append(max(sizes))
    assert largest[0] == largest[1]
