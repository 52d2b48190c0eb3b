"""What ends a run early: Ctrl-C and SIGTERM, also at a bad moment, and a limit of time."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["SAME_PRESS", "Stop", "undisturbed"]

# What is done about signals that nobody has a say in
DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
# Seconds in which another Ctrl-C is taken for the same one, and does not lose the draws
SAME_PRESS = 1.0


@contextmanager
def undisturbed() -> Generator[None]:
    """Take no notice of signals for the moment that it takes to put a run's draws away.

    The run is over by then: an impatient second Ctrl-C would only lose them.
    """
    ignored = {number: signal.SIG_IGN for number in DEFAULTS}
    with _handling(ignored):
        yield


@contextmanager
def _handling(handlers: Mapping[signal.Signals, Any]) -> Generator[None]:
    """Handle signals, in the thread where they arrive, unless somebody else does."""
    is_ours = threading.current_thread() is threading.main_thread()
    ours = [
        number for number in handlers if is_ours and signal.getsignal(number) == DEFAULTS[number]
    ]
    for number in ours:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, DEFAULTS[number])


class Stop:
    """Ask a run to end at its next sweep: by Ctrl-C, by SIGTERM, or when its time is up.

    A second Ctrl-C, a second later or more, does not wait for it. Where somebody else handles the
    signals, or in another thread than the first, they are left alone.

    Args:
        max_seconds: Seconds that it may take from when it is entered; None for as many as it needs.
    """

    def __init__(self, max_seconds: float | None) -> None:
        self._max_seconds, self._signal, self._entered = max_seconds, "", math.inf
        self._pressed = -math.inf
        self._handlers = _handling({signal.SIGINT: self._press, signal.SIGTERM: self._terminate})

    @property
    def reason(self) -> str | None:
        """What asked the run to end, in words; None if nothing has."""
        if self._signal:
            return f"by {self._signal}"
        limit = self._max_seconds
        if limit is not None and time.monotonic() >= self._entered + limit:
            return f"after max_seconds={limit:g}"
        return None

    def error(self) -> BaseException | None:
        """Return what is raised where a signal came before there was anything to keep."""
        if self._signal == "SIGTERM":
            return SystemExit(128 + signal.SIGTERM)
        return KeyboardInterrupt() if self._signal else None

    def __call__(self) -> bool:
        """Whether the run is to end."""
        return self.reason is not None

    def __enter__(self) -> Stop:
        self._entered = time.monotonic()
        self._handlers.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.__exit__(None, None, None)

    def _press(self, *_: object) -> None:
        now = time.monotonic()
        if self._signal and now > self._pressed + SAME_PRESS:
            raise KeyboardInterrupt
        self._signal, self._pressed = "Ctrl-C", now

    def _terminate(self, *_: object) -> None:
        self._signal = "SIGTERM"
