"""What the README shows works as it is written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.slow import slowly

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
CODE_BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def run_code(code, folder):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("kernel", [slowly("FNBG(model)"), "FNBG(model, batch_size=100)"])
def test_swap_in_example_runs(kernel, tmp_path):
    assert "FNBG(model)" in CODE_BLOCKS[0]
    # A node may be stuck where chance puts it, which is warned of: the same chance each time
    seeded = CODE_BLOCKS[0].replace("x = torch.rand(", "pyro.set_rng_seed(1)\nx = torch.rand(")
    code = seeded.replace("FNBG(model)", kernel)
    assert code.count("set_rng_seed") == 1
    done = run_code(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "hidden.weight[3,1]" in done.stdout
    assert "output.weight[1,3]" in done.stdout


@pytest.mark.parametrize("code", [CODE_BLOCKS[1], *map(slowly, CODE_BLOCKS[2:])])
def test_other_examples_run(code, tmp_path):
    # The same chance each time, as above
    done = run_code(f"import pyro\n\npyro.set_rng_seed(1)\n{code}", tmp_path)
    assert done.returncode == 0, done.stderr


def test_files_that_are_linked_exist():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(links) > 10
    assert all((ROOT / link).exists() for link in links)


def test_it_is_read_in_two_minutes():
    assert len(README.splitlines()) <= 150
