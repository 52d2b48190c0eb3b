"""Predictive distributions: against plain loops over draws, closed forms and Pyro's Predictive."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from scipy import stats
from torch.distributions import Normal

from pyro_fnbg import BayesianMLP, log_likelihood, predict, sample_responses
from pyro_fnbg.prediction import evaluation, sources
from pyro_fnbg.prediction.predictive import marginal_predictive, predictive_probabilities
from support.slow import slowly

SCALED = BayesianMLP(
    [3, 5, 1], likelihood="normal", observation_scale=dist.LogNormal(torch.zeros(()), 1.0)
)
FIXED = BayesianMLP([3, 5, 2], activation="tanh", likelihood="normal", observation_scale=0.7)
NETWORK = BayesianMLP([3, 5, 2], likelihood="normal", observation_scale="network")
SEVERAL = BayesianMLP([3, 5, 4], likelihood="normal", observation_scale="network")
STUDENT = BayesianMLP([3, 5, 1], likelihood="student", degrees_of_freedom=3.0)
COUNTS = BayesianMLP([3, 5, 2], likelihood="poisson")
BINARY = BayesianMLP([3, 4, 1], likelihood="bernoulli")
CLASSES = BayesianMLP([3, 4, 3], activation="relu")
NUMBERS = (SCALED, FIXED, NETWORK, SEVERAL, STUDENT)
NUM_DRAWS, NUM_ROWS = 60, 23


def counted(x, y=None):
    """Counts of a log-linear model, which has no statement of a network."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Poisson((x @ weight).exp()), obs=y)


def hidden(model):
    """Hide the statement of a network, so that the model itself is run."""
    return lambda x, y=None: model(x, y)


@pytest.fixture
def x():
    return torch.randn(NUM_ROWS, 3, generator=torch.Generator().manual_seed(1))


def samples_of(model, num_draws=NUM_DRAWS):
    generator = torch.Generator().manual_seed(2)
    if model is counted:
        return {"weight": 0.4 * torch.randn(num_draws, 3, generator=generator)}
    # Of scales that are tiny, rounding would be that of the outputs, magnified
    size = 0.5 if model in (NETWORK, SEVERAL) else 1.0
    samples = {
        name: size * torch.randn(num_draws, *shape, generator=generator)
        for name, shape in model.parameter_shapes.items()
    }
    if model is SCALED:
        samples["obs_scale"] = 0.1 + torch.rand(num_draws, generator=generator)
    return samples


def labels_of(model):
    generator = torch.Generator().manual_seed(3)
    if model in NUMBERS:
        several = (2,) * (model in (FIXED, SEVERAL))
        return torch.randn(NUM_ROWS, *several, generator=generator)
    if model is COUNTS:
        return torch.randint(0, 9, (NUM_ROWS, 2), generator=generator).float()
    return torch.randint(0, 2 if model is BINARY else 3, (NUM_ROWS,), generator=generator)


def by_loop(model, samples, x):
    """The response under each draw, one draw after the other."""
    found = []
    for draw in range(len(next(iter(samples.values())))):
        one = {name: value[draw] for name, value in samples.items()}
        trace = pyro.poutine.trace(pyro.condition(model, one)).get_trace(x)
        found.append(trace.nodes["obs"]["fn"])
    return found


@pytest.mark.parametrize("disguise", [lambda model: model, hidden])
@pytest.mark.parametrize("model", [*NUMBERS, COUNTS])
def test_moments_and_densities_are_those_of_a_loop(model, disguise, x):
    samples, y = samples_of(model), labels_of(model)
    responses = by_loop(model, samples, x)
    means = torch.stack([response.mean for response in responses]).double()
    variances = torch.stack([response.variance for response in responses]).double()
    densities = torch.stack([response.log_prob(y) for response in responses]).double()
    prediction = predict(disguise(model), samples, x, y)
    close = {"atol": 1e-6, "rtol": 1e-6, "check_dtype": False}
    torch.testing.assert_close(prediction.mean, means.mean(0), **close)
    torch.testing.assert_close(prediction.data_variance, variances.mean(0), **close)
    torch.testing.assert_close(prediction.network_variance, means.var(0, unbiased=False), **close)
    torch.testing.assert_close(prediction.scale**2, prediction.variance, **close)
    expected = densities.logsumexp(0) - math.log(NUM_DRAWS)
    torch.testing.assert_close(prediction.log_density, expected, **close)
    torch.testing.assert_close(marginal_predictive(disguise(model), samples, x), prediction.mean)
    each = predictive_probabilities(disguise(model), samples, x)
    torch.testing.assert_close(each, means, **close)
    found = log_likelihood(disguise(model), samples, x, y)
    torch.testing.assert_close(found, densities, **(close | {"atol": 1e-5}))


@pytest.mark.parametrize("disguise", [lambda model: model, hidden])
@pytest.mark.parametrize("model", [BINARY, CLASSES])
def test_entropies_and_likelihoods_are_those_of_a_loop(model, disguise, x):
    samples, y = samples_of(model), labels_of(model)
    probabilities = []
    for response in by_loop(model, samples, x):
        found = response.probs.double()
        probabilities.append(found if model is CLASSES else torch.stack([1 - found, found], -1))
    each = torch.stack(probabilities)
    mean = each.mean(0)
    prediction = predict(disguise(model), samples, x)
    close = {"atol": 1e-6, "rtol": 1e-5, "check_dtype": False}
    torch.testing.assert_close(prediction.probabilities, mean, **close)
    torch.testing.assert_close(prediction.entropy, -(mean * mean.log()).sum(-1), **close)
    expected = -(each * each.log()).sum(-1).mean(0)
    torch.testing.assert_close(prediction.expected_entropy, expected, **close)
    information = -(mean * mean.log()).sum(-1) - expected
    torch.testing.assert_close(prediction.mutual_information, information, **close)
    assert torch.equal(prediction.labels, mean.argmax(-1))
    classes, values = prediction.top(2)
    assert torch.equal(classes[:, 0], prediction.labels)
    assert torch.equal(values[:, 0], prediction.confidence)
    found = log_likelihood(disguise(model), samples, x, y)
    expected = each.gather(2, y.expand(NUM_DRAWS, NUM_ROWS).unsqueeze(-1)).squeeze(-1).log()
    torch.testing.assert_close(found, expected, **(close | {"atol": 1e-5}))


@pytest.mark.parametrize("model", [SCALED, FIXED, NETWORK, SEVERAL])
def test_quantiles_are_those_of_the_mixture(model, x):
    samples = samples_of(model)
    responses = by_loop(model, samples, x)
    means = torch.stack([response.mean for response in responses]).double()
    scales = torch.stack([response.variance for response in responses]).double().sqrt()
    levels = [0.001, 0.2, 0.5, 0.999]
    prediction = predict(model, samples, x, quantiles=levels)
    for level in levels:
        below = Normal(means, scales).cdf(prediction.quantiles[level].double()).mean(0)
        # Quantiles are rounded to float32: by at most 1e-6 of a few units, at a density below 4
        torch.testing.assert_close(below, torch.full_like(below, level), atol=4e-6, rtol=0)
    assert prediction.has_exact_quantiles


def test_quantiles_of_a_student_response_are_those_of_the_mixture(x):
    samples, levels = samples_of(STUDENT), [0.001, 0.2, 0.5, 0.999]
    means = torch.stack([response.mean for response in by_loop(STUDENT, samples, x)])
    prediction = predict(STUDENT, samples, x, quantiles=levels)
    for level in levels:
        below = stats.t.cdf(prediction.quantiles[level].double(), 3.0, means.double()).mean(0)
        np.testing.assert_allclose(below, level, atol=4e-6)
    assert prediction.has_exact_quantiles


@pytest.mark.parametrize("disguise", [lambda model: model, hidden])
def test_quantiles_of_counts_are_those_of_the_mixture(disguise, x):
    """A count reaches the level, and one less does not."""
    samples, levels = samples_of(COUNTS), [0.001, 0.2, 0.5, 0.999]
    rates = torch.stack([response.mean for response in by_loop(COUNTS, samples, x)]).double()
    prediction = predict(disguise(COUNTS), samples, x, quantiles=levels)
    for level in levels:
        quantile = prediction.quantiles[level].double()
        # The rates of many draws at once are rounded otherwise
        assert (stats.poisson.cdf(quantile, rates).mean(0) > level - 1e-5).all()
        assert (stats.poisson.cdf(quantile - 1, rates).mean(0) < level + 1e-5).all()
    assert prediction.has_exact_quantiles


def test_intervals_of_a_conjugate_regression_are_those_of_the_closed_form():
    """One input without a network above it: the posterior is Normal, and so is the prediction."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(12, 1, dtype=torch.float64, generator=generator)
    y = 1.5 * x[:, 0] + 0.5 + 0.4 * torch.randn(12, dtype=torch.float64, generator=generator)
    model = BayesianMLP([1, 1], likelihood="normal", observation_scale=0.4)
    design = torch.cat([x, torch.ones_like(x)], 1)
    precision = torch.eye(2, dtype=torch.float64) + design.T @ design / 0.4**2
    covariance = torch.linalg.inv(precision)
    location = covariance @ design.T @ y / 0.4**2
    num_draws = 40_000
    normal = torch.randn(num_draws, 2, dtype=torch.float64, generator=generator)
    draws = location + normal @ torch.linalg.cholesky(covariance).T
    samples = {"layer1.weight": draws[:, :1, None], "layer1.bias": draws[:, 1:]}
    new = torch.tensor([[-3.0], [0.0], [2.0]], dtype=torch.float64)
    at = torch.cat([new, torch.ones_like(new)], 1)
    expected_scale = (0.4**2 + torch.einsum("ri,ij,rj->r", at, covariance, at)).sqrt()
    prediction = predict(model, samples, new)
    # Standard errors of a mean, of a standard deviation and of quantiles, of independent draws
    error = expected_scale / math.sqrt(num_draws)
    assert ((prediction.mean - at @ location).abs() < 5 * error).all()
    assert ((prediction.scale - expected_scale).abs() < 5 * error).all()
    for probability in (0.5, 0.95):
        level = (1 + probability) / 2
        bound = stats.norm.ppf(level)
        expected = at @ location + expected_scale * bound
        # Of the share of draws below the bound, turned into a distance by the density there
        allowed = 5 * error * math.sqrt(level * (1 - level)) / stats.norm.pdf(bound)
        assert ((prediction.interval(probability)[1] - expected).abs() < allowed).all()


@pytest.mark.parametrize("model", [SCALED, FIXED, SEVERAL, BINARY, CLASSES, counted])
def test_pyro_s_predictive_agrees_within_its_error(model, x):
    """Both draw responses; means over many draws differ by their Monte Carlo errors."""
    samples = samples_of(model, 400)
    own = sample_responses(model, samples, x).double()
    pyro.set_rng_seed(5)
    theirs = Predictive(model, samples)(x)["obs"].double()
    if model is CLASSES:
        own, theirs = (
            torch.nn.functional.one_hot(found.long(), 3).double() for found in (own, theirs)
        )
    assert own.shape == theirs.shape
    # The draws are the same, so that only the responses under one draw differ
    difference = own - theirs
    error = difference.std(0) / math.sqrt(len(difference))
    assert (difference.mean(0).abs() < 4.5 * error + 1e-12).all()
    mean = marginal_predictive(model, samples, x).double()
    mean = mean[:, 1] if model is BINARY else mean
    error = (theirs - mean).square().mean(0).sqrt() / math.sqrt(len(theirs))
    assert ((theirs.mean(0) - mean).abs() < 4.5 * error + 1e-12).all()


def waiting(x, y=None):
    """Gamma distributed times of a log-linear model, whose mixtures have no quantiles known."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Gamma(2.0, (x @ weight).exp()), obs=y)


def test_other_numbers_have_exact_moments_and_quantiles_of_drawn_responses(x):
    samples = samples_of(counted, 2000)
    rates = (samples["weight"].double() @ x.T.double()).exp()
    state = torch.get_rng_state()
    prediction = predict(waiting, samples, x)
    assert torch.equal(torch.get_rng_state(), state)
    close = {"rtol": 1e-5, "atol": 1e-5, "check_dtype": False}
    torch.testing.assert_close(prediction.mean, (2 / rates).mean(0), **close)
    torch.testing.assert_close(prediction.data_variance, (2 / rates**2).mean(0), **close)
    expected = (2 / rates).var(0, unbiased=False)
    torch.testing.assert_close(prediction.network_variance, expected, **close)
    assert not prediction.has_exact_quantiles
    for row in (0, 5, 11):
        upper = prediction.quantiles[0.9][row].item()
        # But for the error of a share
        share = stats.gamma.cdf(upper * rates[:, row].numpy(), 2.0).mean()
        assert abs(share - 0.9) < 4 * math.sqrt(0.9 * 0.1 / 2000)


@pytest.mark.slow
@pytest.mark.parametrize("model", [SCALED, FIXED, NETWORK, COUNTS, BINARY, CLASSES])
@pytest.mark.parametrize("num_chains", [1, 3])
def test_the_course_of_scores_is_that_of_predictions_from_fewer_draws(model, num_chains, x):
    samples, y = samples_of(model), labels_of(model)
    of_chain = NUM_DRAWS // num_chains
    lengths = [1, 7, of_chain]
    course = predict(model, samples, x, y, num_chains=num_chains, lengths=lengths[::-1]).course
    assert course.lengths == tuple(lengths)

    def scores(draws):
        found = predict(model, {name: value[draws] for name, value in samples.items()}, x, y)
        if model in (BINARY, CLASSES):
            of_labels = found.probabilities.double().gather(-1, y.unsqueeze(-1))
            accuracy = (found.labels == y).double().mean().item()
            return {"accuracy": accuracy, "lppd": of_labels.log().mean().item()}
        rmse = (found.mean - y).double().square().mean().sqrt().item()
        return {"rmse": rmse, "lppd": found.log_density.double().mean().item()}

    for place, length in enumerate(lengths):
        chains = [range(chain * of_chain, chain * of_chain + length) for chain in range(num_chains)]
        for chain, draws in enumerate(chains):
            for name, value in scores(list(draws)).items():
                assert course.by_chain[name][chain, place].item() == pytest.approx(value, rel=1e-5)
        for count in range(1, num_chains + 1):
            draws = [draw for chain in chains[:count] for draw in chain]
            for name, value in scores(draws).items():
                found = course.pooled[name][count - 1, place].item()
                assert found == pytest.approx(value, rel=1e-5)
    table = course.table()
    assert table.columns.tolist() == lengths
    assert len(table) == 2 * (num_chains + 1)
    for name in course.pooled:
        assert table.loc[name, "pooled"].tolist() == course.pooled[name][-1].tolist()
        assert table.loc[name, "chain 0"].tolist() == course.by_chain[name][0].tolist()


@pytest.mark.parametrize(
    "model", [SCALED, slowly(FIXED), slowly(STUDENT), COUNTS, CLASSES, counted]
)
def test_the_memory_limit_changes_no_result(model, x, monkeypatch):
    samples = samples_of(model)
    y = None if model is counted else labels_of(model)
    expected = predict(model, samples, x, y)
    # One megabyte is far more than these need: make a number larger
    monkeypatch.setattr(evaluation.Effort, "max_numbers", property(lambda self: 400))
    found = predict(model, samples, x, y, memory_limit=1)
    names = ["probabilities", "expected_entropy"] if model is CLASSES else ["mean", "variance"]
    for name in names:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    if model is not CLASSES:
        for level, value in expected.quantiles.items():
            torch.testing.assert_close(found.quantiles[level], value)


def test_rows_are_split_where_all_draws_of_them_must_be_held(x, monkeypatch):
    sizes = []
    response = sources.StatedSource.response

    def watched(self, draws, rows):
        found = response(self, draws, rows)
        sizes.append(found.means.shape[1])
        return found

    monkeypatch.setattr(sources.StatedSource, "response", watched)
    monkeypatch.setattr(
        evaluation.Effort, "max_numbers", property(lambda self: 4 * NUM_DRAWS * 3 + 1)
    )
    predict(SCALED, samples_of(SCALED), x)
    assert max(sizes[1:]) == 3
    sizes.clear()
    marginal_predictive(SCALED, samples_of(SCALED), x)
    assert max(sizes[1:]) > 3


def test_a_seed_repeats_responses_and_leaves_the_global_state(x):
    samples = samples_of(CLASSES)
    state = torch.get_rng_state()
    first, second, other = (sample_responses(CLASSES, samples, x, seed=seed) for seed in (7, 7, 8))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantiles": [0.5, 1.0]}, "quantiles must be between 0 and 1, got 1.0"),
        ({"memory_limit": 0.5}, "memory_limit must be a number of megabytes, 1 or more .* got 0.5"),
        (
            {"memory_limit": "2GB"},
            "memory_limit must be a number of megabytes, 1 or more .* got '2GB",
        ),
        ({"progress": "no"}, "progress must be True or False, got 'no'"),
        ({"num_chains": 7}, "num_chains=7 chains, one chain after the other; got 60 draws"),
        ({"num_chains": 0}, "num_chains must be a whole number, 1 or more; got 0"),
        ({"lengths": [1, 61]}, "lengths must be whole numbers from 1 to the 60 draws of a chain"),
        ({"lengths": [5], "y": None}, "lengths need y"),
        ({"y": torch.zeros(NUM_ROWS, 3)}, r"y must have shape \(23,\) or \(23, 1\), got \(23, 3\)"),
        ({"y": torch.full((NUM_ROWS,), torch.nan)}, "y must hold finite numbers, got nan"),
    ],
)
def test_bad_values_are_refused(options, message, x):
    y = options.pop("y", labels_of(SCALED))
    with pytest.raises(ValueError, match=message):
        predict(SCALED, samples_of(SCALED), x, y, **options)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.full((NUM_ROWS,), 3), "y must hold whole numbers from 0 to 2, got 3"),
        (torch.full((NUM_ROWS,), 0.5), "y must hold whole numbers from 0 to 2, got 0.5"),
        (torch.ones(NUM_ROWS, 3), "y of several columns must hold one-hot rows"),
        (torch.ones(4), r"y must have shape \(23,\), \(23, 1\) or \(23, 3\); got \(4,\)"),
    ],
)
def test_bad_labels_are_refused(y, message, x):
    with pytest.raises(ValueError, match=message):
        log_likelihood(CLASSES, samples_of(CLASSES), x, y)


def test_wrong_types_are_refused(x):
    samples = samples_of(CLASSES)
    with pytest.raises(TypeError, match=r"y must be a torch tensor of real numbers, got list"):
        log_likelihood(CLASSES, samples, x, [0] * NUM_ROWS)
    with pytest.raises(TypeError, match=r"quantiles must be a list of levels, got 0\.5"):
        predict(CLASSES, samples, x, quantiles=0.5)
    with pytest.raises(ValueError, match=r"seed must be a whole number, 0 or more .* got -1"):
        sample_responses(CLASSES, samples, x, seed=-1)


def test_one_hot_labels_and_columns_are_those_of_plain_labels(x):
    samples, y = samples_of(CLASSES), labels_of(CLASSES)
    expected = log_likelihood(CLASSES, samples, x, y)
    for form in (y.unsqueeze(1), y.float(), torch.nn.functional.one_hot(y, 3)):
        assert torch.equal(log_likelihood(CLASSES, samples, x, form), expected)


def test_an_interval_without_its_quantiles_is_refused(x):
    prediction = predict(SCALED, samples_of(SCALED), x, quantiles=[0.1])
    with pytest.raises(ValueError, match=r"needs the quantiles 0\.05 and 0\.95; .* has \[0\.1\]"):
        prediction.interval(0.9)


def test_threads_predict_side_by_side(x):
    """Pyro's handlers are the same for all threads: models take turns."""
    models = [hidden(SCALED), CLASSES, counted, hidden(BINARY)]
    samples = [samples_of(model) for model in (SCALED, CLASSES, counted, BINARY)]
    expected = [marginal_predictive(*pair, x) for pair in zip(models, samples, strict=True)]
    num_threads = torch.get_num_threads()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            found = pool.map(marginal_predictive, models, samples, [x] * 4)
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other)
    assert torch.get_num_threads() == num_threads
