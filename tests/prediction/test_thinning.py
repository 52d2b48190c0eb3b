import math

import pytest
import torch

from pyro_fnbg import BayesianMLP, log_likelihood, predict
from pyro_fnbg.prediction.scores import score_classes, score_numbers
from pyro_fnbg.prediction.thinning import fewer_draws
from support.data import normal

CLASSES = BayesianMLP([2, 3, 4], activation="tanh")
NUMBERS = BayesianMLP([2, 3, 2], activation="tanh", likelihood="normal", observation_scale=0.7)


def draws_of(model, num_draws=24):
    return {name: normal(num_draws, *shape) for name, shape in model.parameter_shapes.items()}


@pytest.fixture(params=[CLASSES, NUMBERS], ids=["classes", "numbers"])
def case(request):
    model = request.param
    y = torch.arange(9) % 4 if model is CLASSES else normal(9, 2)
    return model, draws_of(model), normal(9, 2), y


@pytest.mark.parametrize(
    ("num_draws", "num_chains", "kept"),
    [
        (3, 1, [7, 15, 23]),
        (24, 2, list(range(24))),
        (4, 4, [5, 11, 17, 23]),
        (10, 2, [1, 3, 6, 8, 11, 13, 15, 18, 20, 23]),
        (1, 1, [23]),
    ],
)
def test_kept_draws_are_evenly_spaced_and_the_loss_is_theirs(case, num_draws, num_chains, kept):
    model, draws, x, y = case
    found = fewer_draws(model, draws, x, y, num_draws, num_chains)
    assert (found.num_draws, found.num_all) == (num_draws, 24)
    for name, values in draws.items():
        assert torch.equal(found.samples[name], values[kept])
    likelihoods = log_likelihood(model, draws, x, y).double().exp().tolist()
    for lppd, places in ((found.lppd_all, range(24)), (found.lppd_kept, kept)):
        expected = [
            math.log(sum(likelihoods[place][row] for place in places) / len(places))
            for row in range(9)
        ]
        assert lppd == pytest.approx(sum(expected) / 9, rel=1e-6)
    assert found.loss == found.lppd_all - found.lppd_kept
    assert (found.loss == 0) == (num_draws == 24)


def test_it_is_the_density_of_the_scores(case):
    model, draws, x, y = case
    found = fewer_draws(model, draws, x, y, num_draws=6, num_chains=3)
    score = score_classes if model is CLASSES else score_numbers
    for samples, lppd in ((draws, found.lppd_all), (found.samples, found.lppd_kept)):
        assert score(predict(model, samples, x, y), y)["lppd"] == pytest.approx(lppd, rel=1e-5)


def test_the_loss_is_shown(case):
    found = fewer_draws(*case, num_draws=4)
    expected = (
        f"4 of 24 draws: lppd {found.lppd_kept:.4g} in place of {found.lppd_all:.4g}, "
        f"a {'gain' if found.loss < 0 else 'loss'} of {abs(found.loss):.2g} nats a row"
    )
    assert str(found) == repr(found) == expected


@pytest.mark.parametrize(
    ("num_draws", "num_chains", "message"),
    [
        (25, 1, "num_draws must be a whole number, 1 or more and at most 24; got 25"),
        (2, 3, "num_draws must be a whole number, 3 or more and at most 24; got 2"),
        (4, 3, "num_draws must be a multiple of the 3 chains, which keep as many each; got 4"),
        (4, 7, "samples must have as many draws of each of the 7 chains, got 24 draws"),
        (4, 0, "num_chains must be a whole number, 1 or more; got 0"),
        (4.0, 1, "num_draws must be a whole number"),
    ],
)
def test_numbers_that_are_not_allowed(num_draws, num_chains, message):
    with pytest.raises(ValueError, match=message):
        fewer_draws(CLASSES, draws_of(CLASSES), normal(3, 2), torch.zeros(3), num_draws, num_chains)
