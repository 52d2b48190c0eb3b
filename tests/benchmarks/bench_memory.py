"""Peak memory of many draws, each time in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.lengths import LENGTH
from benchmarks.recording import Label, in_turn, keep, measure

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

WHO = {"MultiChainMCMC": "driver", "pyro.infer.MCMC": "stock"}
CHAINS = 4
CASE = f"{CHAINS} chains x {LENGTH.memory_draws} draws x 8180 parameters"


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="reads peak memory as Linux tells it"
)
@in_turn([(CASE, who) for who in WHO], LENGTH.few_turns)
def test_peak_memory(benchmark: BenchmarkFixture, case: str, who: str, turn: int) -> None:
    probe = partial(run_probe, WHO[who])
    found = measure(benchmark, Label("memory", case, who, turn), probe, LENGTH.memory_draws)
    keep(
        benchmark,
        draws_bytes=found["draws"],
        run_bytes=found["run"],
        run_share=found["run"] / found["draws"],
        samples_share=found["samples"] / found["draws"],
    )


def run_probe(who: str) -> dict[str, int]:
    """Run the probe in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory_probe", who]
    done = subprocess.run(
        [*command, str(CHAINS), str(LENGTH.memory_draws)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found
