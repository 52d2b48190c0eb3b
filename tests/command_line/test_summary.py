"""What is told of a store is what its run says, and what readers must know."""

import numpy as np
import pytest

from pyro_fnbg import FNBG, diagnose_predictions, store_predictions
from pyro_fnbg.command_line import summary as module
from pyro_fnbg.command_line.info import lines_of
from pyro_fnbg.command_line.summary import Summary
from pyro_fnbg.stores.contents import Contents
from support.drivers import drive
from support.stores import NET, SIZES, X, Y, go_on


def summary_of(path):
    return Summary(Contents.read(path))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("stores") / "run"
    return path, drive(FNBG(NET, batch_size=7), X, Y, store=path, **SIZES)


def test_numbers_are_those_of_the_run(run):
    path, mcmc = run
    found = summary_of(path)
    assert found.is_complete
    assert found.target == mcmc.kernel.target
    assert found.progress == "40 of 40 draws of each chain"
    assert found.facts["batches"] == "7 of 30 rows"
    assert found.facts["data"] == "obs (30,) float32"
    assert found.facts["warmup"] == "12 sweeps"
    assert found.facts["thin"] == "1 sweep a draw"
    assert found.facts["moves"].startswith("walk of ")
    assert found.sites["layer1.weight"] == "(3, 2) float32"
    assert found.origin["random streams"] == "0, 1, 2"
    rates = [one["acceptance rate by layer"]["layer2"] for one in mcmc._diagnostics]
    noise = [
        one["share of decisions that another batch would reverse"]["layer2"]
        for one in mcmc._diagnostics
    ]
    row = found.layers[1]
    assert row.layer == "layer2"
    assert (row.least, row.largest) == (min(rates), max(rates))
    assert row.rate == pytest.approx(np.mean(rates))
    assert row.reversed_share == pytest.approx(np.mean(noise))


def test_predictions_are_diagnosed_as_those_of_a_run_are(tmp_path):
    mcmc = drive(FNBG(NET), X, Y, store=tmp_path / "run", **SIZES)
    assert summary_of(tmp_path / "run").diagnosed is None
    store_predictions(tmp_path / "run", NET, X[:5], progress=False)
    found = summary_of(tmp_path / "run")
    diagnostics, which = found.diagnosed
    expected = diagnose_predictions(NET, mcmc.get_samples(), X[:5], num_chains=3).summary
    assert diagnostics.summary == pytest.approx(expected, rel=1e-4)
    assert which == "5 rows, under 40 draws of each of 3 chains"
    assert any(line.startswith("R-hat of predictions is up to ") for line in found.cautions)
    go_on(tmp_path / "run", FNBG(NET), X, Y, more_samples=5)
    assert any("are older than the draws" in line for line in summary_of(tmp_path / "run").cautions)


def test_of_many_rows_as_many_are_diagnosed_as_memory_allows(tmp_path, monkeypatch):
    drive(FNBG(NET), X, Y, store=tmp_path / "run", num_chains=2)
    store_predictions(tmp_path / "run", NET, X[:10], progress=False)
    monkeypatch.setattr(module, "MAX_NUMBERS", 3 * 2 * 20 * 2)
    found = summary_of(tmp_path / "run")
    assert found.rows_diagnosed.tolist() == [0, 4, 9]
    diagnostics, which = found.diagnosed
    assert diagnostics.estimates.sizes["row"] == 3
    assert which.startswith("3 of 10 rows, ")


def test_a_run_with_nothing_to_say_against_it_has_no_cautions(tmp_path):
    drive(FNBG(NET), X, Y, store=tmp_path / "run", num_chains=2)
    assert summary_of(tmp_path / "run").cautions == []


def test_a_target_that_is_not_the_posterior_and_one_chain_are_warned_of(tmp_path):
    drive(FNBG(NET, batch_size=7), X, Y, store=tmp_path / "run")
    target, one = summary_of(tmp_path / "run").cautions
    assert target.endswith("the nominal likelihood temperature is 4.286")
    assert one == "there is one chain: whether others would agree with it is not known"


def test_blocks_are_warned_of_as_after_the_run(tmp_path):
    with pytest.warns(UserWarning, match="hardly moved") as told:
        drive(
            FNBG(NET, proposal_scale=1e6, adapt=False),
            X,
            Y,
            store=tmp_path / "run",
            draws=100,
            num_chains=2,
        )
    assert [str(one.message) for one in told] == summary_of(tmp_path / "run").cautions


def test_a_run_that_was_stopped_says_how_far_it_is(tmp_path):
    def hook(kernel, params, stage, i):
        if (stage, i) == ("Sample [1]", 9):
            raise ZeroDivisionError

    options = {"store": tmp_path / "run", "hook_fn": hook, "chain_method": "sequential"}
    with pytest.raises(ZeroDivisionError):
        drive(FNBG(NET), X, Y, num_chains=3, **options)
    found = summary_of(tmp_path / "run")
    assert not found.is_complete
    assert found.facts["chains"] == "1 of 3"
    assert found.progress == "20 of 20 draws of each chain that is shown; 0 to 20 of all"
    assert any(line.startswith("chains [1, 2] have so few draws") for line in found.cautions)


def test_before_the_first_draw_the_warmup_is_told(tmp_path):
    def hook(kernel, params, stage, i):
        if i == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drive(FNBG(NET), X, Y, store=tmp_path / "run", hook_fn=hook, warmup=50)
    found = summary_of(tmp_path / "run")
    assert found.progress == "no draws yet: the chains have made 4 of 50 sweeps of warmup"
    assert found.layers == []
    assert "acceptance" not in "\n".join(lines_of(found))


def test_lines_are_no_wider_than_a_terminal(run):
    lines = "\n".join(lines_of(summary_of(run[0]))).splitlines()
    assert lines[0] == str(run[0])
    assert max(map(len, lines[1:])) <= 88
    assert any(line.startswith("  layer1  ") for line in lines)


def test_without_predictions_it_says_that_agreement_is_not_known(run):
    text = " ".join("\n".join(lines_of(summary_of(run[0]))).split())
    assert "none are stored, so whether chains agree is not known: store_predictions(" in text
