"""Tasks on threads and on a cluster: each result, whatever happens to the workers."""

import operator
import os
import pickle
import signal
import sys
import threading
import time
from functools import partial

import dask
import pytest
import torch
from distributed import Client, Future, LocalCluster

from pyro_fnbg.core import tasks
from pyro_fnbg.core.tasks import (
    as_they_end,
    check_client,
    on_cluster,
    on_threads,
    ordered,
    torch_threads,
)
from support.cluster import kill_once, pids_of_workers
from support.slow import slowly

pytestmark = pytest.mark.usefixtures("limited")


@pytest.fixture(params=["threads", slowly("cluster")])
def start(request):
    """Start workers, of either kind, that share something."""
    if request.param == "threads":
        return partial(on_threads, 2)
    client = request.getfixturevalue("client")
    return lambda shared: on_cluster(client, shared, {"it": shared})


def test_results_come_in_the_order_of_items(start):
    with start([5, 6, 7]) as workers:
        found = list(ordered(workers, operator.getitem, [2, 0, 1, 1], ahead=3))
        assert found == [7, 5, 6, 6]
        assert list(ordered(workers, operator.getitem, [], ahead=3)) == []


def test_no_more_items_are_read_than_are_submitted_ahead():
    read = []

    def items():
        for number in range(9):
            read.append(number)
            yield number

    with on_threads(1, 10) as workers:
        results = ordered(workers, operator.add, items(), ahead=2)
        assert next(results) == 10
        assert read == [0, 1, 2]
        assert list(results) == list(range(11, 19))


def test_what_follows_from_a_result_runs_too(start):
    with start(3) as workers:
        found = as_they_end(workers, operator.mul, [1, 2], lambda n: n if n < 50 else None)
        assert sorted(found) == [3, 6, 9, 18, 27, 54, 81]


def test_items_take_turns_with_those_that_follow():
    with on_threads(1, 3) as workers:
        found = as_they_end(workers, operator.add, [0, 100], lambda n: n if n % 100 < 9 else None)
        assert list(found) == [3, 103, 6, 106, 9, 109]


def fail(shared, item):
    raise item


class TwoWords(Exception):
    """Cannot be put together from its text."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


def test_an_error_of_a_task_reaches_the_caller(start):
    with start(None) as workers, pytest.raises(KeyError, match="y"):
        list(ordered(workers, fail, [KeyError("y")], ahead=1))


def test_any_error_of_a_worker_comes_home_with_its_traceback(client):
    with on_cluster(client, None, {}) as workers:
        for error in (SystemExit(3), KeyboardInterrupt("now")):
            with pytest.raises(type(error), match=str(error)) as caught:
                list(ordered(workers, fail, [error], ahead=1))
            assert "In a worker of the cluster:" in caught.value.__notes__[0]
            assert "in fail" in caught.value.__notes__[0]

        def fail_oddly(shared, item):
            raise TwoWords("this", "that")

        with pytest.raises(RuntimeError, match="TwoWords: this and that"):
            list(ordered(workers, fail_oddly, [0], ahead=1))
    assert len(pids_of_workers(client)) == 2  # an exit is the task's, not the worker's


class Counted:
    """Count how often it is unpickled where it is."""

    def __init__(self):
        self.tasks = 0

    def next_task(self):
        self.tasks += 1
        return os.getpid(), self.tasks


def ask(shared, item):
    return shared.next_task()


def test_what_is_shared_is_unpickled_once_a_process(client):
    client.amm.stop()  # on slow machines it may take back, meanwhile, what a worker holds
    with on_cluster(client, Counted(), {}) as workers:
        found = set(ordered(workers, ask, range(40), ahead=8))
    pids = {pid for pid, _ in found}
    assert pids <= set(pids_of_workers(client))
    for pid in pids:
        numbers = [number for own, number in found if own == pid]
        assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert len(found) == 40


def count_threads(shared, item):
    return torch.get_num_threads()


def test_tasks_of_a_worker_take_turns_with_one_torch_thread_each(client):
    client.run(torch.set_num_threads, 2)
    with on_cluster(client, None, {}) as workers:
        assert list(ordered(workers, count_threads, [0], ahead=1)) == [1]
    # A worker of two threads runs this twice at a time
    running, most = [], []

    def note(shared, item):
        running.append(item)
        time.sleep(0.02)
        most.append(len(running))
        running.remove(item)

    with on_threads(2, tasks._Shared(pickle.dumps(None))) as workers:
        list(ordered(workers, lambda shared, item: tasks._run(note, shared, item), range(4), 4))
    assert most == [1, 1, 1, 1]


def test_shared_values_may_be_large_without_a_warning(client):
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": 1000}):
        with on_cluster(client, b"12" * 5000, {}) as workers:
            assert list(ordered(workers, operator.getitem, [0], ahead=1)) == [ord("1")]
        assert dask.config.get("distributed.admin.large-graph-warning-threshold") == 1000


def test_what_cannot_be_sent_is_named(client):
    lock = threading.Lock()
    with (
        pytest.raises(RuntimeError, match="the second must be something .* got lock, which cannot"),
        on_cluster(client, (1, lock), {"the first": 1, "the second": lock}),
    ):
        pass
    with (
        pytest.raises(RuntimeError, match="what the workers share cannot be pickled"),
        on_cluster(client, lock, {}),
    ):
        pass


def test_tasks_that_are_left_are_cancelled(client):
    with on_cluster(client, 1, {}) as workers:
        first = next(ordered(workers, operator.add, range(100), ahead=50))
        assert first == 1
    while client.futures:  # Dask takes its time; what would stay is stopped by the test's limit
        time.sleep(0.01)


def wait_for(flag, item):
    while not flag.exists():
        time.sleep(0.01)


def test_a_task_that_the_cluster_lets_go_of_is_an_error(client, tmp_path):
    with on_cluster(client, tmp_path / "flag", {}) as workers:
        future = workers.submit(wait_for, 0)
        client.cancel([Future(key, client) for key in client.futures])
        with pytest.raises(RuntimeError, match="the cluster let go of a task"):
            workers.result(future)
        (tmp_path / "flag").touch()


def test_a_client_is_one_that_can_be_used(client):
    check_client(client)
    for other in (None, "tcp://127.0.0.1:8786", client.cluster, Client):
        with pytest.raises(TypeError, match="client must be a distributed.Client, got "):
            check_client(other)
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "distributed")
        with pytest.raises(TypeError, match="client must be a distributed.Client, got "):
            check_client(client)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "asynchronous", True)
        with pytest.raises(ValueError, match="a synchronous distributed.Client"):
            check_client(client)
    with (
        LocalCluster(1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as threads,
        pytest.raises(ValueError, match=r"workers that are processes, .*\(inproc://"),
    ):
        check_client(threads)
    with pytest.raises(ValueError, match="client must be connected to a scheduler, .* closed"):
        check_client(threads)


# --- Last, since the next worker takes seconds to start -------------------------------------------


def kill_at_seven(flag, item):
    if item == 7:
        kill_once(flag)
    return item


def test_a_worker_that_is_killed_loses_nothing(client, tmp_path):
    before = pids_of_workers(client)
    with on_cluster(client, tmp_path / "flag", {}) as workers:
        assert list(ordered(workers, kill_at_seven, range(12), ahead=4)) == list(range(12))
    assert len(set(before) - set(pids_of_workers(client))) == 1


def die(shared, item):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_task_that_kills_its_workers_ends_in_an_error(client, monkeypatch):
    monkeypatch.setattr(client.cluster.scheduler, "allowed_failures", 1)
    with (
        on_cluster(client, None, {}) as workers,
        pytest.raises(RuntimeError, match=r"2 workers died without a word at the same.* tcp://"),
    ):
        list(ordered(workers, die, [0], ahead=1))


def test_torch_has_its_threads_back_after_an_error():
    before = torch.get_num_threads()

    @torch_threads(before + 2)
    def fail():
        assert torch.get_num_threads() == before + 2
        raise ZeroDivisionError

    with torch_threads(before + 1) as kept:
        assert kept == before
        with pytest.raises(ZeroDivisionError):
            fail()
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_threads_have_so_many_of_torchs_as_is_said():
    before = torch.get_num_threads()
    for each in (1, 3):
        with on_threads(2, None, each=each) as workers:
            futures = [workers.submit(lambda _, item: torch.get_num_threads(), k) for k in range(2)]
            assert [workers.result(future) for future in futures] == [each, each]
    assert torch.get_num_threads() == before
