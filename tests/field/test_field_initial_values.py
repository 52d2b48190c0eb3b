"""Start values: taken exactly, by the right chain, once; or refused by name."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.infer.mcmc.api as api
import pytest
import torch
from pyro.infer import MCMC
from pyro.infer.autoguide import initialization

from pyro_fnbg import FNBG, BayesianMLP
from support.data import normal
from support.drivers import by_chain, drive, each_driver
from support.engines import ENGINES

# Steps that lead every block where nothing is accepted, so that the first draw is the start
FROZEN = {"proposal_scale": 1e8, "adapt": False}
NET = BayesianMLP([2, 3, 2], likelihood="categorical")

# In frozen runs that hardly any block moves is what is wanted
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*blocks hardly moved"),
    pytest.mark.filterwarnings("ignore:num_chains=:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork.*may lead to deadlocks"),
]


def wide():
    pyro.sample("w", dist.Normal(torch.zeros(3, 2), 100.0).to_event(2))
    pyro.sample("b", dist.Normal(torch.zeros(3), 100.0).to_event(1))
    pyro.factor("no data", torch.zeros(()))


def constrained():
    pyro.sample("s", dist.HalfNormal(50.0))
    pyro.sample("p", dist.Dirichlet(torch.ones(3)))
    pyro.factor("no data", torch.zeros(()))


START = {"w": torch.arange(6.0).reshape(3, 2) - 60, "b": torch.tensor([70.0, -80.0, 0.1])}
THREE = {name: torch.stack([value, -value, value / 3]) for name, value in START.items()}


def assert_starts(mcmc, starts):
    """Every draw of every chain is exactly its start."""
    for name, draws in by_chain(mcmc).items():
        expected = starts[name].unsqueeze(1).expand_as(draws)
        assert torch.equal(draws, expected), f"{name} did not start where it was told to"


@each_driver
def test_a_chain_starts_exactly_where_it_is_told_to(run):
    mcmc = run(FNBG(wide, **FROZEN), draws=3, warmup=0, initial_params=START)
    assert_starts(mcmc, {name: value[None] for name, value in START.items()})


@each_driver
def test_the_first_step_is_taken_from_the_start(run):
    """Tiny steps, all but surely accepted: the first draw is one step away from the start."""
    kernel = FNBG(wide, proposal_scale=1e-3, adapt=False)
    samples = run(kernel, draws=1, warmup=0, initial_params=START).get_samples()
    for name, value in samples.items():
        step = (value[0] - START[name]).abs()
        # 1e-3 times a normal number, and single precision at 80 has steps of 8e-6
        assert ((step > 0) & (step < 6e-3)).any()
        assert step.max() < 6e-3


@each_driver
@pytest.mark.parametrize("engine", ENGINES)
def test_networks_start_exactly_there_on_every_engine(run, engine):
    starts = {name: torch.randn(2, *shape) for name, shape in NET.parameter_shapes.items()}
    kernel = FNBG(NET, engine=engine, **FROZEN)
    data = normal(12, 2), torch.arange(12) % 2
    mcmc = run(kernel, *data, draws=2, warmup=0, num_chains=2, initial_params=starts)
    assert_starts(mcmc, starts)


@pytest.mark.parametrize("method", ["vectorized", "sequential", "processes"])
def test_each_chain_of_the_driver_has_its_own_start(method):
    mcmc = drive(
        FNBG(wide, **FROZEN), draws=2, warmup=1, num_chains=3, initial_params=THREE,
        chain_method=method,
    )  # fmt: skip
    assert_starts(mcmc, THREE)


@pytest.mark.parametrize("cores", [1, 8], ids=["in turn", "forked"])
def test_each_chain_of_pyros_driver_has_its_own_start(cores, monkeypatch):
    monkeypatch.setattr(api.mp, "cpu_count", lambda: cores)
    mcmc = MCMC(
        FNBG(wide, **FROZEN), num_samples=2, warmup_steps=1, num_chains=3, initial_params=THREE,
        mp_context="fork" if cores > 1 else None, disable_progbar=True,
    )  # fmt: skip
    mcmc.run()
    assert_starts(mcmc, THREE)


@each_driver
def test_a_kernel_used_again_without_start_values_does_not_keep_them(run):
    kernel = FNBG(wide, **FROZEN)
    run(kernel, draws=2, warmup=0, num_chains=3, initial_params=THREE)
    again = run(kernel, draws=2, warmup=0, num_chains=3)
    fresh = run(FNBG(wide, **FROZEN), draws=2, warmup=0, num_chains=3)
    for name, draws in by_chain(again).items():
        assert torch.equal(draws, by_chain(fresh)[name])
        assert (draws[:, 0] != THREE[name]).all()


@each_driver
def test_start_values_are_unconstrained(run):
    start = {"s": torch.tensor(math.log(30.0)), "p": torch.zeros(2)}
    samples = run(
        FNBG(constrained, **FROZEN), draws=2, warmup=0, initial_params=start
    ).get_samples()
    # Single precision: 6e-8 of the logarithm, 3.4, is that share of 30
    assert torch.allclose(samples["s"], torch.tensor(30.0), rtol=1e-6)
    assert torch.allclose(samples["p"], torch.tensor(1 / 3), rtol=1e-6)


@each_driver
def test_what_the_user_gave_is_never_changed(run):
    start = {name: value.clone().requires_grad_() for name, value in START.items()}
    start = dict(start)
    run(FNBG(wide), draws=10, warmup=5, initial_params=start)
    assert list(start) == ["w", "b"]
    for name, value in start.items():
        assert torch.equal(value, START[name])
        assert value.requires_grad
        assert value.grad is None


def test_what_the_kernel_shows_of_its_start_can_be_changed_without_harm():
    kernel = FNBG(wide)
    kernel.initial_params = START
    kernel.setup(0)
    kernel.initial_params["w"].zero_()
    assert torch.equal(kernel.initial_params["w"], START["w"])


@each_driver
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_numbers_of_another_type_are_taken_as_they_are(run, dtype):
    start = {"w": torch.arange(6).reshape(3, 2).to(dtype), "b": torch.tensor([4, 0, 2]).to(dtype)}
    mcmc = run(FNBG(wide, **FROZEN), draws=1, warmup=0, initial_params=start)
    assert_starts(mcmc, {name: value[None].float() for name, value in start.items()})


BAD = {
    "transposed": ({"w": torch.zeros(2, 3)}, r"\['w'\] must have the unconstrained shape \(3, 2\)"),
    "one chain too many": ({"b": torch.zeros(2, 3)}, r"\['b'\] .*\(3,\), got \(2, 3\)"),
    "unknown": ({"wieght": torch.zeros(3, 2)}, r"unknown \['wieght'\]"),
    "not a number": ({"w": torch.full((3, 2), math.nan)}, r"\['w'\] must be finite"),
    "infinite": ({"b": torch.tensor([0.0, math.inf, 0.0])}, r"\['b'\] must be finite .*inf"),
    "too large for the site": (
        {"b": torch.tensor([0.0, 1e300, 0.0], dtype=torch.float64)},
        r"\['b'\] must be finite as torch\.float32",
    ),
}


@each_driver
@pytest.mark.parametrize(("change", "words"), BAD.values(), ids=BAD)
def test_values_that_do_not_fit_are_named(run, change, words):
    with pytest.raises(ValueError, match=words):
        run(FNBG(wide), draws=2, warmup=0, initial_params=START | change)


@each_driver
def test_a_site_without_a_value_is_named(run):
    with pytest.raises(ValueError, match=r"missing \['b'\]"):
        run(FNBG(wide), draws=2, warmup=0, initial_params={"w": START["w"]})


@pytest.mark.parametrize("value", [np.zeros(3), [0.0, 0.0, 0.0], 0.0])
def test_a_value_that_is_no_tensor_is_named_with_what_it_is(value):
    with pytest.raises(ValueError, match=rf"\['b'\] must be a tensor, got {type(value).__name__}$"):
        drive(FNBG(wide), draws=2, initial_params=START | {"b": value})


@each_driver
def test_a_simplex_given_by_its_constrained_value_is_refused(run):
    start = {"s": torch.tensor(3.0), "p": torch.full((3,), 1 / 3)}
    with pytest.raises(ValueError, match=r"\['p'\] must have the unconstrained shape \(2,\)"):
        run(FNBG(constrained), draws=2, warmup=0, initial_params=start)


@each_driver
def test_a_strategy_that_leaves_an_interval_is_named_with_it(run):
    def model():
        pyro.sample("u", dist.Uniform(0.0, 1.0))
        pyro.factor("no data", torch.zeros(()))

    strategy = initialization.init_to_value(values={"u": torch.tensor(2.0)})
    with pytest.raises(
        ValueError, match=r"init_strategy gave latent site 'u' .*Interval.*got 2\.0"
    ):
        run(FNBG(model, init_strategy=strategy), draws=2, warmup=0)
