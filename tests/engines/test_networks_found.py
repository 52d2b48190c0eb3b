"""Networks that no model states are found in what it computes: the same decisions, much faster."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroSample
from torch.nn import functional

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.engines.captured.recognition import recognise
from pyro_fnbg.engines.network import NotFeedforward
from pyro_fnbg.graphs.capture import capture
from pyro_fnbg.graphs.strided import Strided
from pyro_fnbg.networks.counts import LogPoisson
from pyro_fnbg.testing import make_inputs, start
from support.data import even_normal
from support.engines import assert_as_trace
from support.slow import slowly

X = even_normal(60, 3).double()
NUMBERS = X[:, 0].sin() - 0.3 * X[:, 1]
LABELS = (NUMBERS > 0).double()
CLASSES = LABELS.long() + (X[:, 2] > 0).long()


def normal(*shape, scale=1.0):
    zero = torch.zeros(shape, dtype=torch.float64)
    return dist.Normal(zero, scale).to_event(len(shape))


def positive(kind, *numbers):
    return kind(*(torch.tensor(number, dtype=torch.float64) for number in numbers))


def seen(y, rows):
    return None if y is None else y[rows]


class Lifted(PyroModule):
    """Layers of torch with a sampled scale of the observations, as tutorials have it."""

    def __init__(self):
        super().__init__()
        self.fc1 = PyroModule[torch.nn.Linear](3, 4)
        self.fc2 = PyroModule[torch.nn.Linear](4, 1, bias=False)
        for layer in (self.fc1, self.fc2):
            for name, value in list(layer.named_parameters()):
                setattr(layer, name, PyroSample(normal(*value.shape)))

    def forward(self, x, y=None):
        mean = self.fc2(torch.relu(self.fc1(x))).squeeze(-1)
        sigma = pyro.sample("sigma", positive(dist.Gamma, 2.0, 2.0))
        with pyro.plate("data", len(x)) as rows:
            pyro.sample("obs", dist.Normal(mean[rows], sigma), obs=seen(y, rows))


def by_hand(x, y=None):
    w1, b1 = pyro.sample("w1", normal(3, 4)), pyro.sample("b1", normal(4))
    w2, b2 = pyro.sample("w2", normal(4, 1)), pyro.sample("b2", normal(1))
    with pyro.plate("data", len(x)) as rows:
        logits = torch.sigmoid(x[rows] @ w1 + b1) @ w2 + b2
        pyro.sample("y", dist.Bernoulli(logits=logits.squeeze(-1)), obs=seen(y, rows))


def one_vector(x, y=None):
    w = pyro.sample("w", normal(21))
    inner, biases, outer, last = w[:12].reshape(3, 4), w[12:16], w[16:20], w[20]
    with pyro.plate("data", len(x)) as rows:
        mean = torch.tanh(x[rows] @ inner + biases) @ outer + last
        pyro.sample("y", dist.Normal(mean, 0.5), obs=seen(y, rows))


def biases_in_a_column(x, y=None):
    w, v = pyro.sample("w", normal(4, 4)), pyro.sample("v", normal(5))
    with pyro.plate("data", len(x)) as rows:
        inner = torch.tanh(functional.linear(x[rows], w[:, :-1], w[:, -1]))
        mean = functional.linear(inner, v[None, :4], v[4:]).squeeze(-1)
        pyro.sample("y", dist.StudentT(3.0, mean, 0.5), obs=seen(y, rows))


def by_columns(x, y=None):
    w, b = pyro.sample("w", normal(4, 3)), pyro.sample("b", normal(4, 1))
    v = pyro.sample("v", normal(4))
    with pyro.plate("data", len(x)) as rows:
        mean = v @ (w @ x[rows].T + b).clamp(min=0)
        pyro.sample("y", dist.Normal(mean, 0.5), obs=seen(y, rows))


def einsum(x, y=None):
    w, v = pyro.sample("w", normal(4, 3)), pyro.sample("v", normal(4, 3))
    with pyro.plate("data", len(x)) as rows:
        inner = functional.relu(torch.einsum("hi,ni->nh", w, x[rows]))
        logits = functional.log_softmax(torch.einsum("hc,nh->nc", v, inner), -1)
        pyro.sample("y", dist.Categorical(logits=logits), obs=seen(y, rows))


def log_shares_by_hand(x, y=None):
    w = pyro.sample("w", normal(3, 3))
    with pyro.plate("data", len(x)) as rows:
        v = x[rows] @ w
        sums = v.logsumexp(1, keepdim=True).reshape(-1).unsqueeze(-1)
        pyro.sample("y", dist.Categorical(logits=v - sums), obs=seen(y, rows))


def stacked(x, y=None):
    w, v = pyro.sample("w", normal(2, 3, 3)), pyro.sample("v", normal(3, 1))
    with pyro.plate("data", len(x)) as rows:
        inner = ((x[rows] @ w[0]) @ w[1] > 0).double()
        pyro.sample("y", dist.Normal((inner @ v)[:, 0], 0.5), obs=seen(y, rows))


def two_scales(x, y=None):
    spread = pyro.sample("spread", positive(dist.HalfCauchy, 1.0))
    variances = pyro.sample(
        "variances",
        dist.InverseGamma(torch.full((3,), 2.0, dtype=torch.float64), 2.0).to_event(1),
    )
    w = pyro.sample("w", dist.Normal(0.0, variances.sqrt().expand(4, 3)).to_event(2))
    v = pyro.sample("v", dist.Normal(0.0, spread.expand(4)).to_event(1))
    with pyro.plate("data", len(x)) as rows:
        mean = torch.tanh(x[rows] @ w.T) @ v
        pyro.sample("y", dist.Normal(mean, 0.5), obs=seen(y, rows))


def heteroscedastic(x, y=None):
    w, v = pyro.sample("w", normal(4, 3)), pyro.sample("v", normal(2, 4))
    with pyro.plate("data", len(x)) as rows:
        mean, raw = (torch.relu(x[rows] @ w.T) @ v.T).unbind(-1)
        pyro.sample("y", dist.Normal(mean, functional.softplus(raw) + 1e-6), obs=seen(y, rows))


def another_least_scale(x, y=None):
    w, v = pyro.sample("w", normal(3, 4)), pyro.sample("v", normal(4, 2))
    with pyro.plate("data", len(x)) as rows:
        mean, raw = (torch.relu(x[rows] @ w) @ v).unbind(-1)
        pyro.sample(
            "y", dist.StudentT(3.0, mean, 0.1 + functional.softplus(raw)), obs=seen(y, rows)
        )


def log_scales(x, y=None):
    w, v = pyro.sample("w", normal(3, 4)), pyro.sample("v", normal(4, 2, scale=0.3))
    with pyro.plate("data", len(x)) as rows:
        outputs = torch.tanh(x[rows] @ w) @ v
        scale = outputs[:, 1].exp()
        pyro.sample("y", dist.Normal(outputs[:, 0], scale), obs=seen(y, rows))


def counts(x, y=None):
    w, b = pyro.sample("w", normal(3, scale=0.3)), pyro.sample("b", normal())
    with pyro.plate("data", len(x)) as rows:
        pyro.sample("y", LogPoisson(x[rows] @ w + b), obs=seen(y, rows))


def counts_by_rates(x, y=None):
    w, b = pyro.sample("w", normal(3, scale=0.3)), pyro.sample("b", normal())
    with pyro.plate("data", len(x)) as rows:
        pyro.sample("y", dist.Poisson((x[rows] @ w + b).exp()), obs=seen(y, rows))


def several_responses(x, y=None):
    w = pyro.sample("w", normal(3, 2))
    with pyro.plate("data", len(x)) as rows:
        pyro.sample("y", dist.Normal(x[rows] @ w, 0.5).to_event(1), obs=seen(y, rows))


# Model, what it observes, widths, activations and biases
NETWORKS = {
    "lifted": (Lifted(), NUMBERS, (3, 4, 1), ("relu",), (True, False)),
    "by hand": (by_hand, LABELS, (3, 4, 1), ("sigmoid",), (True, True)),
    "one vector": (one_vector, NUMBERS, (3, 4, 1), ("tanh",), (True, True)),
    "biases in a column": (biases_in_a_column, NUMBERS, (3, 4, 1), ("tanh",), (True, True)),
    "by columns": (by_columns, NUMBERS, (3, 4, 1), ("relu",), (True, False)),
    "einsum": (einsum, CLASSES, (3, 4, 3), ("relu",), (False, False)),
    "log shares by hand": (log_shares_by_hand, CLASSES, (3, 3), (), (False,)),
    "stacked": (stacked, NUMBERS, (3, 3, 3, 1), ("identity", "step"), (False,) * 3),
    "two scales": (two_scales, NUMBERS, (3, 4, 1), ("tanh",), (False, False)),
    "heteroscedastic": (heteroscedastic, NUMBERS, (3, 4, 2), ("relu",), (False, False)),
    "another least scale": (another_least_scale, NUMBERS, (3, 4, 2), ("relu",), (False, False)),
    "log scales": (log_scales, NUMBERS, (3, 4, 2), ("tanh",), (False, False)),
    "counts": (counts, CLASSES.double(), (3, 1), (), (True,)),
    "counts by rates": (counts_by_rates, CLASSES.double(), (3, 1), (), (True,)),
    "several responses": (several_responses, X[:, :2], (3, 2), (), (False,)),
}


def network_of(model, y, batch_size=None):
    run = start("trace", model, X, y, batch_size=batch_size)
    problem, rows = run.problem, run.problem.batches.rows(run.chain.key, 0)
    captured = capture(problem.density, run.chain.position, rows)
    return recognise(captured, problem.bound, problem.sites, problem.plan, rows)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_a_network_is(name):
    model, y, widths, activations, has_bias = NETWORKS[name]
    found = network_of(model, y, batch_size=20)
    assert found.architecture.widths == widths
    assert found.architecture.activations == activations
    assert found.architecture.has_bias == has_bias
    assert torch.equal(found.data.inputs, X)


@pytest.mark.parametrize(
    ("engine", "batch_size"),
    [
        ("fused", None),
        ("feedforward", 20),
        slowly("fused", 20),
        slowly("feedforward", None),
    ],
)
@pytest.mark.parametrize("name", NETWORKS)
def test_decisions_are_those_of_the_model(name, engine, batch_size):
    model, y, *_ = NETWORKS[name]
    run = start(engine, model, X, y, batch_size=batch_size)
    inputs = make_inputs(run, chains=2, sweeps=15, scale=0.3, spread=0.3)
    record = assert_as_trace(run, inputs)
    assert 0.1 < record.accepted.double().mean() < 0.95
    assert "was found to be" in run.problem.engine_reason


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_blocks_are_those_of_nodes(name):
    """Each the weights and the bias of one node, whatever the sites look like."""
    model, y, widths, _, has_bias = NETWORKS[name]
    run = start("fused", model, X, y)
    network, sizes = network_of(model, y), list[int]()
    for below, width, biased in zip(widths, widths[1:], has_bias, strict=False):
        sizes += [below + biased] * width
    partition = run.problem.partition
    assert partition.sizes.tolist()[: len(sizes)] == sizes
    for index in partition.indices[: len(sizes)]:
        assert network.node_of(index)[1] is not None
    # The trace engine moves the same blocks
    assert start("trace", model, X, y).problem.partition == partition


def test_names_of_blocks_are_those_of_the_sites():
    run = start("fused", one_vector, X, NUMBERS)
    names = [block.name for block in run.problem.partition.blocks]
    assert names == ["w#1.node1", "w#1.node2", "w#1.node3", "w#1.node4", "w#2.node1"]
    names = [block.name for block in start("fused", Lifted(), X, NUMBERS).problem.partition.blocks]
    assert names == [*(f"fc1.node{k}" for k in (1, 2, 3, 4)), "fc2.node1", "sigma"]


def test_where_weights_are():
    network = network_of(one_vector, NUMBERS)
    assert network.weights == (Strided(0, (1, 4)), Strided(16, (1, 1)))
    assert network.biases == (Strided(12, (1,)), Strided(20, (1,)))
    network = network_of(biases_in_a_column, NUMBERS)
    assert network.weights == (Strided(0, (4, 1)), Strided(16, (1, 1)))
    assert network.biases == (Strided(3, (4,)), Strided(20, (1,)))


def test_variances_of_priors_are_drawn_from_their_conditional():
    run = start("fused", two_scales, X, NUMBERS)
    moves = {
        block.name: move.name
        for block, move in zip(
            run.problem.partition.blocks, run.problem.moves.of_block, strict=True
        )
    }
    assert moves["variances"] == "conjugate"
    assert moves["spread"] == moves["w.node1"] == "walk"


# --- What is none ---------------------------------------------------------------------------------


def skips(x, y=None):
    w, v = pyro.sample("w", normal(3, 3)), pyro.sample("v", normal(3))
    pyro.sample("y", dist.Normal((x + torch.relu(x @ w)) @ v, 0.5).to_event(1), obs=y)


def two_heads(x, y=None):
    w, v, u = (
        pyro.sample(name, normal(*s)) for name, s in (("w", (3, 2)), ("v", (2,)), ("u", (2,)))
    )
    inner = torch.relu(x @ w)
    pyro.sample(
        "y", dist.Normal(inner @ v, functional.softplus(inner @ u) + 1e-6).to_event(1), obs=y
    )


def sees_the_layer_below_again(x, y=None):
    w, v = pyro.sample("w", normal(3, 2)), pyro.sample("v", normal(2, 2))
    raw = x @ w
    mean = (raw @ v)[:, 0]
    pyro.sample("y", dist.Normal(mean, functional.softplus(raw[:, 1]) + 1e-6).to_event(1), obs=y)


def a_least_rate(x, y=None):
    w = pyro.sample("w", normal(3))
    pyro.sample("y", dist.Poisson((x @ w).exp() + 0.1).to_event(1), obs=y)


def a_scale_below_zero(x, y=None):
    w, v = pyro.sample("w", normal(3, 4)), pyro.sample("v", normal(4, 2))
    mean, raw = (torch.relu(x @ w) @ v).unbind(-1)
    pyro.sample("y", dist.Normal(mean, functional.softplus(raw) - 1e-9).to_event(1), obs=y)


def scale_of_each_response(x, y=None):
    w = pyro.sample("w", normal(3, 2))
    scale = torch.tensor([0.5, 1.0], dtype=torch.float64)
    pyro.sample("y", dist.Normal(x @ w, scale).to_event(2), obs=y)


def unused_site(x, y=None):
    w, _ = pyro.sample("w", normal(3)), pyro.sample("spare", normal(2))
    pyro.sample("y", dist.Normal(x @ w, 0.5).to_event(1), obs=y)


def same_weights_twice(x, y=None):
    w, v = pyro.sample("w", normal(3, 3)), pyro.sample("v", normal(3))
    pyro.sample("y", dist.Normal(torch.relu(torch.relu(x @ w) @ w) @ v, 0.5).to_event(1), obs=y)


def two_activations(x, y=None):
    w, v = pyro.sample("w", normal(3, 3)), pyro.sample("v", normal(3))
    pyro.sample("y", dist.Normal(torch.tanh(torch.relu(x @ w)) @ v, 0.5).to_event(1), obs=y)


def before_and_after_its_activation(x, y=None):
    """Whose outputs are those of the last layer, while the scale sees them activated."""
    w = pyro.sample("w", normal(3, 2))
    raw = x @ w
    scale = functional.softplus(torch.relu(raw)[:, 1]) + 1e-6
    pyro.sample("y", dist.Normal(raw[:, 0], scale).to_event(1), obs=y)


def a_column_alone(x, y=None):
    w = pyro.sample("w", normal(3, 2))
    pyro.sample("y", dist.Normal((x @ w)[:, 0], 0.5).to_event(1), obs=y)


def other_order(x, y=None):
    w = pyro.sample("w", normal(3, 2))
    pyro.sample("y", dist.Normal((x @ w)[:, [1, 0]], 0.5).to_event(2), obs=y)


def weights_made_of_sites(x, y=None):
    w = pyro.sample("w", normal(3))
    pyro.sample("y", dist.Normal(x @ w.exp(), 0.5).to_event(1), obs=y)


def scale_by_row(x, y=None):
    w = pyro.sample("w", normal(3))
    pyro.sample("y", dist.Normal(x @ w, x[:, 0].abs() + 0.1).to_event(1), obs=y)


def scale_by_both(x, y=None):
    w, v = pyro.sample("w", normal(3, 2)), pyro.sample("v", normal(2))
    raw = x @ w
    pyro.sample(
        "y", dist.Normal(torch.tanh(raw) @ v, functional.softplus(raw[:, 0])).to_event(1), obs=y
    )


def probabilities(x, y=None):
    w = pyro.sample("w", normal(3))
    pyro.sample("y", dist.Bernoulli((x @ w).sigmoid()).to_event(1), obs=y)


def other_rates(x, y=None):
    w = pyro.sample("w", normal(3))
    pyro.sample("y", dist.Poisson(functional.softplus(x @ w)).to_event(1), obs=y)


def exponentials_below(x, y=None):
    w, v = pyro.sample("w", normal(3, 3)), pyro.sample("v", normal(3))
    pyro.sample("y", dist.Normal((x @ w).exp() @ v, 0.5).to_event(1), obs=y)


def clamped(x, y=None):
    w = pyro.sample("w", normal(3))
    pyro.sample("y", dist.Bernoulli(logits=(x @ w).clamp(-20, 20)).to_event(1), obs=y)


def shares_over_rows(x, y=None):
    w = pyro.sample("w", normal(3, 3))
    logits = functional.log_softmax(x @ w, 0)
    pyro.sample("y", dist.Categorical(logits=logits).to_event(1), obs=y)


def biases_of_rows(x, y=None):
    w, b = pyro.sample("w", normal(3, 2)), pyro.sample("b", normal(2))
    of_row = (torch.arange(1, len(x) + 1).unsqueeze(-1) + torch.arange(2)) % 2
    pyro.sample("y", dist.Normal(x @ w + b[of_row], 0.5).to_event(2), obs=y)


def other_likelihood(x, y=None):
    w = pyro.sample("w", normal(3))
    pyro.sample("y", dist.Laplace(x @ w, 0.5).to_event(1), obs=y)


def log_scale_of_a_prior(x, y=None):
    log_scale = pyro.sample("log_scale", normal())
    w = pyro.sample("w", dist.Normal(0.0, log_scale.exp().expand(3)).to_event(1))
    pyro.sample("y", dist.Normal(x @ w, 0.5).to_event(1), obs=y)


def log_observation_scale(x, y=None):
    w, log_scale = pyro.sample("w", normal(3)), pyro.sample("log_scale", normal())
    pyro.sample("y", dist.Normal(x @ w, log_scale.exp()).to_event(1), obs=y)


def prior_depends_on_a_weight_where_that_is_large(x, y=None):
    w = pyro.sample("w", normal(3, 4))
    scale = 1.0 + torch.relu(w[0, 0] - 5.0).expand(4)
    b = pyro.sample("b", dist.Normal(0.0 * scale, scale).to_event(1))
    v = pyro.sample("v", normal(4))
    pyro.sample("y", dist.Normal(torch.tanh(x @ w + b) @ v, 0.5).to_event(1), obs=y)


def observes_what_a_weight_says_where_that_is_large(x, y=None):
    w = pyro.sample("w", normal(3))
    seen_then = None if y is None else y + torch.relu(w[0] - 5.0)
    pyro.sample("y", dist.Normal(x @ w, 0.5).to_event(1), obs=seen_then)


class Censored(dist.Normal):
    """Scores numbers above 9 otherwise."""

    def log_prob(self, value):
        return torch.where(value > 9.0, torch.log1p(-self.cdf(value)), super().log_prob(value))

    def expand(self, batch_shape, _instance=None):
        return super().expand(batch_shape, self._get_checked_instance(Censored, _instance))


def scored_by_a_class_of_ones_own(x, y=None):
    w = pyro.sample("w", normal(3))
    with pyro.plate("data", len(x)):
        pyro.sample("y", Censored(x @ w, 0.5), obs=y)


def weighted_rows(x, y=None):
    w = pyro.sample("w", normal(3))
    weights = 1.0 + torch.arange(len(x), dtype=torch.float64)
    with poutine.scale(scale=weights), pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def prior_switched_off(x, y=None):
    with poutine.mask(mask=False):
        w = pyro.sample("w", normal(3))
    pyro.sample("y", dist.Normal(x @ w, 0.5).to_event(1), obs=y)


def other_observations(x, y=None):
    w = pyro.sample("w", normal(3))
    pyro.sample("y", dist.Normal(x @ w, 0.5).to_event(1), obs=y)
    pyro.factor("more", -w.square().sum())


OTHERS = {
    skips: NUMBERS,
    two_heads: NUMBERS,
    sees_the_layer_below_again: NUMBERS,
    a_least_rate: CLASSES.double(),
    a_scale_below_zero: NUMBERS,
    scale_of_each_response: X[:, :2],
    unused_site: NUMBERS,
    same_weights_twice: NUMBERS,
    two_activations: NUMBERS,
    before_and_after_its_activation: NUMBERS,
    a_column_alone: NUMBERS,
    other_order: X[:, :2],
    weights_made_of_sites: NUMBERS,
    scale_by_row: NUMBERS,
    scale_by_both: NUMBERS,
    probabilities: LABELS,
    other_rates: CLASSES.double(),
    exponentials_below: NUMBERS,
    clamped: LABELS,
    shares_over_rows: CLASSES,
    biases_of_rows: X[:, :2],
    other_likelihood: NUMBERS,
    other_observations: NUMBERS,
    log_scale_of_a_prior: NUMBERS,
    log_observation_scale: NUMBERS,
    prior_depends_on_a_weight_where_that_is_large: NUMBERS,
    observes_what_a_weight_says_where_that_is_large: NUMBERS,
    scored_by_a_class_of_ones_own: NUMBERS,
    weighted_rows: NUMBERS,
    prior_switched_off: NUMBERS,
}


@pytest.mark.parametrize("model", OTHERS, ids=lambda model: model.__name__)
def test_what_is_no_network_is_not_taken_for_one(model):
    with pytest.raises(NotFeedforward):
        network_of(model, OTHERS[model])
    kernel = FNBG(model)
    kernel.setup(0, X, OTHERS[model])
    assert kernel.engine == "captured"
    with pytest.raises(ValueError, match="engine='fused' cannot run this model"):
        FNBG(model, engine="fused").setup(0, X, OTHERS[model])


def test_inputs_that_depend_on_the_other_rows_of_a_batch_are_none_of_a_network():
    x = X.clone()
    x[-1, 0] = torch.nan

    def model(x, y=None):
        w = pyro.sample("w", normal(3))
        with pyro.plate("data", len(x)) as rows:
            own = x[rows]
            own = torch.where(own.isnan(), own.nanmean(0), own)
            pyro.sample("y", dist.Normal(own @ w, 0.5), obs=seen(y, rows))

    kernel = FNBG(model, batch_size=20)
    kernel.setup(0, x, NUMBERS)
    assert kernel.engine == "captured"
    assert "depend on the other rows of the batch" in kernel.problem.engine_reason


def test_a_statement_is_taken_at_its_word_and_not_looked_for():
    model = BayesianMLP([3, 4, 1], likelihood="bernoulli")
    run = start("fused", model, X.float(), LABELS)
    assert "was found to be" not in run.problem.engine_reason
