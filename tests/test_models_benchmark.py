"""Models as users write them: the engine of choice takes trace's decisions, and the tables hold."""

import sys

import numpy as np
import pytest
import torch

from benchmarks.models import __main__ as command
from benchmarks.models import lenet
from benchmarks.models.agreement import Effort, compare
from benchmarks.models.cases import CASES
from benchmarks.models.page import page
from benchmarks.models.records import path_of
from benchmarks.models.speed import Length, blocks_of_network
from benchmarks.report import read_records
from pyro_fnbg import FNBG
from pyro_fnbg.chains.setup import Run
from pyro_fnbg.testing import make_inputs
from support.engines import assert_as_trace
from support.images import write_images

ROWS = 30
NETWORKS = [name for name, make in CASES.items() if make().network is not None]


@pytest.fixture
def double():
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(kept)


def set_up(model, args, **options):
    kernel = FNBG(model, **options)
    kernel.setup(0, *args)
    return Run(kernel.problem, kernel.state)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_engine_of_choice_takes_the_decisions_of_trace(name, double):
    case = CASES[name]()
    run = set_up(case.model, case.first_rows(ROWS))
    assert run.problem.engine.name != "trace"
    record = assert_as_trace(run, make_inputs(run, sweeps=3, scale=0.1))
    assert 0 < int(record.accepted.sum()) < record.accepted.numel()


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_the_density_and_the_blocks_of_their_models(name, double):
    case = CASES[name]()
    args = case.first_rows(ROWS)
    run = set_up(case.model, args)
    blocks = blocks_of_network(case, run.problem.partition, run.problem.sites.layout)
    other = set_up(case.network, args, blocks=blocks)
    for shift in (0.0, 0.3):
        position = run.chain.position + shift
        theirs = torch.empty_like(position)
        pairs = zip(run.problem.partition.indices, other.problem.partition.indices, strict=True)
        for index, index_of_network in pairs:
            theirs[index_of_network] = position[index]
        found, expected = (
            one.problem.density.on(None)(where).log_density
            for one, where in ((run, position), (other, theirs))
        )
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_differences_are_in_standard_errors():
    generator = np.random.default_rng(0)
    one, other = generator.normal(size=(2, 4, 1000))
    found = compare({"a": one}, {"a": other + 0.1})["a"]
    # Independent draws: each mean has the error 1 / sqrt(4000)
    assert found["fnbg_error"] == pytest.approx(4000**-0.5, rel=0.1)
    difference = one.mean() - other.mean() - 0.1
    assert found["z"] == pytest.approx(difference / (2 / 4000) ** 0.5, rel=0.1)
    assert abs(found["z"]) > 3


def speed_record(name, engine, auto, network=None):
    speeds = {"trace": [10.0, 20.0], "auto": [10.0 * auto, 20.0 * auto]}
    if engine == "captured":
        speeds["compiled"] = [30.0 * auto, 60.0 * auto]
    if network is not None:
        speeds["network"] = [10.0 * auto / network, 20.0 * auto / network]
    return {
        "name": name,
        "engine": engine,
        "network_engine": "fused" if network else None,
        "blocks": 1,
        "parameters": 2,
        "rows": 3,
        "setup_seconds": {"trace": 0.1, "auto": 0.2, "compiled": 5.0},
        "sweeps_a_second": speeds,
        "length": Length()._asdict(),
        "machine": "a machine",
        "versions": "1",
    }


def test_the_page_says_what_is_reached_and_what_is_not():
    text = page(
        [
            speed_record("mixture density", "captured", 0.5),
            speed_record("horseshoe regression", "captured", 6.0),
            speed_record("deep regression", "fused", 100.0, 0.95),
            speed_record("lifted Sequential", "fused", 100.0, 0.5),
            speed_record("counts, Poisson", "captured", 4.0, 0.01),
        ],
        [],
    )
    assert "- Slower than before: mixture density\n" in text
    assert "networks: 2, of which 1 are within a tenth of `BayesianMLP`; not: lifted Seq" in text
    assert "Of the 3 others, 1 are 5 times as fast as before or more; not: counts, P" in text
    assert (
        "Of the 3 compiled, 2 are 5 times as fast as before or more; not: mixture density" in text
    )


def agreement_record(name, r_hat, z):
    effort = Effort()._asdict()
    mean = {"fnbg": 0.0, "nuts": 0.0, "fnbg_error": 1.0, "nuts_error": 1.0, "z": z}
    return {
        "name": name,
        "rows": 100,
        "effort": effort,
        "fnbg": {"engine": "captured", "sweeps": 10, "thin": 1, "seconds": 1.0, "r_hat": r_hat},
        "nuts": {"seconds": 1.0, "draws": 2, "r_hat": 1.0},
        "quantities": {"sigma": mean},
        "versions": "1",
    }


def test_chains_that_have_not_converged_are_not_compared():
    records = [agreement_record("ordinal", 1.2, 9.0), agreement_record("deep regression", 1.0, 2.5)]
    text = page([], records)
    assert "9.0" not in text
    assert "Compared: 1 models of 2, 1 means. 100.0 %" in text
    assert "2.5 (sigma)" in text


@pytest.mark.slow  # a benchmark is run by hand
@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("name", "sizes", "timed"),
    [
        ("deep regression", (41, 451, 442), {"trace", "auto", "network"}),
        ("hierarchical regression, no network", (7, 29, 240), {"trace", "auto", "compiled"}),
    ],
)
def test_the_command_keeps_records_and_writes_the_page(name, sizes, timed, tmp_path, monkeypatch):
    effort = Effort(chains=2, draws=5, nuts_warmup=5, least_nuts_draws=3, most_nuts_draws=5)
    monkeypatch.setattr(command, "Effort", lambda **given: effort._replace(**given))
    files = ["--results", tmp_path / "records", "--page", tmp_path / "page.md", "--models", name]
    times = ["--turns", 2, "--seconds", 0.001]
    for options in (times, ["--agreement", "--seconds", 6.0], ["--agreement", "--seconds", 6.0]):
        monkeypatch.setattr(sys, "argv", ["models", *map(str, [*files, *options])])
        command.main()
        # What has a record is not compared again
        if "--agreement" in options:
            monkeypatch.setattr(command, "run_agreement", None)
    speeds, agreements = (
        read_records(tmp_path / "records" / kind) for kind in ("speed", "agreement")
    )
    assert [record["name"] for record in speeds + agreements] == [name, name]
    assert tuple(speeds[0][what] for what in ("blocks", "parameters", "rows")) == sizes
    turns = {who: len(found) for who, found in speeds[0]["sweeps_a_second"].items()}
    assert turns == dict.fromkeys(timed, 2)
    assert agreements[0]["nuts"]["draws"] == 5
    assert path_of(tmp_path / "records" / "speed", name).exists()
    assert (tmp_path / "page.md").read_text("utf-8") == page(speeds, agreements)


@pytest.mark.slow
def test_lenet_is_fitted_sampled_and_told_of(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    pixels = [generator.integers(0, 256, (size, 28, 28)) for size in (120, 40)]
    write_images(tmp_path, "MNIST", *pixels, *(np.arange(size) % 10 for size in (120, 40)))
    # Each look at the clock is a second later than the one before: 1 s of fits, of set-up, a sweep
    clock = iter(range(10_000))
    monkeypatch.setattr(lenet.time, "process_time", lambda: next(clock))
    monkeypatch.setattr(lenet, "CHECKS", 4)
    options = [
        "--data", tmp_path, "--results", tmp_path, "--seconds", 10, "--fit-steps", 2,
        "--warmup", 3, "--batch-size", 50,
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["lenet", *map(str, options)])
    small = lenet.LeNet((2, 2), 3)
    monkeypatch.setattr(lenet, "LeNet", lambda: small)
    lenet.main()
    (record,) = read_records(tmp_path / "lenet")
    assert record["engine"] == "captured"
    assert record["sweeps"] == 8
    assert [each["networks"] for each in record["course"]] == [0, 2, 4]
    assert list(record["course"][-1]["acceptance"]) == ["conv1", "conv2", "fc", "out"]
    text = page([], [], [record])
    assert "Acceptance by layer: conv1" in text
    assert "| 10 | 8 | 4 | 10.00 % |" in text
