"""What each benchmark starts from, and what the JSON says besides pytest-benchmark's own."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import pyro
import pytest

from benchmarks.lengths import LENGTH
from benchmarks.works import DATA_FOLDER, XOR, kernel_of, training_data

PACKAGES = ("pyro-fnbg", "torch", "numpy", "numba", "pyro-ppl", "arviz", "eeyore")


@pytest.fixture(scope="session", autouse=True)
def compiled_engine() -> None:
    """Compile the fused engine, or read it from disk, before anything is timed."""
    kernel_of(XOR, "fused").setup(0, *training_data(XOR))


@pytest.fixture(autouse=True)
def seed_of_turn(fresh_state: None, turn: int) -> None:
    """Seed by the turn, so that all who are compared in it start alike."""
    pyro.set_rng_seed(turn + 1)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let chains be as they are: a block that hardly moves is no error in a benchmark."""
    item.add_marker(pytest.mark.filterwarnings("ignore:.*hardly moved:UserWarning"))


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """Add the length, the data and the versions, and leave out the machine's name."""
    output_json["machine_info"].pop("node", None)
    output_json["run"] = {
        "length": asdict(LENGTH),
        "images": "MNIST" if DATA_FOLDER else "random",
        "versions": {name: version(name) for name in PACKAGES},
    }
