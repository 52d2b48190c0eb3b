"""Captured operations that torch compiles: the same decisions, when it pays, and where it can."""

import multiprocessing
import random
import subprocess
import sys
import threading

import pyro
import pytest
import torch
from tqdm import tqdm

from pyro_fnbg import FNBG, MultiChainMCMC
from pyro_fnbg.engines import choice
from pyro_fnbg.engines.captured import compiled as module
from pyro_fnbg.testing import make_inputs, run_on, start
from support.captured_models import (
    IMPOSSIBLE,
    MODELS,
    X,
    Y,
    by_hand,
    horseshoe,
    inputs_some_impossible,
    lattice,
)
from support.engines import needs_compiler, past_the_check
from support.slow import slowly

pytestmark = needs_compiler
# What is compiled takes some seconds; the shortest of all is always tested
OF_MODELS = [name if name == "by hand" else slowly(name) for name in MODELS]


def assert_same(found, expected):
    assert torch.equal(found.accepted, expected.accepted)
    assert torch.equal(found.positions, expected.positions)
    assert torch.equal(found.log_ratios.isnan(), expected.log_ratios.isnan())
    for one, other in ((found.log_ratios, expected.log_ratios), (*found[3:4], *expected[3:4])):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize(
    ("batch_size", "chains"), [(7, 3), slowly(None, 1), slowly(None, 3), slowly(7, 1)]
)
@pytest.mark.parametrize("name", OF_MODELS)
def test_sweeps_are_those_of_the_model(name, batch_size, chains):
    run = start("trace", MODELS[name](), X, Y, batch_size=batch_size)
    inputs = make_inputs(run, chains=chains, sweeps=12, scale=0.3)
    found = run_on(past_the_check(run, "compiled"), inputs)
    assert 0 < int(found.accepted.sum()) < found.accepted.numel()
    assert_same(found, run_on(run, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 4])
@pytest.mark.parametrize("model", IMPOSSIBLE, ids=lambda model: model.__name__)
def test_impossible_candidates_are_rejected(model, chains):
    run = start("trace", model, X, Y)
    inputs = inputs_some_impossible(run, chains)
    found = run_on(past_the_check(run, "compiled"), inputs)
    assert found.log_ratios.isnan().any()
    assert_same(found, run_on(run, inputs))


def test_functions_are_compiled_at_their_first_call_for_any_values_and_strides():
    compiler = module.Compiler()
    called = compiler(lambda values, shift: (values.T, values.exp() + shift))
    assert compiler.count == 0
    for turns in range(2):
        for pair in torch.randn(3, 2, 4, 4):
            values, shift = pair.mT if turns else pair
            turned, moved = called(values, shift)
            assert torch.equal(turned, values.T)
            torch.testing.assert_close(moved, values.exp() + shift)
    assert compiler.count == 1
    assert compiler.seconds > 0


def test_it_waits_for_nobody_who_makes_a_bar():
    """A process that was forked meanwhile would wait for ever, for what never lets go."""
    compiler, found = module.Compiler(), []
    called = compiler(lambda values: (values.cos().exp(),))
    with tqdm.get_lock():
        other = threading.Thread(target=lambda: found.extend(called(torch.zeros(3))), daemon=True)
        other.start()
        other.join(60.0)
        assert found
    torch.testing.assert_close(found[0], torch.full((3,), torch.e))


def test_numbers_are_rounded_where_the_model_rounds_them():
    called = module.Compiler()(lambda values: ((4 * values).exp().half().float(),))
    for values in (torch.tensor([0.1, 2.0]), torch.tensor([3.0, 1.0])):
        assert torch.equal(called(values)[0], (4 * values).exp().half().float())


def test_threads_may_compile_at_once():
    compiler, found = module.Compiler(), []

    def compile_one(number):
        found.append(compiler(lambda values: (values.cos() + number,))(torch.zeros(3))[0])

    threads = [threading.Thread(target=compile_one, args=[number]) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(float(values[0]) for values in found) == [1.0, 2.0, 3.0]


def test_nothing_of_the_compiler_is_loaded_before_it_is_needed():
    """It takes seconds, and fails where it cannot make a folder."""
    code = "import sys, pyro_fnbg; print('torch._dynamo' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def compile_anew(results):
    """Compile what no cache has."""
    number = random.SystemRandom().random()
    values = torch.ones(3)
    results.put(
        torch.allclose(
            module.Compiler()(lambda one: (one.exp() + number,))(values)[0], values.exp() + number
        )
    )


def test_a_process_that_is_forked_later_compiles_as_well():
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    compile_anew(results)
    worker = context.Process(target=compile_anew, args=[results], daemon=True)
    worker.start()
    assert [results.get(timeout=60.0) for _ in range(2)] == [True, True]
    worker.join()


def reason_of(model, warmup_steps, *args, **options):
    kernel = FNBG(model, **options)
    kernel.setup(warmup_steps, *args)
    return kernel.engine, kernel.diagnostics()["reason for the engine"]


@pytest.mark.slow
def test_long_runs_are_compiled(monkeypatch):
    """By their warmup, which is known in every way to run; 3 sites have a block each."""
    monkeypatch.setattr(choice, "STEPS_THAT_PAY", 10)
    engine, reason = reason_of(horseshoe, 10, X, Y)
    assert engine == "compiled"
    assert "the fastest that applies" in reason
    assert "4 of its functions were compiled in" in reason
    assert reason_of(horseshoe, 9, X, Y)[0] == "captured"
    assert reason_of(horseshoe, 10, X, Y, engine="captured")[0] == "captured"


def test_a_network_is_compiled_when_asked_for():
    engine, reason = reason_of(by_hand, 0, X, Y, engine="compiled")
    assert engine == "compiled"
    assert reason.startswith("asked for by engine='compiled'; ")


def no_compiler(*_):
    raise RuntimeError("InvalidCxxCompiler: none of these was found: g++\nat once")


def test_where_there_is_no_compiler(monkeypatch):
    monkeypatch.setattr(choice, "STEPS_THAT_PAY", 10)
    monkeypatch.setattr(torch._inductor, "compile", no_compiler)
    engine, reason = reason_of(horseshoe, 10, X, Y)
    assert engine == "captured"
    assert "torch's compiler fails: InvalidCxxCompiler: none of these was found: g++;" in reason
    assert "\n" not in reason
    message = "engine='compiled' cannot run this model: torch's compiler fails: InvalidCxx"
    with pytest.raises(ValueError, match=message):
        FNBG(horseshoe, engine="compiled").setup(0, X, Y)


def test_what_cannot_be_captured_is_not_compiled():
    def branches(x, y=None):
        weight = pyro.sample("weight", pyro.distributions.Normal(0.0, 1.0))
        mean = x[:, 0] * (weight if weight > 0 else 2 * weight)
        pyro.sample("y", pyro.distributions.Normal(mean, 0.5).to_event(1), obs=y)

    inputs = X.float(), Y.float()
    with pytest.raises(
        ValueError, match="engine='compiled' cannot run this model: it takes values"
    ):
        FNBG(branches, engine="compiled").setup(0, *inputs)
    engine, reason = reason_of(branches, choice.STEPS_THAT_PAY, *inputs)
    assert engine == "trace"
    assert "compiled" not in reason


@pytest.mark.slow
def test_chains_have_the_draws_of_the_captured_engine():
    draws = []
    for engine in ("captured", "compiled"):
        pyro.set_rng_seed(0)
        mcmc = MultiChainMCMC(
            FNBG(lattice, engine=engine, batch_size=10),
            num_samples=20,
            warmup_steps=20,
            num_chains=2,
            disable_progbar=True,
        )
        mcmc.run(X, Y)
        draws.append(mcmc.get_samples(group_by_chain=True))
    for site, values in draws[0].items():
        assert torch.equal(values, draws[1][site])
