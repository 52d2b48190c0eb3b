"""The benchmarks can be collected and, where what they need is installed, run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.report import page
from benchmarks.tables import TABLES

ROOT = Path(__file__).resolve().parents[1]


def run_pytest(*arguments):
    environment = {n: v for n, v in os.environ.items() if not n.startswith("PYTEST_")}
    environment |= {"BENCH_LENGTH": "smoke", "BENCH_DATA": "", "OMP_NUM_THREADS": "1"}
    options = ["-q", "-o", "python_files=bench_*.py", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "tests/benchmarks", *options, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow  # a benchmark is run by hand
def test_every_file_is_collected_without_what_only_benchmarks_need():
    done = run_pytest("--collect-only", "-p", "no:benchmark")
    assert done.returncode == 0, done.stdout + done.stderr
    files = {path.name for path in (ROOT / "tests" / "benchmarks").glob("bench_*.py")}
    assert files == {name for name in files if f"{name}::" in done.stdout}


@pytest.mark.slow  # a benchmark is run by hand
def test_prediction_speed_times_everything_but_what_is_not_installed():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.prediction_speed", "--draws", "30", "--rows", "20"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": "tests", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for name in ("marginal_predictive", "predict", "own network"):
        assert min(found[name]["seconds"], found[name]["floor"]) > 0


@pytest.mark.slow
def test_everything_runs_and_fills_every_table(tmp_path):
    pytest.importorskip("pytest_benchmark")
    pytest.importorskip("eeyore")
    output = tmp_path / "bench.json"
    done = run_pytest(f"--benchmark-json={output}", "--benchmark-quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads(output.read_text("utf-8"))
    assert "node" not in run["machine_info"]
    assert all(f"## {table.title}" in page(run) for table in TABLES.values())


@pytest.mark.slow  # a benchmark is run by hand
def test_store_cost_measures_every_driver():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.store_cost", "xor", "20", "--turns", "1"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "tests"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines()]
    assert [row["who"] for row in rows] == ["memory", "store", "stock"]
    assert [row["disk_mb"] > 0 for row in rows] == [False, True, False]
    assert all(row["seconds"] > 0 for row in rows)
