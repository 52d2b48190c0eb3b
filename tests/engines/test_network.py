"""What is read of a model's structure, and what is refused, by its message."""

import math
import re

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP, Feedforward
from pyro_fnbg.core.prior_terms import PriorTerms
from pyro_fnbg.core.priors import Family
from pyro_fnbg.engines.network import NotFeedforward, read_network
from pyro_fnbg.graphs.strided import Strided
from pyro_fnbg.networks.counts import with_count_columns
from pyro_fnbg.networks.likelihoods import Likelihood
from pyro_fnbg.testing import make_inputs, start
from support.engines import FAST, assert_as_trace, assert_decides_both_ways

ROWS = 12
Y = torch.arange(ROWS) % 2


def draw_inputs():
    return torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1))


def read(model, x=None, y=Y, **options):
    x = draw_inputs() if x is None else x
    pyro.set_rng_seed(0)
    problem = start("trace", model, x, y, **options).problem
    return read_network(problem.bound, problem.sites, problem.plan), problem


def normal(*shape, scale=1.0):
    return dist.Normal(torch.zeros(shape), scale).to_event(len(shape))


class Small:
    """Two layers, written out, with what a test changes of it as attributes."""

    shapes = {"a.weight": (2, 3), "a.bias": (2,), "b.weight": (1, 2), "b.bias": (1,)}
    statement = {}
    plate = {}

    def __init__(self, **changes):
        vars(self).update(changes)

    def prior(self, name, shape):
        return normal(*shape)

    def parameters(self):
        return {
            name: pyro.sample(name, self.prior(name, shape)) for name, shape in self.shapes.items()
        }

    def logits(self, x, values):
        hidden = x @ values["a.weight"].mT + values.get("a.bias", 0.0)
        outputs = hidden.tanh() @ values["b.weight"].reshape(-1, 2).mT + values.get("b.bias", 0.0)
        return outputs.squeeze(-1)

    def __call__(self, x, y):
        values = self.parameters()
        with pyro.plate("data", len(x), **self.plate) as rows:
            logits = self.logits(x[rows], values)
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y[rows].to(x.dtype))

    def feedforward(self, x, y):
        # What a test states of the inputs may follow from the right ones
        changed = {
            name: value(x) if name == "inputs" else value for name, value in self.statement.items()
        }
        return Feedforward(x, ["a", "b"], ["tanh"], "bernoulli")._replace(**changed)


# --- What is read ------------------------------------------------------------------------------


def test_classes():
    model = BayesianMLP(
        [3, 4, 2],
        prior_scale=[1.0, 2.0],
        prior_loc=[0.5, -0.5],
        bias_prior_scale=[3.0, 4.0],
        bias_prior_loc=[0.1, 0.2],
        activation="relu",
    )
    x = draw_inputs()
    net, problem = read(model, x, batch_size=4, likelihood_scale="full")
    assert (net.architecture.widths, net.architecture.num_layers) == ((3, 4, 2), 2)
    assert (net.activations, net.factor) == (("relu",), 3.0)
    assert net.architecture.likelihood == Likelihood("categorical", 2)
    assert net.weights == (Strided(0, (3, 1)), Strided(16, (4, 1)))
    assert net.biases == (Strided(12, (1,)), Strided(24, (1,)))
    assert net.data.inputs.data_ptr() == x.data_ptr()
    assert torch.equal(net.data.labels, Y)
    assert net.priors.locs.dtype == net.priors.scales.dtype == torch.float64
    means, sizes = [0.5, 0.1, -0.5, 0.2], [1.0, 3.0, 2.0, 4.0]
    counts = torch.tensor([12, 4, 8, 2])
    assert torch.allclose(
        net.priors.locs, torch.tensor(means).double().repeat_interleave(counts), atol=1e-7
    )
    assert torch.equal(net.priors.scales, torch.tensor(sizes).double().repeat_interleave(counts))
    assert (net.scale_coordinate, net.scale_prior) == (None, None)
    expected = dist.Normal(net.priors.locs, net.priors.scales).log_prob(net.priors.locs).sum()
    assert float(net.priors.log_constant) == pytest.approx(float(expected), abs=1e-12)
    for block in problem.partition.blocks:
        layer, node, inputs = net.places[list(block.index)].unbind(-1)
        assert set(layer.tolist()) == {block.layer}
        assert set(node.tolist()) == {block.node - 1}
        assert inputs.tolist() == [*range(net.architecture.widths[block.layer - 1]), -1]


@pytest.mark.parametrize(
    "labels", [Y, Y.bool(), Y.double(), Y.unsqueeze(-1)], ids=["long", "bool", "double", "column"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_labels_of_two_classes(labels, dtype):
    net, _ = read(BayesianMLP([3, 2, 1], likelihood="bernoulli"), draw_inputs().to(dtype), labels)
    assert torch.equal(net.data.labels, Y.to(dtype))
    assert net.data.labels.dtype == net.data.inputs.dtype == dtype


def test_labels_as_one_hot_rows():
    net, _ = read(BayesianMLP([3, 2, 2]), y=torch.nn.functional.one_hot(Y, 2))
    assert torch.equal(net.data.labels, Y)
    assert net.data.labels.dtype == torch.long


@pytest.mark.parametrize("outputs", [1, 2])
def test_regression_with_a_fixed_scale(outputs):
    y = torch.randn(ROWS, outputs)
    model = BayesianMLP([3, 2, outputs], likelihood="normal", observation_scale=0.7)
    net, _ = read(model, y=y)
    assert net.architecture.likelihood == Likelihood("normal", outputs, 0.7)
    assert net.scale_coordinate is None
    assert torch.equal(net.data.labels, y)


@pytest.mark.parametrize("likelihood", ["normal", "student"])
def test_regression_with_scales_of_the_network(likelihood):
    y = torch.randn(ROWS, 2)
    model = BayesianMLP([3, 2, 4], likelihood=likelihood, observation_scale="network")
    net, _ = read(model, y=y)
    assert net.architecture.likelihood == Likelihood(likelihood, 4, "network")
    assert (net.scale_coordinate, net.scale_prior) == (None, None)
    assert torch.equal(net.data.labels, y)


@pytest.mark.parametrize("outputs", [1, 3])
def test_counts(outputs):
    y = torch.randint(0, 9, (ROWS, outputs))
    net, _ = read(BayesianMLP([3, 2, outputs], likelihood="poisson"), y=y)
    assert torch.equal(net.data.labels, with_count_columns(y.float()))


def test_regression_with_a_sampled_scale():
    prior = dist.HalfNormal(0.5)
    net, _ = read(
        BayesianMLP([3, 1], likelihood="normal", observation_scale=prior), y=draw_inputs()[:, 0]
    )
    assert net.scale_coordinate == 4
    assert net.architecture.likelihood == Likelihood("normal", 1, "obs_scale")
    assert net.scale_prior.scale == 0.5
    assert net.priors.scales.tolist() == [1.0] * 4 + [math.inf]
    assert float(net.priors.log_constant) == pytest.approx(-2 * math.log(2 * math.pi))
    assert net.places.tolist() == [[1, 0, 0], [1, 0, 1], [1, 0, 2], [1, 0, -1], [2, 0, -1]]


def test_priors_of_other_families():
    """In each family the log density is what PyTorch has, normaliser included."""

    families = {
        "a.weight": lambda loc: dist.Laplace(loc, 0.7),
        "a.bias": lambda loc: dist.StudentT(torch.tensor([3.0, 0.5]), loc, 1.3),
        "b.weight": lambda loc: dist.StudentT(4.0, loc, 0.2),
        "b.bias": lambda loc: dist.Normal(loc, 2.0),
    }

    def prior(name, shape):
        loc = torch.linspace(-1, 1, math.prod(shape)).view(shape)
        return families[name](loc).to_event(len(shape))

    net, _ = read(Small(prior=prior))
    numbers = [Family.LAPLACE] * 6 + [Family.STUDENT] * 4 + [Family.NORMAL]
    assert net.priors.families.tolist() == numbers
    assert net.priors.degrees_of_freedom.tolist() == [1.0] * 6 + [3.0, 0.5, 4.0, 4.0, 1.0]
    assert torch.isfinite(net.priors.normal.scales).tolist() == [False] * 10 + [True]
    position = torch.randn(5, 11)
    pieces = position.split([6, 2, 2, 1], -1)
    expected = torch.cat(
        [
            prior(name, shape).base_dist.log_prob(values.view(5, *shape)).flatten(1)
            for (name, shape), values in zip(Small.shapes.items(), pieces, strict=True)
        ],
        -1,
    )
    found = PriorTerms(net.priors, position.device)(position)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), expected)
    some = torch.tensor([9, 0, 7])
    torch.testing.assert_close(
        PriorTerms(net.priors, position.device, some)(position), found[:, some]
    )


def test_layers_without_biases():
    shapes = {name: shape for name, shape in Small.shapes.items() if name != "a.bias"}
    net, _ = read(Small(shapes=shapes))
    assert net.architecture.has_bias == (False, True)
    assert net.weights == (Strided(0, (3, 1)), Strided(6, (2, 1)))
    assert net.biases == (None, Strided(8, (1,)))
    assert net.places[-1].tolist() == [2, 0, -1]


def test_sites_in_another_order_than_the_layers():
    order = ["b.bias", "a.weight", "b.weight", "a.bias"]
    model = Small(
        shapes={name: Small.shapes[name] for name in order},
        prior=lambda name, shape: normal(*shape, scale=1.0 + order.index(name)),
    )
    net, _ = read(model)
    assert net.architecture.widths == (3, 2, 1)
    assert net.weights == (Strided(1, (3, 1)), Strided(7, (2, 1)))
    assert net.biases == (Strided(9, (1,)), Strided(0, (1,)))
    assert net.priors.scales.tolist() == [1.0] + [2.0] * 6 + [3.0] * 2 + [4.0] * 2
    assert net.places[:, 0].tolist() == [2] + [1] * 6 + [2] * 2 + [1] * 2


def test_a_model_that_subsamples_itself():
    """All rows are read, though a run of the model sees but five."""
    net, problem = read(Small(plate={"subsample_size": 5}))
    assert problem.plan.batch_size == 5
    assert net.factor == ROWS / 5
    assert len(net.data.inputs) == ROWS
    assert torch.equal(net.data.labels, Y.float())


class WithoutPlate(Small):
    def __call__(self, x, y):
        logits = self.logits(x, self.parameters())
        pyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y.to(x.dtype))


def test_a_model_without_a_plate():
    net, problem = read(WithoutPlate())
    assert problem.plan.plate is None
    assert net.factor == 1.0
    assert torch.equal(net.data.labels, Y.float())


@pytest.mark.parametrize(
    "model", [Small(plate={"subsample_size": 5}), WithoutPlate()], ids=["subsampled", "no plate"]
)
@pytest.mark.parametrize("engine", FAST)
def test_such_models_run_as_the_model_itself_does(model, engine):
    torch.set_default_dtype(torch.float64)  # of the priors
    run = start(engine, model, draw_inputs().double(), Y)
    record = assert_as_trace(run, make_inputs(run, 1, 20, scale=0.5))
    assert_decides_both_ways(record.accepted)


# --- What no engine of networks knows: the model itself is run, captured or not ------------------


class TwoObserved(Small):
    def __call__(self, x, y):
        super().__call__(x, y)
        pyro.sample("more", dist.Normal(0.0, 1.0), obs=torch.tensor(0.5))


class Unobserved(Small):
    def __call__(self, x, y):
        self.parameters()


class ExtraLatent(Small):
    def parameters(self):
        pyro.sample("extra", dist.Normal(0.0, 1.0))
        return super().parameters()


class MixedDtypes(Small):
    def prior(self, name, shape):
        values = torch.zeros(shape, dtype=torch.float64 if name == "b.bias" else torch.float32)
        return dist.Normal(values, 1.0).to_event(len(shape))

    def logits(self, x, values):
        return super().logits(x, {name: value.to(x.dtype) for name, value in values.items()})


class Hierarchical(Small):
    """The spread of the second layer's weights is the size of a first-layer bias."""

    def parameters(self):
        values = {}
        for name, shape in self.shapes.items():
            scale = 0.1 + values["a.bias"][0].abs() if name == "b.weight" else 1.0
            values[name] = pyro.sample(name, normal(*shape, scale=scale))
        return values


def handled(handler):
    """Put a handler around the prior of one site, or around the whole model's observed site."""

    class Handled(Small):
        def parameters(self):
            values = super().parameters()
            with handler():
                values["a.bias"] = pyro.sample("a.bias", normal(2))
            return values

    shapes = {name: shape for name, shape in Small.shapes.items() if name != "a.bias"}
    return Handled(shapes=shapes)


def observed_under(handler):
    class Handled(Small):
        def __call__(self, x, y):
            values = self.parameters()
            with pyro.plate("data", len(x)) as rows, handler():
                logits = self.logits(x[rows], values)
                pyro.sample("y", dist.Bernoulli(logits=logits), obs=y[rows].to(x.dtype))

    return Handled()


class Scaled(Small):
    """Regression whose observation scale has the given prior."""

    def __call__(self, x, y):
        values = self.parameters()
        scale = pyro.sample("spread", self.scale_prior(values))
        with pyro.plate("data", len(x)) as rows:
            means = self.logits(x[rows], values)
            pyro.sample("y", dist.Normal(means, scale), obs=y[rows].to(x.dtype))

    def feedforward(self, x, y):
        return Feedforward(x, ["a", "b"], ["tanh"], "normal", "spread")


SEVERAL_DTYPES = "its latent sites have several dtypes"
UNKNOWN = {
    "no statement": (lambda x, y: Small()(x, y), "has no method feedforward()"),
    "two dtypes": (MixedDtypes(), SEVERAL_DTYPES),
    "another latent site": (ExtraLatent(), "latent sites ['extra'] are no weights or biases"),
    "scale not stated": (
        Scaled(
            scale_prior=lambda values: dist.HalfNormal(1.0),
            feedforward=lambda x, y: Feedforward(x, ["a", "b"], ["tanh"], "normal"),
        ),
        "latent sites ['spread'] are no weights or biases",
    ),
    "hierarchy": (Hierarchical(), "the prior of 'b.weight' depends on other sites"),
    "other prior": (
        Small(prior=lambda name, shape: dist.Cauchy(torch.zeros(shape), 1.0).to_event(len(shape))),
        "the prior of 'a.weight' is no independent Normal, Laplace or StudentT: Cauchy",
    ),
    "dependent prior": (
        Small(
            prior=lambda name, shape: (
                dist.MultivariateNormal(torch.zeros(2), torch.eye(2))
                if name == "a.bias"
                else normal(*shape)
            )
        ),
        "the prior of 'a.bias' is no independent Normal",
    ),
    "scaled prior": (
        handled(lambda: pyro.poutine.scale(scale=0.5)),
        "the prior of 'a.bias' is masked or scaled",
    ),
    "masked prior": (
        handled(lambda: pyro.poutine.mask(mask=torch.tensor(True))),
        "the prior of 'a.bias' is masked or scaled",
    ),
    "activation": (
        Small(statement={"activations": [torch.sin]}),
        "are none of ['sigmoid', 'tanh', 'relu', 'step', 'identity']",
    ),
    "scale that depends": (
        Scaled(scale_prior=lambda values: dist.HalfNormal(0.1 + values["b.bias"][0].abs())),
        "the prior of 'spread' is masked, scaled or depends on sites",
    ),
    "two observed sites": (TwoObserved(), "its observed sites are ['y', 'more'], and must be one"),
    "scaled rows": (
        observed_under(lambda: pyro.poutine.scale(scale=2.0)),
        "its observed site 'y' is masked or scaled",
    ),
    "masked rows": (
        observed_under(lambda: pyro.poutine.mask(mask=Y.bool())),
        "its observed site 'y' is masked or scaled",
    ),
}

# What the model states is not enough, but what it computes says the rest
SHOWN = {UNKNOWN[name][1] for name in ("no statement", "scale not stated", "activation")}


@pytest.mark.parametrize(("model", "reason"), UNKNOWN.values(), ids=UNKNOWN)
def test_models_that_no_engine_of_networks_knows(model, reason):
    with pytest.raises(NotFeedforward, match=re.escape(reason)):
        read(model)
    kernel = FNBG(model)
    kernel.setup(0, draw_inputs(), Y)
    found = kernel.diagnostics()["reason for the engine"]
    if reason in SHOWN:
        assert kernel.engine == "fused"
        assert "was found to be" in found
        return
    assert kernel.engine == ("trace" if reason == SEVERAL_DTYPES else "captured")
    assert reason in found


@pytest.mark.filterwarnings("ignore:the model has no observed data")
def test_a_model_without_observed_data():
    with pytest.raises(NotFeedforward, match=r"its observed sites are \[\], and must be one"):
        read(Unobserved())


# --- Statements that contradict the sites --------------------------------------------------------


SITES = "the latent sites are {'a.weight'"
BROKEN = {
    "no layers": ({"layers": []}, {}, ["must name its layers, got layers=[]"]),
    "layers as text": ({"layers": "ab"}, {}, ["must name its layers, got layers='ab'"]),
    "no such layer": (
        {"layers": ["a", "c"], "activations": ["tanh"]},
        {},
        ["names layer 'c'", "'c.weight' of two dimensions, with 2 columns", SITES],
    ),
    "first layer unknown": (
        {"layers": ["c", "b"]},
        {},
        ["names layer 'c'", "site 'c.weight' of two dimensions: the latent sites are"],
    ),
    "layers in another order": (
        {"layers": ["b", "a"]},
        {},
        ["names layer 'a'", "'a.weight' of two dimensions, with 1 columns"],
    ),
    "weights of one dimension": (
        {},
        {"b.weight": (2,)},
        ["names layer 'b'", "'b.weight' of two dimensions"],
    ),
    "shape of biases": ({}, {"b.bias": (1, 1)}, ["site 'b.bias' must have shape (1,)", SITES]),
    "too few activations": ({"activations": []}, {}, ["one activation a hidden layer, 1, got []"]),
    "activations as text": (
        {"activations": "x"},
        {},
        ["one activation a hidden layer, 1, got 'x'"],
    ),
    "likelihood": (
        {"likelihood": "gamma"},
        {},
        ["likelihood of ('bernoulli', 'categorical', 'normal', 'student', 'poisson'), got 'gamma'"],
    ),
    "inputs no tensor": (
        {"inputs": lambda x: x.numpy()},
        {},
        ["must give inputs of shape (rows, 3), got ndarray"],
    ),
    "inputs of one dimension": (
        {"inputs": lambda x: x[:, 0]},
        {},
        ["must give inputs of shape (rows, 3), got (12,)"],
    ),
    "columns": ({"inputs": lambda x: x[:, :2]}, {}, ["inputs of shape (rows, 3), got (12, 2)"]),
    "dtype": (
        {"inputs": lambda x: x.double()},
        {},
        ["of the parameters' dtype and device, torch.float32 on cpu, got torch.float64 on cpu"],
    ),
    "scale of no site": (
        {"observation_scale": "spread"},
        {},
        ["names the scalar site 'spread' as its scale", SITES],
    ),
    "scale of several numbers": (
        {"observation_scale": "a.bias"},
        {},
        ["names the scalar site 'a.bias' as its scale", SITES],
    ),
    "rows": ({"inputs": lambda x: x[:7]}, {}, ["inputs of all 12 rows of plate 'data', got 7"]),
}


@pytest.mark.parametrize(("statement", "shapes", "messages"), BROKEN.values(), ids=BROKEN)
def test_statements_that_contradict_the_sites(statement, shapes, messages):
    with pytest.raises(ValueError, match="^(feedforward|site)") as info:
        read(Small(statement=statement, shapes=Small.shapes | shapes))
    assert not isinstance(info.value, NotFeedforward)
    for message in messages:
        assert message in str(info.value)


def test_a_statement_of_another_type():
    model = Small(feedforward=lambda x, y: (x, ["a", "b"], ["tanh"], "bernoulli"))
    with pytest.raises(ValueError, match=r"^feedforward\(\) must return a Feedforward, got tuple"):
        read(model)


def test_inputs_of_fewer_rows_than_a_model_without_a_plate_observes():
    message = (
        "observed site 'y' must have 1 value(s) for each of the 7 rows of inputs that "
        "feedforward() gives, got shape (12,)"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        read(WithoutPlate(statement={"inputs": lambda x: x[:7]}))


def test_labels_of_fewer_columns_than_the_network_has_outputs():
    model = BayesianMLP([3, 2], likelihood="normal")

    class OneColumn(Small):
        shapes = {"layer1.weight": (2, 3), "layer1.bias": (2,)}

        def __call__(self, x, y):
            values = self.parameters()
            with pyro.plate("data", len(x)) as rows:
                means = model.forward(values, x[rows]).sum(-1)
                pyro.sample("y", dist.Normal(means, 1.0), obs=y[rows].to(x.dtype))

    with pytest.raises(ValueError, match=r"must have 2 value\(s\) for each of the 12 rows"):
        read(OneColumn(feedforward=lambda x, y: Feedforward(x, ["layer1"], [], "normal")))
