"""Progress bars that cost no run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tqdm import tqdm as plain_tqdm
from tqdm.auto import tqdm

__all__ = ["past_the_lock_of_bars", "progress_bar"]


def progress_bar(total: int, is_shown: bool, **options: Any) -> tqdm:
    """Return a bar on the standard error stream.

    One that cannot be written (any more), on a closed terminal or a full disk, is left out: it is
    no reason to lose a run.

    Args:
        total: The count at the end.
        is_shown: Whether to show anything.
        **options: Of tqdm.
    """
    # A process without a console has no stream at all
    is_off = not is_shown or sys.stderr is None or getattr(sys.stderr, "closed", False)
    return tqdm(total=total, disable=is_off, file=_Careful(sys.stderr), **options)


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
