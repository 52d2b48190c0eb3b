"""What is told of an installation, what importing loads, and what is said of the version."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pyro_fnbg

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
# Needed only by what uses them, and slow to import
LATER = {"arviz", "matplotlib", "pandas", "pytest", "sklearn", "torchmetrics", "xarray", "zarr"}


def test_versions_of_all_dependencies_are_shown(capsys):
    pyro_fnbg.show_versions()
    told = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    named = {re.match(r"[\w-]+", line).group() for line in PROJECT["dependencies"]}
    assert named <= told.keys()
    assert told["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert told["pyro-fnbg"] == pyro_fnbg.__version__
    assert "ruff" not in told


def test_what_few_need_is_not_imported_at_once():
    code = "import sys, pyro_fnbg; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    loaded = set(done.stdout.split())
    assert "pyro_fnbg.kernel" in loaded, done.stderr
    assert not (LATER | {"pyro_fnbg.testing"}) & loaded


def test_every_place_that_has_the_version_has_the_same():
    assert f"version: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    first = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert first.group(1) == PROJECT["version"]


def test_the_page_has_every_lower_bound():
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (\S+) \| (\S+) \|", page, flags=re.MULTILINE))
    bounds = dict(line.split(">=") for line in PROJECT["dependencies"])
    assert bounds.items() <= rows.items()
