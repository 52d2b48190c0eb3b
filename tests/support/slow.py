"""Cases that `make test` leaves to `make test-exactness`."""

from __future__ import annotations

from typing import Any

import pytest


def slowly(*values: Any) -> Any:
    """Mark a case of a parametrised test as slow."""
    return pytest.param(*values, marks=pytest.mark.slow)
