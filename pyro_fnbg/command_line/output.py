"""Files that are there as a whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

__all__ = ["written"]


@contextmanager
def written(place: Path) -> Iterator[Path]:
    """Have a file to write to that takes its place once all is written.

    Raises:
        FileExistsError: If there is something at the place already.
        FileNotFoundError: If its folder is missing.
    """
    if place.exists():
        raise FileExistsError(
            f"output must be a path where there is nothing yet, got {str(place)!r}"
        )
    if not place.parent.is_dir():
        raise FileNotFoundError(
            f"output must be a path in a folder that is there, got {str(place)!r}"
        )
    part = place.with_name(f"{place.name}.{uuid4().hex}.part")
    try:
        part.touch()  # says at once whether anything can be written there
        yield part
        part.rename(place)
    finally:
        part.unlink(missing_ok=True)
