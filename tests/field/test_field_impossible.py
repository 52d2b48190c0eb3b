"""Candidates at which the model raises an error: impossible, or a bug."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG
from support.drivers import each_driver

Y = torch.tensor([[0.4, 0.6], [-1.0, -0.7], [0.2, -0.1]])
OFF = torch.tensor([[0.0, 1.0], [1.0, 0.0]])


def by_numpy(r):
    factor = np.linalg.cholesky((torch.eye(2) + r * OFF).numpy())
    return dist.MultivariateNormal(torch.zeros(2), scale_tril=torch.from_numpy(factor))


# The likelihood of a correlation, which is none from 1 on
LIKELIHOODS = {
    "cholesky": lambda r: dist.MultivariateNormal(
        torch.zeros(2), scale_tril=torch.linalg.cholesky(torch.eye(2) + r * OFF)
    ),
    "distribution": lambda r: dist.MultivariateNormal(torch.zeros(2), torch.eye(2) + r * OFF),
    "NumPy": by_numpy,
    "refused": lambda r: dist.MultivariateNormal(
        torch.zeros(2), torch.eye(2) + r * OFF, validate_args=True
    ),
    "refused scale": lambda r: dist.Normal(
        torch.zeros(2), (1 - r.square()).expand(2), validate_args=True
    ).to_event(1),
}


def raising(likelihood):
    def model(y):
        r = pyro.sample("r", dist.Normal(0.0, 0.7))
        with pyro.plate("data", len(y)):
            pyro.sample("y", likelihood(r), obs=y)

    return model


def without_density(likelihood):
    """The same posterior in other words: no density where the other model raises an error."""

    def model(y):
        r = pyro.sample("r", dist.Normal(0.0, 0.7))
        is_possible = r.abs() < 1
        with pyro.plate("data", len(y)):
            pyro.sample("y", likelihood(torch.where(is_possible, r, 0.5)), obs=y)
        pyro.factor("possible", torch.where(is_possible, 0.0, torch.nan))

    return model


@each_driver
@pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)
def test_a_candidate_at_which_the_model_cannot_be_evaluated_has_probability_zero(run, likelihood):
    lost = {}
    draws = {}
    for write in (raising, without_density):
        pyro.set_rng_seed(5)
        kernel = FNBG(write(likelihood), proposal_scale=1.0, adapt=False)
        mcmc = run(kernel, Y, draws=120, warmup=10)
        draws[write] = mcmc.get_samples()["r"]
        lost[write] = sum(mcmc._diagnostics[0]["non-finite candidates"].values())
    assert torch.equal(draws[raising], draws[without_density])
    assert lost[raising] == lost[without_density] > 10
    assert draws[raising].abs().max() < 1
    assert len(draws[raising].unique()) > 10


@each_driver
def test_tuning_goes_on_past_such_candidates(run):
    kernel = FNBG(raising(LIKELIHOODS["cholesky"]), proposal_scale=20.0)
    run(kernel, Y, draws=50, warmup=100)
    (scale,) = kernel.diagnostics()["proposal scale by block"].values()
    assert 0.1 < scale < 5.0


@each_driver
def test_a_start_at_which_the_model_cannot_be_evaluated_is_named(run):
    kernel = FNBG(raising(LIKELIHOODS["cholesky"]))
    words = r"initial_params=\{'r': tensor\(1.5.*\)\} are where .* cannot be evaluated .*LinAlgErr"
    with pytest.raises(ValueError, match=words):
        run(kernel, Y, initial_params={"r": torch.tensor(1.5)})


def start_at(value):
    return lambda site: torch.tensor(value)


@each_driver
def test_starts_that_are_drawn_are_drawn_again(run):
    values = iter([1.5, -2.0, 1.1, 0.25])
    model = raising(LIKELIHOODS["cholesky"])
    kernel = FNBG(model, init_strategy=lambda site: torch.tensor(next(values)), adapt=False)
    run(kernel, Y, draws=1, warmup=0)
    assert next(values, None) is None
    words = "no initial position .* 100 tries; in the last, the model raised .*LinAlgError"
    with pytest.raises(ValueError, match=words):
        run(FNBG(model, init_strategy=start_at(1.5)), Y)


@each_driver
def test_a_model_that_can_be_evaluated_nowhere_shows_its_own_error(run):
    def model(y):
        r = pyro.sample("r", dist.Normal(0.0, 0.7))
        torch.linalg.cholesky(-torch.eye(2) - r.square())
        pyro.sample("y", dist.Normal(r, 1.0), obs=y)

    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite") as caught:
        run(FNBG(model), torch.tensor(1.0))
    words = str(caught.value)
    assert "at each of 20 draws" in words
    assert "FNBG ran the model with y: tensor" in words


BUGS = {
    "shapes": (lambda r: torch.ones(2) @ torch.ones(3), RuntimeError),
    "key": (lambda r: {}["w"], KeyError),
    "arithmetic": (lambda r: 1 / 0, ZeroDivisionError),
    "value": (lambda r: int("one"), ValueError),
    "parameters": (lambda r: dist.Bernoulli(0.5, logits=0.0), ValueError),
}


@pytest.mark.filterwarnings("ignore:the run was stopped by an error")
@each_driver
@pytest.mark.parametrize(("bug", "kind"), BUGS.values(), ids=BUGS)
def test_a_bug_that_candidates_find_reaches_its_author(run, bug, kind):
    def model(y):
        r = pyro.sample("r", dist.Normal(0.0, 0.7))
        if r > 5.0:  # where no draw from the prior is
            bug(r)
        pyro.sample("y", dist.Normal(r, 0.1), obs=y)

    with pytest.raises(kind) as caught:
        run(FNBG(model), torch.tensor(12.0), draws=500, warmup=100)
    assert type(caught.value) is kind
