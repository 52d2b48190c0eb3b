"""Tests that wait have a limit of their own, and Ctrl-C is heard wherever they run."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# Seconds that a test may take where it would otherwise wait for ever; a few are usual
LIMIT = 120.0


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError in the main thread once so many seconds are over.

    A worker that was forked meanwhile has no such alarm: timers stay with the process.
    """

    def ring(number: int, frame: Any) -> None:
        raise TimeoutError(f"still at it after {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def limited() -> Iterator[None]:
    """Give a test a limit: it fails rather than wait for a worker that never answers."""
    with at_most(LIMIT):
        yield


@contextmanager
def hearing_ctrl_c() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt, also under ``nohup`` or in a background job.

    There SIGINT is ignored from the start, by children as well, and Python leaves it at that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def heard_ctrl_c() -> Iterator[None]:
    """Let a test be interrupted wherever it runs."""
    with hearing_ctrl_c():
        yield
