"""What users are told: silence where all is well, and the name of what is not."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pyro
import pyro.distributions as dist
import pyro.infer.mcmc.api as api
import pytest
import torch
from pyro.infer import MCMC
from tqdm import tqdm

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, to_arviz
from support.data import three_classes
from support.slow import slowly

# A fork in a process that has threads is what Python 3.12 warns of
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*may lead to deadlocks")

NET = BayesianMLP([4, 5, 3], likelihood="categorical")
ENGINES = ["trace", "feedforward", "fused"]
WAYS = {
    "stock": (MCMC, {}),
    "stock in workers": (MCMC, {"mp_context": "fork"}),
    "vectorized": (MultiChainMCMC, {}),
    "processes": (MultiChainMCMC, {"chain_method": "processes", "mp_context": "fork"}),
}
SPOT = torch.full((2, 3, 2), 0.25)


def needle():
    """The second of three nodes cannot move from where it starts."""
    weight = pyro.sample("w", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
    pyro.factor("needle", -0.5 * ((weight[1] - 0.25) / 1e-7).square().sum())


def broken():
    """The second of three nodes has a log density at its start alone."""
    weight = pyro.sample("w", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
    moved = (weight[1] != 0.25).any()
    pyro.factor("broken", torch.where(moved, torch.tensor(torch.nan), torch.tensor(0.0)))


def run(way, kernel, *data, draws=150, warmup=0, num_chains=2, **options):
    driver, more = WAYS[way]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "num_chains=.*is more than available_cpu")
        patch.setattr(api.mp, "cpu_count", lambda: 8 if "workers" in way else 1)
        mcmc = driver(
            kernel, num_samples=draws, warmup_steps=warmup, num_chains=num_chains,
            disable_progbar=True, **more, **options,
        )  # fmt: skip
        mcmc.run(*data)
    return mcmc


def run_dead(way, model, **options):
    kernel = FNBG(model, proposal_scale=0.5, adapt=False)
    return run(way, kernel, initial_params={"w": SPOT}, **options)


@pytest.mark.parametrize("way", WAYS)
def test_a_healthy_run_without_a_bar_says_nothing(way, capfd):
    pyro.set_rng_seed(1)
    mcmc = run(way, FNBG(NET, batch_size=10), *three_classes(), draws=120, warmup=100)
    mcmc.get_samples()
    to_arviz(mcmc)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("way", ["vectorized", "processes"])
def test_a_dead_block_is_named_once_to_whoever_called_run(way):
    with pytest.warns(UserWarning, match="hardly moved") as caught:
        run_dead(way, needle)
    # Python 3.12 warns of forks, too
    (text,) = [str(one.message) for one in caught if one.category is UserWarning]
    assert "1 of 3 blocks hardly moved in 150 sweeps" in text
    assert "w.node2 (0.00% in chain 0), w.node2 (0.00% in chain 1)" in text


def test_a_dead_block_is_named_by_pyros_driver_for_each_chain_in_turn():
    with pytest.warns(UserWarning, match="hardly moved") as caught:
        run_dead("stock", needle)
    assert len(caught) == 2
    assert all("of w.node2 (0.00%): use more" in str(warning.message) for warning in caught)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*hardly moved:UserWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", [needle, broken])
def test_a_dead_block_is_named_in_the_reports_and_in_arviz(way, model):
    mcmc = run_dead(way, model)
    w = mcmc.get_samples()["w"]
    assert (w[:, 1] == 0.25).all()
    assert (w[-1, [0, 2]] != 0.25).all()
    for report in mcmc._diagnostics:
        rates = report["acceptance rate by block"]
        assert rates["w.node2"] == 0
        assert min(rates["w.node1"], rates["w.node3"]) > 0.3
        failed = report["non-finite candidates"]
        assert failed == ({"w.node2": 150} if model is broken else {})
    data = to_arviz(mcmc)
    assert data["posterior"].attrs["stuck_blocks"] == "w.node2"
    stats = data["chain_stats"].sel(block="w.node2")
    assert stats["acceptance_rate"].values.tolist() == [0, 0]
    assert (stats["non_finite_candidates"] == (150 if model is broken else 0)).all()


def test_a_log_density_that_is_no_number_is_told_as_the_reason():
    with pytest.warns(UserWarning, match=r"was NaN or plus infinity.* \(150 of w.node2\)"):
        run_dead("vectorized", broken)


def test_where_no_block_is_dead_arviz_names_none():
    assert "stuck_blocks" not in to_arviz(run("vectorized", FNBG(NET), *three_classes())).attrs


@pytest.mark.parametrize("engine", [slowly("trace"), *ENGINES[1:]])
def test_a_network_that_cannot_move_is_warned_of_on_every_engine(engine):
    kernel = FNBG(NET, engine=engine, proposal_scale=1e4, adapt=False)
    start = {
        name: torch.zeros(2, *shape)
        for name, shape in (
            ("layer1.weight", (5, 4)), ("layer1.bias", (5,)),
            ("layer2.weight", (3, 5)), ("layer2.bias", (3,)),
        )
    }  # fmt: skip
    with pytest.warns(UserWarning, match="8 of 8 blocks hardly moved.*and 11 more: use more"):
        run("vectorized", kernel, *three_classes(), initial_params=start)


@pytest.mark.parametrize("num_chains", [1, 2])
def test_tables_say_nan_of_what_never_moved_and_nothing_else(num_chains, capfd):
    start = {"w": SPOT if num_chains == 2 else SPOT[0]}
    kernel = FNBG(needle, proposal_scale=0.5, adapt=False)
    mcmc = run("vectorized", kernel, draws=60, num_chains=num_chains, initial_params=start)
    found = mcmc.diagnostics()["w"]
    assert found["n_eff"][1].isnan().all()
    assert found["r_hat"][1].isnan().all()
    assert (found["n_eff"][[0, 2]] > 1).all()
    assert found["r_hat"][[0, 2]].isfinite().all() == (num_chains == 2)
    mcmc.summary()
    out, err = capfd.readouterr()
    assert err == ""
    (row,) = [line.split() for line in out.splitlines() if line.startswith("w[1, 0]")]
    assert list(map(float, row[2:4])) == [0.25, 0]
    assert row[-5:] == ["NaN"] * 5  # Monte Carlo errors, effective sample sizes and R-hat


def test_acceptance_is_that_of_each_chain_alone():
    """A chain that comes after another in the same process does not count the other's moves."""

    def narrow():
        pyro.sample("w", dist.Normal(0.0, 0.02))
        pyro.factor("data", torch.zeros(()))

    pyro.set_rng_seed(3)
    for way in ("stock", "vectorized"):
        mcmc = run(way, FNBG(narrow), warmup=100)
        w = mcmc.get_samples(group_by_chain=True)["w"]
        moved = (w[:, 1:] != w[:, :-1]).double().sum(1)
        for chain, report in enumerate(mcmc._diagnostics):
            # The first draw's own move is not seen in the draws
            accepted = 150 * report["acceptance rate"]
            assert 0 <= round(accepted - float(moved[chain]), 6) <= 1


class Broken:
    """A terminal that is gone."""

    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")

    flush = isatty = fileno = write


@pytest.mark.parametrize("stream", [None, Broken()], ids=["none", "gone"])
def test_a_bar_that_cannot_be_drawn_does_not_cost_the_run(stream, monkeypatch):
    monkeypatch.setattr("sys.stderr", stream)
    mcmc = MultiChainMCMC(FNBG(NET), num_samples=10, warmup_steps=5, num_chains=2)
    mcmc.run(*three_classes())
    assert mcmc.is_complete
    # Nor does it keep the lock that all bars share: who has none cannot release it
    with ThreadPoolExecutor(1) as other:
        other.submit(tqdm.get_lock().acquire, False).result()
        other.submit(tqdm.get_lock().release).result()


def test_a_terminal_that_goes_away_half_way_does_not_cost_the_run(monkeypatch):
    closed = []

    def close(kernel, params, stage, i):
        if (stage, i) == ("Sample", 3):
            closed.append(i)
            monkeypatch.setattr("sys.stderr.write", Broken().write)
            monkeypatch.setattr("sys.stderr.flush", Broken().write)

    mcmc = MultiChainMCMC(FNBG(NET), num_samples=200, warmup_steps=5, hook_fn=close)
    mcmc.run(*three_classes())
    monkeypatch.undo()
    assert closed
    assert mcmc.is_complete
    assert len(mcmc.get_samples()["layer1.bias"]) == 200
