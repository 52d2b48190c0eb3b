"""Cases that `make test` leaves to `make test-exactness`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slowly(*values: Any) -> Any:
    """Mark a case of a parametrised test as slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def first_quickly(values: Iterable[Any]) -> list[Any]:
    """Mark all cases of a parametrised test but the first as slow."""
    first, *others = values
    return [first, *map(slowly, others)]
