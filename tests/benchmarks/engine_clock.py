"""When an engine runs the sweeps of chains, as opposed to set-up and all else."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pyro_fnbg.engines.base import Record, SweepInputs
from pyro_fnbg.engines.feedforward import FeedforwardEngine
from pyro_fnbg.engines.fused.engine import FusedEngine

__all__ = ["EngineClock", "watched"]

ENGINES: dict[str, Any] = {"fused": FusedEngine, "feedforward": FeedforwardEngine}


class EngineClock:
    """Hold when each call began and ended, and when the run was over."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, float]] = []
        self.end = 0.0

    @property
    def inside(self) -> float:
        """Seconds spent in the engine; those of threads add up."""
        return sum(ended - began for began, ended in self.calls)

    @property
    def without_setup(self) -> float:
        """Seconds from the first sweep to the end of the run."""
        return self.end - min(began for began, _ in self.calls)


@contextmanager
def watched(engine: str) -> Iterator[EngineClock]:
    """Watch an engine until a run is over."""
    clock, kind = EngineClock(), ENGINES[engine]
    run = kind.run

    @functools.wraps(run)
    def timed(self: Any, inputs: SweepInputs) -> Record:
        began = time.perf_counter()
        record: Record = run(self, inputs)
        ended = time.perf_counter()
        # Set-up and diagnostics try the engine too, on candidates that are never accepted
        if bool(inputs.log_u.isfinite().any()):
            clock.calls.append((began, ended))
        return record

    with patch.object(kind, "run", timed):
        yield clock
    clock.end = time.perf_counter()
