"""Draws of a store that are read some at a time say what those in memory say."""

import pickle

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample

from pyro_fnbg import (
    FNBG,
    diagnose_predictions,
    fewer_draws,
    log_likelihood,
    marginal_predictive,
    open_samples,
    open_store,
    predict,
    sample_responses,
    to_arviz,
)
from pyro_fnbg.prediction import sources
from pyro_fnbg.results import estimates
from pyro_fnbg.stores import samples as stored
from pyro_fnbg.stores.archive import Archive
from support.drivers import by_chain, drive, same
from support.slow import slowly
from support.stores import NET, SIZES, X, Y, make_chunks_small, stopped


class Plain(PyroModule):
    """A network that states nothing."""

    def __init__(self):
        super().__init__()
        self.weight = PyroSample(dist.Normal(torch.zeros(1, 2), 1.0).to_event(2))
        self.bias = PyroSample(dist.Normal(torch.zeros(1), 1.0).to_event(1))

    def forward(self, x, y=None):
        logits = (x @ self.weight.T + self.bias).squeeze(-1)
        with pyro.plate("rows", len(x)):
            return pyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


MODELS = {"stated": NET, "recognised": Plain(), "run": Plain()}
OBSERVED = {"stated": Y, "recognised": Y.float(), "run": Y.float()}


@pytest.fixture(scope="module", params=MODELS)
def both(request, tmp_path_factory):
    """The name of a model, its draws of a run in memory, and the path of the same run's store."""
    model, y, path = MODELS[request.param], OBSERVED[request.param], tmp_path_factory.mktemp("both")
    with pytest.MonkeyPatch.context() as patch:
        make_chunks_small(patch)
        in_memory = drive(FNBG(model), X, y, **SIZES)
        drive(FNBG(model), X, y, store=path / "run", **SIZES)
    return request.param, in_memory.get_samples(), path / "run"


@pytest.fixture
def case(both, small_chunks, monkeypatch):
    """A model, its labels, the draws of a run in memory, and those of the same run in a store."""
    name, samples, path = both
    if name == "run":
        monkeypatch.setattr(sources, "recognised", lambda *_: None)
    return MODELS[name], OBSERVED[name], samples, open_samples(path)


def test_all_draws_are_those_in_memory_and_so_is_every_part(case):
    _, _, expected, found = case
    assert (found.num_chains, found.num_draws) == (3, 120)
    assert same(dict(found), expected)
    for first, stop in [(0, 120), (0, 1), (6, 8), (13, 15), (39, 41), (30, 95), (119, 120)]:
        part = {name: values[first:stop] for name, values in expected.items()}
        assert same(found.read(slice(first, stop)), part)


def test_predictions_and_what_is_made_of_them_are_those_of_draws_in_memory(case):
    model, y, expected, found = case
    one, other = (predict(model, samples, X) for samples in (found, expected))
    assert torch.equal(one.probabilities, other.probabilities)
    assert torch.equal(one.expected_entropy, other.expected_entropy)
    assert torch.equal(*(marginal_predictive(model, draws, X) for draws in (found, expected)))
    assert torch.equal(*(log_likelihood(model, draws, X, y) for draws in (found, expected)))
    assert torch.equal(*(sample_responses(model, draws, X) for draws in (found, expected)))
    one, other = (diagnose_predictions(model, draws, X, 3) for draws in (found, expected))
    assert one.estimates.identical(other.estimates)
    one, other = (fewer_draws(model, draws, X, y, 30, 3) for draws in (found, expected))
    assert one.loss == other.loss
    assert same(one.samples, other.samples)


def test_predictions_by_length_of_chain_are_those_of_draws_in_memory(case):
    model, y, expected, found = case
    one, other = (
        predict(model, draws, X, y, num_chains=3, lengths=[9, 40]) for draws in (found, expected)
    )
    assert str(one.course) == str(other.course)


def test_no_more_than_a_chunk_is_read_at_a_time(runs, tmp_path, monkeypatch):
    """Of sites; nor for a selection of a few numbers of all draws."""
    lengths, read = [], Archive.read

    def noted(self, key, chain, first, stop):
        if key.startswith("posterior/"):
            lengths.append(stop - first)
        return read(self, key, chain, first, stop)

    monkeypatch.setattr(Archive, "read", noted)
    samples = open_samples(tmp_path / "run")
    predict(NET, samples, X)
    diagnose_predictions(NET, samples, X[:2], 3)
    found = to_arviz(runs[1])["posterior"]["layer1.weight"]
    selected = found[:, :, 1, 0].values
    few = found[:, 3::11].values
    runs[1].diagnostics()
    assert max(lengths) == 7
    assert len(lengths) > 100
    assert np.array_equal(selected, by_chain(runs[0])["layer1.weight"][:, :, 1, 0])
    assert np.array_equal(few, by_chain(runs[0])["layer1.weight"][:, 3::11])


def test_pickled_samples_are_read_from_the_store(case):
    _, _, expected, found = case
    pickled = pickle.dumps(found)
    assert len(pickled) < 1000
    assert same(dict(pickle.loads(pickled)), expected)


def test_draws_of_a_checkpoint_are_read_too(tmp_path, small_chunks):
    stopped(tmp_path / "run", FNBG(NET, batch_size=7), X, Y, sweeps=100)
    found, expected = open_samples(tmp_path / "run"), open_store(tmp_path / "run")["posterior"]
    (of_each,) = {expected.sizes["draw"]}
    assert of_each % 7  # not whole chunks
    assert found.num_draws == found.num_chains * of_each
    for name, values in found.items():
        assert np.array_equal(values.unflatten(0, (found.num_chains, -1)), expected[name])


def test_no_draws_are_no_samples(tmp_path):
    stopped(tmp_path / "run", FNBG(NET), X, Y, sweeps=3)
    with pytest.raises(ValueError, match=r"store must have draws, got '.*run', which has none yet"):
        open_samples(tmp_path / "run")


def test_samples_of_another_model_are_refused_as_those_in_memory_are(case):
    _, _, _, found = case
    with pytest.raises(ValueError, match="samples holds .* which the model does not sample"):
        predict(lambda x: pyro.sample("z", dist.Normal(x[:, 0], 1.0).to_event(1)), found, X)
    with pytest.raises(KeyError):
        found["layer9.weight"]


@pytest.fixture
def runs(tmp_path, small_chunks):
    """A run in memory, and the same in a store."""
    return (
        drive(FNBG(NET, batch_size=7), X, Y, **SIZES),
        drive(FNBG(NET, batch_size=7), X, Y, store=tmp_path / "run", **SIZES),
    )


@pytest.mark.parametrize("bytes_a_pass", [slowly(1), 2000, slowly(10**9)])
def test_diagnostics_and_summary_are_those_of_draws_in_memory(
    runs, bytes_a_pass, monkeypatch, capsys
):
    monkeypatch.setattr(estimates, "MAX_NUMBERS", 250)  # two numbers at a time
    monkeypatch.setattr(stored, "BYTES_A_PASS", bytes_a_pass)
    told = []
    for mcmc in runs:
        mcmc.summary()
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    expected, found = (mcmc.diagnostics() for mcmc in runs)
    for name in by_chain(runs[0]):
        for estimate, values in expected[name].items():
            assert torch.equal(found[name][estimate], values)
    for chain, values in expected["sample_stats"].items():
        assert set(values) == set(found["sample_stats"][chain])
        for name in values:
            assert np.array_equal(values[name], found["sample_stats"][chain][name])


def test_arviz_gets_draws_that_are_read_when_they_are_looked_at(runs):
    expected, found = (to_arviz(mcmc) for mcmc in runs)
    for group in ("posterior", "sample_stats", "chain_stats", "observed_data"):
        assert set(found[group].variables) == set(expected[group].variables)
        for name, values in expected[group].variables.items():
            assert values.equals(found[group].variables[name])


def test_arviz_gets_likelihoods_and_responses_of_a_store(tmp_path, small_chunks):
    wanted = {"log_likelihood": True, "posterior_predictive": True}
    expected = to_arviz(drive(FNBG(NET), X, Y, **SIZES), **wanted)
    found = to_arviz(drive(FNBG(NET), X, Y, store=tmp_path / "run", **SIZES), **wanted)
    for group in wanted:
        assert found[group].equals(expected[group])
