"""What is in a store, by its arrays."""

import numpy as np

from pyro_fnbg import FNBG
from pyro_fnbg.stores.archive import Archive
from support.drivers import drive
from support.stores import NET, X, Y


def test_a_chunk_of_nothing_but_nan_is_no_missing_chunk(tmp_path):
    drive(FNBG(NET), X, Y, store=tmp_path / "run", draws=10)
    archive = Archive(tmp_path / "run")
    first = archive.chunk_draws
    unknown = np.full(first, np.nan, np.float32)
    archive.write(0, first, {"sample_stats/acceptance_rate": unknown})
    found = archive.read("sample_stats/acceptance_rate", 0, first, 2 * first)
    assert np.array_equal(found, unknown, equal_nan=True)
