import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC
from pyro.nn import PyroModule, PyroSample

from pyro_fnbg import FNBG, BayesianMLP, Feedforward

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 2, (40,), generator=torch.Generator().manual_seed(2))


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


class WithFactor(BayesianMLP):
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
    "function": (plain, "trace", "no method feedforward"),
    "callable activation": (
        BayesianMLP([3, 2, 2], activation=torch.sin),
        "trace",
        "are none of",
    ),
    "another latent site": (WithFactor([3, 2, 2]), "trace", "latent sites ['extra']"),
    "hierarchy": (Hierarchical([3, 1], likelihood="bernoulli"), "trace", "['spread']"),
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
def test_auto_takes_the_fastest_that_applies_and_says_why(model, engine, reason):
    found, why = chosen(model, X, Y)
    assert found == engine
    assert reason in why


@pytest.mark.parametrize("engine", ["fused", "feedforward"])
def test_a_named_engine_that_does_not_apply_is_refused(engine):
    with pytest.raises(ValueError, match=f"engine='{engine}' cannot run this model: the model has"):
        chosen(plain, X, Y, engine=engine)


def test_trace_runs_what_was_asked_of_it():
    assert chosen(BayesianMLP([3, 2, 2]), X, Y, engine="trace")[0] == "trace"


@pytest.mark.parametrize("engine", ["Fused", "", None, 3])
def test_unknown_engines_are_refused(engine):
    with pytest.raises(ValueError, match=r"engine must be one of \('auto', 'fused', 'feedforward'"):
        FNBG(plain, engine=engine)


def test_a_layer_that_never_moves_the_likelihood_is_left_to_trace():
    """With inputs of zero the blocks of weights alone change nothing that could be compared."""
    model = BayesianMLP([3, 2, 2])
    options = {"blocks": "site"}
    zeros = torch.zeros(40, 3)
    # The lowest layer's blocks are its weights and its biases; leave only the weights to look at
    one_site = Net(has_bias=False)
    found, why = chosen(one_site, zeros.double(), Y.double(), **options)
    assert found == "trace"
    assert "layers [1] changed the likelihood" in why
    assert chosen(model, zeros, Y, **options)[0] == "fused"


# --- A user's own network ----------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [None, 16])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_layers_of_a_user_get_the_fast_path(has_bias, batch_size):
    draws = {}
    for engine in ("auto", "trace"):
        pyro.set_rng_seed(3)
        kernel = FNBG(Net(4, has_bias), batch_size=batch_size, engine=engine)
        mcmc = MCMC(kernel, num_samples=30, warmup_steps=20, disable_progbar=True)
        mcmc.run(X.double(), Y.double())
        draws[kernel.engine] = mcmc.get_samples()
    assert set(draws) == {"fused", "trace"}
    for name, values in draws["trace"].items():
        # The tuned scales depend on ratios, which agree up to rounding
        assert torch.allclose(draws["fused"][name], values, rtol=1e-9, atol=1e-9)
        assert len(values.unique(dim=0)) > 1


# --- Statements that are wrong -----------------------------------------------------------------


def stating(**changes):
    class Stating(Net):
        def feedforward(self, x, y=None):
            return super().feedforward(x, y)._replace(**changes)

    return Stating()


class Doubled(BayesianMLP):
    def forward(self, parameters, x):
        return 2 * super().forward(parameters, x)


WRONG = {
    "activation": (stating(activations=["relu"]), X.double(), Y.double()),
    "inputs transformed": (stating(inputs=2 * X.double()), X.double(), Y.double()),
    "rows permuted": (stating(inputs=X.double().flip(0)), X.double(), Y.double()),
    "logits doubled": (Doubled([3, 2, 1], likelihood="bernoulli"), X, Y),
}


@pytest.mark.parametrize("engine", ["auto", "fused", "feedforward"])
@pytest.mark.parametrize(("model", "x", "y"), WRONG.values(), ids=WRONG)
def test_a_wrong_statement_is_an_error_that_says_what_differs(engine, model, x, y):
    with pytest.raises(
        ValueError, match="and the model disagree: for a candidate of block"
    ) as info:
        chosen(model, x, y, engine=engine)
    message = str(info.value)
    assert "log prior changes by" in message
    assert "log likelihood by" in message
    assert "feedforward() must state what the model computes" in message


BROKEN = {
    "no such layer": ({"layers": ["hiden", "out"]}, "names layer 'hiden', so there must be a site"),
    "no layers": ({"layers": []}, "must name its layers"),
    "too many activations": ({"activations": ["tanh", "tanh"]}, "one activation a hidden layer, 1"),
    "likelihood": ({"likelihood": "poisson"}, "must give a likelihood of"),
    "columns": ({"inputs": X.double()[:, :2]}, r"inputs of shape \(rows, 3\), got \(40, 2\)"),
    "dtype": ({"inputs": X}, "of the parameters' dtype and device"),
    "rows": ({"inputs": X.double()[:10]}, "inputs of all 40 rows of plate 'data', got 10"),
    "scale": ({"observation_scale": "spread"}, "names the scalar site 'spread' as its scale"),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=BROKEN)
def test_a_statement_that_contradicts_the_sites_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        chosen(stating(**changes), X.double(), Y.double())


def test_feedforward_must_return_a_feedforward():
    class Returning(Net):
        def feedforward(self, x, y=None):
            return x

    with pytest.raises(ValueError, match=r"must return a Feedforward, got Tensor"):
        chosen(Returning(), X.double(), Y.double())
