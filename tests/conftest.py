"""Every test starts from the same state and leaves none behind."""

# A seeded fault must be in place before anything imports the package.
from support import faults

faults.install_requested()

from collections.abc import Iterator  # noqa: E402

import matplotlib  # noqa: E402
import pyro  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

from support import cluster, limits, stores  # noqa: E402

matplotlib.use("Agg")
torch.set_num_threads(1)
settings.register_profile("pyro_fnbg", derandomize=True, deadline=None)
settings.load_profile("pyro_fnbg")

pytest_exception_interact = faults.pytest_exception_interact
limited, heard_ctrl_c = limits.limited, limits.heard_ctrl_c
client = cluster.client
small_chunks = stores.small_chunks


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Seed every generator with 0, empty Pyro's parameter store, and put all back afterwards."""
    generators = pyro.util.get_rng_state()  # torch, NumPy and random
    dtype = torch.get_default_dtype()
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    pyro.clear_param_store()
    torch.set_default_dtype(dtype)
    pyro.util.set_rng_state(generators)
