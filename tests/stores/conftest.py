"""Stores whose chunks are small and whose commits are frequent."""

import pytest

from pyro_fnbg.stores import archive, writer
from support.stores import SMALL_CHUNK


@pytest.fixture
def small_chunks(monkeypatch):
    """A chunk of seven draws of the network, and a commit after every piece."""
    monkeypatch.setattr(archive, "CHUNK_BYTES", SMALL_CHUNK)
    monkeypatch.setattr(writer, "SECONDS", 0.0)
