import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.impossible import MAX_DRAWS, drawn_again, is_impossible
from pyro_fnbg.model.lint.determinism import check_density
from pyro_fnbg.model.planning import NO_PLATE
from pyro_fnbg.model.sites import PlateRows, inspect_model, prior_draws

SINGULAR, BAD = torch.ones(2, 2), -torch.eye(2)


def own_words():
    raise ValueError("Expected parameter scale to be positive")


class OwnDistribution(dist.Normal):
    def __init__(self):
        own_words()


IMPOSSIBLE = {
    "no covariance": lambda: torch.linalg.cholesky(BAD),
    "singular": lambda: torch.linalg.inv(SINGULAR),
    "unsolvable": lambda: torch.linalg.solve(SINGULAR, torch.ones(2)),
    "in a distribution": lambda: dist.MultivariateNormal(
        torch.zeros(2), covariance_matrix=BAD, validate_args=False
    ),
    "NumPy": lambda: np.linalg.cholesky(BAD.numpy()),
    "negative scale": lambda: dist.Normal(0.0, -1.0, validate_args=True),
    "NaN": lambda: dist.Normal(torch.nan, 1.0, validate_args=True),
    "no covariance, checked": lambda: dist.MultivariateNormal(
        torch.zeros(2), covariance_matrix=BAD, validate_args=True
    ),
    "checked by itself": lambda: dist.Geometric(torch.tensor(0.0), validate_args=True),
    "of a part": lambda: dist.LogNormal(0.0, -1.0, validate_args=True),
}
BUGS = {
    "shapes": lambda: torch.ones(2) @ torch.ones(3),
    "words of PyTorch": own_words,
    "words of PyTorch in a distribution": OwnDistribution,
    "value": lambda: dist.Normal(0.0, 1.0).log_prob("one"),
    "value off the support": lambda: dist.HalfNormal(1.0, validate_args=True).log_prob(
        torch.tensor(-1.0)
    ),
    "shape of a parameter": lambda: dist.MultivariateNormal(torch.zeros(()), torch.eye(2)),
    "both of two parameters": lambda: dist.Bernoulli(0.5, logits=0.0),
    "arithmetic": lambda: 1 / 0,
    "key": lambda: {}["w"],
    "type": lambda: torch.zeros(2) + "one",
    "memory": lambda: torch.empty(2**62),
}


def error_of(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("there was no error")


@pytest.mark.parametrize("call", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_linear_algebra_and_refused_parameters_mean_an_impossible_place(call):
    assert is_impossible(error_of(call))
    # Pyro's trace raises errors anew, of the same type
    assert is_impossible(error_of(lambda: poutine.trace(call).get_trace()))


@pytest.mark.parametrize("call", BUGS.values(), ids=BUGS)
def test_any_other_error_is_a_bug(call):
    assert not is_impossible(error_of(call))
    assert not is_impossible(error_of(lambda: poutine.trace(call).get_trace()))


def test_draws_are_made_again_until_one_is_possible():
    def run():
        runs.append(len(runs))
        return runs[-1] if len(runs) > 5 else torch.linalg.cholesky(BAD)

    runs = []
    assert drawn_again(run) == 5
    with pytest.raises(torch.linalg.LinAlgError) as caught:
        drawn_again(lambda: runs.append(0) or torch.linalg.cholesky(BAD))
    assert len(runs) == 6 + MAX_DRAWS
    assert f"at each of {MAX_DRAWS} draws" in str(caught.value)
    with pytest.raises(KeyError):
        drawn_again(lambda: runs.append(0) or {}["w"])
    assert len(runs) == 7 + MAX_DRAWS


def correlated(y):
    """Half the draws of the correlation are none; a latent site stands on either side."""
    r = pyro.sample("r", dist.Normal(0.0, 1.5))
    tril = torch.linalg.cholesky(torch.eye(2) + r * torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    z = pyro.sample("z", dist.MultivariateNormal(torch.zeros(2), scale_tril=tril))
    # None with a third component of 0.8
    full = torch.eye(3) + 0.8 * torch.tensor([[0, 0, 1.0], [0, 0, 0], [1.0, 0, 0]])
    full = full + r * torch.tensor([[0, 1.0, 0], [1.0, 0, 0], [0, 0, 0]])
    mean = torch.linalg.cholesky(full).sum() + z.sum()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


Y = torch.ones(4)


def test_prior_draws_are_where_the_sites_can_be_drawn():
    bound = BoundModel(correlated, (Y,))
    draws = prior_draws(bound, inspect_model(bound), PlateRows(None, None), 200)
    assert draws[:, 0].abs().max() < 1.0
    # Those beyond 0.6, of which the likelihood has no density, are drawn too
    assert 0.2 < (draws[:, 0].abs() > 0.6).float().mean() < 0.6


def test_terms_at_an_impossible_position_are_nan_and_of_the_same_shapes():
    bound = BoundModel(correlated, (Y,))
    sites = inspect_model(bound)
    density = ModelDensity(bound, sites, NO_PLATE)
    positions = torch.tensor([[0.7, 0.0, 0.0], [1.5, 0.0, 0.0], [0.3, 0.0, 0.0]])
    with pytest.raises(torch.linalg.LinAlgError):  # nothing is known of the terms yet
        density.site_terms(positions[0], None)
    check_density(density, sites, positions, None)
    found = [density.on(None)(position).log_terms for position in positions]
    assert [len(terms) for terms in found] == [1 + 1 + 4] * 3
    assert [bool(terms.isnan().all()) for terms in found] == [True, True, False]
    assert found[2].isfinite().all()
    with pytest.raises(torch.linalg.LinAlgError):
        density.possible_terms(positions[0], None)


def test_parameters_refused_alike_at_two_draws_are_not_tried_again():
    runs = []

    def model(y):
        runs.append(pyro.sample("w", dist.Normal(0.0, 1.0)))
        pyro.sample("y", dist.Normal(0.0, -1.0, validate_args=True), obs=y)

    with pytest.raises(ValueError, match="Expected parameter scale"):
        BoundModel(model, (torch.tensor(1.0),)).prior_trace()
    assert len(runs) == 2
