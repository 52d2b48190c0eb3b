"""Ctrl-C, where it comes at a bad moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["undisturbed"]


@contextmanager
def undisturbed() -> Generator[None]:
    """Take no notice of Ctrl-C for the moment that it takes to put a run's draws away.

    The run is over by then: an impatient second Ctrl-C would only lose them.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    # Somebody else's handler does what it likes; in other threads Ctrl-C never arrives
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
