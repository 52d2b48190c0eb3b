"""Samplers get the same networks, and the page has a line for each, or what stopped it."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from benchmarks.samplers import __main__ as command
from benchmarks.samplers.page import OURS, SAMPLERS, page
from benchmarks.samplers.problems import PROBLEMS, Problem, network
from benchmarks.uci.fits import predicted
from benchmarks.uci.sets import Split
from pyro_fnbg import predict

RECORD = {
    "problem": "P", "seconds": 2.0, "chains": 4, "is_warm": True, "rows": 8, "test": 2,
    "machine": "M", "versions": "V",
}  # fmt: skip
WALK = next(iter(OURS))


def test_a_page_of_two_rows():
    done = RECORD | {
        "sampler": WALK,
        "status": "done",
        "diagnostics": {"ess_median": 40.0, "ess_min": 10.0, "r_hat_max": 1.5},
        "scores": {"lppd": -0.25},
        "about": {"core_seconds": 4.0, "steps": 1000},
    }
    other = done | {
        "sampler": "FNBG, pcn",
        "diagnostics": {"ess_median": 60.0, "ess_min": 10.0, "r_hat_max": 1.05},
    }
    failed = RECORD | {"sampler": "NUTS", "status": "RuntimeError: after 3 iterations"}
    lines = page([failed, other, done]).splitlines()
    assert f"|  | {WALK} | FNBG, pcn |" in lines
    assert "| P | 10\\* | 1.5 |" in lines
    assert "## P, from fits" in lines
    assert f"| {WALK} | 10 | 2.5 | 10 | 1.50 | -0.250 | 1,000 |" in lines
    # In the order of samplers, not of files
    assert lines[-1] == "| NUTS |  |  |  |  |  | after 3 iterations |"


@pytest.mark.parametrize("name", PROBLEMS)
def test_networks_are_those_of_the_titles(name):
    problem = PROBLEMS[name]
    model = network(problem.about())
    assert f"MLP({','.join(map(str, model.widths))})" in name
    can_run = {who for who in SAMPLERS if command.can_run(who, problem)}
    is_drawn, has_relu = name.startswith("diabetes"), problem.activation == "relu"
    assert can_run >= {WALK, "FNBG, pcn"}
    assert ("FNBG, gibbs" in can_run) == is_drawn
    assert ("FNBG, walk, rescaled" in can_run) == has_relu
    assert ("FNBG, auto" in can_run) == (is_drawn or has_relu)
    assert ("NUTS" in can_run) == (problem.has_peers and "steps" not in name)


def test_scales_that_are_sampled_and_scales_of_the_network_are_predicted():
    x = torch.randn(3, 2)
    for widths, is_output in (((2, 2, 1), False), ((2, 2, 2), True)):
        problem = replace(
            next(iter(PROBLEMS.values())),
            widths=widths,
            likelihood="normal",
            has_network_scale=is_output,
        )
        model = network(problem.about())
        samples = {
            name: torch.randn(2, 5, *shape) for name, shape in model.parameter_shapes.items()
        }
        if not is_output:
            samples["obs_scale"] = torch.rand(2, 5) + 0.1
        found = predicted(model, samples, x, {})
        one = {name: values[1, 4:] for name, values in samples.items()}
        y = torch.tensor([0.3, -0.2, 0.9])
        expected = predict(model, one, x, y).log_density.float()
        response = Normal(*(torch.tensor(v[1, 4]) for v in (found.means, found.scales)))
        torch.testing.assert_close(response.log_prob(y), expected)


@pytest.mark.slow  # a benchmark is run by hand
def test_a_row_runs_in_a_process_of_its_own(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    rows = Split(*(rng.normal(size=n) for n in ((20, 2), 20, (5, 2), 5)), 0)
    problem = Problem(lambda _: rows, (2, 2, 1), likelihood="normal", seconds=0.05)
    monkeypatch.setitem(command.PROBLEMS, "P", problem)
    monkeypatch.setattr(command, "DRAWS", 20)
    names = {"results": tmp_path / "results", "output": tmp_path, "page": tmp_path / "page.md"}
    options = [f"--{name}={path}" for name, path in names.items()]
    argv = ["samplers", "--data", ".", "--problems", "P", "--samplers", WALK, *options]
    monkeypatch.setattr(sys, "argv", argv)
    command.main()
    first = names["page"].read_text("utf-8")
    assert f"\n| {WALK} | " in first
    monkeypatch.setattr(command, "run", None)  # what is done is not run again
    command.main()
    assert names["page"].read_text("utf-8") == first
