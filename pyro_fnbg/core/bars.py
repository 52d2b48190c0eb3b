"""Progress bars that cost no run."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tqdm import tqdm as plain_tqdm
from tqdm.auto import tqdm

__all__ = ["past_the_lock_of_bars", "progress_bar"]

# Seconds between two lines in a file, or wherever a line cannot be written anew
LOG_SECONDS = 30.0
# Terminals of fewer columns have no room for the speed beside what else is said
ROOMY = 100
WITHOUT_SPEED = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


def progress_bar(total: int, is_shown: bool, **options: Any) -> tqdm:
    """Return a bar on the standard error stream.

    It keeps to the width of a terminal; elsewhere it is a line every half a minute. One that cannot
    be written (any more), on a closed terminal or a full disk, is left out: it is no reason to lose
    a run. The environment variable ``TQDM_DISABLE`` leaves out all of them.

    Args:
        total: The count at the end.
        is_shown: Whether to show anything.
        **options: Of tqdm.
    """
    # A process without a console has no stream at all
    is_off = not is_shown or sys.stderr is None or getattr(sys.stderr, "closed", False)
    # tqdm itself reads it only where it is not told, and its bars in notebooks never do
    is_off = is_off or bool(os.environ.get("TQDM_DISABLE"))
    if is_off or any("notebook" in base.__module__ for base in tqdm.__mro__):
        return tqdm(total=total, disable=is_off, file=_Careful(sys.stderr), **options)
    columns = _columns(sys.stderr)
    if columns is None:
        seconds = {"mininterval": LOG_SECONDS, "maxinterval": LOG_SECONDS}
        return tqdm(total=total, file=_Lines(sys.stderr), **(seconds | options))
    if columns < ROOMY:
        options = {"bar_format": WITHOUT_SPEED} | options
    # By itself, tqdm knows the width of Python's own streams alone
    return tqdm(total=total, file=_Careful(sys.stderr), dynamic_ncols=True, **options)


def _columns(stream: Any) -> int | None:
    """Return the width of a terminal; None for any other stream."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or ROOMY
    except Exception:  # streams of notebooks and test rigs raise what they like
        return None


@contextmanager
def past_the_lock_of_bars() -> Iterator[None]:
    """Let what makes bars, if only hidden ones, wait for no other thread or process that does.

    Torch makes some while it traces. In a process that was forked while another thread made one, as
    a thread of Pyro's MCMC does when workers start, the lock would be taken for ever.
    """
    kept = vars(plain_tqdm).get("_lock")
    plain_tqdm.set_lock(threading.RLock())
    try:
        yield
    finally:
        if kept is None:
            del plain_tqdm._lock
        else:
            plain_tqdm.set_lock(kept)


class _Careful:
    """Write to a stream what it takes, and drop the rest.

    An error would leave tqdm's lock taken, where any other bar of the process waits for it.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(Exception):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(Exception):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Lines(_Careful):
    """Write each state of a bar on a line of its own, for streams that do not go back in a line."""

    def write(self, text: str) -> None:
        if line := text.strip():
            super().write(f"{line}\n")
