"""What users are told when a run begins: once a run, and not where it does not apply."""

import os
import re
import tomllib
import warnings
from pathlib import Path

import pyro
import pyro.distributions as dist
import pyro.infer.mcmc.api as api
import pytest
import torch
from pyro.infer import MCMC

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from pyro_fnbg.chains.remarks import HOT, WIDE
from support.remarks import FIRST_WORDS, REMARKS

X = torch.linspace(-1, 1, 80).reshape(40, 2)
Y = (X.sum(1) > 0).float()
NET = BayesianMLP([2, 2, 1], likelihood="bernoulli")


def observe(rows, logits):
    pyro.sample("y", dist.Bernoulli(logits=logits), obs=Y[rows])


def vector(name, size):
    return pyro.sample(name, dist.Normal(0.0, 1.0).expand([size]).to_event(1))


def by_values(x):
    weights = vector("weights", 2)
    sign = 1.0 if weights[0] > 0 else -1.0
    with pyro.plate("data", len(x)) as rows:
        observe(rows, sign * (x[rows] @ weights))


def with_unused(x):
    weights, _ = vector("weights", 2), vector("left", 2)
    with pyro.plate("data", len(x)) as rows:
        observe(rows, (x[rows] @ weights).sin())


def flat(x, size=60):
    weights = vector("weights", size)
    with pyro.plate("data", len(x)) as rows:
        observe(rows, (x[rows] @ weights.view(2, -1)).sin().sum(-1))


def narrow(x):
    flat(x, WIDE)


def plain(x):
    weights = vector("weights", 2)
    with pyro.plate("data", len(x)) as rows:
        observe(rows, (x[rows] @ weights).sin())


SLOW = "engine='auto' came to the slowest engine, 'trace', where the model itself is run: it takes"
UNUSED = "nothing observed was found to depend on latent sites ['left']"
ONE_BLOCK = "sites ['weights (60 entries)'] are vectors, and so one block each"
UNTUNED = "the run starts at initial_params, and nothing tunes its proposal scales"
HEAT = "the nominal likelihood temperature is 20: 2 of 40 rows count as if they were all"
START = {"weights": torch.zeros(2)}

# By words: model, options of the kernel, those of the run
SAID = {
    SLOW: (by_values, {}, {}),
    UNUSED: (with_unused, {}, {}),
    ONE_BLOCK: (flat, {}, {}),
    UNTUNED: (plain, {}, {"warmup_steps": 0, "initial_params": START}),
    HEAT: (plain, {"batch_size": 2}, {}),
}
NOT_SAID = {
    "engine asked for": (by_values, {"engine": "trace"}, {}),
    "engine captured": (plain, {}, {}),
    "narrow vector": (narrow, {}, {}),
    "cut vector": (flat, {"max_block_size": 10}, {}),
    "cut by parts": (flat, {"parts": {1: 6}}, {}),
    "one block asked for": (flat, {"blocks": "layer"}, {}),
    "tuned start": (plain, {}, {"warmup_steps": 1, "initial_params": START}),
    "given scale": (plain, {"proposal_scale": 0.1}, {"warmup_steps": 0, "initial_params": START}),
    "drawn start": (plain, {}, {"warmup_steps": 0}),
    "heat asked for": (plain, {"batch_size": 2, "likelihood_scale": "batch"}, {}),
    "little heat": (plain, {"batch_size": int(40 / HOT)}, {}),
    "no heat": (plain, {"batch_size": 2, "likelihood_scale": "full"}, {}),
}


def said(driver, model, options, of_run, chains=1, kernel=None):
    """Return all warnings of a run."""
    of_run = {"warmup_steps": 2} | of_run
    start = of_run.get("initial_params")
    if start is not None and chains > 1:
        many = {name: value.expand(chains, *value.shape) for name, value in start.items()}
        of_run |= {"initial_params": many}
    kernel = kernel or FNBG(model, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "num_chains=")
        warnings.filterwarnings("ignore", ".*use of fork.*")
        mcmc = driver(kernel, 2, num_chains=chains, disable_progbar=True, **of_run)
        mcmc.run(X)
    return [str(one.message) for one in caught]


def vectorized(*args, **options):
    return MultiChainMCMC(*args, **options)


def processes(*args, **options):
    return MultiChainMCMC(*args, chain_method="processes", mp_context="fork", **options)


@pytest.fixture
def in_turn(monkeypatch):
    monkeypatch.setattr(api.mp, "cpu_count", lambda: 1)


@pytest.mark.parametrize("driver", [MCMC, vectorized, processes])
@pytest.mark.parametrize("words", SAID, ids=lambda words: words[:20])
def test_what_goes_unseen_is_said_once_a_run(words, driver, in_turn, limited):
    found = said(driver, *SAID[words], chains=2)
    assert len(found) == 1
    assert found[0].startswith(words)
    assert REMARKS.match(found[0])


def test_tests_of_other_things_ignore_these_words():
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    ignored = settings["tool"]["pytest"]["ini_options"]["filterwarnings"]
    assert {f"ignore:{words}:UserWarning" for words in FIRST_WORDS} <= set(ignored)
    assert len(FIRST_WORDS) == len(SAID)


@pytest.mark.slow
@pytest.mark.parametrize("driver", [MCMC, MultiChainMCMC])
@pytest.mark.parametrize("case", NOT_SAID)
def test_it_is_not_said_where_it_does_not_apply(case, driver):
    assert said(driver, *NOT_SAID[case]) == []


@pytest.mark.parametrize("driver", [MCMC, MultiChainMCMC])
def test_it_is_said_again_in_the_next_run_of_a_kernel(driver, in_turn):
    kernel = FNBG(with_unused)
    for _ in range(2):
        assert len(said(driver, with_unused, {}, {}, chains=2, kernel=kernel)) == 1


def test_workers_of_pyro_say_it_once(monkeypatch, capfd, limited):
    monkeypatch.setattr(api.mp, "cpu_count", lambda: 8)
    monkeypatch.setattr(warnings, "showwarning", lambda words, *_: os.write(2, str(words).encode()))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", ".*use of fork.*")
        mcmc = MCMC(FNBG(with_unused), 2, 2, num_chains=2, disable_progbar=True)
        mcmc.run(X)
        # Pyro sets up once more for the transforms
        mcmc.get_samples()
    assert capfd.readouterr().err.count(UNUSED) == 1


def test_a_network_that_is_found_is_no_flat_vector():
    def network(x):
        weights = vector("weights", 2 * 20 + 20)
        with pyro.plate("data", len(x)) as rows:
            hidden = torch.tanh(x[rows] @ weights[:40].view(2, 20))
            observe(rows, hidden @ weights[40:])

    assert said(MultiChainMCMC, network, {}, {}) == []


def test_a_run_that_goes_on_has_the_scales_of_the_store(tmp_path):
    kernel, store = FNBG(NET, engine="feedforward"), tmp_path / "run"
    mcmc = MultiChainMCMC(kernel, 3, 0, disable_progbar=True, store=store)
    mcmc.run(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        more = MultiChainMCMC.resume(store, kernel, 2, disable_progbar=True)
        more.run(X, Y)
    assert more.num_samples == 5


def test_a_restart_accepts_little_without_the_scales_of_the_run_before_and_much_with_them():
    def sharp(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 100.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mean, 0.01), obs=y)

    y = torch.full((100,), 3.0)
    first = MultiChainMCMC(FNBG(sharp), 200, 1000, disable_progbar=True)
    first.run(y)
    start = first.kernel.initial_params
    rates = []
    for scale in (None, first.kernel.diagnostics()["proposal scale by block"]):
        kernel = FNBG(sharp, proposal_scale=scale)
        again = MultiChainMCMC(kernel, 200, 0, initial_params=start, disable_progbar=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            again.run(y)
        told = [one for one in caught if re.match(UNTUNED, str(one.message))]
        assert len(told) == (scale is None)
        rates.append(kernel.diagnostics()["acceptance rate"] if scale else len(caught))
    # Without them it is also said at the end that the block hardly moved
    assert rates[0] == 2
    assert 0.2 < rates[1] < 0.7
