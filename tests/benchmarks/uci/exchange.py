"""What goes to a method and what comes back, as files: methods run in processes of their own.

Some run in another environment: nothing is imported here but NumPy.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Outcome", "Task", "read_outcome", "read_task", "timed", "write_outcome", "write_task"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Task:
    """Hold what a method gets: inputs and responses are standardised, classes are 0, 1, ...

    Attributes:
        x_train: Shape ``(rows, inputs)``.
        y_train: Shape ``(rows,)``.
        x_test: Inputs of the rows to predict, whose responses no method sees.
        about: ``method``, ``num_classes`` (0 for numbers), ``seed``, ``settings``
            (what the plan says of the method), and for what runs for a given time
            ``budget_seconds``.
    """

    x_train: Array
    y_train: Array
    x_test: Array
    about: dict[str, Any]

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for numbers."""
        found: int = self.about["num_classes"]
        return found

    @property
    def widths(self) -> list[int]:
        """Widths of the network: two outputs for numbers, a mean and a scale."""
        num_outputs = self.num_classes or 2
        return [self.x_train.shape[1], *self.about["settings"]["hidden"], num_outputs]


@dataclass(frozen=True)
class Outcome:
    """Hold what a method predicts of each test row, draw by draw.

    Attributes:
        means: Of Normal responses, shape ``(chains, draws, rows)``; empty for classes.
        scales: Their standard deviations.
        log_probabilities: Of classes, ``(chains, draws, rows, classes)``; empty for numbers.
        about: Whatever the method has to say of itself, ``seconds`` and ``core_seconds`` of the
            fit among it.
    """

    means: Array = field(default_factory=lambda: np.empty(0))
    scales: Array = field(default_factory=lambda: np.empty(0))
    log_probabilities: Array = field(default_factory=lambda: np.empty(0))
    about: dict[str, Any] = field(default_factory=dict)


def write_task(path: Path, task: Task) -> None:
    """Write a task."""
    _write(path, asdict(task))


def read_task(path: Path) -> Task:
    """Read what `write_task` wrote."""
    return Task(**_read(path, Task))


def write_outcome(path: Path, outcome: Outcome) -> None:
    """Write what a method predicts, in single precision: there is a whole file or none."""
    values = asdict(outcome)
    singles = {name: values[name].astype(np.float32) for name in values if name != "about"}
    _write(path, values | singles)


def read_outcome(path: Path) -> Outcome:
    """Read what `write_outcome` wrote."""
    return Outcome(**_read(path, Outcome))


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part.npz")
    arrays = {name: value for name, value in values.items() if name != "about"}
    np.savez(unfinished, about=json.dumps(values["about"]), **arrays)
    unfinished.replace(path)


def _read(path: Path, kind: type) -> dict[str, Any]:
    with np.load(path) as found:
        values = {each.name: found[each.name] for each in fields(kind)}
    return values | {"about": json.loads(str(values["about"]))}


@contextmanager
def timed(about: dict[str, Any]) -> Iterator[None]:
    """Write into ``about`` the seconds of the clock and of the processor that something took."""
    clock, processor = time.perf_counter(), time.process_time()
    yield
    about["seconds"] = time.perf_counter() - clock
    about["core_seconds"] = time.process_time() - processor
