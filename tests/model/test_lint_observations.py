import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.lint.entry import checked_sites

N = 20
X, Y = torch.arange(3.0 * N).sin().reshape(N, 3), torch.arange(1.0 * N).cos()
CLASSES = torch.arange(N) % 3


def observe(fn, value, plate=None, dim=None, mask=True):
    """Inspect a model with one observed site, as under MCMC: Pyro's own checks off."""

    def model():
        pyro.sample("loc", dist.Normal(0.0, 1.0))
        with poutine.mask(mask=mask):
            if plate is None:
                pyro.sample("y", fn, obs=value)
            else:
                with pyro.plate("data", plate, dim=dim):
                    pyro.sample("y", fn, obs=value)

    with pyro.validation_enabled(False):
        return checked_sites(BoundModel(model))


MEAN = X @ torch.ones(3, 1)

DOUBLED = {
    "column of data": (dist.Normal(MEAN.squeeze(-1), 1.0), Y.unsqueeze(-1), N, None),
    "column of data, no plate": (dist.Normal(MEAN.squeeze(-1), 1.0), Y.unsqueeze(-1), None, None),
    "forgotten squeeze": (dist.Normal(MEAN, 1.0), Y, N, None),
    "forgotten squeeze, event": (dist.Normal(MEAN, 1.0).to_event(1), Y, N, None),
    "forgotten squeeze, all events": (dist.Normal(MEAN, 1.0).to_event(2), Y, None, None),
    "plate on the wrong dimension": (dist.Normal(MEAN.squeeze(-1), 1.0), Y, N, -2),
    "column of labels": (
        dist.Categorical(logits=X),
        CLASSES.unsqueeze(-1),
        N,
        None,
    ),
}


@pytest.mark.parametrize(("fn", "value", "plate", "dim"), DOUBLED.values(), ids=DOUBLED)
def test_rows_that_would_count_more_than_once_are_refused_with_both_shapes(fn, value, plate, dim):
    with pytest.raises(ValueError, match=r"'y' has data of shape .*20.* batch shape .*20"):
        observe(fn, value, plate, dim)


SOUND = {
    "vector": (dist.Normal(MEAN.squeeze(-1), 1.0), Y, N, None),
    "no plate": (dist.Normal(MEAN.squeeze(-1), 1.0), Y, None, None),
    "scalar distribution": (dist.Normal(0.0, 1.0), Y, N, None),
    "scalar distribution, no plate": (dist.Normal(0.0, 1.0), Y, None, None),
    "scalar datum": (dist.Normal(MEAN.squeeze(-1), 1.0), torch.tensor(1.0), N, None),
    "events": (dist.Normal(X, 1.0).to_event(1), X + 1, N, None),
    "all events": (dist.Normal(X, 1.0).to_event(2), X + 1, None, None),
    "columns undeclared": (dist.Normal(X, 1.0), X + 1, N, -2),
    "multivariate": (dist.MultivariateNormal(X, torch.eye(3)), X + 1, N, None),
    "one-hot": (
        dist.OneHotCategorical(logits=X),
        torch.eye(3)[CLASSES],
        N,
        None,
    ),
    "labels": (dist.Categorical(logits=X), CLASSES, N, None),
    "byte labels": (dist.Categorical(logits=X), CLASSES.byte(), N, None),
    "masked distribution": (dist.Normal(X, 1.0).to_event(1).mask(Y > 0), X + 1, N, None),
}


@pytest.mark.parametrize(("fn", "value", "plate", "dim"), SOUND.values(), ids=SOUND)
def test_data_that_fit_pass(fn, value, plate, dim):
    assert observe(fn, value, plate, dim).observed == ("y",)


HOLED = Y.index_fill(0, torch.tensor([4]), torch.nan)
LABELS = torch.tensor([0.0, 1.0] * 10)
OUTSIDE = {
    "signs": (dist.Bernoulli(0.5), 2 * LABELS - 1, "10 of 20 .*the first is -1.0"),
    "one and two": (dist.Bernoulli(0.5), LABELS + 1, "the first is 2.0"),
    "label too large": (
        dist.Categorical(torch.ones(3)),
        torch.arange(N) % 4,
        "5 of 20 .*the first is 3",
    ),
    "half a label": (dist.Categorical(torch.ones(3)), LABELS + 0.5, "the first is 0.5"),
    "negative count": (dist.Poisson(2.0), -LABELS, "10 of 20 .*the first is -1.0"),
    "negative scale": (dist.Gamma(2.0, 2.0), Y.abs() - 9, "20 of 20"),
    "not a number": (
        dist.Normal(0.0, 1.0),
        Y.where(Y < 9, Y).index_fill(0, torch.tensor([4]), torch.nan),
        "1 of 20 .*the first is nan",
    ),
}


@pytest.mark.parametrize(("fn", "value", "words"), OUTSIDE.values(), ids=OUTSIDE)
def test_values_off_the_support_are_named(fn, value, words):
    with pytest.raises(ValueError, match=f"'y' has {'' if words[0].isdigit() else '.*'}{words}"):
        observe(fn, value, N)


def test_masked_values_may_be_anything():
    value, keep = Y.clone(), torch.ones(N, dtype=torch.bool)
    value[3], keep[3] = torch.nan, False
    observe(dist.Normal(0.0, 1.0), value, N, mask=keep)
    observe(dist.Normal(0.0, 1.0).expand([N]).mask(keep), value, N)


def test_data_that_are_no_tensor_are_left_to_the_distribution():
    assert observe(dist.Normal(0.0, 1.0), 3.0, N).observed == ("y",)


def test_whole_numbers_that_a_distribution_cannot_score_are_named():
    with pytest.raises(TypeError, match=r"'y' must have.*Bernoulli.*torch\.int64.*\.float\(\)"):
        observe(dist.Bernoulli(logits=torch.zeros(N)), torch.ones(N, dtype=torch.int64), N)
    observe(dist.Categorical(logits=torch.zeros(N, 3)), torch.ones(N, dtype=torch.uint8), N)


class Ratings(dist.TorchDistribution):
    """Five grades, or 0 for "not asked": a density of one's own, over more than its support."""

    arg_constraints = {}
    support = dist.constraints.interval(1.0, 5.0)

    def sample(self, sample_shape=()):
        return torch.ones(sample_shape)

    def log_prob(self, value):
        return torch.where(value == 0.0, -0.5, torch.where(value == 9.0, torch.nan, -value))


MISSING = torch.tensor([0.5, torch.nan, -2.0, torch.nan])
SCORED = {
    "missing": (dist.NanMaskedNormal(0.0, 1.0), MISSING),
    "missing, events": (dist.NanMaskedNormal(torch.zeros(2), 1.0).to_event(1), MISSING.view(2, 2)),
    "missing, correlated": (
        dist.NanMaskedMultivariateNormal(torch.zeros(2), torch.eye(2)),
        MISSING.view(2, 2),
    ),
    "zeros": (
        dist.ZeroInflatedDistribution(dist.Gamma(2.0, 1.0), gate=torch.tensor(0.3)),
        torch.tensor([0.0, 2.0, 0.0]),
    ),
    "density of one's own": (Ratings(), torch.tensor([0.0, 3.0])),
}


@pytest.mark.parametrize(("fn", "value"), SCORED.values(), ids=SCORED)
def test_values_off_the_support_that_are_scored_pass(fn, value):
    assert observe(fn, value, len(value)).observed == ("y",)


UNSCORED = {
    "missing under another likelihood": (dist.Normal(0.0, 1.0), MISSING, "2 of 4 .*is nan"),
    "missing labels": (dist.Categorical(torch.ones(3)), MISSING.abs(), "3 of 4 .*first is 0.5"),
    # Finite without checks: the logarithm of the rate less its product with the value
    "negative waiting time": (dist.Exponential(1.0), torch.tensor([1.0, -1.0]), "1 of 2"),
    "shares in per cent": (
        dist.Dirichlet(torch.ones(2)),
        torch.tensor([[20.0, 80.0], [0.5, 0.5]]),
        r"1 of 2 .*\[20.0, 80.0\]",
    ),
    "not even by one's own density": (Ratings(), torch.tensor([9.0, 3.0]), "1 of 2 .*is 9.0"),
}


@pytest.mark.parametrize(("fn", "value", "words"), UNSCORED.values(), ids=UNSCORED)
def test_values_off_the_support_without_a_meaning_are_refused(fn, value, words):
    with pytest.raises(ValueError, match=f"'y' has {words}"):
        observe(fn, value, len(value))
