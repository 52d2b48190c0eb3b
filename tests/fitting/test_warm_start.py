"""What users get of ``warm_start``: initial values for every way to run chains."""

import copy
import pickle
import sys

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC

from pyro_fnbg import FNBG, BayesianMLP, Feedforward, MultiChainMCMC
from pyro_fnbg.fitting.warm_start import warm_start
from pyro_fnbg.testing import assert_same_expectation
from support.data import even_normal, normal

X = even_normal(60, 2)
SLOPES = torch.tensor([1.0, -2.0])
Y = X @ SLOPES + 0.1 * even_normal(60).flip(0)


def regression(x, y):
    """A linear regression whose plate has its rows, with a constrained site."""
    slopes = pyro.sample("slopes", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)) as rows:
        pyro.sample("y", dist.Normal(x[rows] @ slopes, scale), obs=y[rows])


def network(**arguments):
    return BayesianMLP([2, 3, 1], activation="tanh", likelihood="normal", **arguments)


def fit(model, *args, steps=60, **kwargs):
    return warm_start(model, *args, steps=steps, disable_progbar=True, **kwargs)


def test_network_is_fitted_for_every_chain_from_a_start_of_its_own():
    model = network(observation_scale=dist.HalfNormal(1.0))
    found = fit(model, X, Y, num_chains=3, steps=400)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "layer1.weight": (3, 3, 2),
        "layer1.bias": (3, 3),
        "layer2.weight": (3, 1, 3),
        "layer2.bias": (3, 1),
        "obs_scale": (3,),
    }
    errors = (model.forward(found, X).squeeze(-1) - Y).square().mean(-1).sqrt()
    assert (errors < 0.25 * Y.std()).all(), errors
    first, second, third = found["layer1.weight"]
    assert not torch.allclose(first, second, atol=0.1)
    assert not torch.allclose(second, third, atol=0.1)
    assert "all in one run" in repr(found)


def test_slopes_of_a_model_of_another_kind_are_the_posteriors():
    found = fit(regression, X, Y, steps=600, learning_rate=0.05, held_out=0.0)
    assert torch.allclose(found["slopes"], SLOPES, atol=0.1)
    # Unconstrained: the logarithm of about 0.1
    assert float(found["scale"]) == pytest.approx(-2.3, abs=0.3)


@pytest.mark.parametrize("num_chains", [1, 2])
@pytest.mark.parametrize("model", [regression, network()], ids=["any", "network"])
def test_both_drivers_start_chains_there(model, num_chains):
    found = fit(model, X, Y, num_chains=num_chains, steps=5)
    # Steps so small that the chains stay where they start
    kernel = FNBG(model, proposal_scale=1e-9, adapt=False, engine="trace")
    options = {"initial_params": found, "num_chains": num_chains, "disable_progbar": True}
    many = MultiChainMCMC(kernel, 2, 0, **options)
    many.run(X, Y)
    stock = MCMC(copy.copy(kernel), 2, 0, **options, mp_context="fork")
    stock.run(X, Y)
    for run in (many, stock):
        draws = run.get_samples(group_by_chain=True)
        for name, start in found.items():
            start = start.exp() if name == "scale" else start
            last = draws[name][:, -1]
            assert torch.allclose(last, start.reshape(last.shape), atol=1e-5), name


def test_seed_decides_and_a_chain_is_the_same_beside_others():
    runs = []
    for num_chains in (3, 3, 1):
        pyro.set_rng_seed(4)
        runs.append(fit(network(), X, Y, num_chains=num_chains, steps=20))
    for name, value in runs[0].items():
        assert torch.equal(value, runs[1][name])
        assert torch.equal(value[0], runs[2][name])
    other = fit(network(), X, Y, steps=20)
    assert not torch.allclose(other["layer1.weight"], runs[2]["layer1.weight"], atol=1e-2)


def test_report_says_what_was_done_and_is_pickled_with_the_values():
    found = fit(network(), X, Y, num_chains=2, steps=50, held_out=0.2, batch_size=10)
    report = found.report
    assert (report.batch_size, report.num_held_out, report.num_steps) == (10, 12, 50)
    assert found.losses.training.shape == found.losses.held_out.shape == (2, 51)
    assert found.losses.steps.tolist() == list(range(51))
    assert found.seconds > 0
    # The values are those with the lowest loss of all
    lowest = found.losses.held_out.min(1)
    assert report.best_steps.tolist() == lowest.indices.tolist()
    assert "chain 1: step" in repr(found)
    again = pickle.loads(pickle.dumps(found))
    assert torch.equal(again["layer1.bias"], found["layer1.bias"])
    assert again.report.num_held_out == 12


def test_held_out_loss_is_that_of_rows_that_no_step_saw():
    """Rows that are held out may be wrong: no step of the fit learns from them."""
    seen = []

    def model(x, y):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)) as rows:
            if torch.is_grad_enabled():
                seen.append(rows)
            pyro.sample("y", dist.Normal(level, 1.0), obs=y[rows])

    found = fit(model, X, Y, steps=30, held_out=0.25, batch_size=9)
    rows = torch.cat([rows for rows in seen if rows.numel() == 9]).unique()
    assert len(rows) == 45
    assert found.report.num_held_out == 15
    left = torch.ones(60, dtype=torch.bool)
    left[rows] = False
    at = int((found.losses.steps == found.report.best_steps[0]).nonzero())
    expected = -dist.Normal(found["level"], 1.0).log_prob(Y[left]).mean()
    assert float(found.losses.held_out[0, at]) == pytest.approx(float(expected), rel=1e-5)


def test_step_network_is_fitted_by_straight_through_gradients():
    model = BayesianMLP([2, 16, 1], activation="step", likelihood="bernoulli")
    x = normal(400, 2)
    labels = (x[:, 0] * x[:, 1] > 0).float()
    found = fit(model, x, labels, steps=500, num_chains=2)
    assert "straight-through" in repr(found)
    assert found.report.from_prior == ()
    hits = ((model.forward(found, x).squeeze(-1) > 0) == (labels > 0)).float().mean(-1)
    assert (hits > 0.8).all(), hits


def test_steps_of_a_network_that_a_model_states_get_a_gradient_whatever_its_own_code():
    class Stated:
        def __call__(self, x, y):
            weight = pyro.sample("a.weight", dist.Normal(torch.zeros(8, 2), 1.0).to_event(2))
            bias = pyro.sample("a.bias", dist.Normal(torch.zeros(8), 1.0).to_event(1))
            out = pyro.sample("b.weight", dist.Normal(torch.zeros(1, 8), 1.0).to_event(2))
            with pyro.plate("data", len(x)) as rows:
                steps = (x[rows] @ weight.mT + bias > 0).float()
                logits = (steps @ out.mT).squeeze(-1)
                pyro.sample("y", dist.Bernoulli(logits=logits), obs=y[rows])

        def feedforward(self, x, y):
            return Feedforward(x, ["a", "b"], ["step"], "bernoulli")

    found = fit(Stated(), X, (Y > 0).float(), num_chains=2)
    assert found.report.from_prior == ()
    assert "straight-through" in repr(found)


def test_sites_without_a_gradient_are_drawn_from_the_prior_and_named():
    def model(x, y):
        place = pyro.sample("place", dist.Normal(5.0, 0.1))
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)) as rows:
            mean = level * (x[rows, 0] > place - 5.0).float()
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])

    with pytest.warns(UserWarning, match=r"no gradient for sites \['place'\]"):
        found = fit(model, X, Y, num_chains=200, steps=2)
    assert found.report.from_prior == ("place",)
    # 200 draws: the mean has a standard error of 0.007, the deviation one of 0.005
    assert float(found["place"].mean()) == pytest.approx(5.0, abs=0.032)
    assert float(found["place"].std()) == pytest.approx(0.1, abs=0.023)


def test_scale_of_other_sites_does_not_collapse_with_them():
    """The responses are noise, so the density of the slopes and their scale has no maximum."""

    def model(x, y):
        spread = pyro.sample("spread", dist.HalfNormal(1.0))
        slopes = pyro.sample("slopes", dist.Normal(0.0, spread).expand([2]).to_event(1))
        with pyro.plate("data", len(x)) as rows:
            pyro.sample("y", dist.Normal(x[rows] @ slopes, 1.0), obs=y[rows])

    found = fit(model, X, normal(2, 60)[1], num_chains=2, steps=300, held_out=0.0)
    assert found.report.at_median == ("spread",)
    assert "held at the median of the prior: ['spread']" in repr(found)
    # The median of a half-normal is 0.674, that of 100 draws has a standard error of 0.1 in logs
    assert torch.allclose(found["spread"].exp(), torch.tensor(0.674), atol=0.34)


def test_model_that_decides_by_its_values_is_run_for_one_chain_after_the_other():
    def model(x, y):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        level = level if level > 0 else 0.5 * level
        with pyro.plate("data", len(x)) as rows:
            pyro.sample("y", dist.Normal(level, 1.0), obs=y[rows])

    found = fit(model, X, Y, num_chains=2, steps=300, learning_rate=0.05, held_out=0.0)
    assert "one run of the model each" in repr(found)
    assert torch.allclose(found["level"], torch.full((2,), float(Y.mean())), atol=0.25)


def test_model_without_any_gradient_starts_at_draws_from_the_prior():
    def model(x, y):
        place = pyro.sample("place", dist.Normal(5.0, 0.1))
        with pyro.plate("data", len(x)) as rows:
            pyro.sample("y", dist.Normal((x[rows, 0] > place).float(), 1.0), obs=y[rows])

    with pytest.warns(UserWarning, match="no gradient"):
        found = fit(model, X, Y, num_chains=2)
    assert found.report.num_steps == 0
    assert "its random start" in repr(found)
    assert torch.allclose(found["place"], torch.tensor(5.0), atol=0.5)


def test_chains_from_warm_and_from_cold_starts_have_one_posterior():
    """Nothing of a fit enters the draws, so where chains start is forgotten."""
    x = torch.linspace(-2, 2, 25).unsqueeze(-1)
    y = torch.sin(2 * x[:, 0]) + 0.8 * normal(25)
    model = BayesianMLP([1, 2, 1], activation="tanh", likelihood="normal", observation_scale=0.8)
    places = torch.tensor([[-1.5], [0.0], [0.7], [2.5]])
    means = []
    for start in (None, fit(model, x, y, num_chains=4, steps=300)):
        kernel = FNBG(model, thin=10)
        mcmc = MultiChainMCMC(kernel, 2000, 1000, start, num_chains=4, disable_progbar=True)
        mcmc.run(x, y)
        draws = mcmc.get_samples(group_by_chain=True)
        means.append(model.forward(draws, places).squeeze(-1))
    cold, warm = means
    for place in range(len(places)):
        assert_same_expectation(warm[..., place], cold[..., place])
        assert_same_expectation(warm[..., place].square(), cold[..., place].square())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_chains": 0}, "num_chains must be"),
        ({"steps": 0}, "steps must be"),
        ({"learning_rate": -1.0}, "learning_rate must be a positive number, got -1.0"),
        ({"held_out": 1.0}, "held_out must be a share of the rows"),
        ({"batch_size": 61}, "batch_size must be 1..60"),
        ({"held_out": 0.999}, "leaves too few"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        warm_start(regression, X, Y, disable_progbar=True, **arguments)


@pytest.mark.slow
def test_annealed_chains_end_where_the_posterior_has_its_mass():
    """With a likelihood that says little the posterior is the prior, whose mode is at 0."""
    model = BayesianMLP([2, 30, 1], likelihood="normal", observation_scale=100.0)
    fitted, annealed = (
        fit(model, X, Y, num_chains=8, steps=200, held_out=0.0, learning_rate=0.05, **more)
        for more in ({}, {"annealing_steps": 1_500})
    )
    assert fitted.report.annealing is None
    assert annealed.report.annealing.log_densities.shape[0] == 8
    assert "1500 of annealing" in repr(annealed)
    assert "by annealing" in repr(annealed)

    def squares(found):
        return torch.cat([value.reshape(8, -1) for value in found.values()], 1).square()

    assert float(squares(fitted).mean()) < 0.3
    # Independent chi-square numbers, if chains end at draws
    standard_error = (2 / squares(annealed).numel()) ** 0.5
    assert abs(float(squares(annealed).mean()) - 1) < 4.5 * standard_error


@pytest.mark.slow
def test_annealing_of_any_model_moves_its_sites_together():
    found = fit(regression, X, Y, num_chains=40, held_out=0.0, steps=300, annealing_steps=800)
    spread = found["slopes"].std(0)
    # The posterior's standard deviation is about 0.1 / sqrt(60)
    assert ((spread > 0.005) & (spread < 0.03)).all(), spread


def test_annealing_is_refused_where_a_model_takes_some_of_its_rows():
    def model(x, y):
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x), subsample_size=10) as rows:
            pyro.sample("y", dist.Normal(slope * x[rows, 0], 1.0), obs=y[rows])

    with pytest.raises(ValueError, match="annealing_steps must be 0 .* takes 10 of 60"):
        fit(model, X, Y, annealing_steps=10)
    with pytest.raises(ValueError, match="annealing_steps must be .* got -1"):
        fit(regression, X, Y, annealing_steps=-1)


@pytest.mark.parametrize(("many", "threads"), [(1, 3), (10_000_000, 1)])
def test_a_small_fit_has_one_of_torchs_threads(many, threads, monkeypatch):
    seen, before = set(), torch.get_num_threads()
    fits = sys.modules[warm_start.__module__]
    descend = fits.descend
    monkeypatch.setattr(fits, "MANY", many)
    monkeypatch.setattr(
        fits, "descend", lambda *given: (seen.add(torch.get_num_threads()), descend(*given))[1]
    )
    torch.set_num_threads(3)
    try:
        fit(network(), X, Y, steps=2)
        assert (seen, torch.get_num_threads()) == ({threads}, 3)
    finally:
        torch.set_num_threads(before)
