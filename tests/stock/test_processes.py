"""Chains in worker processes: the same draws as in turn, and every trouble ends in seconds."""

import functools
import subprocess
import sys
import textwrap

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.infer.mcmc.api as api
import pytest
import torch
from pyro.infer import MCMC

from pyro_fnbg import FNBG, BayesianMLP
from support.slow import slowly

NET = BayesianMLP([2, 3, 3], likelihood="categorical")

FORK_OR_SLOW_SPAWN = ["fork", slowly("spawn")]

pytestmark = [
    # A fork in a process that has threads (Pyro's logger is one) is what Python 3.12 warns of
    pytest.mark.filterwarnings("ignore:.*use of fork.*may lead to deadlocks"),
    pytest.mark.usefixtures("limited"),
]


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(40, 2, generator=generator), torch.arange(40) % 3


@pytest.fixture(autouse=True)
def many_cores(monkeypatch):
    """Pyro runs chains in parallel only up to the number of cores minus one."""
    monkeypatch.setattr(api.mp, "cpu_count", lambda: 8)


def run(kernel, *args, method, num_chains=2, seed=3, draws=15, warmup=10, **options):
    if seed is not None:
        pyro.set_rng_seed(seed)
        torch.randn(3)  # a user draws data after seeding
    with pytest.MonkeyPatch.context() as patch:
        if method == "sequential":
            patch.setattr(api.mp, "cpu_count", lambda: 1)
            options |= {"mp_context": None}
        else:
            options |= {"mp_context": method}
        mcmc = MCMC(
            kernel,
            num_samples=draws,
            warmup_steps=warmup,
            num_chains=num_chains,
            disable_progbar=True,
            **options,
        )
        mcmc.run(*args)
    return mcmc


def samples(*args, **options):
    return run(*args, **options).get_samples(group_by_chain=True)


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.filterwarnings("ignore:num_chains=:UserWarning")
@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.slow
def test_the_same_draws_in_turn_forked_and_spawned(data, batch_size):
    runs = {
        method: run(FNBG(NET, batch_size=batch_size), *data, method=method)
        for method in ("sequential", "fork", "spawn")
    }
    expected = runs["sequential"].get_samples(group_by_chain=True)
    assert not same({n: v[0] for n, v in expected.items()}, {n: v[1] for n, v in expected.items()})
    for method in ("fork", "spawn"):
        assert same(expected, runs[method].get_samples(group_by_chain=True)), method
        for chain in range(2):
            found, known = (runs[m]._diagnostics[chain] for m in (method, "sequential"))
            np.testing.assert_equal(found, known)


def stay(y):
    a = pyro.sample("a", dist.Normal(torch.zeros(2), 100.0).to_event(1))
    pyro.sample("s", dist.HalfNormal(100.0))
    pyro.sample("y", dist.Normal(a.sum(), 100.0), obs=y)


@pytest.mark.filterwarnings("ignore:num_chains=:UserWarning")
@pytest.mark.parametrize(
    ("method", "num_chains"),
    [("sequential", 3), ("fork", 3), slowly("spawn", 2)],
)  # a spawned chain takes two seconds
def test_initial_params_reach_their_chain(method, num_chains):
    start = {"a": torch.arange(6.0).reshape(3, 2) * 10, "s": torch.tensor([1.0, 2.0, 3.0])}
    start = {name: value[:num_chains] for name, value in start.items()}
    kernel = FNBG(stay, proposal_scale=1e-4, adapt=False)
    options = {"method": method, "num_chains": num_chains, "draws": 2, "warmup": 0}
    found = samples(kernel, torch.ones(3), initial_params=start, **options)
    assert torch.allclose(found["a"][:, 0], start["a"], atol=0.01)
    assert torch.allclose(found["s"][:, 0], start["s"].exp(), rtol=0.01)
    # The next run of this kernel does not inherit them, and takes its own
    again = samples(kernel, torch.ones(3), **options)
    assert not torch.isclose(again["a"][:, 0], start["a"], atol=1.0).any()
    if method != "spawn":
        other = {name: value.flip(0).contiguous() for name, value in start.items()}
        found = samples(kernel, torch.ones(3), initial_params=other, **options)
        assert torch.allclose(found["a"][:, 0], other["a"], atol=0.01)


@pytest.mark.parametrize("method", FORK_OR_SLOW_SPAWN)
def test_a_parallel_run_that_failed_leaves_no_initial_params_to_the_next(method):
    start = {"a": torch.full((2, 2), 500.0), "s": torch.zeros(2)}
    kernel = FNBG(stay, proposal_scale=1e-4, adapt=False)
    wrong = {"a": torch.full((2, 3), 500.0), "s": torch.zeros(2)}
    with pytest.raises(ValueError, match="initial_params.'a'. must have the unconstrained shape"):
        run(kernel, torch.ones(3), method=method, initial_params=wrong)
    found = samples(kernel, torch.ones(3), method=method, initial_params=start, warmup=0)
    assert torch.allclose(found["a"], torch.full((), 500.0), atol=0.1)
    # and nothing to one that has none of its own
    with pytest.raises(ValueError, match="'a'"):
        run(kernel, torch.ones(3), method=method, initial_params=wrong)
    found = samples(kernel, torch.ones(3), method=method, warmup=0)
    assert not torch.isclose(found["a"], torch.full((), 500.0), atol=1.0).any()


def uniform(top):
    pyro.sample("z", dist.Uniform(torch.zeros(()), top))
    pyro.factor("no data", torch.zeros(()))


@pytest.mark.parametrize("method", FORK_OR_SLOW_SPAWN)
def test_a_kernel_used_before_in_turn_has_the_new_runs_transforms(method):
    kernel = FNBG(uniform)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api.mp, "cpu_count", lambda: 1)
        MCMC(kernel, num_samples=5, warmup_steps=5, disable_progbar=True).run(torch.tensor(1.0))
    found = samples(kernel, torch.tensor(100.0), method=method, draws=200)
    assert found["z"].max() > 10


@pytest.mark.parametrize(
    ("method", "seeds"),
    [("fork", (3, None, None)), slowly("spawn", (3, None))],
)
def test_parallel_runs_of_one_kernel_without_a_new_seed_give_other_draws(data, method, seeds):
    kernel = FNBG(NET)
    runs = [samples(kernel, *data, method=method, seed=seed)["layer1.weight"] for seed in seeds]
    weights = torch.cat(runs)
    assert len({tuple(weight.reshape(-1).tolist()) for weight in weights}) == 2 * len(seeds)


def test_new_kernels_without_a_new_seed_give_other_draws(data):
    runs = [samples(FNBG(NET), *data, method="fork", seed=seed) for seed in (3, None)]
    for one in range(2):
        for other in range(2):
            assert not torch.equal(runs[0]["layer1.weight"][one], runs[1]["layer1.weight"][other])


@pytest.mark.filterwarnings("ignore:num_chains=:UserWarning")
def test_chains_in_turn_without_a_new_seed_give_other_draws_and_with_it_the_same(data):
    kernel = FNBG(NET)
    first, second, third = (
        samples(kernel, *data, method="sequential", seed=seed) for seed in (3, None, 3)
    )
    assert same(first, third)
    weights = torch.cat([first["layer1.weight"], second["layer1.weight"]])
    assert len({tuple(w.reshape(-1).tolist()) for w in weights}) == 4


@pytest.mark.parametrize("method", FORK_OR_SLOW_SPAWN)
def test_hooks_and_save_params_work_in_workers(data, method, tmp_path):
    hook = functools.partial(_note, tmp_path)
    mcmc = run(
        FNBG(NET),
        *data,
        method=method,
        draws=3,
        warmup=2,
        save_params=["layer1.bias"],
        hook_fn=hook,
    )
    assert set(mcmc.get_samples()) == {"layer1.bias"}
    for chain in range(2):
        lines = (tmp_path / str(chain)).read_text().splitlines()
        stages = [*(f"Warmup {i}" for i in range(2)), *(f"Sample {i}" for i in range(3))]
        names = "layer1.bias layer1.weight layer2.bias layer2.weight"
        assert lines == [
            f"{stage} {names} {sweeps}" for sweeps, stage in enumerate(stages, start=1)
        ]


def _note(folder, kernel, params, stage, i):
    with open(folder / str(kernel.state.key.chain), "a") as file:
        file.write(f"{stage} {i} {' '.join(sorted(params))} {kernel.state.sweeps}\n")


def fails_late(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(a, 1.0), obs=y)
    fails_late.calls = getattr(fails_late, "calls", 0) + 1
    if fails_late.calls > 150:
        raise OSError("bad block on disk")


@pytest.mark.parametrize("method", FORK_OR_SLOW_SPAWN)
def test_a_model_error_in_a_worker_reaches_the_user(method):
    with pytest.raises(OSError, match="bad block on disk"):
        run(FNBG(fails_late, engine="trace"), torch.ones(3), method=method, draws=500)


def run_script(text, timeout=100, **options):
    return subprocess.run(
        [sys.executable, "-W", "ignore", *options.pop("arguments", ["-"])],
        input=textwrap.dedent(text),
        capture_output=True,
        text=True,
        timeout=timeout,
        **options,
    )


@pytest.mark.slow  # in a process of its own
def test_a_fork_after_the_parent_used_two_threads_ends(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch, pyro
            import pyro.infer.mcmc.api as api
            from pyro.infer import MCMC
            from pyro_fnbg import FNBG, BayesianMLP
            api.mp.cpu_count = lambda: 4
            torch.set_num_threads(2)
            a = torch.randn(1500, 1500)
            (a @ a).sum()                      # the parent's threads are started
            x, y = torch.randn(4000, 64), torch.randint(0, 3, (4000,))
            model = BayesianMLP([64, 32, 3], likelihood="categorical")
            kernel = FNBG(model, batch_size=2000, blocks="layer")
            kernel.setup(0, x, y)
            kernel.sample(kernel.initial_params)
            mcmc = MCMC(kernel, num_samples=3, warmup_steps=2, num_chains=2, mp_context="fork",
                        disable_progbar=True)
            mcmc.run(x, y)
            print(tuple(mcmc.get_samples(group_by_chain=True)["layer1.weight"].shape))
            """
        )
    )
    done = run_script("", arguments=[str(script)])
    assert done.returncode == 0, done.stderr
    assert "(2, 3, 32, 64)" in done.stdout


def test_a_spawn_from_a_session_without_a_file_is_refused_in_seconds():
    done = run_script(
        """
        import torch, pyro
        import pyro.distributions as dist
        import pyro.infer.mcmc.api as api
        from pyro.infer import MCMC
        from pyro_fnbg import FNBG
        api.mp.cpu_count = lambda: 4

        def model():
            pyro.sample("a", dist.Normal(0.0, 1.0))

        MCMC(FNBG(model), num_samples=3, num_chains=2, mp_context="spawn").run()
        """
    )
    assert done.returncode == 1
    assert "RuntimeError: model needs 'model', which is defined in an interactive" in done.stderr
    assert "mp_context='fork'" in done.stderr
