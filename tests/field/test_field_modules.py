"""Networks of modules and of raw tensors: names, shapes, and what is left as it was."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import to_pyro_module_
from torch import nn

from pyro_fnbg import FNBG, BayesianMLP
from support.data import normal
from support.drivers import drive, each_driver
from support.engines import ENGINES


def data():
    x = normal(15, 2)
    return x, (x[:, 0] > 0).long()


def bayesian(net, with_events=True):
    """Give every parameter of a network a standard normal prior."""
    to_pyro_module_(net)
    for module in net.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            prior = dist.Normal(0.0, 1.0).expand(value.shape)
            prior = prior.to_event(value.dim()) if with_events else prior
            setattr(module, name, PyroSample(prior))
    return net


def classifier(net):
    def model(x, y=None):
        logits = net(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return model


def shapes(mcmc):
    return {name: tuple(value.shape[1:]) for name, value in mcmc.get_samples().items()}


def assert_every_coordinate_moves(mcmc):
    for name, value in mcmc.get_samples().items():
        assert (value != value[0]).any(0).all(), f"a coordinate of {name} stands still"


@each_driver
@pytest.mark.parametrize("with_events", [True, False])
def test_a_network_of_modules_keeps_its_names_and_shapes_and_moves(run, with_events):
    net = bayesian(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)), with_events)
    mcmc = run(FNBG(classifier(net)), *data(), draws=60, warmup=30)
    expected = {"0.weight": (3, 2), "0.bias": (3,), "2.weight": (2, 3), "2.bias": (2,)}
    assert shapes(mcmc) == expected
    assert_every_coordinate_moves(mcmc)


@each_driver
@pytest.mark.parametrize("engine", ENGINES)
def test_a_stated_network_moves_on_every_engine(run, engine):
    net = BayesianMLP([2, 3, 2], likelihood="categorical")
    mcmc = run(FNBG(net, engine=engine), *data(), draws=60, warmup=30)
    assert shapes(mcmc) == net.parameter_shapes
    assert_every_coordinate_moves(mcmc)


@each_driver
def test_weights_stored_by_input_and_names_of_ones_own_are_all_sampled(run):
    def model(x, y):
        first = pyro.sample("W1", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
        offset = pyro.sample("b1", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        second = pyro.sample("W2", dist.Normal(torch.zeros(3, 1), 1.0).to_event(2))
        last = pyro.sample("c", dist.Normal(0.0, 1.0))
        mean = (torch.tanh(x @ first + offset) @ second).squeeze(-1) + last
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, 0.3), obs=y)

    kernel = FNBG(model)
    x = normal(15, 2)
    mcmc = run(kernel, x, x[:, 0], draws=60, warmup=30)
    assert shapes(mcmc) == {"W1": (2, 3), "b1": (3,), "W2": (3, 1), "c": ()}
    assert_every_coordinate_moves(mcmc)
    covered = [c for block in kernel.partition.blocks for c in block.index]
    assert sorted(covered) == list(range(6 + 3 + 3 + 1))


def test_a_sampled_prior_scale_counts_in_the_prior_of_its_weights():
    class Net(PyroModule):
        def __init__(self):
            super().__init__()
            self.scale = PyroSample(dist.HalfNormal(1.0))
            self.linear = PyroModule[nn.Linear](2, 1, bias=False)
            self.linear.weight = PyroSample(
                lambda _: dist.Normal(0.0, self.scale).expand([1, 2]).to_event(2)
            )

        def forward(self):
            pyro.factor("no data", torch.zeros(()))
            return self.linear(torch.ones(1, 2))

    kernel = FNBG(Net())
    assert set(drive(kernel, draws=5).get_samples()) == {"scale", "linear.weight"}
    density = kernel.problem.density.on(None)
    for log_scale, weights in ((0.0, [1.0, -0.5]), (-1.0, [0.2, 0.1]), (1.5, [3.0, -9.0])):
        scale = torch.tensor(log_scale).exp()
        expected = dist.HalfNormal(1.0).log_prob(scale) + log_scale
        expected += dist.Normal(0.0, scale).log_prob(torch.tensor(weights)).sum()
        found = density(torch.tensor([log_scale, *weights])).log_density
        assert found.item() == pytest.approx(expected.item(), rel=1e-5)


@each_driver
def test_parameters_that_are_not_sampled_stay_as_they_are(run):
    body = nn.Linear(2, 2)
    before = {name: value.detach().clone() for name, value in body.named_parameters()}

    def model(x, y):
        pyro.module("body", body)
        temperature = pyro.param("temperature", torch.tensor(2.0))
        weight = pyro.sample("head.weight", dist.Normal(body.weight, 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            logits = torch.tanh(body(x)) @ weight.mT / temperature
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    samples = run(FNBG(model), *data()).get_samples()
    assert set(samples) == {"head.weight"}
    assert not samples["head.weight"].requires_grad
    for name, value in body.named_parameters():
        assert torch.equal(value, before[name])
        assert value.requires_grad
        assert value.grad is None
    assert pyro.param("temperature").item() == 2.0


@each_driver
def test_a_support_between_trained_parameters_gives_draws_without_gradients(run):
    low = nn.Parameter(torch.tensor(0.5))

    def model(y):
        pyro.sample("y", dist.Normal(pyro.sample("a", dist.Uniform(low, 2.0)), 1.0), obs=y)

    samples = run(FNBG(model), torch.tensor(1.0)).get_samples()
    assert not samples["a"].requires_grad
    assert ((samples["a"] > 0.5) & (samples["a"] < 2.0)).all()
    assert low.grad is None


@each_driver
def test_one_module_used_twice_has_one_weight_with_the_density_of_one(run):
    shared = nn.Linear(2, 2, bias=False)
    net = bayesian(nn.Sequential(shared, nn.Tanh(), shared))
    kernel = FNBG(classifier(net))
    x, y = data()
    mcmc = run(kernel, x, y)
    (weight,) = (value[-1] for value in mcmc.get_samples().values())
    logits = torch.tanh(x @ weight.mT) @ weight.mT
    expected = dist.Normal(0.0, 1.0).log_prob(weight).sum()
    expected += dist.Categorical(logits=logits).log_prob(y).sum()
    reported = mcmc._diagnostics[0]["sample_stats"]["batch_log_density"][-1]
    # Single precision: 6e-8 of each of 19 terms below 10, with room for the sums
    assert abs(reported - float(expected)) < 1e-4


def normalised():
    return bayesian(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))


@each_driver
def test_batch_normalisation_that_trains_is_refused_and_keeps_its_statistics(run):
    net = normalised()
    before = {name: value.clone() for name, value in net.named_buffers()}
    with pytest.raises(ValueError, match=r"BatchNorm1d.*'running_mean', 'running_var'.*eval\(\)"):
        run(FNBG(classifier(net)), *data())
    assert all(torch.equal(value, before[name]) for name, value in net.named_buffers())
    run(FNBG(classifier(net.eval())), *data(), draws=2)
    assert all(torch.equal(value, before[name]) for name, value in net.named_buffers())


def test_a_module_that_only_counts_its_calls_is_let_through():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.tensor(0))

        def forward(self, x):
            self.calls += 1
            return x

    net = bayesian(nn.Sequential(Counting(), nn.Linear(2, 2)))
    assert shapes(drive(FNBG(classifier(net)), *data(), draws=2)) == {
        "1.weight": (2, 2),
        "1.bias": (2,),
    }


def test_convolutions_and_normalisations_have_their_channels_as_nodes():
    net = nn.Sequential(nn.Conv2d(1, 3, 2), nn.LayerNorm([3, 2, 2]), nn.Flatten())
    net = bayesian(net.append(nn.Linear(12, 2)))
    kernel = FNBG(classifier(net))
    images, labels = torch.randn(6, 1, 3, 3), torch.arange(6) % 2
    mcmc = drive(kernel, images, labels)
    sizes = {block.name: block.size for block in kernel.partition.blocks}
    assert {n: s for n, s in sizes.items() if n[0] in "03"} == {
        "0.node1": 5, "0.node2": 5, "0.node3": 5, "3.node1": 13, "3.node2": 13,
    }  # fmt: skip
    assert shapes(mcmc)["0.weight"] == (3, 1, 2, 2)
    assert sum(sizes.values()) == sum(value[0].numel() for value in mcmc.get_samples().values())


NAMES = ["two words", "ä.ß", "a/b", "weight", "deep.er.weight", "target", "engine", "(x)", "0"]


def named(y):
    values = [pyro.sample(name, dist.Normal(torch.zeros(2), 1.0).to_event(1)) for name in NAMES]
    pyro.sample("y", dist.Normal(torch.stack(values).sum(), 1.0), obs=y)


@each_driver
def test_sites_may_have_any_name(run):
    kernel = FNBG(named)
    mcmc = run(kernel, torch.tensor(1.0))
    assert set(mcmc.get_samples()) == set(NAMES)
    assert_every_coordinate_moves(mcmc)
    assert [block.name for block in kernel.partition.blocks] == NAMES


def test_a_site_named_like_a_term_of_another_is_scored():
    def model():
        pyro.sample("s", dist.HalfNormal(1.0))
        pyro.sample("s (log Jacobian)", dist.Normal(0.0, 1.0))
        pyro.factor("no data", torch.zeros(()))

    kernel = FNBG(model)
    kernel.setup(0)
    density = kernel.problem.density.on(None)
    zero, one = (density(torch.tensor([0.0, value])).log_density for value in (0.0, 1.0))
    assert (zero - one).item() == pytest.approx(0.5, abs=1e-6)


def test_a_site_named_like_an_entry_of_the_diagnostics_keeps_its_figures():
    mcmc = drive(FNBG(named), torch.tensor(1.0))
    report = mcmc.diagnostics()
    for name in ("target", "engine"):
        assert report[name]["n_eff"].shape == (2,)
        assert isinstance(report[name]["chain 0"], str)


def in_plate(net):
    """Call a network where each row gets weights of its own."""

    def model(x, y=None):
        with pyro.plate("data", len(x)) as rows:
            logits = net(x[rows])
            pyro.sample("y", dist.Categorical(logits=logits), obs=None if y is None else y[rows])

    return model


@each_driver
@pytest.mark.parametrize("options", [{}, {"batch_size": 5}], ids=["all", "batches"])
def test_a_network_inside_the_plate_is_told_to_go_outside(run, options):
    net = bayesian(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)))
    with pytest.raises((RuntimeError, ValueError)) as caught:
        run(FNBG(in_plate(net), **options), *data())
    words = str(caught.value)
    assert "weights ['0.weight'" in words
    assert "sampled inside a plate, so every row has weights of its own" in words
    assert "FNBG ran the model with x: tensor of shape (15, 2) and type torch.float32" in words


def test_a_local_site_is_not_taken_for_a_weight():
    def model(x):
        with pyro.plate("outer", 3, dim=-2), pyro.plate("data", len(x), dim=-1):
            local = pyro.sample("local", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(local @ x, 1.0), obs=x)

    with pytest.raises(ValueError, match="Shape mismatch") as caught:
        drive(FNBG(model), normal(15, 2))
    assert "FNBG ran the model with x" in str(caught.value)
    assert "inside a plate" not in str(caught.value)


class Tutorial(PyroModule):
    """Bayesian regression as in the tutorial of Pyro."""

    def __init__(self, follows_rows=False):
        super().__init__()
        self.linear = PyroModule[nn.Linear](2, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 2]).to_event(2))
        self.linear.bias = PyroSample(dist.Normal(0.0, 10.0).expand([1]).to_event(1))
        self.follows_rows = follows_rows

    def forward(self, x, y=None):
        sigma = pyro.sample("sigma", dist.Uniform(0.0, 10.0))
        if self.follows_rows:
            exec(self.follows_rows, {"pyro": pyro}, found := {"x": x, "y": y})
            x, y, plate = found["x"], found["y"], found["plate"]
        else:
            plate = pyro.plate("data", x.shape[0])
        mean = self.linear(x).squeeze(-1)
        with plate:
            pyro.sample("obs", dist.Normal(mean, sigma), obs=y)
        return mean


@each_driver
def test_the_tutorials_model_is_shown_the_lines_that_work_on_batches(run):
    x = normal(60, 2)
    with pytest.raises(ValueError, match="Shape mismatch inside plate") as caught:
        run(FNBG(Tutorial(), batch_size=50), x, x.sum(1))
    lines = [line[4:] for line in str(caught.value).splitlines() if line.startswith("    ")]
    assert len(lines) >= 4
    shown = lines[-4:]
    assert shown[1:3] == ["with plate as rows:", "    x, y = x[rows], y[rows]"]
    assert shown[3].startswith("with plate:")
    # The lines as they are shown
    mcmc = run(FNBG(Tutorial("\n".join(shown[:3])), batch_size=50), x, x.sum(1))
    assert mcmc.get_samples()["linear.weight"].shape[1:] == (1, 2)


@each_driver
def test_an_error_of_a_module_says_what_it_was_given(run):
    x = normal(60, 2)
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        run(FNBG(Tutorial()), x[:, :1], x.sum(1))
    given = "FNBG ran the model with x: tensor of shape (60, 1) and type torch.float32, y: tensor"
    assert given in str(caught.value)
