"""A Dask cluster of two worker processes."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from distributed import Client, LocalCluster

from support.limits import at_most

# A few seconds are usual
LIMIT = 60.0


def pids_of_workers(client: Client) -> list[int]:
    """Return the numbers of the workers' processes; one that was killed may not be back yet."""
    return list(client.run(os.getpid).values())


def kill_once(flag: Path) -> None:
    """Kill the process that comes by first."""
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of two workers, which a module's tests share and may kill.

    Ports are those that the system chooses, and the processes are seen to end.
    """
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            local_directory=tmp_path_factory.mktemp("workers"),
            silence_logs=logging.CRITICAL,  # workers that are killed are no news here
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
    with at_most(LIMIT):
        while any("spawn_main" in " ".join(one.cmdline()) for one in psutil.Process().children()):
            time.sleep(0.01)
