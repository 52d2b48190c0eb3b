"""Progress bars that cost no run."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from tqdm.auto import tqdm

__all__ = ["progress_bar"]


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
