"""Memory: what a kernel holds on to, what hooks may keep, and what is left in a saved file."""

import gc
import io
import subprocess
import sys

import pyro
import pytest
import torch
from pyro.infer import MCMC
from pyro.infer.mcmc.api import StreamingMCMC

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from support.data import three_classes
from support.slow import slowly

DRIVERS = [MCMC, MultiChainMCMC]
ENGINES = ["trace", "feedforward", "fused"]
NET = BayesianMLP([4, 5, 3], likelihood="categorical")
SIZE = 5 * 4 + 5 + 3 * 5 + 3


def run(driver, kernel, *data, draws=40, warmup=20, **options):
    mcmc = driver(kernel, num_samples=draws, warmup_steps=warmup, disable_progbar=True, **options)
    mcmc.run(*data)
    return mcmc


def held_bytes():
    """Count what tensors that anybody can still reach hold on to."""
    gc.collect()
    # Tests that ran before may have left tensors without memory of one piece: sparse ones, and what
    # a compiler makes up
    kinds = torch.Tensor, torch.nn.Parameter
    tensors = [found for found in gc.get_objects() if type(found) in kinds]
    tensors = [found for found in tensors if found.layout is torch.strided]
    stores = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(stores.values())


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("engine", ["fused", *(slowly(name) for name in ENGINES[:2])])
def test_draws_that_nobody_asked_to_keep_are_not_kept(driver, engine):
    """Where only a small site is saved, memory does not grow with the draws of a large one."""
    net = BayesianMLP([4, 1000, 3], likelihood="categorical")
    seen = {}

    def look(kernel, params, stage, i):
        if i in (50, 300):
            seen[i] = held_bytes()

    kernel = FNBG(net, engine=engine, blocks="layer")
    options = {"draws": 301, "warmup": 0, "save_params": ["layer2.bias"], "hook_fn": look}
    mcmc = run(driver, kernel, *three_classes(), **options)
    assert list(mcmc.get_samples()) == ["layer2.bias"]
    one_draw = 4 * (1000 * 5 + 3 * 1001)
    # Of the 250 draws in between, at most 2**20 numbers made ahead can be there, which are 131
    assert seen[300] - seen[50] < 190 * one_draw


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_hook_kept_is_never_written_to(driver, engine):
    kept = []

    def keep(kernel, params, stage, i):
        if stage == "Sample":
            kept.append(params)

    samples = run(driver, FNBG(NET, engine=engine), *three_classes(), hook_fn=keep).get_samples()
    for name, draws in samples.items():
        assert torch.equal(torch.stack([params[name] for params in kept]), draws)
        assert len(draws.flatten(1).unique(dim=0)) > 10


def test_a_driver_that_is_run_again_keeps_the_draws_that_were_taken_from_it():
    mcmc = run(MultiChainMCMC, FNBG(NET), *three_classes())
    first = mcmc.get_samples()
    before = {name: value.clone() for name, value in first.items()}
    mcmc.run(*three_classes())
    assert all(torch.equal(first[name], before[name]) for name in before)
    assert not torch.equal(mcmc.get_samples()["layer1.weight"], before["layer1.weight"])


@pytest.mark.parametrize("num_chains", [1, 2])
def test_the_draws_of_a_stopped_run_are_saved_at_their_own_size(num_chains):
    """Not with all the memory that was set aside for the draws that were never made."""

    def stop(kernel, params, stage, i):
        if stage.startswith("Sample") and i == 9:
            raise KeyboardInterrupt

    options = {"draws": 10_000, "hook_fn": stop, "num_chains": num_chains}
    with pytest.warns(UserWarning, match="kept are"):
        mcmc = run(MultiChainMCMC, FNBG(NET), *three_classes(), **options)
    file = io.BytesIO()
    torch.save(mcmc.get_samples(), file)
    numbers = mcmc.num_chains * mcmc.num_samples * SIZE
    assert mcmc.num_samples < 1000
    assert len(file.getvalue()) < 4 * numbers + 10_000  # the names and shapes of four sites


@pytest.mark.parametrize("engine", ENGINES)
def test_running_moments_need_no_draws(engine):
    """Pyro's driver that keeps moments alone gives those of the draws that were not kept."""
    pyro.set_rng_seed(5)
    streaming = run(StreamingMCMC, FNBG(NET, engine=engine), *three_classes())
    pyro.set_rng_seed(5)
    draws = run(MCMC, FNBG(NET, engine=engine), *three_classes()).get_samples()
    moments = streaming.get_statistics()
    for name, values in draws.items():
        torch.testing.assert_close(moments[0, name]["mean"], values.mean(0))
        torch.testing.assert_close(moments[0, name]["variance"], values.var(0))


SET_UP = """
import pathlib, re
import torch, pyro, pyro.distributions as dist
from pyro_fnbg import FNBG

def wide(size):
    pyro.sample("weight", dist.Normal(torch.zeros(50, size), 1.0).to_event(2))
    pyro.factor("data", torch.zeros(()))

def peak():  # of this process alone: what getrusage says starts from the parent's
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1])

FNBG(wide, blocks="site").setup(0, 10)
before = peak()
FNBG(wide, blocks="site").setup(0, 10_000)
print((peak() - before) / (4 * 50 * 10_000))
"""


@pytest.mark.slow  # in a process of its own
@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of a process")
def test_set_up_needs_the_memory_of_its_draws_from_the_prior_and_little_more():
    """A hundred draws are made to see the prior's spread, and were there more than three times."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SET_UP],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    # Beside them 2**16 coordinates in double precision, 26 draws' worth, and the model's work
    assert 100 < float(done.stdout) < 200
