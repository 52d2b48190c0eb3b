"""Chains in worker processes: no trouble of a worker is a hang, or a riddle."""

import subprocess
import sys

import pyro
import pyro.distributions as dist
import pyro.infer.mcmc.api as api
import pytest
import torch
from pyro.infer import MCMC

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from support.data import three_classes
from support.errors import OpenError, SensorError
from support.slow import slowly

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*may lead to deadlocks"),
    pytest.mark.usefixtures("limited"),
]

NET = BayesianMLP([4, 5, 3], likelihood="categorical")
DRIVERS = [MCMC, MultiChainMCMC]


@pytest.fixture(autouse=True)
def many_cores(monkeypatch):
    """Pyro runs chains in parallel only up to the number of cores minus one."""
    monkeypatch.setattr(api.mp, "cpu_count", lambda: 8)


def run(driver, kernel, *data, draws=20, warmup=10, mp_context="fork", **options):
    more = {"chain_method": "processes"} if driver is MultiChainMCMC else {}
    mcmc = driver(
        kernel, num_samples=draws, warmup_steps=warmup, num_chains=2, mp_context=mp_context,
        disable_progbar=True, **more, **options,
    )  # fmt: skip
    mcmc.run(*data)
    return mcmc.get_samples(group_by_chain=True)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("engine", [slowly("trace"), slowly("feedforward"), "fused"])
def test_two_forked_chains_differ_and_repeat_with_the_seed(driver, engine):
    found = []
    for _ in range(2):
        pyro.set_rng_seed(7)
        kernel = FNBG(NET, engine=engine, batch_size=10)
        found.append(run(driver, kernel, *three_classes())["layer1.weight"])
    assert torch.equal(*found)
    assert not torch.equal(found[0][0], found[0][1])


# --- Sessions and scripts that a worker cannot import ---------------------------------------------

SESSION = """
import functools
import pyro, torch
import pyro.distributions as dist
import pyro.infer.mcmc.api as api
from pyro.infer import MCMC
from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC

class Model:
    def __call__(self, data=None):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(a, 1.0), obs=torch.ones(()))

def model(data=None):
    Model()(data)

def hook(kernel, params, stage, i):
    pass

api.mp.cpu_count = lambda: 8
net = BayesianMLP([1, 1], likelihood="bernoulli")
cases = {
    "model": (FNBG(functools.partial(model)), (), {}),
    "Model": (FNBG(Model()), (), {}),
    "<lambda>": (FNBG(lambda data: model()), (None,), {}),
    "blocks": (FNBG(net, blocks=lambda layout: None), (torch.ones(2, 1), torch.ones(2)), {}),
    "hook": (FNBG(net), (torch.ones(2, 1), torch.ones(2)), {"hook_fn": hook}),
}
for driver, more in ((MCMC, {}), (MultiChainMCMC, {"chain_method": "processes"})):
    for method in ("spawn", "forkserver"):
        for name, (kernel, args, options) in cases.items():
            # Set-up in the parent finds that these are no blocks; Pyro shows no kernel its hook
            if name == ("blocks" if driver is MultiChainMCMC else "hook"):
                continue
            try:
                driver(kernel, 5, num_chains=2, mp_context=method, disable_progbar=True, **more,
                       **options).run(*args)
            except RuntimeError as error:
                print(driver.__name__, method, name, "|", error)
print("done")
"""


@pytest.mark.slow  # in a process of its own
@pytest.mark.parametrize("arguments", [["-c", SESSION], ["-"]], ids=["-c", "stdin"])
def test_a_worker_is_not_started_where_it_could_not_find_what_it_needs(arguments):
    """Neither the model nor anything else that was defined in the session."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        input=SESSION if arguments == ["-"] else None,
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    *lines, last = done.stdout.splitlines()
    assert last == "done", done.stderr
    assert len(lines) == 2 * 4 + 2 * 4
    for line in lines:
        name, text = line.split(" | ")
        needed = "<lambda>" if name.endswith("blocks") else name.split()[-1]
        assert f"needs {needed!r}, which is defined in an interactive session" in text
        assert "mp_context='fork'" in text


UNGUARDED = """
import pyro, torch
import pyro.distributions as dist
from pyro_fnbg import FNBG, MultiChainMCMC


def model():
    pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.factor("data", torch.zeros(()))

mcmc = MultiChainMCMC(
    FNBG(model), 5, num_chains=2, mp_context="spawn", disable_progbar=True, chain_method="processes"
)
mcmc.run()
"""


@pytest.mark.slow  # in a process of its own
def test_a_script_without_a_guard_is_told_so(tmp_path):
    """Each worker would run the script again, and die when it comes to the run."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1
    assert "a worker process died without a word" in done.stderr
    assert "under no if __name__ == '__main__'" in done.stderr


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("mp_context", ["spawn", "forkserver"])
def test_what_cannot_be_pickled_is_named(driver, mp_context):
    def inner(y):
        pyro.sample("y", dist.Normal(pyro.sample("a", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    with pytest.raises(RuntimeError, match="model must be something that a spawned.*got function"):
        run(driver, FNBG(inner), torch.ones(()), mp_context=mp_context)
    if driver is MultiChainMCMC:  # Pyro shows no kernel its hook
        options = {"mp_context": mp_context, "hook_fn": lambda *args: None}
        with pytest.raises(RuntimeError, match="hook_fn must be something that a spawned.*got fu"):
            run(driver, FNBG(NET), *three_classes(), **options)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_forked_worker_has_what_cannot_be_pickled(driver, tmp_path):
    stream = (number for number in range(3))

    def inner(y):
        assert stream is not None
        pyro.sample("y", dist.Normal(pyro.sample("a", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    def hook(kernel, params, stage, i):
        assert stream is not None
        (tmp_path / f"{kernel.state.key.chain} {stage.split()[0]} {i}").touch()

    found = run(driver, FNBG(inner), torch.ones(()), hook_fn=hook)
    assert found["a"].shape == (2, 20)
    assert len(list(tmp_path.iterdir())) == 2 * (10 + 20)


# --- Errors in a worker ---------------------------------------------------------------------------


def failing(error, after=300):
    calls = []

    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)
        calls.append(1)
        if len(calls) > after:
            raise error

    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the run was stopped by an error:UserWarning")
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OSError(5, "bad block"), OSError, "bad block"),
        (SensorError("left", 3), RuntimeError, "SensorError: sensor left says 3"),
        (OpenError("cannot connect"), RuntimeError, "OpenError: cannot connect"),
        (SystemExit("no licence"), (RuntimeError, SystemExit), "no licence"),
    ],
    ids=["plain", "two arguments", "unpicklable", "exit"],
)
def test_every_error_of_a_model_reaches_the_user(driver, error, kind, words):
    with pytest.raises(kind, match=words):
        run(driver, FNBG(failing(error), engine="trace"), torch.ones(()), draws=400)


# --- A run that is over is not lost ---------------------------------------------------------------


def far_away(y):
    """The prior never draws where the likelihood is not zero."""
    a = pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    near = ((a - 50.0).abs() < 1.0).all()
    pyro.factor("near", torch.where(near, torch.tensor(0.0), torch.tensor(-torch.inf)))
    pyro.sample("y", dist.Normal(a.sum(), 100.0), obs=y)


def fails_validation(y):
    """Its scale is no scale where the prior draws."""
    a = pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(0.0, a.sum() - 90.0), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("model", [far_away, fails_validation])
def test_a_start_that_only_the_user_knows_is_enough(driver, model):
    """Pyro sets the kernel up again after the last draw, and gives it no start values then."""
    start = {"a": torch.full((2, 2), 50.0)}
    kernel = FNBG(model, proposal_scale=0.1, adapt=False)
    found = run(driver, kernel, torch.ones(()), initial_params=start)["a"]
    assert found.shape == (2, 20, 2)
    assert ((found - 50.0).abs() < 5.0).all()
