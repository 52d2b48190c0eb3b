import re

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC
from pyro.nn import PyroModule, PyroSample

from pyro_fnbg import FNBG, BayesianMLP, Feedforward
from pyro_fnbg.engines import comparison
from pyro_fnbg.engines.captured.engine import CapturedEngine
from pyro_fnbg.engines.choice import FAST, OF_CAPTURED
from pyro_fnbg.engines.comparison import blocks_by_layer
from pyro_fnbg.engines.network import read_network
from pyro_fnbg.testing import start
from support.slow import slowly


@pytest.fixture
def data():
    """Inputs and classes in single precision."""
    rng = torch.Generator().manual_seed(1)
    return torch.randn(40, 3, generator=rng), torch.randint(0, 2, (40,), generator=rng)


@pytest.fixture
def doubles(data):
    """The same in double precision."""
    return tuple(values.double() for values in data)


def chosen(model, *data, **options):
    pyro.set_rng_seed(0)
    kernel = FNBG(model, **options)
    kernel.setup(0, *data)
    return kernel.engine, kernel.diagnostics()["reason for the engine"]


class Net(PyroModule):
    """Two linear layers with PyroSample priors, which take their rows from the plate."""

    activation = staticmethod(torch.tanh)

    def __init__(self, hidden=4, has_bias=True):
        super().__init__()
        self.hidden = PyroModule[torch.nn.Linear](3, hidden, bias=has_bias)
        self.out = PyroModule[torch.nn.Linear](hidden, 1)
        for layer in (self.hidden, self.out):
            layer.to(torch.float64)
            for name, value in list(layer.named_parameters()):
                prior = dist.Normal(torch.zeros_like(value), 2.0).to_event(value.dim())
                setattr(layer, name, PyroSample(prior))

    def forward(self, x, y=None):
        plate = pyro.plate("data", len(x))
        with plate as rows:
            batch, labels = x[rows], None if y is None else y[rows]
        logits = self.out(self.activation(self.hidden(batch))).squeeze(-1)
        with plate:
            return pyro.sample("y", dist.Bernoulli(logits=logits), obs=labels)

    def feedforward(self, x, y=None):
        return Feedforward(x, ["hidden", "out"], ["tanh"], "bernoulli")


# --- What "auto" takes -------------------------------------------------------------------------


def plain(x, y):
    weight = pyro.sample("weight", dist.Normal(torch.zeros(1, 3), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=(x @ weight.mT).squeeze(-1)), obs=y.float())


def of_probabilities(x, y):
    weight = pyro.sample("weight", dist.Normal(torch.zeros(1, 3), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli((x @ weight.mT).squeeze(-1).sigmoid()), obs=y.float())


class ExtraSite(BayesianMLP):
    def __call__(self, x, y=None):
        pyro.sample("extra", dist.Normal(0.0, 1.0))
        return super().__call__(x, y)


class Hierarchical(BayesianMLP):
    """The prior of the weights depends on a latent site that is no part of the network."""

    def __call__(self, x, y=None):
        spread = pyro.sample("spread", dist.HalfNormal(1.0))
        weight = pyro.sample("layer1.weight", dist.Normal(torch.zeros(1, 3), spread).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=(x @ weight.mT).squeeze(-1)), obs=y.float())


AUTO = {
    "network": (BayesianMLP([3, 2, 2]), "fused", "compared with the model's"),
    "function": (plain, "fused", "that the model was found to be"),
    "another function": (of_probabilities, "captured", "of probabilities, not of logits"),
    "callable activation": (
        BayesianMLP([3, 2, 2], activation=torch.sin),
        "captured",
        "are none of",
    ),
    "another latent site": (ExtraSite([3, 2, 2]), "captured", "latent sites ['extra']"),
    "hierarchy": (Hierarchical([3, 1], likelihood="bernoulli"), "fused", "was found to be"),
    "scale unknown to fused": (
        BayesianMLP([3, 2, 1], likelihood="normal", observation_scale=dist.Weibull(1.0, 2.0)),
        "feedforward",
        "the fastest that applies",
    ),
    "two dtypes": (
        BayesianMLP(
            [3, 2, 1],
            likelihood="normal",
            observation_scale=dist.HalfNormal(torch.tensor(1.0, dtype=torch.float64)),
        ),
        "trace",
        "several dtypes",
    ),
}


@pytest.mark.parametrize(("model", "engine", "reason"), AUTO.values(), ids=AUTO)
def test_auto_takes_the_fastest_that_applies_and_says_why(model, engine, reason, data):
    found, why = chosen(model, *data)
    assert found == engine
    assert reason in why


@pytest.mark.parametrize("engine", ["fused", "feedforward"])
def test_a_named_engine_that_does_not_apply_is_refused(engine, data):
    with pytest.raises(ValueError, match=f"engine='{engine}' cannot run this model: the like"):
        chosen(of_probabilities, *data, engine=engine)


def test_a_named_engine_says_what_it_does_not_know_and_what_else_there_is(data):
    model, _, _ = AUTO["scale unknown to fused"]
    message = (
        "engine='fused' cannot run this model: the prior of its observation scale is Weibull; "
        "engine='auto' takes the fastest that can"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        chosen(model, *data, engine="fused")
    found, reason = chosen(model, *data, engine="feedforward")
    assert found == "feedforward"
    assert reason.startswith("asked for by engine='feedforward'; its log ratios were compared")


def test_trace_runs_what_was_asked_of_it(data):
    assert chosen(BayesianMLP([3, 2, 2]), *data, engine="trace")[0] == "trace"


@pytest.mark.parametrize("engine", ["Fused", "", None, 3])
def test_unknown_engines_are_refused(engine):
    with pytest.raises(ValueError, match=r"engine must be one of \('auto', 'fused', 'feedforward'"):
        FNBG(plain, engine=engine)


def test_a_layer_that_never_moves_the_likelihood_is_left_to_the_model_itself(doubles):
    """With inputs of zero the weights of the first layer change nothing that could be compared."""
    x, y = doubles
    zeros = torch.zeros_like(x)
    model = Net(has_bias=False)
    found, why = chosen(model, zeros, y)
    assert found == "captured"
    assert "no candidate tried in layers [1] changed the likelihood" in why
    for engine in ("fused", "feedforward"):
        with pytest.raises(ValueError, match=f"'{engine}' cannot run this model: no candidate tri"):
            chosen(model, zeros, y, engine=engine)
    # A bias of the same layer does move it
    assert chosen(Net(), zeros, y, blocks="site")[0] == "fused"


# --- A user's own network ----------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [None, 16])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_layers_of_a_user_get_the_fast_path(has_bias, batch_size, doubles):
    draws = {}
    for engine in ("auto", "trace"):
        pyro.set_rng_seed(3)
        kernel = FNBG(Net(4, has_bias), batch_size=batch_size, engine=engine)
        mcmc = MCMC(kernel, num_samples=30, warmup_steps=20, disable_progbar=True)
        mcmc.run(*doubles)
        draws[kernel.engine] = mcmc.get_samples()
    assert set(draws) == {"fused", "trace"}
    for name, values in draws["trace"].items():
        # The tuned scales depend on ratios, which agree up to rounding
        assert torch.allclose(draws["fused"][name], values, rtol=1e-9, atol=1e-9)
        assert len(values.unique(dim=0)) > 1


class Layers(PyroModule):
    """A loop over linear layers, of any widths and any likelihood."""

    def __init__(self, widths, likelihood):
        super().__init__()
        self.likelihood = likelihood
        self.names = [f"layer{number}" for number in range(1, len(widths))]
        for name, fan_in, fan_out in zip(self.names, widths, widths[1:], strict=False):
            layer = PyroModule[torch.nn.Linear](fan_in, fan_out, dtype=torch.float64)
            for kind, value in list(layer.named_parameters()):
                prior = dist.Normal(torch.zeros_like(value), 1.5).to_event(value.dim())
                setattr(layer, kind, PyroSample(prior))
            setattr(self, name, layer)
        if likelihood == "normal":
            one = torch.ones((), dtype=torch.float64)
            self.spread = PyroSample(dist.Gamma(2 * one, 2 * one))

    def forward(self, x, y=None):
        plate = pyro.plate("data", len(x))
        with plate as rows:
            values, labels = x[rows], None if y is None else y[rows]
        for name in self.names:
            values = getattr(self, name)(values if name == "layer1" else values.sigmoid())
        if self.likelihood == "categorical":
            response = dist.Categorical(logits=values)
        elif self.likelihood == "bernoulli":
            response = dist.Bernoulli(logits=values.squeeze(-1))
        elif self.likelihood == "poisson":
            response = dist.Poisson(values.squeeze(-1).exp())
        elif self.likelihood == "student":
            location, other = values.unbind(-1)
            response = dist.StudentT(3.0, location, torch.nn.functional.softplus(other) + 1e-6)
        else:
            response = dist.Normal(values.squeeze(-1), self.spread)
        with plate:
            return pyro.sample("y", response, obs=labels)

    def feedforward(self, x, y=None):
        scale = {"normal": "spread", "student": "network"}.get(self.likelihood, 1.0)
        activations = ["sigmoid"] * (len(self.names) - 1)
        return Feedforward(x, self.names, activations, self.likelihood, scale, 3.0)


@pytest.mark.parametrize("batch_size", [None, 16])
@pytest.mark.parametrize(
    ("widths", "likelihood"),
    [
        ([3, 1], "bernoulli"),
        ([3, 5, 3], "categorical"),
        ([3, 2, 4, 1], "normal"),
        ([3, 4, 2], "student"),
        ([3, 4, 1], "poisson"),
    ],
)
def test_networks_of_a_user_take_the_same_decisions_on_every_engine(
    widths, likelihood, batch_size, doubles
):
    """Without tuning, draws are equal bit for bit where all decisions are."""
    draws, rates, (x, y) = {}, set(), doubles
    y = torch.arange(40) % 3 if likelihood == "categorical" else y
    for engine in ("auto", "feedforward", "trace"):
        pyro.set_rng_seed(4)
        kernel = FNBG(
            Layers(widths, likelihood),
            batch_size=batch_size,
            adapt=False,
            proposal_scale=0.5,
            engine=engine,
        )
        mcmc = MCMC(kernel, num_samples=40, warmup_steps=1, disable_progbar=True)
        mcmc.run(x, y)
        draws[kernel.engine] = mcmc.get_samples()
        rates.add(kernel.diagnostics()["acceptance rate"])
    assert set(draws) == {"fused", "feedforward", "trace"}
    (rate,) = rates
    assert 0.05 < rate < 0.95
    for name, values in draws["trace"].items():
        if name == "spread":  # constrained by an exponential
            assert torch.allclose(draws["fused"][name], values, rtol=1e-12)
        else:
            assert torch.equal(draws["fused"][name], values)
            assert torch.equal(draws["feedforward"][name], values)


# --- Statements that are wrong -----------------------------------------------------------------


def stating(**changes):
    class Stating(Net):
        def feedforward(self, x, y=None):
            known = {
                name: value(x) if name == "inputs" else value for name, value in changes.items()
            }
            return super().feedforward(x, y)._replace(**known)

    return Stating()


class Doubled(BayesianMLP):
    def forward(self, parameters, x):
        return 2 * super().forward(parameters, x)


class Stated(BayesianMLP):
    """A network that states something else than it computes."""

    statement = {}

    def feedforward(self, x, y=None):
        return super().feedforward(x, y)._replace(**self.statement)


class Swapped(Stated):
    statement = {"activations": ("tanh", "relu")}


class ScaleDoubled(Stated):
    statement = {"observation_scale": 1.0}


class OtherTails(Stated):
    statement = {"degrees_of_freedom": 3.0}


class Exponentials(BayesianMLP):
    """Scales from the network, but not those that it states."""

    def _response(self, outputs, scale, validate):
        mean, other = outputs.unbind(-1)
        return dist.Normal(mean, other.exp(), validate_args=False)


class RowsTwice(BayesianMLP):
    """Every row counts twice."""

    def _response(self, outputs, scale, validate):
        response = super()._response(outputs, scale, validate)
        return Twice(response.logits, validate_args=False)


class Twice(dist.Bernoulli):
    def log_prob(self, value):
        return 2 * super().log_prob(value)


# Networks, which are given inputs in double precision, or in single where they have such priors
WRONG = {
    "activation": (lambda: stating(activations=["relu"]), torch.float64),
    "likelihood": (lambda: stating(likelihood="normal"), torch.float64),
    "inputs transformed": (lambda: stating(inputs=lambda x: 2 * x), torch.float64),
    "rows permuted": (lambda: stating(inputs=lambda x: x.flip(0)), torch.float64),
    "logits doubled": (lambda: Doubled([3, 2, 1], likelihood="bernoulli"), torch.float32),
    "activations swapped": (
        lambda: Swapped([3, 4, 4, 2], activation=["relu", "tanh"]), torch.float32,
    ),
    "observation scale": (
        lambda: ScaleDoubled([3, 2, 1], likelihood="normal", observation_scale=0.5), torch.float32,
    ),
    "degrees of freedom": (lambda: OtherTails([3, 2, 1], likelihood="student"), torch.float32),
    "scales by another function": (
        lambda: Exponentials([3, 2, 2], likelihood="normal", observation_scale="network"),
        torch.float32,
    ),
    "log likelihood doubled": (lambda: RowsTwice([3, 2, 1], likelihood="bernoulli"), torch.float32),
}  # fmt: skip


@pytest.mark.parametrize("batch_size", [slowly(None), 10])
@pytest.mark.parametrize("engine", ["auto", "fused", "feedforward"])
@pytest.mark.parametrize(("make_model", "dtype"), WRONG.values(), ids=WRONG)
def test_a_wrong_statement_is_an_error_that_says_what_differs(
    engine, make_model, dtype, batch_size, data
):
    model, x, y = make_model(), data[0].to(dtype), data[1].to(dtype)
    if model.feedforward(x, y).likelihood == "categorical":
        y = y.long()
    with pytest.raises(ValueError, match="and the model disagree: for a candidate of b") as info:
        chosen(model, x, y, engine=engine, batch_size=batch_size)
    found = re.fullmatch(
        r"engine '(\w+)' and the model disagree: for a candidate of block 'layer\d\.node\d' the "
        r"model's log prior changes by (\S+) and its log likelihood by (\S+), but the engine's log "
        r"ratio is (\S+), off by (\S+): the model's feedforward\(\) must state what the model "
        r"computes \(inputs, layers, activations, likelihood, observation_scale\); engine='trace' "
        r"needs no statement",
        str(info.value).replace("hidden.", "layer1.").replace("out.", "layer2."),
    )
    assert found, str(info.value)
    assert found[1] == ("fused" if engine == "auto" else engine)
    prior, likelihood, ratio, off = map(float, found.groups()[1:])
    assert abs(off) > 1e-4
    # Six digits of each are shown, and three of the difference
    shown = 1e-5 * (abs(prior) + abs(likelihood) + abs(ratio)) + 1e-2 * abs(off)
    assert off == pytest.approx(ratio - prior - likelihood, abs=shown)
    assert chosen(model, x, y, engine="trace")[0] == "trace"


# --- How far apart is too far ------------------------------------------------------------------


def stretched(share):
    """A network whose logits are larger than it states, by a share."""

    class Stretched(BayesianMLP):
        def forward(self, parameters, x):
            return (1 + share) * super().forward(parameters, x)

    return Stretched([3, 2, 1], prior_scale=2.0, likelihood="bernoulli")


@pytest.mark.parametrize("engine", ["fused", "feedforward"])
@pytest.mark.parametrize(
    ("dtype", "rows", "share"),
    [
        (torch.float64, 40, 1e-8),
        (torch.float64, 20_000, 3e-9),
        (torch.float32, 40, 1e-3),
        (torch.float32, 20_000, 3e-4),
    ],
)
def test_smallest_disagreements_that_are_seen(dtype, rows, share, engine):
    """As shares of the logits; a hundredth of them is taken for rounding."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64).to(dtype)
    y = (torch.rand(rows, generator=generator) < torch.sigmoid(x[:, 0])).to(dtype)
    with pytest.raises(ValueError, match="and the model disagree"):
        chosen(stretched(share), x, y, engine=engine)
    assert chosen(stretched(share / 100), x, y, engine=engine)[0] == engine


CERTAIN = {
    "bernoulli, -9": BayesianMLP([1, 1], bias_prior_loc=-9.0, likelihood="bernoulli"),
    "bernoulli, -6": BayesianMLP([1, 1], bias_prior_loc=-6.0, likelihood="bernoulli"),
    "categorical": BayesianMLP([1, 2], prior_scale=8.0),
}


@pytest.mark.parametrize("model", CERTAIN.values(), ids=CERTAIN)
@pytest.mark.parametrize("engine", ["fused", "feedforward"])
def test_many_equal_rows_of_a_certain_class_are_no_disagreement(engine, model):
    """In single precision their rounding adds up, torch's own as much as the engine's."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, (60_000, 1), generator=generator).float()
    y = (torch.rand(60_000, generator=generator) < 1e-4).float()
    for seed in range(8):
        pyro.set_rng_seed(seed)
        kernel = FNBG(model, engine=engine)
        kernel.setup(500, x, y)
        assert kernel.engine == engine


# --- Where the statement is the package's own --------------------------------------------------


def inaccurate(engine, off):
    """An engine's class, but its log ratios are off."""

    class Inaccurate(engine):
        def run(self, inputs):
            record = super().run(inputs)
            return record._replace(log_ratios=record.log_ratios + off)

    return Inaccurate


REPORTED = (
    "engine '{}' and the model disagree: for a candidate of block 'layer1.node1' the model's log "
    r"prior changes by \S+ and its log likelihood by \S+, but the engine's log ratio is \S+, off "
    "by {}: the engine is inaccurate here, your model is not wrong; please report it; {}$"
)


def test_auto_goes_on_where_an_engine_is_inaccurate_for_a_network_of_the_package(data, monkeypatch):
    monkeypatch.setitem(FAST, "fused", inaccurate(FAST["fused"], 0.25))
    model = BayesianMLP([3, 2, 2])
    with pytest.warns(UserWarning, match=REPORTED.format("fused", "0.25", "the next .*")):
        found, reason = chosen(model, *data)
    assert found == "feedforward"
    assert reason.startswith("the fastest that applies (not a faster one: engine 'fused' and the m")
    monkeypatch.setitem(FAST, "feedforward", inaccurate(FAST["feedforward"], -0.5))
    with pytest.warns(UserWarning, match="the next engine is tried") as warned:
        found, reason = chosen(model, *data)
    assert [str(one.message).partition(" and")[0] for one in warned] == [
        "engine 'fused'",
        "engine 'feedforward'",
    ]
    assert found == "captured"
    assert reason.startswith("the fastest that applies (not a faster one: engine 'feedforward' an")
    monkeypatch.setitem(OF_CAPTURED, "captured", inaccurate(CapturedEngine, 0.75))
    with pytest.warns(UserWarning, match="the next engine is tried"):
        found, reason = chosen(model, *data)
    assert found == "trace"
    assert reason.startswith("the model itself is run: engine 'feedforward' and the model disagree")
    assert "engine='captured' cannot run this model: engine 'captured' and the model dis" in reason
    assert "off by 0.75" in reason


@pytest.mark.parametrize("engine", ["fused", "feedforward"])
def test_an_inaccurate_engine_asked_for_by_name_is_refused(engine, data, monkeypatch):
    monkeypatch.setitem(FAST, engine, inaccurate(FAST[engine], 0.25))
    ending = "engine='auto' goes on to the next engine"
    with pytest.raises(ValueError, match=REPORTED.format(engine, "0.25", ending)):
        chosen(BayesianMLP([3, 2, 2]), *data, engine=engine)


def test_a_subclass_is_to_blame_itself(data, monkeypatch):
    """It may compute something else than the method that it inherits states."""
    monkeypatch.setitem(FAST, "fused", inaccurate(FAST["fused"], 0.25))
    with pytest.raises(ValueError, match=r"off by 0\.25: the model's feedforward\(\) must state"):
        chosen(stretched(0.0), *data)


class WithFactor(BayesianMLP):
    def __call__(self, x, y=None):
        value = super().__call__(x, y)
        pyro.factor("more", torch.tensor(-0.5))
        return value


def test_a_factor_beside_the_rows_is_left_to_the_model_itself(data):
    found, why = chosen(WithFactor([3, 2, 2]), *data)
    assert found == "captured"
    assert "its observed sites are ['obs', 'more'], and must be one" in why


@pytest.mark.parametrize("scale", [None, True, [1.0]])
def test_a_scale_that_is_no_number_and_no_name_is_refused(scale, doubles):
    with pytest.raises(
        ValueError, match="must give observation_scale as a positive number, the name of a"
    ):
        chosen(stating(observation_scale=scale), *doubles)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("engine", ["fused", "feedforward"])
@pytest.mark.parametrize("model", [[3, 16, 16, 2], [3, 1]], ids=["scales", "one scale"])
def test_what_rounding_of_the_parameters_does_is_no_disagreement(
    model, engine, dtype, data, monkeypatch
):
    """That alone covers the difference, where scales that are tiny magnify it and where not."""
    monkeypatch.setattr(comparison, "tolerance", lambda *given: 0.0)
    scale = "network" if len(model) > 2 else 0.1
    net = BayesianMLP(
        model, prior_scale=2.0, activation="tanh", likelihood="normal", observation_scale=scale
    )
    x, y = (values.to(dtype) for values in data)
    try:
        chosen(net, x, y, engine=engine)
    except ValueError as error:
        pytest.fail(str(error))
    wrong = Doubled(
        model, prior_scale=2.0, activation="tanh", likelihood="normal", observation_scale=scale
    )
    with pytest.raises(ValueError, match="and the model disagree"):
        chosen(wrong, x, y, engine=engine)


def test_a_layer_of_few_blocks_is_compared_once_a_try(data):
    """Else a disagreement would count twice at once, though it has to come again to be one."""
    pyro.set_rng_seed(0)
    model = BayesianMLP([3, 2, 2])
    problem = start("fused", model, *data, blocks="layer").problem
    network = read_network(problem.bound, problem.sites, problem.plan)
    assert blocks_by_layer(network, problem.partition) == {1: [0], 2: [1]}
