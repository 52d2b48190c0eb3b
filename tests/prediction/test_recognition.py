"""Networks that a model computes without stating them."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample
from torch.nn import functional

from pyro_fnbg import predict
from pyro_fnbg.prediction import sources
from pyro_fnbg.prediction.sources import ModelSource, StatedSource, find_source


class Net(PyroModule):
    """A network of torch's own layers; what it does between them, and after, is given."""

    def __init__(self, widths=(2, 4, 3), bias=True):
        super().__init__()
        self.layers = PyroModule[torch.nn.ModuleList](
            [
                PyroModule[torch.nn.Linear](below, above, bias=bias)
                for below, above in zip(widths, widths[1:], strict=False)
            ]
        )
        for layer in self.layers:
            for name, value in list(layer.named_parameters()):
                prior = dist.Normal(torch.zeros_like(value), 1.0).to_event(value.dim())
                setattr(layer, name, PyroSample(prior))

    def between(self, values):
        return torch.tanh(values)

    def before(self, x):
        return x

    def outputs(self, x):
        values = self.before(x)
        for number, layer in enumerate(self.layers):
            values = layer(values if number == 0 else self.between(values))
        return values

    def response(self, outputs):
        return dist.Categorical(logits=outputs)

    def forward(self, x, y=None):
        response = self.response(self.outputs(x))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", response, obs=y)


class Sampled(Net):
    """A regression whose scale is sampled."""

    def response(self, outputs):
        scale = pyro.sample("scale", dist.LogNormal(torch.zeros(()), 1.0))
        return dist.Normal(outputs.squeeze(-1), scale)


def changed(**methods):
    return type("Changed", (Net,), methods)()


def samples_of(model, num_draws=30):
    generator = torch.Generator().manual_seed(2)
    trace = pyro.poutine.trace(model).get_trace(torch.zeros(2, 2))
    samples = {
        name: torch.randn(num_draws, *site["value"].shape, generator=generator)
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and name not in ("y", "data")
    }
    scales = ("scale", "network", "layer1.weight")
    return {
        name: v.abs() + 0.1 if name in scales and v.dim() == 1 else v for name, v in samples.items()
    }


@pytest.fixture
def x():
    return torch.randn(9, 2, generator=torch.Generator().manual_seed(1))


def bernoulli(self, outputs):
    return dist.Bernoulli(logits=outputs.squeeze(-1))


def fixed(self, outputs):
    return dist.Normal(outputs.squeeze(-1), 0.3)


@pytest.mark.parametrize(
    "make",
    [
        Net,
        lambda: Net(bias=False),
        lambda: Net((2, 3)),
        lambda: Net((2, 5, 4, 3)),
        lambda: Sampled((2, 4, 1)),
        lambda: type("Binary", (Net,), {"response": bernoulli})((2, 4, 1)),
        lambda: type("Fixed", (Net,), {"response": fixed})((2, 4, 1)),
        lambda: changed(between=lambda self, h: h),
        lambda: changed(between=lambda self, h: torch.nn.ReLU()(h)),
        lambda: changed(between=lambda self, h: functional.relu(h, inplace=False)),
        lambda: changed(between=lambda self, h: h.sigmoid()),
        lambda: changed(before=lambda self, x: (x - 1.0) / 3.0),
    ],
)
def test_a_network_is_recognised_and_predicts_as_the_model_does(make, x, monkeypatch):
    pyro.set_rng_seed(0)
    model = make()
    samples = samples_of(model)
    assert isinstance(find_source(model, samples, x), StatedSource)
    found = predict(model, samples, x)
    monkeypatch.setattr(sources, "recognised", lambda *_: None)
    assert isinstance(find_source(model, samples, x), ModelSource)
    expected = predict(model, samples, x)
    for name in ("probabilities", "expected_entropy", "mean", "variance"):
        if hasattr(expected, name):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def latent(outputs_of):
    """Change the outputs by a latent value."""

    def response(self, outputs):
        gate = pyro.sample("scale", dist.LogNormal(torch.zeros(()), 1.0))
        return dist.Categorical(logits=outputs_of(self, outputs, gate))

    return changed(response=response)


def spread(scale_of):
    """Make the scale of a Normal response from a latent value or the network."""

    def response(self, outputs):
        gate = pyro.sample("scale", dist.LogNormal(torch.zeros(()), 1.0))
        return dist.Normal(outputs[:, 0], scale_of(self, outputs, gate), validate_args=False)

    return changed(response=response)


def of_sum(self, h):
    """Decide by a hidden value what to compute, the same for these draws."""
    return torch.tanh(h) if h.abs().sum() >= 0 else h


@pytest.mark.parametrize(
    "make",
    [
        lambda: changed(between=of_sum),
        lambda: changed(between=lambda self, h: functional.gelu(h)),
        lambda: changed(between=lambda self, h: torch.tanh(h) + h),
        lambda: changed(between=lambda self, h: torch.tanh(h)[:, [0, 2, 1, 3]]),
        lambda: changed(response=lambda self, outputs: dist.Categorical(logits=outputs / 2)),
        lambda: changed(
            response=lambda self, outputs: dist.Categorical(
                logits=outputs + self.layers[0].weight.sum()
            )
        ),
        lambda: changed(
            before=lambda self, x: x * self.layers[0].bias.exp().mean(),
        ),
        lambda: changed(
            response=lambda self, outputs: dist.Normal(outputs[:, 0], outputs[:, 1].exp())
        ),
        lambda: changed(response=lambda self, outputs: dist.Poisson(outputs[:, 0].exp())),
        # What depends on a latent value and not on the network, rarely enough to be missed
        lambda: latent(lambda net, outputs, g: -outputs if g > 0.95 else outputs),
        lambda: latent(
            lambda net, outputs, g: outputs if net.layers[0].bias.max() < 9 else -outputs
        ),
        lambda: latent(
            lambda net, o, g: o if torch.stack([net.layers[1].weight]).max() < 9 else -o
        ),
        lambda: latent(lambda net, outputs, g: outputs if outputs.abs().max() < 99 else -outputs),
        lambda: latent(lambda net, outputs, g: outputs.clamp(-50.0, 50.0)),
        lambda: latent(lambda net, outputs, g: outputs.where(outputs < 1e9, 0.0)),
        lambda: latent(lambda net, outputs, g: outputs if g.item() < 9 else -outputs),
        lambda: latent(lambda net, outputs, g: -outputs),
        lambda: spread(lambda net, outputs, g: g.exp()),
        lambda: spread(lambda net, outputs, g: g.clamp(max=9.0)),
        lambda: spread(lambda net, outputs, g: outputs[:, 1]),
        lambda: changed(
            response=lambda self, outputs: dist.Categorical(probs=torch.softmax(outputs, -1))
        ),
    ],
)
def test_what_is_no_plain_network_is_run_itself(make, x):
    pyro.set_rng_seed(0)
    model = make()
    assert isinstance(find_source(model, samples_of(model), x), ModelSource)


def test_few_draws_are_run_by_the_model(x):
    """Ten are compared: there is nothing to gain."""
    model = Net()
    assert isinstance(find_source(model, samples_of(model, 10), x), ModelSource)
    assert isinstance(find_source(model, samples_of(model, 11), x), StatedSource)


def normal(*shape):
    return dist.Normal(torch.zeros(shape), 1.0).to_event(len(shape))


def by_hand(x):
    w1, b1 = pyro.sample("w1", normal(2, 3)), pyro.sample("b1", normal(3))
    w2 = pyro.sample("w2", normal(3))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Bernoulli(logits=torch.tanh(x @ w1 + b1) @ w2))


def one_vector(x):
    w = pyro.sample("w", normal(17))
    scale = pyro.sample("scale", dist.LogNormal(torch.zeros(()), 1.0))
    inner = torch.relu(x @ w[:8].view(2, 4) + w[8:12])
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(inner @ w[12:16] + w[16], scale))


def mean_and_scale(x):
    w, v = pyro.sample("w", normal(4, 2)), pyro.sample("v", normal(2, 4))
    mean, raw = (torch.relu(x @ w.T) @ v.T).unbind(-1)
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(mean, functional.softplus(raw) + 1e-6))


def counts(x):
    w = pyro.sample("w", normal(2))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Poisson((x @ w).exp()))


def several_responses(x):
    w = pyro.sample("w", normal(3, 2))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.StudentT(4.0, x @ w.T, 0.5).to_event(1))


def one_bias(x):
    w, b = pyro.sample("w", normal(2)), pyro.sample("b", normal())
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Bernoulli(logits=x @ w + b))


def odd_names(x):
    w = pyro.sample("layer2.weight", normal(2, 2))
    v = pyro.sample("v", normal(2))
    scale = pyro.sample("layer1.weight", dist.LogNormal(torch.zeros(()), 1.0))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(torch.relu(x @ w) @ v, scale))


@pytest.mark.parametrize(
    "model",
    [by_hand, one_vector, mean_and_scale, counts, several_responses, one_bias, odd_names],
    ids=lambda model: model.__name__,
)
def test_models_of_all_kinds_are_recognised(model, x, monkeypatch):
    pyro.set_rng_seed(0)
    samples = samples_of(model)
    source = find_source(model, samples, x)
    assert isinstance(source, StatedSource)
    # No copies of draws, which may be most of the memory
    stores = {values.untyped_storage().data_ptr() for values in samples.values()}
    assert {values.untyped_storage().data_ptr() for values in source.samples.values()} <= stores
    found = predict(model, samples, x)
    monkeypatch.setattr(sources, "recognised", lambda *_: None)
    expected = predict(model, samples, x)
    for name in ("probabilities", "expected_entropy", "mean", "variance"):
        if hasattr(expected, name):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def test_weights_that_several_sites_hold_are_run_by_the_model(x):
    def model(x):
        w = torch.stack([pyro.sample("a", normal(2)), pyro.sample("b", normal(2))])
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(x @ w.T, 1.0).to_event(1))

    assert isinstance(find_source(model, samples_of(model), x), ModelSource)


class Censored(dist.Normal):
    """Has the moments of another distribution, and not its density."""

    def log_prob(self, value):
        return torch.where(value > 1.0, torch.log1p(-self.cdf(value)), super().log_prob(value))

    def expand(self, batch_shape, _instance=None):
        return super().expand(batch_shape, self._get_checked_instance(Censored, _instance))


def test_a_class_of_ones_own_is_scored_as_it_says(x):
    def model(x):
        w = pyro.sample("w", normal(2))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", Censored(x @ w, 0.5))

    assert isinstance(find_source(model, samples_of(model), x), ModelSource)


def test_a_scale_of_the_name_that_means_the_network(x):
    def model(x):
        w = pyro.sample("w", normal(2))
        scale = pyro.sample("network", dist.LogNormal(torch.zeros(()), 1.0))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(x @ w, scale))

    assert isinstance(find_source(model, samples_of(model), x), ModelSource)
