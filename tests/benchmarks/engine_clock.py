"""When an engine runs the sweeps of chains, as opposed to set-up and all else."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

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
    sweeps = kind.sweeps

    @functools.wraps(sweeps)
    def timed(self: Any, *args: Any) -> Any:
        began = time.perf_counter()
        results = sweeps(self, *args)
        # Set-up and diagnostics try the engine too, but say nothing of tuning, the last argument
        if len(args) == 6:
            clock.calls.append((began, time.perf_counter()))
        return results

    with patch.object(kind, "sweeps", timed):
        yield clock
    clock.end = time.perf_counter()
