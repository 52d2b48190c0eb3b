"""Whatever is raised in a worker of Pyro's driver can be read by its parent, which waits for it."""

import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG
from pyro_fnbg.core.pickling import picklable_error
from pyro_fnbg.stock import workers
from pyro_fnbg.stock.workers import raising_picklable_errors
from support.errors import OpenError, SensorError


def test_errors_that_survive_a_pickle_stay_as_they_are():
    for error in (ValueError("no"), KeyError("y"), OSError(5, "bad block")):
        assert picklable_error(error) is error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SensorError("left", 3), "SensorError: sensor left says 3"),
        (OpenError("cannot connect"), "OpenError: cannot connect"),
    ],
)
def test_others_become_their_words_with_their_notes(error, words):
    error.add_note("in row 3")
    found = pickle.loads(pickle.dumps(picklable_error(error)))
    assert type(found) is RuntimeError
    assert str(found).endswith(words)
    assert picklable_error(error).__notes__ == ["in row 3"]


@pytest.fixture
def as_in_a_worker(monkeypatch):
    monkeypatch.setattr(workers, "worker_chain", lambda: 0)


@raising_picklable_errors
def fail(error):
    raise error


def test_in_the_main_process_errors_are_the_users_own():
    for error in (SensorError("left", 3), OSError(5, "bad block"), SystemExit(3)):
        with pytest.raises(type(error)) as caught:
            fail(error)
        assert caught.value is error


@pytest.mark.usefixtures("as_in_a_worker")
def test_in_a_worker_errors_and_exits_can_be_sent():
    """Alone: where Dask was imported, an error is pickled with the one that it came from."""
    with pytest.raises(RuntimeError, match="SensorError: sensor left says 3") as caught:
        fail(SensorError("left", 3))
    assert caught.value.__context__ is None
    with pytest.raises(OSError, match="bad block"):
        fail(OSError(5, "bad block"))
    with pytest.raises(RuntimeError, match=r"the model called for an exit: SystemExit\(no licence"):
        fail(SystemExit("no licence"))
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())


@pytest.mark.usefixtures("as_in_a_worker")
@pytest.mark.parametrize(
    ("error", "words"),
    [(OpenError("cannot connect"), "OpenError: cannot connect"), (SystemExit(3), "exit")],
    ids=["unpicklable", "exit"],
)
def test_errors_of_set_up_and_of_sweeps_can_be_sent(error, words):
    """Pyro would wait for ever for one that cannot: it is the model that fails, at any time."""
    is_failing = False

    def model():
        pyro.sample("a", dist.Normal(torch.zeros(()), 1.0))
        pyro.factor("no data", torch.zeros(()))
        if is_failing:
            raise error

    kernel = FNBG(model, engine="trace")
    pyro.set_rng_seed(1)
    kernel.setup(0)
    params = kernel.sample(kernel.initial_params)
    is_failing = True
    with pytest.raises(RuntimeError, match=words):
        kernel.sample(params)
    with pytest.raises(RuntimeError, match=words):
        kernel.setup(0)
